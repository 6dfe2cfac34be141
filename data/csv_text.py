"""What CSV files look like: their format, their header, and the line on which a record stands or breaks."""

import contextlib
import csv
import dataclasses
import io
from collections.abc import Iterator

import pyarrow as pa

from data import filesystem
from data.errors import InputError

GZIP = b"\x1f\x8b"
_TAIL_BYTES = 1 << 16


@dataclasses.dataclass(frozen=True)
class CsvFormat:
    """How to read the files.

    Attributes:
      delimiter: one character, or a backslash and a t for tabs.
      header: whether the first record of every file has the names.
      columns: the names where there is no header; c0, c1, ... by default.
      missing: texts that mean "missing" besides the empty one and `\\N`.
    """

    delimiter: str = ","
    header: bool = True
    columns: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()

    def __post_init__(self):
        object.__setattr__(self, "delimiter", "\t" if self.delimiter == "\\t" else self.delimiter)
        if len(self.delimiter) != 1 or not self.delimiter.isascii() or self.delimiter in '"\r\n\0':
            raise InputError(f"--delimiter={self.delimiter!r}: give one ASCII character that is no quote, or \\t")
        if self.header and self.columns:
            raise InputError(
                "--columns names the columns of files without a header: add --no_header, or drop --columns"
            )


def is_gzip(path: str) -> bool:
    """Whether the file begins like a gzip file."""
    with filesystem.open_file(path) as file:
        return file.read(2) == GZIP


class ByteStream(io.RawIOBase):
    """The file's bytes, unpacked; remembers the last of them.

    Attributes:
      tail: the last bytes read, at most 64 KiB.
    """

    def __init__(self, path: str):
        zipped = is_gzip(path)
        self._file = filesystem.open_file(path)
        self._stream = pa.CompressedInputStream(self._file, "gzip") if zipped else self._file
        self._held = b""
        self.tail = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def read(self, size: int = -1) -> bytes:
        everything = size is None or size < 0
        data = self._held + self._stream.read(None if everything else max(1, size - len(self._held)))
        # Arrow drops a line feed that begins a block if a carriage return ended the last one, even inside a field: it
        # must never see the two apart.
        self._held = b"\r" if len(data) > 1 and data.endswith(b"\r") and not everything else b""
        data = data[: len(data) - len(self._held)]
        self.tail = (self.tail + data)[-_TAIL_BYTES:] if len(data) < _TAIL_BYTES else data[-_TAIL_BYTES:]
        return data

    def close(self) -> None:
        if not self.closed:
            self._stream.close()
            self._file.close()
        super().close()


def ends_inside_quotes(tail: bytes, last_value: str, delimiter: str) -> bool:
    """Whether a file that ends with `tail`, and whose last field was read as `last_value`, lacks the closing quote.

    Arrow takes the end of the file for the missing quote, and would let a truncated file pass.
    """
    raw = f'{delimiter}"'.encode() + last_value.replace('"', '""').encode()
    return tail.endswith(raw) if len(raw) <= len(tail) else raw.endswith(tail)


@dataclasses.dataclass(frozen=True)
class FirstRecord:
    """The first record that is not a blank line; `line` is where it begins, `alone` whether no other follows."""

    fields: tuple[str, ...]
    line: int
    alone: bool


def first_record(path: str, form: CsvFormat) -> FirstRecord:
    """Reads as far as the second record.

    Raises:
      InputError: there is no record, its bytes are no UTF-8, or the file cannot be read.
    """
    found = None
    try:
        with contextlib.closing(_records(path, form)) as records:
            for fields, start, _ in records:
                if found is not None:
                    return dataclasses.replace(found, alone=False)
                if _undecodable(fields):
                    raise InputError(f"{path} line {start}: holds bytes that are not UTF-8; convert the file to UTF-8")
                found = FirstRecord(tuple(fields), start, True)
    except (csv.Error, OSError) as error:
        raise InputError(f"{path}: its first lines cannot be read as CSV: {error}; write the file again") from error
    if found is None:
        raise InputError(f"{path}: is empty; remove it, or write it again")
    return found


def line_of_record(path: str, form: CsvFormat, number: int) -> int | None:
    """The line on which record `number` (from 0, the header not counted) begins; None if it cannot be told.

    Reads the file up to there: for error messages alone.
    """
    try:
        records = _records(path, form)
        if form.header:
            next(records, None)
        for position, (_, start, _) in enumerate(records):
            if position == number:
                return start
    except (csv.Error, OSError):
        pass
    return None


def find_fault(path: str, form: CsvFormat, fields: int) -> str | None:
    """Where and why the file is not CSV of `fields` columns, as "line N: ..."; None if nothing is found.

    Reads the file up to there: for error messages alone.
    """
    end = 0
    try:
        for record, start, end in _records(path, form):
            if len(record) != fields:
                lines = f" and runs to line {end}: is a quote not closed?" if end > start else ""
                return (
                    f"line {start}: the record has {len(record)} fields instead of {fields}{lines}; correct it, or "
                    "give the right --delimiter"
                )
            if _undecodable(record):
                return f"line {start}: holds bytes that are not UTF-8; convert the file to UTF-8"
    except csv.Error:
        return f"line {end + 1}: a quoted field that begins there does not end; close the quote"
    except OSError as error:
        return f"line {end + 1}: cannot be read any further: {error}; the file is truncated or damaged, write it again"
    return None


def _undecodable(fields: list[str]) -> bool:
    return any("\udc80" <= letter <= "\udcff" for field in fields for letter in field)


def _records(path: str, form: CsvFormat) -> Iterator[tuple[list[str], int, int]]:
    """(fields, first line, last line) of every record, blank lines left out, by Python's own reader.

    Bytes that are no UTF-8 come as surrogates.
    """
    with (
        ByteStream(path) as stream,
        io.TextIOWrapper(
            io.BufferedReader(stream, 1 << 18), encoding="utf-8-sig", errors="surrogateescape", newline=""
        ) as lines,
    ):
        reader = csv.reader(lines, delimiter=form.delimiter)
        end = 0
        for record in reader:
            start, end = end + 1, reader.line_num
            if record:
                yield record, start, end
