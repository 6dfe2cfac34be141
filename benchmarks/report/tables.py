"""A summary as text for a terminal, Markdown, CSV and JSON."""

import csv
import dataclasses
import io
import json
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.report import machines
from benchmarks.report.rows import Row, Summary, Unscored
from benchmarks.report.scaling import Step, scaling_steps
from benchmarks.report.statistics import CONFIDENCE, NOISY_SPREAD
from benchmarks.suite.results import Cell
from trainer.records import jsonable

INTERVAL = "95 % interval"
NO_INTERVAL = "no interval"


@dataclasses.dataclass(frozen=True)
class Grid:
    """A table before it is rendered: rows of texts, one for each heading. `right`: headings aligned to the right."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: Sequence[str] = ()


@dataclasses.dataclass(frozen=True)
class CellColumns:
    """Columns that say what a score is of: heading -> text of a cell.

    Attributes:
      always: stand in every table.
      sometimes: stand where they differ between rows.
    """

    always: Mapping[str, Callable[[Cell], str]]
    sometimes: Mapping[str, Callable[[Cell], str]]

    def shown(self, cells: Sequence[Cell], without: str = "") -> dict[str, Callable[[Cell], str]]:
        """Those of a table with these cells; `without` is a heading that is left out."""
        differing = {heading: of for heading, of in self.sometimes.items() if len(set(map(of, cells))) > 1}
        return {heading: of for heading, of in {**self.always, **differing}.items() if heading != without}


COLUMNS = CellColumns(
    always={
        "Model": lambda cell: cell.model,
        "Implementation": lambda cell: cell.implementation,
        "Mode": lambda cell: cell.mode,
        "Config": lambda cell: cell.config,
        # Of some logs of others it is not known.
        "Batch Size": lambda cell: f"{cell.batch_size:,}" if cell.batch_size else "",
    },
    sometimes={
        "Ranks": lambda cell: str(cell.world_size),
        "Scaling": lambda cell: cell.scaling,
        "Precision": lambda cell: cell.precision,
        "Version": lambda cell: cell.version,
    },
)


def score_grid(summary: Summary) -> Grid:
    """The table of scores. Ranks, scaling, precision and version have a column where there is more than one of them."""
    columns = COLUMNS.shown([row.cell for row in summary.rows])
    headings = [*columns, "Score", "Units", "p95 latency (ms)", INTERVAL, "Repeats"]
    rows = [
        [
            *(of(row.cell) for of in columns.values()),
            number(row.score) + row.marks,
            row.units,
            "" if row.p95_ms is None else f"{row.p95_ms:,.2f}",
            NO_INTERVAL if row.interval is None else f"{number(row.interval[0])} to {number(row.interval[1])}",
            str(len(row.repeats)),
        ]
        for row in summary.rows
    ]
    return Grid(headings, rows, ("Batch Size", "Ranks", "Score", "p95 latency (ms)", "Repeats"))


def unscored_grid(unscored: Sequence[Unscored]) -> Grid:
    """What has no score, with its reason."""
    rows = [
        [
            one.status,
            *(of(one.cell) for of in COLUMNS.always.values()),
            str(one.cell.world_size),
            one.cell.precision,
            ", ".join(map(str, one.repeats)),
            " ".join(one.reason.split()) or "no reason given",
        ]
        for one in unscored
    ]
    return Grid(["Status", *COLUMNS.always, "Ranks", "Precision", "Repeats", "Reason"], rows, ("Batch Size", "Ranks"))


def scaling_grid(steps: Sequence[Step]) -> Grid:
    """Speed-up and efficiency of several ranks over one."""
    rows = [
        [
            *(of(step.cell) for of in COLUMNS.always.values()),
            step.cell.scaling,
            str(step.cell.world_size),
            number(step.score),
            step.units,
            "" if step.speed_up is None else f"{step.speed_up:.2f}",
            f"no score of one rank at batch {step.base_batch:,}" if step.speed_up is None else f"{step.efficiency:.0%}",
        ]
        for step in steps
    ]
    headings = [*COLUMNS.always, "Scaling", "Ranks", "Score", "Units", "Speed-up", "Efficiency"]
    return Grid(headings, rows, ("Batch Size", "Ranks", "Score", "Speed-up", "Efficiency"))


def notes(summary: Summary) -> list[str]:
    """What a reader of the table must know, a line each."""
    found = [
        f"Score: median over repeats, each a process of its own. {100 * CONFIDENCE:g} % interval: Student's t of the "
        "logarithms of the repeats' scores; of one repeat there is none. p95 latency: median over repeats."
    ]
    limits = sorted({row.latency_limit_ms for row in summary.rows if row.missed_limit})
    if limits:
        found.append(
            f"* p95 latency is above the benchmark's limit ({', '.join(f'{limit:g} ms' for limit in limits)})."
        )
    if any(row.noisy for row in summary.rows):
        found.append(
            f"~ Repeats are further apart than {NOISY_SPREAD:.0%} of the score (highest less lowest).".replace(
                "%", " %"
            )
        )
    if summary.commits:
        several = "Measured at several commits" if len(summary.commits) > 1 else "Commit"
        found.append(f"{several}: {', '.join(summary.commits)}.")
    return found


def text(summary: Summary, problems: Sequence[str] = ()) -> str:
    """For a terminal."""
    parts = [_lines("Machine", [f"{name}: {value}" for name, value in machines.described(summary.machine)])]
    parts += [render_text(score_grid(summary)) if summary.rows else "No scores.\n", wrapped(notes(summary))]
    for title, grid in _further(summary):
        parts.append(f"{title}\n{render_text(grid)}")
    parts.append(_lines("Could not be read", problems))
    return "\n".join(part for part in parts if part)


def markdown(summary: Summary, problems: Sequence[str] = ()) -> str:
    """As Markdown."""
    parts = [_bullets("Machine", [f"{name}: {value}" for name, value in machines.described(summary.machine)])]
    parts += [render_markdown(score_grid(summary)) if summary.rows else "No scores.\n"]
    parts += ["".join(f"- {escape_markdown(note)}\n" for note in notes(summary))]
    parts += [f"## {title}\n\n{render_markdown(grid)}" for title, grid in _further(summary)]
    parts.append(_bullets("Could not be read", problems))
    return "\n".join(part for part in parts if part)


def records(summary: Summary) -> list[dict[str, Any]]:
    """A flat object for each row and for each cell without a score: every column, and marks as columns of their own."""
    return [_record(row) for row in summary.rows] + [
        {
            **dict.fromkeys(_RECORD_COLUMNS),
            **dataclasses.asdict(one.cell),
            **{"status": one.status, "reason": one.reason, "repeats": len(one.repeats)},
        }
        for one in summary.unscored
    ]


def csv_text(summary: Summary) -> str:
    """As CSV with a heading line; the columns are always the same, and figures are unrounded."""
    return csv_of(records(summary), _RECORD_COLUMNS)


def json_text(summary: Summary, problems: Sequence[str] = ()) -> str:
    """As one JSON object: machine, commits, rows (`records`), scaling and problems."""
    steps = [
        dataclasses.asdict(step) | {"speed_up": step.speed_up, "efficiency": step.efficiency}
        for step in scaling_steps(summary.rows)
    ]
    found = {"machine": summary.machine, "commits": summary.commits, "rows": records(summary), "scaling": steps}
    return json.dumps(jsonable(found | {"problems": list(problems)}), indent=2, allow_nan=False) + "\n"


def csv_of(objects: Sequence[dict[str, Any]], columns: Sequence[str]) -> str:
    """Objects as CSV, a column for each of `columns`; None is an empty field."""
    output = io.StringIO()
    writer = csv.DictWriter(output, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(objects)
    return output.getvalue()


def render_text(grid: Grid) -> str:
    """With columns of a fixed width; no line ends in a blank."""
    rows = [[_one_line(value) for value in row] for row in [grid.headings, *grid.rows]]
    widths = [max(len(row[place]) for row in rows) for place in range(len(grid.headings))]
    aligned = [
        "  ".join(
            value.rjust(width) if heading in grid.right else value.ljust(width)
            for heading, value, width in zip(grid.headings, row, widths, strict=True)
        ).rstrip()
        for row in rows
    ]
    aligned.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(aligned) + "\n"


def render_markdown(grid: Grid) -> str:
    """As a Markdown table."""
    rule = ["---:" if heading in grid.right else "---" for heading in grid.headings]
    rows = [[escape_markdown(value) for value in row] for row in [grid.headings, *grid.rows]]
    rows.insert(1, rule)
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def escape_markdown(value: str) -> str:
    """A text in which nothing is taken for Markdown or HTML."""
    value = _one_line(value).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    for character in "\\`*_[]|~$":
        value = value.replace(character, f"\\{character}")
    return value


def wrapped(lines: Sequence[str]) -> str:
    """Lines for a terminal, none longer than 120."""
    return "".join(textwrap.fill(line, 120, break_long_words=False) + "\n" for line in lines)


def number(value: float) -> str:
    """A score for people: at least four digits of it."""
    return f"{value:,.1f}" if abs(value) >= 100 else f"{value:.4g}"


def _record(row: Row) -> dict[str, Any]:
    low, high = row.interval or (None, None)
    return {
        **dataclasses.asdict(row.cell),
        **{"score": row.score, "units": row.units, "low": low, "high": high, "repeats": len(row.repeats)},
        **{"spread": row.spread, "noisy": row.noisy, "p95_ms": row.p95_ms, "latency_limit_ms": row.latency_limit_ms},
        **{"missed_limit": row.missed_limit, "status": "ok", "reason": ""},
    }


def _further(summary: Summary) -> list[tuple[str, Grid]]:
    found = []
    if steps := scaling_steps(summary.rows):
        found.append(("Scaling", scaling_grid(steps)))
    if summary.unscored:
        found.append(("Without a score", unscored_grid(summary.unscored)))
    return found


def _lines(title: str, lines: Sequence[str]) -> str:
    return f"{title}\n" + "".join(f"  {_one_line(line)}\n" for line in lines) if lines else ""


def _bullets(title: str, lines: Sequence[str]) -> str:
    return f"## {title}\n\n" + "".join(f"- {escape_markdown(line)}\n" for line in lines) if lines else ""


def _one_line(value: str) -> str:
    return " ".join(value.split())


_RECORD_COLUMNS = (
    *(field.name for field in dataclasses.fields(Cell)),
    *("score", "units", "low", "high", "repeats", "spread", "noisy", "p95_ms", "latency_limit_ms", "missed_limit"),
    *("status", "reason"),
)
