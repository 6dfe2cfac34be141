"""Row groups of parquet -> dense numpy columns, every value checked, and those into the packed arrays of a window."""

import dataclasses
import itertools
import sys
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from data.errors import InputError
from data.parquet_files import FILL, FINITE, Column, Kind, ParquetFiles, open_parquet, out_of_range_remedy

# Rows copied at a time: what a block of the packed arrays takes stays in the cache while its columns are filled.
_BLOCK_ROWS = 8192
# Bytes; what TensorFlow's kernels ask of a tensor's memory.
_ALIGNMENT = 64


@dataclasses.dataclass(frozen=True)
class DenseColumn:
    """Values of a column, one row each: (rows,) or, for a multi-hot column, (rows, max_hotness), -1 where absent.

    `cut` counts for each row the ids beyond max_hotness, which are lost; None where no row has any.
    """

    column: Column
    values: np.ndarray
    cut: np.ndarray | None = None


@dataclasses.dataclass(frozen=True)
class Copy:
    """Rows [first, first + rows) of decoded columns go to rows [to, to + rows) of the packed arrays."""

    first: int
    to: int
    rows: int


def id_type(total_cardinality: int) -> np.dtype:
    """Type of packed ids where the cardinalities of all features add up to this.

    int32 up to 2^31 - 1: models keep tables one below the other and add the rows above to an id, in the type of the
    ids; the sum itself is the row that stands for an absent id.
    """
    return np.dtype(np.int64 if total_cardinality > np.iinfo(np.int32).max else np.int32)


class PackedLayout:
    """Shapes and types of the packed arrays: ids (rows, total hotness), numerical (rows, n), labels (rows,) and, where
    the display is read, group_ids (rows,).
    """

    def __init__(self, columns: Sequence[Column]):
        self.columns = tuple(columns)
        hotness = sum(column.hotness for column in columns if column.tensor == "ids")
        numericals = sum(column.tensor == "numerical" for column in columns)
        self.tensors: dict[str, tuple[tuple[int, ...], np.dtype]] = {
            "ids": ((hotness,), id_type(sum(column.cardinality or 0 for column in columns))),
            "numerical": ((numericals,), np.dtype(np.float32)),
            "labels": ((), np.dtype(np.float32)),
        }
        if any(column.kind is Kind.DISPLAY for column in columns):
            self.tensors["group_ids"] = ((), np.dtype(np.int64))
        self.row_bytes = sum(int(np.prod(shape)) * dtype.itemsize for shape, dtype in self.tensors.values())

    def empty(self, rows: int) -> dict[str, np.ndarray]:
        """Arrays to fill, aligned so that TensorFlow takes them as they are; it copies others."""
        return {name: _aligned((rows, *shape), dtype) for name, (shape, dtype) in self.tensors.items()}

    def padding(self, rows: int) -> dict[str, np.ndarray]:
        """Rows that stand for nothing: ids -1, zeros elsewhere."""
        return {
            name: np.full((rows, *shape), -1 if name == "ids" else 0, dtype)
            for name, (shape, dtype) in self.tensors.items()
        }


def _aligned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    size = int(np.prod(shape)) * dtype.itemsize
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    first = -memory.ctypes.data % _ALIGNMENT
    return memory[first : first + size].view(dtype).reshape(shape)


def decode_row_groups(files: ParquetFiles, groups: Sequence[int], columns: Sequence[Column]) -> list[DenseColumn]:
    """Reads `columns` of row groups, one after the other. Those of a file should be side by side: it is opened once.

    Raises:
      InputError: a file cannot be decoded or holds a value that cannot be used; the message names file, column,
        row group and value.
    """
    runs = [list(run) for _, run in itertools.groupby(groups, key=lambda group: files.group_file[group])]
    tables = [_read(files, run, columns) for run in runs]
    if any(table.schema != tables[0].schema for table in tables):
        # Files may write one column in several widths: each is made dense by itself then.
        return _one_below_the_other(
            [_dense(files, run, columns, table) for run, table in zip(runs, tables, strict=True)]
        )
    return _dense(files, groups, columns, pa.concat_tables(tables) if len(tables) > 1 else tables[0])


def _read(files: ParquetFiles, groups: Sequence[int], columns: Sequence[Column]) -> pa.Table:
    """Row groups of one file."""
    number = int(files.group_file[groups[0]])
    path = files.paths[number]
    indices = [int(files.group_index[group]) for group in groups]
    try:
        with open_parquet(path, files.footers[number]) as file:
            table = file.read_row_groups(indices, columns=[column.name for column in columns], use_threads=False)
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{path}: row group {indices[0]} cannot be decoded ({error}); write the file again") from error
    if table.num_rows != sum(int(files.group_rows[group]) for group in groups):
        raise InputError(f"{path}: the file has changed since it was opened; start again")
    return table.replace_schema_metadata(None)


def _dense(files: ParquetFiles, groups: Sequence[int], columns: Sequence[Column], table: pa.Table) -> list[DenseColumn]:
    reader = _ColumnReader(files, groups)
    return [reader.dense(column, table.column(column.name)) for column in columns]


def _one_below_the_other(parts: Sequence[list[DenseColumn]]) -> list[DenseColumn]:
    joined = []
    for column in zip(*parts, strict=True):
        cut = None
        if any(dense.cut is not None for dense in column):
            cut = np.concatenate([np.zeros(len(d.values), np.int64) if d.cut is None else d.cut for d in column])
        joined.append(DenseColumn(column[0].column, np.concatenate([dense.values for dense in column]), cut))
    return joined


def copy_rows(
    columns: Sequence[DenseColumn], copies: Sequence[Copy], packed: Mapping[str, np.ndarray]
) -> dict[str, int]:
    """Fills rows of the packed arrays; returns for each feature how many ids the copied rows lost (see `cut`)."""
    pairs = []
    for dense in columns:
        target, column = packed[dense.column.tensor], dense.column
        if target.ndim == 2:
            stop = column.position + column.hotness
            target = target[:, column.position] if dense.values.ndim == 1 else target[:, column.position : stop]
        pairs.append((target, _low_words(dense.values) if target.dtype == np.int32 else dense.values))
    lost: dict[str, int] = {}
    for copy in copies:
        for start in range(0, copy.rows, _BLOCK_ROWS):
            stop = min(start + _BLOCK_ROWS, copy.rows)
            for target, values in pairs:
                target[copy.to + start : copy.to + stop] = values[copy.first + start : copy.first + stop]
        for dense in columns:
            if dense.cut is not None:
                cut = int(dense.cut[copy.first : copy.first + copy.rows].sum())
                lost[dense.column.name] = lost.get(dense.column.name, 0) + cut
    return lost


def _low_words(values: np.ndarray) -> np.ndarray:
    """int64 ids that fit 32 bits as int32, without a copy where that goes: numpy copies these faster than it casts."""
    if sys.byteorder == "little" and values.dtype == np.int64 and values.ndim == 1 and values.flags.c_contiguous:
        return values.view(np.int32)[::2]
    return values


class _ColumnReader:
    """Checks and densifies the columns of some row groups; knows where they are, for messages."""

    def __init__(self, files: ParquetFiles, groups: Sequence[int]):
        self._files, self._groups = files, groups

    def dense(self, column: Column, chunked: pa.ChunkedArray) -> DenseColumn:
        try:
            array = _one_array(chunked)
            if column.kind in (Kind.ONEHOT, Kind.MULTIHOT):
                return self._ids(column, array)
            if array.null_count:
                self._fail(column, array.is_null().to_numpy(zero_copy_only=False), "null", FILL[column.kind])
            values = array.to_numpy(zero_copy_only=False)
            if column.kind is Kind.DISPLAY:
                if values.dtype == np.uint64 and len(values) and values.max() >= 2**63:
                    self._fail(column, values >= 2**63, values, "display ids must be below 2^63")
                return DenseColumn(column, values)
        except pa.ArrowException as error:
            raise InputError(f"{self._where(column, 0)} cannot be decoded: {error}; write the file again") from error
        return DenseColumn(column, self._numbers(column, values))

    def _numbers(self, column: Column, values: np.ndarray) -> np.ndarray:
        if values.dtype == np.bool_ or not len(values):
            return values
        if column.kind is Kind.LABEL:
            good = (values == 0) | (values == 1)
            if not good.all():
                self._fail(column, ~good, values, "labels are 0 or 1")
        elif values.dtype.kind == "f":
            limit = np.finfo(np.float32).max
            with np.errstate(invalid="ignore"):
                low, high = values.min(), values.max()  # NaN wins both
            if not (low >= -limit and high <= limit):
                bad = ~(np.abs(values) <= limit)
                self._fail(column, bad, values, FINITE)
        return values

    def _ids(self, column: Column, array: pa.Array) -> DenseColumn:
        types = pa.types
        if not (types.is_list(array.type) or types.is_large_list(array.type) or types.is_fixed_size_list(array.type)):
            ids = self._checked_ids(column, array, None)
            if column.hotness == 1:
                return DenseColumn(column, ids)
            values = np.full((len(ids), column.hotness), -1, np.int64)
            values[:, 0] = ids
            return DenseColumn(column, values)
        lengths, children = _list_layout(array)
        rows, hotness = len(lengths), column.hotness
        if rows and (lengths == hotness).all():
            return DenseColumn(column, self._checked_ids(column, children, hotness).reshape(rows, hotness))
        ids = self._checked_ids(column, children, lengths)
        kept, cut = lengths, None
        if rows and lengths.max() > hotness:
            kept = np.minimum(lengths, hotness)
            cut = lengths - kept
            ends = np.cumsum(lengths)
            ids = ids[np.arange(len(ids)) - np.repeat(ends - lengths, lengths) < hotness]
        there = np.empty((rows, hotness), bool)
        for place in range(hotness):  # column by column: numpy compares long rows four times as fast as short ones
            np.less(place, kept, out=there[:, place])
        narrow = column.cardinality <= 2**31
        values = np.full((rows, hotness), -1, np.int32 if narrow else np.int64)
        values[there] = ids
        return DenseColumn(column, values, cut)

    def _checked_ids(self, column: Column, array: pa.Array, owner: np.ndarray | int | None) -> np.ndarray:
        """Ids with -1 for null. `owner` tells the row of each, for messages: the first owner[0] are of row 0, the next
        owner[1] of row 1 and so on, or always so many adjacent ones of a row; None: one each.
        """
        if array.null_count or pa.types.is_null(array.type):
            array = pc.fill_null(array.cast(pa.int64()), -1)
        ids = array.to_numpy(zero_copy_only=False)
        if len(ids) and (ids.min() < -1 or ids.max() >= column.cardinality):
            bad = (ids < -1) | (ids >= column.cardinality)
            rows = np.arange(len(ids))
            if owner is not None:
                rows = rows // owner if isinstance(owner, int) else np.repeat(np.arange(len(owner)), owner)
            self._fail(column, bad, ids, out_of_range_remedy(column), rows)
        return ids

    def _where(self, column: Column, group: int) -> str:
        number = self._groups[group]
        path, index = self._files.paths[self._files.group_file[number]], self._files.group_index[number]
        return f"{path}: column '{column.name}' ({column.kind.value}), row group {index}:"

    def _fail(self, column: Column, bad: np.ndarray, values, remedy: str, rows: np.ndarray | None = None):
        """Raises for the first row group with bad values and says how many it has."""
        rows = np.flatnonzero(bad) if rows is None else rows[bad]
        ends = np.cumsum([self._files.group_rows[group] for group in self._groups])
        groups = np.searchsorted(ends, rows, side="right")
        first = groups[0]
        value = values if isinstance(values, str) else values[bad][0]
        raise InputError(
            f"{self._where(column, first)} {(groups == first).sum()} bad value(s), the first is {value}; {remedy}"
        )


def _one_array(chunked: pa.ChunkedArray) -> pa.Array:
    array = chunked.chunk(0) if chunked.num_chunks == 1 else pa.concat_arrays(chunked.chunks)
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array


def _list_layout(array: pa.Array) -> tuple[np.ndarray, pa.Array]:
    """Length of each row's list, and the elements of all of them, which parquet's reader leaves side by side.

    A null list has length 0, because parquet stores no children for it (and so pyarrow reads no fixed-size lists with
    nulls among them).
    """
    if pa.types.is_fixed_size_list(array.type):
        size = array.type.list_size
        return np.full(len(array), size, np.int64), array.values.slice(array.offset * size, len(array) * size)
    offsets = array.offsets.to_numpy()
    return np.diff(offsets), array.values.slice(offsets[0], offsets[-1] - offsets[0])
