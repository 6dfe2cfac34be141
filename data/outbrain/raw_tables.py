"""Outbrain's raw CSV files, read as streams of checked Arrow tables.

Every error names the file and the line. Missing values are empty or `\\N`.
"""

import dataclasses
import os
import re
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from data.errors import InputError

DEFAULT_BLOCK_BYTES = 1 << 24
MISSING_ID = -1


@dataclasses.dataclass(frozen=True)
class RawColumn:
    """A column of a raw file.

    Attributes:
      type: what its text is read as.
      required: a missing value is an error; others are null, but -1 (MISSING_ID) in integers.
      most: the largest value an integer may have; the smallest is 0.
    """

    type: pa.DataType
    required: bool = True
    most: int = 2**63 - 1


_ID, _OPTIONAL_ID = RawColumn(pa.int64()), RawColumn(pa.int64(), required=False)
_CONFIDENCE = RawColumn(pa.float64())

CLICKS, EVENTS, PROMOTED = "clicks_train", "events", "promoted_content"
META, CATEGORIES, TOPICS, ENTITIES = "documents_meta", "documents_categories", "documents_topics", "documents_entities"

TABLES: Mapping[str, Mapping[str, RawColumn]] = {
    CLICKS: {"display_id": _ID, "ad_id": _ID, "clicked": RawColumn(pa.int64(), most=1)},
    EVENTS: {
        "display_id": _ID,
        "uuid": RawColumn(pa.string(), required=False),
        "document_id": _OPTIONAL_ID,
        "timestamp": _ID,
        "platform": RawColumn(pa.int64(), required=False, most=3),
        "geo_location": RawColumn(pa.string(), required=False),
    },
    PROMOTED: {
        "ad_id": _ID,
        "document_id": _OPTIONAL_ID,
        "campaign_id": _OPTIONAL_ID,
        "advertiser_id": _OPTIONAL_ID,
    },
    META: {
        "document_id": _ID,
        "source_id": _OPTIONAL_ID,
        "publisher_id": _OPTIONAL_ID,
        "publish_time": RawColumn(pa.timestamp("ms"), required=False),
    },
    CATEGORIES: {"document_id": _ID, "category_id": _ID, "confidence_level": _CONFIDENCE},
    TOPICS: {"document_id": _ID, "topic_id": _ID, "confidence_level": _CONFIDENCE},
    ENTITIES: {"document_id": _ID, "entity_id": RawColumn(pa.string()), "confidence_level": _CONFIDENCE},
}
REQUIRED_TABLES = (CLICKS, EVENTS, PROMOTED)
OPTIONAL_TABLES = (META, CATEGORIES, TOPICS, ENTITIES)


def table_path(folder: str, table: str) -> str:
    """The file of a table."""
    return os.path.join(folder, f"{table}.csv")


def find_tables(folder: str, *, allow_missing: bool) -> tuple[str, ...]:
    """Names of the tables that `folder` has.

    Raises:
      InputError: there is no such folder, or tables are missing: all of them are named. With `allow_missing` those of
        the documents may be.
    """
    if not os.path.isdir(folder):
        raise InputError(f"{folder}: no such folder; --data_path names the folder of Outbrain's CSV files")
    found = tuple(name for name in TABLES if os.path.isfile(table_path(folder, name)))
    missing = [name for name in TABLES if name not in found]
    needed = [name for name in missing if not allow_missing or name in REQUIRED_TABLES]
    if needed:
        names = ", ".join(f"{name}.csv" for name in needed)
        remedy = "put them there (unpacked)"
        if not any(name in REQUIRED_TABLES for name in needed):
            remedy += ", or go on without their features with --allow_missing_tables"
        raise InputError(f"{folder}: lacks {names}; {remedy}")
    return found


def read_table(
    folder: str, table: str, *, columns: Sequence[str] | None = None, block_bytes: int = DEFAULT_BLOCK_BYTES
) -> Iterator[pa.Table]:
    """The rows of a raw file, in file order, some `block_bytes` of text at a time.

    Args:
      columns: those to give, by default all. All of a row is checked for its number of fields, these for their values.

    Yields:
      Tables with `columns`; `RawColumn` says what they hold.

    Raises:
      InputError: the file cannot be read, its header is another, it holds no rows, a row or a value is malformed, or
        the file ends inside a line.
    """
    path = table_path(folder, table)
    wanted = {name: TABLES[table][name] for name in columns or TABLES[table]}
    line = 2
    try:
        _check_ends(path, table)
        reader = pa.csv.open_csv(
            path,
            # One thread: only then do messages name the row.
            read_options=pa.csv.ReadOptions(use_threads=False, block_size=block_bytes),
            # Skipped, empty lines would be missing from the count of lines.
            parse_options=pa.csv.ParseOptions(ignore_empty_lines=False),
            convert_options=pa.csv.ConvertOptions(
                column_types={name: column.type for name, column in TABLES[table].items()},
                include_columns=list(wanted),
                null_values=["", "\\N"],
                strings_can_be_null=True,
            ),
        )
        for batch in reader:
            if batch.num_rows:
                yield _checked(pa.Table.from_batches([batch]), wanted, path, line)
                line += batch.num_rows
    except (pa.ArrowException, UnicodeDecodeError) as error:
        # pyarrow counts the header as row 1: its rows are lines.
        problem = str(error).replace("Row #", "line ")
        if re.search(r"line \d", problem) is None:
            problem = f"in line {line} or after it: {problem}"
        raise InputError(f"{path}: {problem}; correct the line, or download it again") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}; download it again") from error
    if line == 2:
        raise InputError(f"{path}, line 2: the file holds a header and no rows; unpack or download it again")


def _check_ends(path: str, table: str) -> None:
    """The header at the one end, a complete line at the other."""
    expected = list(TABLES[table])
    with open(path, "rb") as file:
        header = file.readline()
        names = header.decode("utf-8-sig", "replace").strip().replace('"', "").split(",")
        if sorted(names) != sorted(expected):
            received = ",".join(names)
            if not header.strip():
                raise InputError(f"{path}, line 1: the file is empty; unpack or download it again")
            raise InputError(
                f"{path}, line 1: the header is '{received[:120]}', not '{','.join(expected)}'; this is no {table}.csv "
                "of Outbrain's"
            )
        file.seek(-1, os.SEEK_END)
        if file.read(1) not in (b"\n", b"\r"):
            file.seek(0)
            last = sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 24), b"")) + 1
            raise InputError(
                f"{path}, line {last}: the file ends inside a line, so it is cut off; download it again, or end its "
                "last line if it is complete"
            )


def _checked(table: pa.Table, wanted: Mapping[str, RawColumn], path: str, first_line: int) -> pa.Table:
    """With every value checked and integers' gaps filled."""
    arrays = {}
    for name, column in wanted.items():
        values = table[name].combine_chunks()
        if column.required and values.null_count:
            row = pc.index(pc.is_null(values), True).as_py()
            raise InputError(f"{path}, line {first_line + row}: {name} is missing; every row needs one")
        if pa.types.is_integer(column.type):
            bad = pc.fill_null(pc.or_(pc.less(values, 0), pc.greater(values, column.most)), False)
            if pc.any(bad).as_py():
                row = pc.index(bad, True).as_py()
                raise InputError(
                    f"{path}, line {first_line + row}: {name} is {values[row].as_py()}, not in 0..{column.most}; "
                    "correct it"
                )
            values = values.fill_null(MISSING_ID)
        elif pa.types.is_floating(column.type):
            bad = pc.invert(pc.and_(pc.is_finite(values), pc.greater_equal(values, 0.0)))
            if pc.any(bad).as_py():
                row = pc.index(bad, True).as_py()
                raise InputError(
                    f"{path}, line {first_line + row}: {name} is {values[row].as_py()}, not a finite number from 0; "
                    "correct it"
                )
        arrays[name] = values
    return pa.table(arrays)
