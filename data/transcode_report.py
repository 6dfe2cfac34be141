"""The table that transcoding prints: every column, what became of it, and why."""

import dataclasses
from collections.abc import Sequence

from data.feature_spec import TEST, TRAIN, FeatureSpec

_TITLES = ("column", "role", "why", "ids", "hotness", "missing", "gaps filled with")


@dataclasses.dataclass(frozen=True)
class ColumnReport:
    """A line of the table; None where there is nothing to say.

    Attributes:
      kept: whether ids are the input's own numbers; otherwise a vocabulary made them.
    """

    column: str
    role: str
    rule: str
    cardinality: int | None = None
    kept: bool = False
    hotness: int | None = None
    missing: int | None = None
    fill: float | None = None


def render(columns: Sequence[ColumnReport]) -> str:
    """The table as text; numbers to the right, words to the left."""
    rows = [_TITLES, *(_cells(column) for column in columns)]
    widths = [max(len(row[place]) for row in rows) for place in range(len(_TITLES))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if place < 3 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def _cells(column: ColumnReport) -> tuple[str, ...]:
    ids = ""
    if column.cardinality is not None:
        ids = f"{column.cardinality:,} ({'kept' if column.kept else 'vocabulary'})"
    return (
        column.column or "(no name)",
        column.role,
        column.rule,
        ids,
        "" if column.hotness is None else f"{column.hotness:,}",
        "" if column.missing is None else f"{column.missing:,}",
        "" if column.fill is None else f"{column.fill:.6g}",
    )


@dataclasses.dataclass(frozen=True)
class Transcoded:
    """What was written: the specification as read back, and a line for every column of the input."""

    spec: FeatureSpec
    columns: tuple[ColumnReport, ...]

    def summary(self) -> str:
        """The table, and how many rows went where."""
        rows, ones = (self.spec.metadata["transcode"][name] for name in ("rows", "rows_of_label_1"))
        return (
            f"{render(self.columns)}\n"
            f"{self.spec.path}: {rows[TRAIN]:,} rows to train ({ones[TRAIN] / rows[TRAIN]:.2%} of label 1), "
            f"{rows[TEST]:,} to test ({ones[TEST] / rows[TEST]:.2%})"
        )
