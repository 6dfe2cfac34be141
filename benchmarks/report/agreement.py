"""Whether the suite, run several times on one machine, gave the same scores within the spread that it states of them.

A run states of each score how far its repeats are apart. That says what one more repeat would give only if the runs
themselves are no further apart, hours or days later: what moves all repeats of a run together is not in its spread.
"""

import dataclasses
from collections.abc import Sequence

from benchmarks.report import machines
from benchmarks.report.rows import Row, Summary, describe, order
from benchmarks.report.statistics import spread
from benchmarks.report.tables import COLUMNS, Grid, number, render_markdown, render_text, wrapped
from data.errors import InputError

RUNS_AT_LEAST = 2


@dataclasses.dataclass(frozen=True)
class Agreed:
    """A cell that every run scored: its rows, one of each run."""

    rows: Sequence[Row]

    @property
    def apart(self) -> float:
        """How far the runs' scores are apart: (highest - lowest) / median."""
        return spread([row.score for row in self.rows])

    @property
    def stated(self) -> float | None:
        """The largest spread of repeats that a run states; None where one of them has a single repeat."""
        found = [row.spread for row in self.rows]
        return None if None in found else max(found)

    @property
    def holds(self) -> bool:
        """Whether the runs are no further apart than the repeats of one of them."""
        return self.stated is not None and self.apart <= self.stated


@dataclasses.dataclass(frozen=True)
class Agreement:
    """What came out: the names of the runs, the cells that all scored, and a line for each that one did not score."""

    runs: Sequence[str]
    cells: Sequence[Agreed]
    left_out: Sequence[str]

    @property
    def findings(self) -> list[str]:
        """Why the runs do not agree, a line each; empty if they do."""
        found = []
        for cell in self.cells:
            who = describe(cell.rows[0].cell)
            if cell.stated is None:
                found.append(f"no spread is stated: {who}: a run has one repeat alone")
            elif not cell.holds:
                found.append(f"apart: {who}: {cell.apart:.1%} between runs, {cell.stated:.1%} between repeats of one")
        return found + list(self.left_out)


def agreement(summaries: Sequence[Summary], names: Sequence[str]) -> Agreement:
    """Brings the runs' rows of each cell together.

    Args:
      summaries: of the runs, at least two.
      names: theirs.

    Raises:
      InputError: too few runs, one given twice, runs of several machines, or no cell that all of them scored.
    """
    if len(summaries) < RUNS_AT_LEAST or len(set(names)) != len(names):
        raise InputError(f"agreement is of {RUNS_AT_LEAST} runs and more, each given once; got {', '.join(names)}")
    first = summaries[0]
    for summary, name in zip(summaries[1:], names[1:], strict=True):
        fields = machines.differences(first.machine, summary.machine)
        if fields:
            shown = machines.shown(first.machine, summary.machine, fields)
            raise InputError(f"{names[0]} and {name} are of different machines: {shown}; compare is for those")
    by_cell = [{row.cell: row for row in summary.rows} for summary in summaries]
    every = sorted({cell for rows in by_cell for cell in rows}, key=order)
    shared = [Agreed([rows[cell] for rows in by_cell]) for cell in every if all(cell in rows for rows in by_cell)]
    if not shared:
        raise InputError(f"{', '.join(names)} have no score of the same cell: name runs of the same benchmarks")
    left_out = []
    for cell in every:
        without = [name for name, rows in zip(names, by_cell, strict=True) if cell not in rows]
        if without:
            left_out.append(f"no score in {', '.join(without)}: {describe(cell)}")
    return Agreement(tuple(names), shared, left_out)


def grid(found: Agreement) -> Grid:
    """The table: each run's score, how far the runs are apart, and the spread that they state."""
    columns = COLUMNS.shown([cell.rows[0].cell for cell in found.cells])
    runs = [f"Run {place}" for place in range(1, len(found.runs) + 1)]
    rows = [
        [
            *(of(cell.rows[0].cell) for of in columns.values()),
            *(number(row.score) + row.marks for row in cell.rows),
            cell.rows[0].units,
            f"{cell.apart:.1%}",
            "none" if cell.stated is None else f"{cell.stated:.1%}",
            "yes" if cell.holds else "NO",
        ]
        for cell in found.cells
    ]
    headings = [*columns, *runs, "Units", "Apart", "Stated spread", "Within"]
    return Grid(headings, rows, ("Batch Size", "Ranks", *runs, "Apart", "Stated spread"))


def notes(found: Agreement) -> list[str]:
    """What a reader of the table must know, a line each."""
    held = sum(cell.holds for cell in found.cells)
    return [
        *(f"Run {place}: {name}." for place, name in enumerate(found.runs, start=1)),
        "Apart: highest score of the runs less the lowest, over their median. Stated spread: the same of the repeats "
        "of a run, that of the run where it is the largest.",
        f"{held} of {len(found.cells)} scores are no further apart than their stated spread.",
    ]


def text(found: Agreement) -> str:
    """For a terminal."""
    return f"{render_text(grid(found))}\n{wrapped(notes(found))}"


def markdown(found: Agreement) -> str:
    """As Markdown."""
    return render_markdown(grid(found)) + "\n" + "".join(f"- {note}\n" for note in notes(found))
