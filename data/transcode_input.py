"""CSV and parquet files of a user as a stream of Arrow tables that know where their rows stand.

From CSV every column comes as text, so that nothing is lost before the whole column is known (an integer beyond 2^63,
a zero in front). From parquet columns come in their types, those of the folders' names (`day=3`) as text. In both,
empty texts and `\\N` are null. Nothing but a batch is in memory.
"""

import abc
import dataclasses
import urllib.parse
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from data import csv_text, filesystem
from data.column_values import is_text
from data.csv_text import CsvFormat
from data.errors import InputError

DEFAULT_BLOCK_BYTES = 4 << 20
_MISSING = ("", "\\N")
_NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
_VALUE_BYTES = 16  # of a decoded value of parquet, roughly: what a block's rows are counted by


@dataclasses.dataclass(frozen=True)
class Batch:
    """Some rows of a file: `table`, whose first row is number `first_row` (from 0) of the file `path`."""

    table: pa.Table
    path: str
    first_row: int


class TableFiles(abc.ABC):
    """The files of an input, read as often as is asked, always in the same order.

    Attributes:
      paths: the files.
      columns: their columns' names; unnamed ones have the name "".
      partitions: those of them that only the folders' names have.
      is_parquet: whether the files are parquet; otherwise they are CSV.
    """

    paths: tuple[str, ...]
    columns: tuple[str, ...]
    partitions: tuple[str, ...] = ()
    is_parquet = False

    @abc.abstractmethod
    def batches(self, names: Sequence[str]) -> Iterator[Batch]:
        """The rows of all files, these columns alone.

        Raises:
          InputError: a file cannot be read or its rows are malformed; names the file and, for CSV, the line.
        """

    @abc.abstractmethod
    def where(self, path: str, row: int) -> str:
        """The file and the place in it (rows and lines count from 1) of row `row` (from 0), for messages."""


def open_tables(path: str, *, form: CsvFormat, block_bytes: int = DEFAULT_BLOCK_BYTES) -> TableFiles:
    """Opens a file or all files below a folder, hidden ones (`.` or `_` in front) left out.

    What a file is its first bytes say, not its name. CSV files may be packed by gzip.

    Args:
      path: a local path or an address; see `data.filesystem`.
      form: of CSV files.
      block_bytes: how much is read at a time. A CSV record must be shorter. It does not change what is read.

    Raises:
      InputError: there is nothing, files are of both kinds, or their columns differ; names the file.
    """
    if not filesystem.exists(path):
        raise InputError(f"{path}: no such file or folder")
    paths = tuple(filesystem.list_files(path)) if filesystem.is_folder(path) else (path,)
    if not paths:
        raise InputError(f"{path}: the folder holds no files")
    kinds = {name: _is_parquet(name) for name in paths}
    if len(set(kinds.values())) > 1:
        parquet, other = next(n for n in paths if kinds[n]), next(n for n in paths if not kinds[n])
        raise InputError(
            f"{path}: holds parquet ({parquet}) and other files ({other}); name a folder of one kind, or one file"
        )
    if kinds[paths[0]]:
        return _ParquetTables(path, paths, form, block_bytes)
    return _CsvTables(paths, form, block_bytes)


class _CsvTables(TableFiles):
    def __init__(self, paths: tuple[str, ...], form: CsvFormat, block_bytes: int):
        self.paths, self._form, self._block_bytes = paths, form, block_bytes
        self._first = {path: csv_text.first_record(path, form) for path in paths}
        for path, first in self._first.items():
            fields = len(first.fields)
            columns = first.fields if form.header else form.columns or tuple(f"c{i}" for i in range(fields))
            if len(columns) != fields:
                raise InputError(
                    f"{path} line {first.line}: has {fields} fields, but --columns names {len(columns)}; correct either"
                )
            if path == paths[0]:
                self.columns = columns
                _check_names(path, columns)
            elif columns != self.columns:
                raise InputError(
                    f"{path}: its header differs from that of {paths[0]}: {_difference(columns, self.columns)}; make "
                    "them the same"
                )

    def where(self, path: str, row: int) -> str:
        line = csv_text.line_of_record(path, self._form, row)
        return f"{path} row {row + 1}" if line is None else f"{path} line {line}"

    def batches(self, names: Sequence[str]) -> Iterator[Batch]:
        for path in self.paths:
            yield from self._file_batches(path, names)

    def _file_batches(self, path: str, names: Sequence[str]) -> Iterator[Batch]:
        # All columns are read, under names of their own: the file's may be empty, and the last one is looked at below.
        keys = [str(position) for position in range(len(self.columns))]
        wanted = [self.columns.index(name) for name in names]
        if self._form.header and self._first[path].alone:
            return  # no rows, as a writer of many parts leaves them
        first, last = 0, None
        with self._open(path) as stream:
            try:
                for table in self._read(stream, path, keys):
                    yield Batch(pa.table([table.column(i) for i in wanted], names=list(names)), path, first)
                    first += table.num_rows
                    last = table.column(len(keys) - 1)[-1].as_py() or "" if table.num_rows else last
            except (pa.ArrowException, OSError) as error:
                fault = csv_text.find_fault(path, self._form, len(keys))
                if fault is None and "straddl" in str(error):
                    row = self.where(path, first)
                    raise InputError(
                        f"{row}: this record or one soon after is longer than {self._block_bytes} bytes: is a quote "
                        "not closed?"
                    ) from error
                raise InputError(f"{path} {fault or f'cannot be read as CSV: {error}; check the file'}") from error
            if last is not None and csv_text.ends_inside_quotes(stream.tail, last, self._form.delimiter):
                raise InputError(
                    f"{self.where(path, first - 1)}: the file ends inside a quoted field; close the quote, or write "
                    "the file again if it is truncated"
                )

    @staticmethod
    def _open(path: str) -> csv_text.ByteStream:
        try:
            return csv_text.ByteStream(path)
        except OSError as error:
            raise InputError(f"{path}: cannot be read any more: {error}; put it back and start again") from error

    def _read(self, stream: csv_text.ByteStream, path: str, keys: list[str]) -> Iterator[pa.RecordBatch]:
        # One thread: rows come in order, and reading is not what takes the time.
        options = pyarrow.csv.ReadOptions(use_threads=False, block_size=self._block_bytes, column_names=keys)
        if self._form.header:
            options.skip_rows, options.skip_rows_after_names = self._first[path].line - 1, 1
        return pyarrow.csv.open_csv(
            pa.PythonFile(stream, mode="r"),
            options,
            pyarrow.csv.ParseOptions(delimiter=self._form.delimiter, newlines_in_values=True),
            pyarrow.csv.ConvertOptions(
                column_types=dict.fromkeys(keys, pa.string()),
                null_values=[*_MISSING, *self._form.missing],
                strings_can_be_null=True,
                quoted_strings_can_be_null=True,
            ),
        )


class _ParquetTables(TableFiles):
    is_parquet = True

    def __init__(self, root: str, paths: tuple[str, ...], form: CsvFormat, block_bytes: int):
        self.paths = paths
        self._missing = pa.array([*_MISSING, *form.missing])
        self._block_bytes = block_bytes
        self._folder_values = {path: _folder_values(root, path) for path in paths}
        for path in paths:
            try:
                with filesystem.open_file(path) as file:
                    columns = tuple(pq.ParquetFile(file).schema_arrow.names)
            except (pa.ArrowException, OSError) as error:
                raise InputError(f"{path}: not a readable parquet file ({error}); write it again") from error
            partitions = tuple(name for name in self._folder_values[path] if name not in columns)
            if path == paths[0]:
                self.columns, self.partitions = (*columns, *partitions), partitions
                _check_names(path, self.columns)
            elif sorted((*columns, *partitions)) != sorted(self.columns):
                raise InputError(
                    f"{path}: its columns differ from those of {paths[0]}: "
                    f"{_difference((*columns, *partitions), self.columns)}; make them the same"
                )

    def where(self, path: str, row: int) -> str:
        return f"{path} row {row + 1}"

    def batches(self, names: Sequence[str]) -> Iterator[Batch]:
        rows = max(1, self._block_bytes // (_VALUE_BYTES * max(1, len(names))))
        for path in self.paths:
            first = 0
            in_file = [name for name in names if name not in self.partitions]
            try:
                with filesystem.open_file(path) as handle, pq.ParquetFile(handle) as file:
                    # Without a column of its own a batch has no length: the first column stands in for it.
                    read = in_file or file.schema_arrow.names[:1]
                    for batch in file.iter_batches(rows, columns=read, use_threads=False):
                        yield Batch(self._table(path, names, batch), path, first)
                        first += batch.num_rows
            except (pa.ArrowException, OSError) as error:
                raise InputError(
                    f"{path} row {first + 1}: cannot be decoded from there on ({error}); write the file again"
                ) from error

    def _table(self, path: str, names: Sequence[str], batch: pa.RecordBatch) -> pa.Table:
        columns = []
        for name in names:
            if name in self.partitions:
                columns.append(pa.repeat(pa.scalar(self._folder_values[path][name], pa.string()), batch.num_rows))
            else:
                columns.append(self._without_missing(batch.column(name)))
        return pa.table(columns, names=list(names))

    def _without_missing(self, array: pa.Array) -> pa.Array:
        if pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        if not is_text(array.type):
            return array
        array = array.cast(pa.string())
        missing = pc.is_in(array, self._missing)
        return pc.if_else(missing, pa.scalar(None, pa.string()), array) if pc.any(missing).as_py() else array


def _is_parquet(path: str) -> bool:
    try:
        with filesystem.open_file(path) as file:
            return file.read(4) == b"PAR1"
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error


def _folder_values(root: str, path: str) -> dict[str, str | None]:
    """The values that the folders between `root` and the file have in their names, as Hive writes them."""
    values: dict[str, str | None] = {}
    for part in path[len(root) :].split("/")[:-1]:
        name, equals, value = part.partition("=")
        if equals:
            decoded = urllib.parse.unquote(value)
            values[urllib.parse.unquote(name)] = None if decoded in (_NULL_PARTITION, *_MISSING) else decoded
    return values


def _check_names(path: str, columns: Sequence[str]) -> None:
    twice = [name for name in columns if name and columns.count(name) > 1]
    if twice:
        raise InputError(f"{path}: the column name '{twice[0]}' is there {columns.count(twice[0])} times; rename one")


def _difference(columns: Sequence[str], expected: Sequence[str]) -> str:
    extra, lacking = [n for n in columns if n not in expected], [n for n in expected if n not in columns]
    told = [f"it lacks {lacking}"] * bool(lacking) + [f"it has {extra} besides"] * bool(extra)
    return " and ".join(told) or f"the order is {list(columns)} instead of {list(expected)}"
