"""The parquet files of a dataset as their footers describe them: checked columns and the row groups, in file order.

Footers carry the least and the largest value of each column of a row group, so most bad values are found without
reading a row. Where a writer left these out, decoding finds them (`data.parquet_decode`).
"""

import concurrent.futures
import contextlib
import dataclasses
import enum
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from data import filesystem
from data.errors import InputError
from data.feature_spec import FeatureSpec


class Kind(enum.Enum):
    """What a column is to a model."""

    ONEHOT = "one-hot"
    MULTIHOT = "multi-hot"
    NUMERICAL = "numerical"
    LABEL = "label"
    DISPLAY = "display"


@dataclasses.dataclass(frozen=True)
class Column:
    """A column and its place in the packed tensors.

    Attributes:
      tensor: "ids", "numerical", "labels" or "group_ids".
      position: first column of that tensor it fills.
      hotness: columns of that tensor it fills.
      cardinality: ids are 0..cardinality-1; None where it is not categorical.
    """

    name: str
    kind: Kind
    tensor: str
    position: int = 0
    hotness: int = 1
    cardinality: int | None = None


@dataclasses.dataclass(frozen=True)
class ParquetFiles:
    """Row groups of all files, in file order; row group g is number `group_index[g]` of file `group_file[g]`."""

    paths: tuple[str, ...]
    footers: tuple[pq.FileMetaData, ...]
    group_file: np.ndarray
    group_index: np.ndarray
    group_rows: np.ndarray

    @property
    def num_rows(self) -> int:
        return int(self.group_rows.sum())


def spec_columns(spec: FeatureSpec, *, with_display: bool) -> tuple[Column, ...]:
    """The columns to read, in the order of `spec.columns`."""
    columns, position = [], 0
    for name in spec.categorical:
        feature = spec.features[name]
        kind = Kind.MULTIHOT if name in spec.multihot else Kind.ONEHOT
        columns.append(Column(name, kind, "ids", position, feature.max_hotness, feature.cardinality))
        position += feature.max_hotness
    columns += [Column(name, Kind.NUMERICAL, "numerical", i) for i, name in enumerate(spec.numerical)]
    columns.append(Column(spec.label, Kind.LABEL, "labels"))
    if with_display and spec.display is not None:
        columns.append(Column(spec.display, Kind.DISPLAY, "group_ids"))
    return tuple(columns)


def open_parquet_files(paths: Sequence[str], columns: Sequence[Column], *, threads: int) -> ParquetFiles:
    """Reads all footers.

    Raises:
      InputError: a file is missing or is not parquet, a column is missing or of a type that cannot be used, or there
        are no rows; the message names the file and the column.
    """
    with concurrent.futures.ThreadPoolExecutor(threads, thread_name_prefix="parquet-footers") as executor:
        footers = tuple(executor.map(lambda path: _checked_footer(path, columns), paths))
    group_file, group_index, group_rows = [], [], []
    for number, footer in enumerate(footers):
        for index in range(footer.num_row_groups):
            group_file.append(number)
            group_index.append(index)
            group_rows.append(footer.row_group(index).num_rows)
    files = ParquetFiles(tuple(paths), footers, np.array(group_file), np.array(group_index), np.array(group_rows, int))
    if files.num_rows == 0:
        raise InputError(f"{paths[0]}: {len(paths)} parquet file(s) hold no rows; preprocess the data again")
    return files


@contextlib.contextmanager
def open_parquet(path: str, footer: pq.FileMetaData | None = None) -> Iterator[pq.ParquetFile]:
    """Opens a file, local or at an address. Raises what pyarrow raises, OSError and ArrowException, and InputError."""
    if not filesystem.is_address(path):
        with pq.ParquetFile(path, metadata=footer) as file:
            yield file
        return
    # pre_buffer: few large requests, where each one takes long.
    with filesystem.open_file(path) as source, pq.ParquetFile(source, metadata=footer, pre_buffer=True) as file:
        yield file


def read_footer(path: str) -> pq.FileMetaData:
    """The footer of a file.

    Raises:
      InputError: there is no such file, or it is not parquet.
    """
    try:
        with open_parquet(path) as file:
            footer = file.metadata
            footer.schema.to_arrow_schema()
            return footer
    except FileNotFoundError as error:
        raise InputError(
            f"{path}: no such file; check source_spec in the feature specification, or preprocess the data again"
        ) from error
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{path}: not a readable parquet file ({error}); write it again") from error


def column_problems(path: str, footer: pq.FileMetaData, columns: Sequence[Column]) -> Iterator[str]:
    """What of a file's columns cannot be used, by their names and types: a line for each."""
    if footer.num_rows == 0:
        return  # a part that got no rows; its writer could not tell the types
    schema = footer.schema.to_arrow_schema()
    for column in columns:
        count = schema.names.count(column.name)
        if count != 1:
            problem = "is missing" if count == 0 else f"is there {count} times"
            yield (
                f"{path}: column '{column.name}' ({column.kind.value}) {problem}; the file has {schema.names}; "
                "write the column, or correct the feature specification"
            )
            continue
        received = schema.field(column.name).type
        expected = _type_problem(received, column.kind)
        if expected:
            yield (
                f"{path}: column '{column.name}' ({column.kind.value}) is of type {received}; {expected} "
                "when preprocessing"
            )


def statistics_problems(path: str, footer: pq.FileMetaData, columns: Sequence[Column]) -> Iterator[str]:
    """What the footer's statistics say of values that cannot be used: a line for each row group and column."""
    # A plain column's path is its name, dots and all; a list's is the name and two levels below it.
    paths = {footer.schema.column(leaf).path: leaf for leaf in range(footer.num_columns)}
    lists = {path.rsplit(".", 2)[0]: leaf for path, leaf in paths.items()}
    leaves = [paths.get(column.name, lists.get(column.name)) for column in columns]
    for group in range(footer.num_row_groups):
        row_group = footer.row_group(group)
        for column, leaf in zip(columns, leaves, strict=True):
            statistics = None if leaf is None else row_group.column(leaf).statistics
            problem = None if statistics is None else _statistics_problem(statistics, column)
            if problem:
                yield f"{path}: column '{column.name}' ({column.kind.value}), row group {group}: {problem}"


def _checked_footer(path: str, columns: Sequence[Column]) -> pq.FileMetaData:
    footer = read_footer(path)
    for problems in (column_problems, statistics_problems):
        for problem in problems(path, footer, columns):
            raise InputError(problem)
    return footer


def _statistics_problem(statistics: pq.Statistics, column: Column) -> str:
    if column.kind not in (Kind.ONEHOT, Kind.MULTIHOT) and statistics.has_null_count and statistics.null_count:
        return f"{statistics.null_count} value(s) are null; {FILL[column.kind]}"
    if not statistics.has_min_max or not isinstance(statistics.min, int | float):
        return ""
    low, high = statistics.min, statistics.max
    if column.cardinality is not None:
        if low < -1 or high >= column.cardinality:
            return f"the ids are {low}..{high}; {out_of_range_remedy(column)}"
    elif column.kind is Kind.LABEL and not (low >= 0 and high <= 1):
        return f"the labels are {low}..{high}; labels are 0 or 1"
    elif column.kind is Kind.NUMERICAL and not (low >= -_MOST_FLOAT32 and high <= _MOST_FLOAT32):
        return f"the values are {low}..{high}; {FINITE}"
    return ""


def out_of_range_remedy(column: Column) -> str:
    """What to do about ids that `column` cannot have."""
    return (
        f"ids are 0..{column.cardinality - 1} (-1: absent): the cardinality {column.cardinality} in the feature "
        "specification is too small, or the ids were not mapped"
    )


FINITE = "numericals must be finite as float32: clean them when preprocessing"
FILL = {
    Kind.NUMERICAL: "fill the gaps when preprocessing",
    Kind.LABEL: "every row needs a label of 0 or 1: drop the others when preprocessing",
    Kind.DISPLAY: "every row needs a display id: drop the others when preprocessing",
}
_MOST_FLOAT32 = float(np.finfo(np.float32).max)


def _type_problem(received: pa.DataType, kind: Kind) -> str:
    """What to do about a type that cannot be used; empty where it can."""
    types = pa.types
    if types.is_dictionary(received):
        received = received.value_type
    integer = types.is_integer(received) or types.is_null(received)
    if kind is Kind.DISPLAY:
        return "" if types.is_integer(received) else "write display ids as integers"
    if kind in (Kind.ONEHOT, Kind.MULTIHOT):
        if types.is_list(received) or types.is_large_list(received) or types.is_fixed_size_list(received):
            if kind is Kind.ONEHOT:
                return "list it under multihot_categorical, or write one id a row"
            integer = types.is_integer(received.value_type)
        return "" if integer else "write ids as integers (with gaps: as nullable integers, not floats)"
    number = types.is_integer(received) or types.is_floating(received) or types.is_boolean(received)
    return "" if number else "write it as integers, floats or booleans"
