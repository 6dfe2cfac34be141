"""NVTabular operators that the library lacks: ours for Outbrain's features.

They take pandas' and cuDF's frames by one path: columns are looked at as arrays of numpy or cupy. cuDF was not tried.
"""

import warnings
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

import dask
import numpy as np

with warnings.catch_warnings():
    # Said of PyTorch and Triton, which nothing here uses.
    warnings.filterwarnings("ignore", message=".*dtype mappings did not load")
    from merlin.core.dispatch import create_multihot_col
    from nvtabular.ops import Operator, StatOperator

from data.hashing import WEYL_STEP, mix, text_bits
from data.outbrain.similarity import TagVectors

# Partial histories that are merged at a time.
_MERGED_AT_ONCE = 8


class HashIds(Operator):
    """Ids -> rows of an embedding table: mix(id + WEYL_STEP) modulo the table's rows, -1 stays -1.

    Columns may hold integers, lists of them, or texts: a text's id is `data.hashing.text_bits`, and "" is -1. The same
    on CPU and GPU, unlike the libraries' own hashes.
    """

    def __init__(self, cardinalities: Mapping[str, int]):
        super().__init__()
        self.cardinalities = dict(cardinalities)

    def transform(self, col_selector, df):
        result = type(df)()
        for name in col_selector.names:
            rows = np.uint64(self.cardinalities[name])
            if getattr(df[name].dtype, "kind", "O") == "i":
                result[name] = hash_ids(df[name].values, rows)
            else:
                result[name] = _hash_objects(df[name], rows)
        return result

    @property
    def output_dtype(self):
        return np.int64


def hash_ids(ids: np.ndarray, rows: np.uint64) -> np.ndarray:
    """int64 rows 0..rows-1 for int64 ids, -1 for -1; arrays of numpy or cupy."""
    hashed = (mix(ids.astype(np.uint64) + WEYL_STEP) % rows).astype(np.int64)
    hashed[ids < 0] = -1
    return hashed


def _hash_objects(series: Any, rows: np.uint64) -> Any:
    xp = _array_module(series)
    first = next((value for value in _head(series) if value is not None), "")
    if isinstance(first, str):
        codes, texts = series.factorize()
        texts = texts.to_pandas() if hasattr(texts, "to_pandas") else texts
        # Only the distinct texts are hashed, on the host: some thousands.
        bits = np.array([text_bits(text) for text in texts], np.uint64)
        table = (mix(bits + WEYL_STEP) % rows).astype(np.int64)
        table[[not text for text in texts]] = -1
        return xp.asarray(table)[xp.asarray(codes)]
    if xp is not np:
        column = series._column
        elements = hash_ids(column.elements.values, rows)
        return create_multihot_col(column.offsets.values, type(series)(elements))
    lists = series.to_numpy()
    lengths = np.fromiter(map(len, lists), np.int64, len(lists))
    elements = hash_ids(np.concatenate(lists).astype(np.int64), rows)
    hashed = np.empty(len(lists), object)
    hashed[:] = np.split(elements, np.cumsum(lengths)[:-1]) if len(lists) > 1 else [elements]
    return hashed


def _head(series: Any) -> list[Any]:
    head = series.head(1)
    return (head.to_pandas() if hasattr(head, "to_pandas") else head).tolist()


class ClickHistory(StatOperator):
    """Shows and click-through rates of ids, from training rows alone.

    Input: the id columns, `fold` and `clicked`. Output for each id column NAME: NAME_ctr, clicks over shows, 0 where
    the shows are fewer than the column's threshold, and NAME_count, the shows. An id that is missing (-1) or was never
    seen has 0 of both.

    A row whose `fold` is not -1 is a training row: its history leaves out all rows of its own fold, so that neither
    its own label nor its display's is in it, provided that a display lies in one fold. With `out_of_fold` false
    training rows see all, themselves included, as the ancestors had it.
    """

    def __init__(self, thresholds: Mapping[str, int], *, folds: int, out_of_fold: bool = True):
        """`thresholds`: shows below which the rate is 0, by id column; folds are 0..folds-1."""
        super().__init__()
        self.thresholds, self.folds, self.out_of_fold = dict(thresholds), folds, out_of_fold
        self.clear()

    def clear(self):
        self.ids: dict[str, np.ndarray] = {}
        # (ids + 1, folds + 1): counts without each fold, and in the last column of all; the last row, for ids that
        # were never seen, is 0.
        self.clicks: dict[str, np.ndarray] = {}
        self.shows: dict[str, np.ndarray] = {}

    def fit(self, col_selector, ddf):
        partials = [dask.delayed(_count)(part, tuple(self.thresholds), self.folds) for part in ddf.to_delayed()]
        while len(partials) > 1:
            groups = range(0, len(partials), _MERGED_AT_ONCE)
            partials = [dask.delayed(_merge)(partials[first : first + _MERGED_AT_ONCE]) for first in groups]
        return partials[0]

    def fit_finalize(self, dask_stats):
        for name, (ids, clicks, shows) in dask_stats.items():
            self.ids[name] = ids
            for kept, counts in ((self.clicks, clicks), (self.shows, shows)):
                table = np.zeros((len(counts) + 1, self.folds + 1), np.int32)
                total = counts.sum(axis=1, dtype=np.int32)
                table[:-1, : self.folds] = total[:, None] - counts
                table[:-1, self.folds] = total
                kept[name] = table

    def places(self, name: str, ids: np.ndarray) -> np.ndarray:
        """Row of each id in the tables of `name`."""
        xp = _array_module(ids)
        known = xp.asarray(self.ids[name])
        if not len(known):
            return xp.zeros(len(ids), np.int64)
        places = xp.minimum(xp.searchsorted(known, ids), len(known) - 1)
        return xp.where(known[places] == ids, places, len(known))

    def transform(self, col_selector, df):
        result = type(df)()
        folds = df["fold"].values.astype(np.int64)
        xp = _array_module(folds)
        left_out = xp.where((folds >= 0) & self.out_of_fold, folds, self.folds)
        for name, threshold in self.thresholds.items():
            places = self.places(name, df[name].values)
            clicks = xp.asarray(self.clicks[name])[places, left_out].astype(np.float64)
            shows = xp.asarray(self.shows[name])[places, left_out].astype(np.float64)
            rates = clicks / xp.maximum(shows, 1.0)
            result[f"{name}_ctr"] = xp.where(shows >= threshold, rates, 0.0).astype(np.float32)
            result[f"{name}_count"] = shows.astype(np.float32)
        return result

    def column_mapping(self, col_selector):
        return {f"{name}_{kind}": [name, "fold"] for name in self.thresholds for kind in ("ctr", "count")}

    @property
    def output_dtype(self):
        return np.float32


def _count(frame: Any, names: Sequence[str], folds: int) -> dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Of each id column: the ids, ascending, missing ones left out, and their clicks and shows, (ids, folds) int32."""
    clicked, fold = frame["clicked"].values, frame["fold"].values.astype(np.int64)
    xp = _array_module(fold)
    counts = {}
    for name in names:
        known = frame[name].values >= 0
        ids, places = xp.unique(frame[name].values[known], return_inverse=True)
        # Of places and not of ids, which could overflow.
        pairs = places * folds + fold[known]
        tables = (xp.bincount(some, minlength=len(ids) * folds) for some in (pairs[clicked[known] > 0], pairs))
        counts[name] = (_to_host(ids), *(_to_host(table).astype(np.int32).reshape(-1, folds) for table in tables))
    return counts


def _merge(partials: Sequence[dict]) -> dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    merged = {}
    for name in partials[0]:
        ids = np.unique(np.concatenate([partial[name][0] for partial in partials]))
        sums = tuple(np.zeros((len(ids), partials[0][name][1].shape[1]), np.int32) for _ in range(2))
        for own_ids, *counts in (partial[name] for partial in partials):
            places = np.searchsorted(ids, own_ids)
            for total, own in zip(sums, counts, strict=True):
                total[places] += own
        merged[name] = (ids, *sums)
    return merged


class TagSimilarity(Operator):
    """Cosines of the page and the promoted page (`data.outbrain.similarity`), 0 where one of them has no vector.

    Input: two columns of document ids. Output: a column for each kind of tag.
    """

    def __init__(self, vectors: Mapping[str, TagVectors]):
        """`vectors`: output column -> vectors of the documents."""
        super().__init__()
        self.vectors = dict(vectors)

    def transform(self, col_selector, df):
        left, right = (df[name].values for name in col_selector.names)
        xp = _array_module(left)
        result = type(df)()
        for name, vectors in self.vectors.items():
            matrix, documents = vectors.matrix, xp.asarray(vectors.documents)
            if xp is not np:
                from cupyx.scipy.sparse import csr_matrix

                matrix = csr_matrix(matrix)
            rows = []
            for ids in (left, right):
                places = xp.minimum(xp.searchsorted(documents, ids), len(documents) - 1)
                rows.append(matrix[xp.where(documents[places] == ids, places, len(documents))])
            result[name] = xp.asarray(rows[0].multiply(rows[1]).sum(axis=1)).ravel().astype(np.float32)
        return result

    def column_mapping(self, col_selector):
        return {name: list(col_selector.names) for name in self.vectors}

    @property
    def output_dtype(self):
        return np.float32


def _array_module(values: Any) -> ModuleType:
    """numpy or cupy, whichever holds `values`, an array or a series."""
    if type(values).__module__.split(".")[0] in ("cupy", "cudf"):
        import cupy

        return cupy
    return np


def _to_host(array: Any) -> np.ndarray:
    return array.get() if hasattr(array, "get") else array
