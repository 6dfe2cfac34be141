"""How several ranks compare with one: strong scaling at the same global batch, weak at the same batch of each rank."""

import dataclasses
from collections.abc import Iterable

from benchmarks.report.rows import Row
from benchmarks.suite.results import Cell


@dataclasses.dataclass(frozen=True)
class Step:
    """A score of several ranks beside that of one.

    Attributes:
      cell: of the several.
      score, units: its score.
      base_batch: global batch of the one rank that it is compared with.
      base_score: that rank's; None where it was not measured.
    """

    cell: Cell
    score: float
    units: str
    base_batch: int
    base_score: float | None

    @property
    def speed_up(self) -> float | None:
        """Over one rank; ideal is the number of ranks, of weak scaling too, since the score counts all ranks' rows."""
        return None if self.base_score is None else self.score / self.base_score

    @property
    def efficiency(self) -> float | None:
        """Speed-up over ranks: 1 is ideal."""
        return None if self.speed_up is None else self.speed_up / self.cell.world_size


def scaling_steps(rows: Iterable[Row]) -> list[Step]:
    """A step for each row of strong or weak scaling, in their order. Collectives have none, for want of one rank's."""
    rows = list(rows)
    by_cell = {row.cell: row for row in rows}
    found = []
    for row in rows:
        cell = row.cell
        if cell.scaling not in ("strong", "weak") or cell.world_size < 2 or cell.implementation == "micro":
            continue
        batch = cell.batch_size if cell.scaling == "strong" else cell.batch_size // cell.world_size
        base = by_cell.get(dataclasses.replace(cell, batch_size=batch, world_size=1, scaling="single"))
        score = base.score if base is not None and base.units == row.units else None
        found.append(Step(cell, row.score, row.units, batch, score))
    return found
