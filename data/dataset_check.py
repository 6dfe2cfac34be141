"""A look at every value of a dataset: what a training run would stumble over, all of it at once.

    python -m data.feature_spec check DIR

Each file is read once, some ten thousand rows at a time.
"""

import argparse
import collections
import dataclasses
import os
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from tqdm import tqdm

from data import command_line, filesystem
from data.display_count import DisplayCount
from data.errors import InputError
from data.feature_spec import SPEC_FILE, TEST, TRAIN, FeatureSpec
from data.parquet_files import Column, Kind, column_problems, open_parquet, read_footer, spec_columns

_MOST_LINES = 50
_BATCH_ROWS = 32_768
_MOST_FLOAT32 = float(np.finfo(np.float32).max)


@dataclasses.dataclass
class Finding:
    """One kind of thing in a column.

    Attributes:
      what: "id(s) out of 0..99", say.
      count: how often it was found.
      row, example: row (counted from 0) and value of the first; None where there is no value to show.
      longest: the longest list, where lists are too long.
      file: of the first.
      files: all that have it.
    """

    what: str
    count: int
    row: int
    example: object
    longest: int | None = None
    file: str = ""
    files: set[str] = dataclasses.field(default_factory=set)


@dataclasses.dataclass
class Report:
    """What was found.

    Attributes:
      rows, displays: by source; displays are missing where they cannot be counted.
      files: source -> number of files.
      problems: what training would refuse, a line each.
      notes: what it would accept, but a user may want to know.
    """

    rows: dict[str, int] = dataclasses.field(default_factory=dict)
    displays: dict[str, int] = dataclasses.field(default_factory=dict)
    files: dict[str, int] = dataclasses.field(default_factory=dict)
    problems: list[str] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)


def check(spec: FeatureSpec) -> Report:
    """Reads all files of all sources of `spec`; problems are collected and never raised."""
    report, checks, named = Report(), [], set()
    for source in dict.fromkeys((TRAIN, TEST, *spec.sources)):  # training needs the first two
        try:
            paths = spec.source_files(source)
        except InputError as error:
            report.problems.append(str(error))
            continue
        named |= {os.path.normpath(path) for path in paths}
        checks.append(_SourceCheck(spec, source, paths, report))
    for one in checks:
        one.run(named)
    return report


def render(report: Report, name: str) -> str:
    """The verdict, for people."""
    lines = []
    for source, rows in report.rows.items():
        displays = f" of {report.displays[source]:,} displays" if source in report.displays else ""
        lines.append(f"{source}: {rows:,} rows{displays} in {report.files[source]:,} files")
    for title, found in (("problem", report.problems), ("note", report.notes)):
        lines += [f"{title}: {line}" for line in found[:_MOST_LINES]]
        if len(found) > _MOST_LINES:
            lines.append(f"{len(found) - _MOST_LINES} more {title}s are not shown")
    count = len(report.problems)
    lines.append(f"{name}: OK" if not count else f"{name}: {count} problem{'s' if count > 1 else ''}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code, 2 where there are problems."""
    parser = command_line.Parser(
        prog="python -m data.feature_spec", description="Reads every value of a dataset and says what is wrong with it."
    )
    commands = parser.add_subparsers(required=True, metavar="check", parser_class=command_line.Parser)
    command = commands.add_parser("check", help="read all files of a dataset")
    command.add_argument("path", metavar="DIR", help="folder or address of the dataset, or its specification file")
    problems: list[str] = []

    def work(given: argparse.Namespace) -> str:
        path = filesystem.join(given.path, SPEC_FILE) if filesystem.is_folder(given.path) else given.path
        report = check(FeatureSpec.from_yaml(path))
        problems.extend(report.problems)
        return render(report, path)

    return command_line.run(parser, work, arguments) or (2 if problems else 0)


class _SourceCheck:
    """The files of one source."""

    def __init__(self, spec: FeatureSpec, source: str, paths: tuple[str, ...], report: Report):
        self._source, self._paths, self._report = source, paths, report
        self._label, self._display = spec.label, spec.display
        (chunk,) = spec.sources[source]
        # Evaluation reads the display whatever the chunk says, training never does.
        with_display = spec.display is not None and (source == TEST or spec.display in chunk.features)
        self._columns = spec_columns(spec, with_display=with_display)
        self._problems: dict[tuple[str, str], Finding] = {}
        self._notes: dict[tuple[str, str], Finding] = {}
        self._types: dict[str, dict[str, list[str]]] = collections.defaultdict(dict)
        self._displays = DisplayCount() if with_display else None

    def run(self, named: set[str]) -> None:
        """Reads everything; `named` are the paths that the specification names in any source."""
        rows = 0
        for path in tqdm(self._paths, desc=f"check {self._source}", unit="file", disable=None, leave=False):
            try:
                footer = read_footer(path)
            except InputError as error:
                self._report.problems.append(f"{self._source}: {error}")
                continue
            if footer.num_rows == 0:
                self._report.notes.append(f"{self._source}: {path}: holds no rows")
                continue
            rows += footer.num_rows
            unusable = list(column_problems(path, footer, self._columns))
            self._report.problems += [f"{self._source}: {problem}" for problem in unusable]
            usable = [c for c in self._columns if not any(f": column '{c.name}' (" in problem for problem in unusable)]
            schema = footer.schema.to_arrow_schema()
            for column in usable:
                self._types[column.name].setdefault(str(schema.field(column.name).type), []).append(path)
            self._read(path, usable)
        self._report.rows[self._source], self._report.files[self._source] = rows, len(self._paths)
        self._look_for_others(named)
        if rows == 0:
            self._report.problems.append(f"{self._source}: its {len(self._paths)} file(s) hold no rows")
        self._say()

    def _read(self, path: str, columns: list[Column]) -> None:
        try:
            with open_parquet(path) as file:
                first = 0
                for batch in file.iter_batches(_BATCH_ROWS, columns=[column.name for column in columns]):
                    for column in columns:
                        array = batch[column.name]
                        if pa.types.is_dictionary(array.type):
                            array = array.dictionary_decode()
                        for found in _problems(column, array):
                            self._note_down(self._problems, column, found, path, first)
                        for found in _remarks(column, array):
                            self._note_down(self._notes, column, found, path, first)
                    if self._displays is not None and {self._display, self._label} <= set(batch.schema.names):
                        self._displays.add(batch[self._display], batch[self._label])
                    first += batch.num_rows
        except (pa.ArrowException, OSError) as error:
            self._report.problems.append(f"{self._source}: {path}: cannot be decoded ({error}); write the file again")

    def _look_for_others(self, named: set[str]) -> None:
        """Parquet files beside the source's that no source names."""
        for folder in sorted({filesystem.parent(path) for path in self._paths}):
            try:
                found = filesystem.list_files(folder, recursive=False)
            except InputError:
                continue  # that its files cannot be read has been said
            others = [path for path in found if path.endswith(".parquet") and os.path.normpath(path) not in named]
            if others:
                self._report.notes.append(
                    f"{self._source}: {folder} has {len(others)} parquet file(s) that the specification does not "
                    f"name, {others[0]} for one"
                )

    @staticmethod
    def _note_down(
        findings: dict[tuple[str, str], Finding], column: Column, found: Finding, path: str, first_row: int
    ) -> None:
        known = findings.get((column.name, found.what))
        if known is None:
            known = dataclasses.replace(found, count=0, row=first_row + found.row, file=path, files=set())
            findings[column.name, found.what] = known
        known.count += found.count
        known.longest = found.longest if found.longest is None else max(known.longest, found.longest)
        known.files.add(path)

    def _say(self) -> None:
        kinds = {column.name: column.kind.value for column in self._columns}
        for lines, findings in ((self._report.problems, self._problems), (self._report.notes, self._notes)):
            for (name, _), found in findings.items():
                shown = "" if found.example is None else f", the first {str(found.example)[:60]}"
                shown += "" if found.longest is None else f", the longest holds {found.longest}"
                more = f" and in {len(found.files) - 1} more file(s)" if len(found.files) > 1 else ""
                lines.append(
                    f"{self._source}: column '{name}' ({kinds[name]}): {found.count:,} {found.what}{shown}, in "
                    f"{found.file}, row {found.row}{more}"
                )
        for name, types in self._types.items():
            if len(types) > 1:
                parts = (f"{type_} in {len(paths)} file(s) such as {paths[0]}" for type_, paths in types.items())
                self._report.notes.append(f"{self._source}: column '{name}' ({kinds[name]}) is {'; '.join(parts)}")
        if self._displays is not None:
            self._displays.end()
        if self._displays is not None and self._displays.ascending:
            self._report.displays[self._source] = self._displays.count
            for what, count in (("no click", self._displays.without), ("several clicks", self._displays.several)):
                if count:
                    self._report.notes.append(f"{self._source}: {count:,} displays have {what}")


def _problems(column: Column, array: pa.Array) -> Iterator[Finding]:
    """What training would refuse in some values of a column."""
    if column.kind in (Kind.ONEHOT, Kind.MULTIHOT):
        ids, rows = _flat(array)
        most = column.cardinality - 1
        yield from _found(f"id(s) out of 0..{most} (-1: absent)", (ids < -1) | (ids > most), ids, rows)
        return
    null = array.is_null().to_numpy(zero_copy_only=False)
    yield from _found("null(s)", null)
    values = array.to_numpy(zero_copy_only=False)
    if column.kind is Kind.DISPLAY:
        if values.dtype == np.uint64:
            yield from _found("display id(s) from 2^63 on", values >= 2**63, values)
        return
    numbers = values.astype(np.float64)
    if column.kind is Kind.LABEL:
        yield from _found("label(s) other than 0 and 1", ~null & (numbers != 0) & (numbers != 1), numbers)
    else:
        yield from _found("NaN(s)", ~null & np.isnan(numbers))
        yield from _found("number(s) beyond 32-bit floats", np.abs(numbers) > _MOST_FLOAT32, numbers)


def _remarks(column: Column, array: pa.Array) -> Iterator[Finding]:
    """What training accepts, and a user may not expect."""
    if column.kind is Kind.MULTIHOT and not pa.types.is_integer(array.type):
        lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
        for found in _found(
            f"list(s) beyond max_hotness {column.hotness}, which training cuts", lengths > column.hotness
        ):
            found.longest = int(lengths.max())
            yield found


def _flat(array: pa.Array) -> tuple[np.ndarray, np.ndarray | None]:
    """Ids one after the other, -1 for null, and the row of each (None: id i is of row i)."""
    rows = None
    if not (pa.types.is_integer(array.type) or pa.types.is_null(array.type)):
        lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
        rows, array = np.repeat(np.arange(len(array)), lengths), array.flatten()
    if array.null_count:
        array = pc.fill_null(array.cast(pa.int64(), safe=False), -1)
    return array.to_numpy(zero_copy_only=False), rows


def _found(
    what: str, bad: np.ndarray, values: np.ndarray | None = None, rows: np.ndarray | None = None
) -> Iterator[Finding]:
    """A finding if any of `bad` is true: of values (None: nothing to show) and their rows (None: one each)."""
    count = int(bad.sum())
    if count:
        place = int(bad.argmax())
        row = place if rows is None else int(rows[place])
        yield Finding(what, count, row, None if values is None else values[place].item())
