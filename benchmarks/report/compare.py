"""Scores of one system beside those of another, or of one implementation beside another in the same table."""

import dataclasses
import itertools
from collections.abc import Callable, Hashable, Sequence
from datetime import UTC, datetime

from benchmarks.report import machines
from benchmarks.report.rows import Row, Summary, describe, order
from benchmarks.report.statistics import PAIRS_AT_LEAST, Ratio, ratio
from benchmarks.suite.results import Cell, Result
from data.errors import InputError


@dataclasses.dataclass(frozen=True)
class Compared:
    """A cell that both sides scored. `ratio` is of B to A."""

    a: Row
    b: Row
    ratio: Ratio


@dataclasses.dataclass(frozen=True)
class Comparison:
    """What came out.

    Attributes:
      a, b: names of the sides.
      by_implementation: whether the sides are implementations of one table.
      rows: sorted.
      left_out: a line for each cell that is not compared, and why.
      lost: those of them that are of cells which A scored.
      machines_differ: how the machines differ, one line; "" if they do not, or are not known.
    """

    a: str
    b: str
    by_implementation: bool
    rows: Sequence[Compared]
    left_out: Sequence[str]
    lost: Sequence[str]
    machines_differ: str = ""

    def slower_than(self, threshold: float) -> list[Compared]:
        """Rows whose ratio has its whole interval below the threshold."""
        return [row for row in self.rows if row.ratio.high is not None and row.ratio.high < threshold]

    def without_interval(self) -> list[Compared]:
        """Rows of which a threshold can tell nothing: one side was run once."""
        return [row for row in self.rows if row.ratio.high is None]


def compare(a: Summary, b: Summary, name_a: str, name_b: str) -> Comparison:
    """System B over system A, cell by cell.

    Raises:
      InputError: no cell can be compared.
    """
    fields = machines.differences(a.machine, b.machine) if a.machine and b.machine else []
    differ = machines.shown(a.machine, b.machine, fields) if fields else ""
    same_machine = bool(a.machine and b.machine) and not fields and a.machine.get("host") == b.machine.get("host")
    found = _compare(a.rows, b.rows, name_a, name_b, lambda cell: dataclasses.replace(cell, version=""), same_machine)
    unscored = [
        f"{describe(one.cell)}: {one.status} in {name}: {one.reason}"
        for summary, name in ((a, name_a), (b, name_b))
        for one in summary.unscored
    ]
    return dataclasses.replace(found, machines_differ=differ, left_out=[*found.left_out, *unscored])


def compare_implementations(summary: Summary, first: str, second: str) -> Comparison:
    """Implementation `second` over `first`, in one table.

    Raises:
      InputError: they are the same, or no cell can be compared.
    """
    if first == second:
        raise InputError(f"--implementations={first},{second}: give two different ones")
    sides = [[row for row in summary.rows if row.cell.implementation == name] for name in (first, second)]
    found = _compare(
        *sides,
        first,
        second,
        lambda cell: dataclasses.replace(cell, version="", implementation=""),
        bool(summary.machine),
    )
    unscored = [
        f"{describe(one.cell)}: {one.status}: {one.reason}"
        for one in summary.unscored
        if one.cell.implementation in (first, second)
    ]
    return dataclasses.replace(found, by_implementation=True, left_out=[*found.left_out, *unscored])


def interleaved(first: Sequence[Result], second: Sequence[Result]) -> bool:
    """Whether repeats were made in turns, so that those of a number saw the machine in the same state.

    They were if both sides have the same numbers, three or more, and each number had begun on both sides before the
    next one began on either.
    """
    starts = [{repeat.repeat: _time(repeat.start_time) for repeat in side} for side in (first, second)]
    numbers = sorted(starts[0])
    if starts[0].keys() != starts[1].keys() or len(numbers) < PAIRS_AT_LEAST:
        return False
    if len(numbers) != len(first) or len(numbers) != len(second) or None in {*starts[0].values(), *starts[1].values()}:
        return False
    turns = [sorted(side[number] for side in starts) for number in numbers]
    return all(turn[-1] < after[0] for turn, after in itertools.pairwise(turns))


def _compare(
    rows_a: Sequence[Row],
    rows_b: Sequence[Row],
    name_a: str,
    name_b: str,
    key: Callable[[Cell], Hashable],
    same_machine: bool,
) -> Comparison:
    sides = []
    for rows in (rows_a, rows_b):
        side: dict[Hashable, dict[str, Row]] = {}
        for row in rows:
            side.setdefault(key(row.cell), {})[row.cell.version] = row
        sides.append(side)
    found, left_out, lost = [], [], []
    for name, mine, other, theirs in ((name_a, sides[0], name_b, sides[1]), (name_b, sides[1], name_a, sides[0])):
        for same_but_version, versions in mine.items():
            there = theirs.get(same_but_version, {})
            reason = f"a score in {name}, none in {other}"
            if there:
                reason = f"version {', '.join(sorted(there))} in {other}, and versions are not compared"
            alone = [row.cell for version, row in versions.items() if version not in there]
            lines = [(order(cell), f"{describe(cell)}: {reason}") for cell in alone]
            left_out += lines
            lost += lines if mine is sides[0] else []
    for same_but_version, versions in sides[0].items():
        for version, a in versions.items():
            b = sides[1].get(same_but_version, {}).get(version)
            if b is None:
                continue
            if a.units != b.units:
                reason = f"{a.units} in {name_a} and {b.units} in {name_b}"
                left_out.append((order(b.cell), f"{describe(b.cell)}: {reason}"))
                lost.append(left_out[-1])
                continue
            paired = same_machine and interleaved(a.repeats, b.repeats)
            found.append(Compared(a, b, ratio(a.scores, b.scores, paired=paired)))
    if not found:
        reasons = "; ".join(line for _, line in sorted(left_out)[:3])
        raise InputError(
            f"{name_a} and {name_b} have no cell to compare{f' ({reasons})' if reasons else ''}; "
            "both must have scores of the same benchmarks, batch sizes, ranks and precisions"
        )
    found.sort(key=lambda compared: order(compared.b.cell))
    lines = ([line for _, line in sorted(some)] for some in (left_out, lost))
    return Comparison(name_a, name_b, False, found, *lines)


def _time(text: str) -> datetime | None:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)
