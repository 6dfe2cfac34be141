"""Whether the ids of a generated dataset are distributed as its configuration says."""

import dataclasses
import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from data import power_law
from data.displays import MAX_ADS, page_features, parent_feature
from data.feature_spec import TRAIN, FeatureSpec
from data.id_draw import ANY, IdDraw

READ_ROWS = 65536
HEAD_MASS = 0.3
"""The most frequent ids that have this share by the law are counted together."""
_SIGMAS = 6.0
_DISTINCT_SLACK = 0.2


@dataclasses.dataclass(frozen=True)
class Found:
    """What was found; `wrong` has a line for each feature that is not as it should be."""

    features: int
    ids: int
    wrong: tuple[str, ...]


def check(spec: FeatureSpec, draw: IdDraw, rows: int = READ_ROWS) -> Found:
    """Compares the share of the most frequent ids and the number of different ids with what the law expects.

    Features whose ids follow from another's are left out. Ads of a display share the page's features: so many rows say
    as little as one. Where rows hold different ids of a steep law, frequent ones are rarer than by the law: their share
    must not be above it.

    Args:
      spec: of the dataset, with files.
      draw: the law of its ids.
      rows: of the training source that are read.

    Raises:
      OSError: a file cannot be read.
    """
    names = [name for name in spec.categorical if parent_feature(spec, name) is None]
    table = _head(spec, names, rows)
    page = page_features(spec)
    wrong, total = [], 0
    for name in names:
        column = table.column(name).combine_chunks()
        values = _ids(column)
        total += len(values)
        cardinality = spec.features[name].cardinality
        independent = max(1, len(values) // (MAX_ADS if name in page else 1))
        exact = draw.pooling == ANY or name in spec.onehot or draw.exponent == 0.0
        wrong += [f"{name}: {line}" for line in _wrong(values, cardinality, draw.exponent, independent, exact)]
    return Found(len(names), total, tuple(wrong))


def _wrong(ids: np.ndarray, cardinality: int, exponent: float, independent: int, exact: bool) -> list[str]:
    if not len(ids):
        return ["no ids"]
    if ids.min() < 0 or ids.max() >= cardinality:
        return [f"ids {ids.min()} to {ids.max()} in a table of {cardinality:,} rows"]
    if cardinality == 1:
        return []
    found = []
    ranks = power_law.id_to_rank(ids, cardinality)
    below = power_law.cumulative(np.arange(cardinality), cardinality, exponent)
    head = max(1, int(np.searchsorted(below, HEAD_MASS)))
    expected = float(power_law.cumulative(np.array([head]), cardinality, exponent)[0])
    share = float((ranks < head).mean())
    allowed = _SIGMAS * math.sqrt(expected * (1 - expected) / independent) + 1 / independent
    if share > expected + allowed or (exact and share < expected - allowed):
        found.append(f"the {head:,} most frequent ids are {share:.1%} of all, and should be {expected:.1%}")
    distinct = len(np.unique(ids))
    least = (1 - _DISTINCT_SLACK) * power_law.expected_distinct(independent, cardinality, exponent)[0]
    most = (1 + _DISTINCT_SLACK) * power_law.expected_distinct(len(ids), cardinality, exponent)[0] + 1
    if distinct < least or (exact and distinct > most):
        found.append(f"{distinct:,} different ids among {len(ids):,}, and should be {least:,.0f} to {most:,.0f}")
    return found


def _head(spec: FeatureSpec, names: list[str], rows: int) -> pa.Table:
    """The first rows of the training source, at least `rows` of them if there are."""
    parts, found = [], 0
    for path in spec.source_files(TRAIN):
        with pq.ParquetFile(path) as file:
            for group in range(file.num_row_groups):
                parts.append(file.read_row_group(group, columns=names))
                found += parts[-1].num_rows
                if found >= rows:
                    return pa.concat_tables(parts)
    return pa.concat_tables(parts)


def _ids(column: pa.Array) -> np.ndarray:
    """The ids of a column of ids or of lists of them, nulls left out."""
    values = column.flatten() if pa.types.is_list(column.type) else column
    return values.drop_null().to_numpy(zero_copy_only=False)
