"""A CSV or parquet table of anybody -> a dataset that `main.py` trains on: parquet files and a feature specification.

    python -m data.transcode --input PATH --output DIR --label NAME [--display_id NAME]

PATH is a file or a folder of files, local or an address (`data.filesystem`); what the columns are is inferred over all
rows (`data.column_inference`) where flags do not say. Categorical values become dense ids by vocabularies of the
training rows, which are saved, unless they are suitable ids already (`data.column_encoders`); the id 0 of a vocabulary
stands for unseen values. Gaps in numericals are filled and flagged in a column NAME_missing of zeros and ones.

The input is read three times, in batches: memory grows with the distinct ids of categorical columns, not with the rows.
The result is a function of the rows in their order and of the options: not of how the rows are cut into files or
batches, nor of whether they come as CSV or parquet.
"""

import argparse
import csv
import os
import sys
from collections.abc import Sequence

from data import command_line, filesystem
from data.column_inference import Decision, Role, decide
from data.csv_text import CsvFormat
from data.errors import InputError
from data.feature_spec import SPEC_FILE, TEST, TRAIN, FeatureSpec
from data.part_writer import PartWriter
from data.row_split import DEFAULT_TEST_FRACTION, HashSplit, RowSplit, TimeSplit
from data.staging import staged_folder
from data.transcode_columns import describe, make_encoders, report, specification
from data.transcode_in_place import DEFAULT_TEST_FILES, DEFAULT_TRAIN_FILES, describe_in_place
from data.transcode_input import DEFAULT_BLOCK_BYTES, open_tables
from data.transcode_options import ColumnOptions
from data.transcode_passes import Passes
from data.transcode_report import Transcoded

DEFAULT_ROWS_PER_GROUP = 16384
_GROUPS_PER_FILE = 32
_FOLDERS = {TRAIN: "train", TEST: "valid"}


def transcode(
    input_path: str,
    output_dir: str,
    options: ColumnOptions,
    *,
    form: CsvFormat | None = None,
    split: RowSplit | None = None,
    overwrite: bool = False,
    rows_per_group: int = DEFAULT_ROWS_PER_GROUP,
    block_bytes: int = DEFAULT_BLOCK_BYTES,
) -> Transcoded:
    """Writes `train/` and `valid/` parquet, `vocabulary/` and `feature_spec.yaml`, all of it or nothing.

    Args:
      input_path: a file or folder of CSV or parquet, or its address.
      output_dir: a local folder that does not exist or is empty.
      options: what is known of the columns.
      form: of CSV files.
      split: which rows are held out, as the source `test`. By default a fifth of the displays, or of the rows where
        there are no displays.
      overwrite: replaces a dataset that `output_dir` holds.
      rows_per_group: rows of each parquet row group, but for the last of a source.
      block_bytes: how much is read at a time; does not change what is written.

    Raises:
      InputError: an input file is missing, malformed or holds values that cannot be used; an option contradicts
        another or the data; a side of the split is empty; or the folder cannot be written.
    """
    if rows_per_group < 1:
        raise InputError(f"--rows_per_group={rows_per_group}: give at least 1")
    split = split or HashSplit(options.display_id)
    _check_apart(input_path, output_dir)
    tables = open_tables(input_path, form=form or CsvFormat(), block_bytes=block_bytes)
    flags = options.flags(tables.columns, split.column, tables.paths[0])
    with staged_folder(output_dir, overwrite=overwrite, marker=SPEC_FILE) as folder:
        passes = Passes(tables, split)
        read = [name for name in tables.columns if name and flags.roles.get(name) is not Role.IGNORED]
        survey = passes.survey(read, options.label)
        decisions = {name: decide(name, survey.observers[name], flags) for name in read}
        options.check_decisions(decisions)
        encoders = make_encoders(decisions, survey, options, tables.columns)
        passes.fit(encoders, survey.total_rows)
        rows_per_file = _GROUPS_PER_FILE * rows_per_group
        writers = {
            source: PartWriter(folder, name, rows_per_group=rows_per_group, rows_per_file=rows_per_file)
            for source, name in _FOLDERS.items()
        }
        passes.write(encoders, writers, survey.total_rows)
        metadata = describe(encoders, survey, split)
        for name, path in metadata["vocabularies"].items():
            encoders[name].vocabulary.save(os.path.join(folder, path))
        files = {source: tuple(writer.files) for source, writer in writers.items()}
        features = {name: encoder.features for name, encoder in encoders.items()}
        specification(features, decisions, files, metadata).to_yaml(os.path.join(folder, SPEC_FILE))
    for name in tables.columns:
        rule = "flag" if name else "the header has no name for it"
        decisions.setdefault(name, Decision(Role.IGNORED, rule))
    lines = [report(name, decisions[name], survey.observers.get(name), encoders.get(name)) for name in tables.columns]
    return Transcoded(FeatureSpec.from_yaml(os.path.join(output_dir, SPEC_FILE)), tuple(lines))


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code."""
    return command_line.run(_parser(), _work, arguments)


def _check_apart(input_path: str, output_dir: str) -> None:
    """Raises InputError where one folder would hold the other: the input stays as it is, and is all that is read."""
    local = input_path.removeprefix("fsspec+").removeprefix("file://")
    if filesystem.is_address(local):
        return
    source, output = os.path.realpath(local), os.path.realpath(output_dir)
    if os.path.commonpath([source, output]) in (source, output):
        raise InputError(f"{output_dir}: lies in the input {input_path}, or holds it; name a folder elsewhere")


def _parser() -> command_line.Parser:
    parser = command_line.Parser(
        prog="python -m data.transcode",
        description="A table of CSV or parquet -> parquet and a feature specification that main.py trains on.",
        epilog="NAMES are columns, separated by commas; such a flag may be given again, and names with commas quoted.",
    )
    add = parser.add_argument
    add("--input", required=True, metavar="PATH", help="a file or folder of CSV (or .csv.gz) or parquet; or an address")
    add("--output", required=True, metavar="DIR", help="folder to write; must not exist or be empty")
    add("--overwrite", action="store_true", help="replace the dataset that the folder holds")
    add("--label", required=True, metavar="NAME", help="column of zeros and ones")
    add("--display_id", metavar="NAME", help="column of the groups that MAP@12 ranks")
    roles = parser.add_argument_group("columns, inferred over the whole input where not given")
    for flag, text in (
        ("categorical", "one id a row"),
        ("multihot", "lists of ids: [1,2] or a|b"),
        ("numerical", "numbers"),
        ("ignore", "not used"),
        ("vocabulary", "whole numbers that are mapped to dense ids even if they could be kept"),
    ):
        roles.add_argument(f"--{flag}", action="append", default=[], metavar="NAMES", help=text)
    for flag, text in (("cardinality", "ids are below N"), ("hotness", "lists hold at most N ids")):
        roles.add_argument(f"--{flag}", action="append", default=[], metavar="NAME=N", help=f"{text}; more is an error")
    roles.add_argument("--min_count", type=int, metavar="N", help="training rows a value needs for an id (1)")
    roles.add_argument("--log_standardize", action="store_true", help="numericals: sign(x) log(1+|x|), standardised")
    roles.add_argument("--fill", metavar="X", help="value of gaps in numericals: mean (of training rows) or a number")
    form = parser.add_argument_group("CSV")
    form.add_argument("--delimiter", metavar="C", help="a comma by default; \\t for tabs")
    form.add_argument("--no_header", action="store_true", help="the first line is data")
    form.add_argument("--columns", action="append", default=[], metavar="NAMES", help="names for --no_header (c0, ...)")
    form.add_argument("--missing", action="append", default=[], metavar="TEXTS", help="besides the empty text and \\N")
    split = parser.add_argument_group("held-out rows")
    split.add_argument(
        "--split_key", metavar="NAME", help="by the hash of a column: --display_id or the row by default"
    )
    split.add_argument("--test_fraction", type=float, metavar="F", help=f"share of the keys ({DEFAULT_TEST_FRACTION})")
    split.add_argument("--seed", type=int, metavar="S", help="of that hash (0)")
    split.add_argument("--split_time_column", metavar="NAME", help="by time: rows at or after --split_at are held out")
    split.add_argument("--split_at", metavar="T", help="a number, or a date or time such as 2024-01-31T18:00:00 (UTC)")
    split.add_argument("--rows_per_group", type=int, metavar="N", help=f"parquet row groups ({DEFAULT_ROWS_PER_GROUP})")
    place = parser.add_argument_group("parquet whose types fit already")
    place.add_argument("--in_place", action="store_true", help="write a specification alone, of the files as they are")
    place.add_argument("--train_files", metavar="PATH", help=f"in the input ({DEFAULT_TRAIN_FILES})")
    place.add_argument("--test_files", metavar="PATH", help=f"in the input ({DEFAULT_TEST_FILES})")
    return parser


def _work(given: argparse.Namespace) -> str:
    options = ColumnOptions(
        label=given.label,
        display_id=given.display_id,
        **{name: _names(getattr(given, name)) for name in ("categorical", "multihot", "numerical", "ignore")},
        vocabulary=_names(given.vocabulary),
        cardinality=_numbers("--cardinality", given.cardinality),
        hotness=_numbers("--hotness", given.hotness),
        min_count=1 if given.min_count is None else given.min_count,
        log_standardize=given.log_standardize,
        fill=_fill(given.fill),
    )
    if given.in_place:
        _refuse_with(given, "--in_place", _CONVERSIONS)
        return describe_in_place(
            given.input,
            given.output,
            options,
            train_files=given.train_files or DEFAULT_TRAIN_FILES,
            test_files=given.test_files or DEFAULT_TEST_FILES,
            overwrite=given.overwrite,
        ).summary()
    for name in ("train_files", "test_files"):
        if getattr(given, name) is not None:
            raise InputError(f"--{name} is for --in_place, which writes a specification alone; add that, or drop it")
    form = CsvFormat(
        delimiter="," if given.delimiter is None else given.delimiter,
        header=not given.no_header,
        columns=_names(given.columns),
        missing=_names(given.missing),
    )
    rows_per_group = DEFAULT_ROWS_PER_GROUP if given.rows_per_group is None else given.rows_per_group
    return transcode(
        given.input,
        given.output,
        options,
        form=form,
        split=_split(given),
        overwrite=given.overwrite,
        rows_per_group=rows_per_group,
    ).summary()


_CONVERSIONS = (
    *("vocabulary", "min_count", "log_standardize", "fill", "delimiter", "no_header", "columns", "missing"),
    *("split_key", "test_fraction", "seed", "split_time_column", "split_at", "rows_per_group"),
)


def _refuse_with(given: argparse.Namespace, flag: str, others: Sequence[str]) -> None:
    for name in others:
        value = getattr(given, name)
        if value is not None and value is not False and value != []:  # a zero was given
            raise InputError(f"--{name} and {flag} contradict each other; drop one of them")


def _split(given: argparse.Namespace) -> RowSplit:
    if given.split_time_column is None and given.split_at is None:
        return HashSplit(
            given.split_key or given.display_id,
            DEFAULT_TEST_FRACTION if given.test_fraction is None else given.test_fraction,
            given.seed or 0,
        )
    if given.split_time_column is None or given.split_at is None:
        raise InputError("--split_time_column and --split_at go together: give both, or neither")
    _refuse_with(given, "--split_time_column", ("split_key", "test_fraction", "seed"))
    return TimeSplit(given.split_time_column, given.split_at)


def _names(values: Sequence[str]) -> tuple[str, ...]:
    return tuple(name for record in csv.reader(values) for name in record)


def _numbers(flag: str, values: Sequence[str]) -> dict[str, int]:
    numbers = {}
    for part in _names(values):
        name, _, number = part.rpartition("=")
        if not name or not number.isascii() or not number.isdigit():
            raise InputError(f"{flag} {part}: give NAME=N, N a whole number")
        numbers[name] = int(number)
    return numbers


def _fill(value: str | None) -> float | None:
    if value in (None, "mean"):
        return None
    try:
        return float(value)
    except ValueError:
        raise InputError(f"--fill={value}: give a number, or mean") from None


if __name__ == "__main__":
    sys.exit(main())
