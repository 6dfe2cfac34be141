"""Rows of a table, from the results of one machine: what scored, and what did not and why."""

import dataclasses
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks.report import machines
from benchmarks.report.statistics import NOISY_SPREAD, interval, spread
from benchmarks.suite.results import OK, UNSOUND, Cell, Result
from data.errors import InputError


@dataclasses.dataclass(frozen=True)
class Row:
    """A cell that scored: its repeats, in the order of their numbers."""

    cell: Cell
    repeats: Sequence[Result]

    @property
    def scores(self) -> list[float]:
        """Of the repeats."""
        return [repeat.score for repeat in self.repeats]

    @property
    def score(self) -> float:
        """Median over repeats, in `units`."""
        return statistics.median(self.scores)

    @property
    def units(self) -> str:
        """Of the score."""
        return self.repeats[0].units

    @property
    def interval(self) -> tuple[float, float] | None:
        """95 % interval of the score from its repeats; None of one repeat."""
        return interval(self.scores)

    @property
    def spread(self) -> float | None:
        """Of the repeats, as a share of the score; None of one."""
        return spread(self.scores)

    @property
    def noisy(self) -> bool:
        """Whether the repeats are further apart than the stated bound."""
        return (self.spread or 0) > NOISY_SPREAD

    @property
    def p95_ms(self) -> float | None:
        """Median over repeats of the 95th percentile of the step times; None where no step was timed."""
        found = [repeat.p95_ms for repeat in self.repeats if repeat.p95_ms is not None]
        return statistics.median(found) if found else None

    @property
    def latency_limit_ms(self) -> float | None:
        """The strictest that a repeat was run with; None without one."""
        return min(
            (repeat.latency_limit_ms for repeat in self.repeats if repeat.latency_limit_ms is not None), default=None
        )

    @property
    def missed_limit(self) -> bool:
        """Whether the latency that the table shows is above the limit."""
        return self.latency_limit_ms is not None and self.p95_ms is not None and self.p95_ms > self.latency_limit_ms

    @property
    def marks(self) -> str:
        """What stands after the score: `*` for a missed latency limit, `~` for repeats far apart."""
        return "*" * self.missed_limit + "~" * self.noisy

    @property
    def median_repeat(self) -> Result:
        """The repeat whose score is the median; of an even number the one just below it."""
        return sorted(self.repeats, key=lambda repeat: repeat.score)[(len(self.repeats) - 1) // 2]


@dataclasses.dataclass(frozen=True)
class Unscored:
    """Repeats of a cell that ended in the same way, without a score."""

    cell: Cell
    status: str
    reason: str
    repeats: Sequence[int]


@dataclasses.dataclass(frozen=True)
class Summary:
    """The results of one machine.

    Attributes:
      rows: what scored, sorted.
      unscored: what did not, sorted.
      machine: fingerprint; empty where the results have none.
      commits: of the source tree, by the fingerprints; a tree with changes is marked.
    """

    rows: Sequence[Row]
    unscored: Sequence[Unscored]
    machine: Mapping[str, Any]
    commits: Sequence[str]


def summarise(results: Iterable[Result], where: str) -> Summary:
    """Brings the repeats of each cell together.

    A repeat that failed, was skipped or was unsound and later got a score in a second try counts as what it became. A
    cell with a repeat that stayed unsound has no row: what one process computed wrong, the others are not trusted with.

    Args:
      results: in the order in which they were written.
      where: they come from, for messages.

    Raises:
      InputError: they are of several machines, or a cell's scores have several units.
    """
    results = list(results)
    machine = machines.only_one((result.fingerprint for result in results), where)
    cells: dict[Cell, list[Result]] = {}
    for result in results:
        cells.setdefault(result.cell, []).append(result)
    rows, unscored = [], []
    for cell, found in cells.items():
        scored = [result for result in found if result.status == OK]
        left = [
            result
            for place, result in enumerate(found)
            if result.status != OK
            and not any(later.status == OK and later.repeat == result.repeat for later in found[place + 1 :])
        ]
        if scored and any(result.status == UNSOUND for result in left):
            reason = "another repeat of it was unsound"
            left += [dataclasses.replace(result, status=UNSOUND, score=None, reason=reason) for result in scored]
            scored = []
        if len({result.units for result in scored}) > 1:
            units = ", ".join(sorted({result.units for result in scored}))
            raise InputError(f"{where}: {describe(cell)} has scores in {units}: keep those of one version apart")
        if scored:
            rows.append(Row(cell, sorted(scored, key=lambda result: (result.repeat, result.start_time))))
        unscored += _grouped(cell, left)
    return Summary(
        rows=sorted(rows, key=lambda row: order(row.cell)),
        unscored=sorted(unscored, key=lambda one: (order(one.cell), one.status, one.repeats, one.reason)),
        machine=machine,
        commits=_commits(results),
    )


def order(cell: Cell) -> tuple[bool, Cell]:
    """Where a cell stands in a table: models before microbenchmarks, then by the columns."""
    return cell.implementation == "micro", cell


def describe(cell: Cell) -> str:
    """A cell in one line, for messages and captions."""
    ranks = "" if cell.world_size == 1 else f", {cell.world_size} ranks"
    scaling = "" if cell.scaling == "single" else f" ({cell.scaling})"
    return f"{cell.benchmark}, version {cell.version}, batch {cell.batch_size:,}{ranks}{scaling}, {cell.precision}"


def _grouped(cell: Cell, results: Iterable[Result]) -> list[Unscored]:
    groups: dict[tuple[str, str], set[int]] = {}
    for result in results:
        groups.setdefault((result.status, result.reason), set()).add(result.repeat)
    return [Unscored(cell, status, reason, sorted(repeats)) for (status, reason), repeats in groups.items()]


def _commits(results: Iterable[Result]) -> list[str]:
    found = set()
    for result in results:
        state = result.fingerprint
        if state.get("commit"):
            found.add(f"{state['commit']}{' with changes' if state.get('dirty') else ''}")
    return sorted(found)
