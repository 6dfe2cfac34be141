"""A comparison as text for a terminal, Markdown, CSV and JSON."""

import dataclasses
import json
from typing import Any

from benchmarks.report.compare import Compared, Comparison
from benchmarks.report.statistics import CONFIDENCE
from benchmarks.report.tables import (
    COLUMNS,
    INTERVAL,
    NO_INTERVAL,
    Grid,
    csv_of,
    escape_markdown,
    number,
    render_markdown,
    render_text,
    wrapped,
)
from benchmarks.suite.results import Cell
from trainer.records import jsonable

_RECORD_COLUMNS = (
    *(field.name for field in dataclasses.fields(Cell)),
    *("score_a", "score_b", "units", "repeats_a", "repeats_b", "marks_a", "marks_b"),
    *("ratio", "low", "high", "method", "verdict"),
)


def grid(comparison: Comparison) -> Grid:
    """The table: both scores, B over A with its interval, and what may be said of B."""
    without = "Implementation" if comparison.by_implementation else ""
    columns = COLUMNS.shown([row.b.cell for row in comparison.rows], without)
    rows = [
        [
            *(of(row.b.cell) for of in columns.values()),
            number(row.a.score) + row.a.marks,
            number(row.b.score) + row.b.marks,
            row.b.units,
            f"{row.ratio.ratio:.3f}",
            NO_INTERVAL if row.ratio.low is None else f"{row.ratio.low:.3f} to {row.ratio.high:.3f}",
            row.ratio.verdict if row.ratio.method else "",
            row.ratio.method,
        ]
        for row in comparison.rows
    ]
    further = [f"A: {comparison.a}", f"B: {comparison.b}", "Units", "B / A", INTERVAL, "B is", "By"]
    return Grid([*columns, *further], rows, ("Batch Size", "Ranks", *further[:2], "B / A"))


def notes(comparison: Comparison) -> list[str]:
    """What a reader of the table must know, a line each."""
    found = [
        "B / A: ratio of the geometric means of the repeats, above 1 where B is the faster. "
        f"{100 * CONFIDENCE:g} % interval of each row by itself, from repeats alone: paired t where the sides took "
        "turns on one machine, Welch's t otherwise, of the scores' logarithms. Where it includes 1, none is the faster."
    ]
    marks = "".join(row.a.marks + row.b.marks for row in comparison.rows)
    if "*" in marks:
        found.append("* p95 latency is above the benchmark's limit.")
    if "~" in marks:
        found.append("~ Repeats are far apart.")
    if comparison.machines_differ:
        found.append(f"The machines differ (A / B) in {comparison.machines_differ}.")
    return found


def text(comparison: Comparison) -> str:
    """For a terminal."""
    parts = [render_text(grid(comparison)), wrapped(notes(comparison))]
    if comparison.left_out:
        parts.append("Not compared\n" + "".join(f"  {' '.join(line.split())}\n" for line in comparison.left_out))
    return "\n".join(parts)


def markdown(comparison: Comparison) -> str:
    """As Markdown."""
    parts = [render_markdown(grid(comparison))]
    parts.append("".join(f"- {escape_markdown(note)}\n" for note in notes(comparison)))
    if comparison.left_out:
        parts.append("## Not compared\n\n" + "".join(f"- {escape_markdown(line)}\n" for line in comparison.left_out))
    return "\n".join(parts)


def csv_text(comparison: Comparison) -> str:
    """As CSV with a heading line, figures unrounded."""
    return csv_of([_record(row, comparison) for row in comparison.rows], _RECORD_COLUMNS)


def json_text(comparison: Comparison) -> str:
    """As one JSON object."""
    found = {"a": comparison.a, "b": comparison.b, "rows": [_record(row, comparison) for row in comparison.rows]}
    found |= {"not_compared": comparison.left_out, "machines_differ": comparison.machines_differ}
    return json.dumps(jsonable(found), indent=2, allow_nan=False) + "\n"


def _record(row: Compared, comparison: Comparison) -> dict[str, Any]:
    cell = dataclasses.asdict(row.b.cell)
    if comparison.by_implementation:
        cell["implementation"] = f"{comparison.b} / {comparison.a}"
    return {
        **cell,
        **{"score_a": row.a.score, "score_b": row.b.score, "units": row.b.units},
        **{"repeats_a": len(row.a.repeats), "repeats_b": len(row.b.repeats)},
        **{"marks_a": row.a.marks, "marks_b": row.b.marks},
        **dataclasses.asdict(row.ratio),
        "verdict": row.ratio.verdict,
    }
