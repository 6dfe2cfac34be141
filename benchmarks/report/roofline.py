"""What bounds this machine's speed, by its own microbenchmarks, and where benchmarks lie below those bounds.

The compute roof is the best GEMM that was measured, and the memory roof the best EmbeddingBag: bandwidth of looked-up
rows as its formula counts them, which caches can raise above what memory gives, and not the memory's nominal figure.
"""

import dataclasses
import statistics
from collections.abc import Iterable, Sequence

from benchmarks.report.rows import Row
from benchmarks.suite.results import Cell

COMPUTE, MEMORY = "gemm", "embedding_bag"
FLOP, BYTES = "gflop_per_step", "bytes_per_step"
"""Figures of a result by which it is placed: 10^9 floating-point operations, and bytes moved, in a step."""


@dataclasses.dataclass(frozen=True)
class Point:
    """A row whose work is known: flop per byte, and 10^12 floating-point operations a second that it reached."""

    cell: Cell
    intensity: float
    tflops: float


@dataclasses.dataclass(frozen=True)
class Roofline:
    """Of one precision, at one rank.

    Attributes:
      compute, memory: rows of the roofs, in TF/s and GB/s.
      points: what could be placed.
      left_out: benchmarks that scored and could not, their work per step being unknown.
    """

    precision: str
    compute: Row
    memory: Row
    points: Sequence[Point]
    left_out: Sequence[str]

    def roof(self, intensity: float) -> float:
        """TF/s that the roofs allow at so many operations per byte."""
        return min(self.compute.score, self.memory.score * intensity / 1000)


def rooflines(rows: Iterable[Row]) -> list[Roofline]:
    """One for each precision of which both roofs were measured at one rank."""
    rows = [row for row in rows if row.cell.world_size == 1]
    found = []
    for precision in sorted({row.cell.precision for row in rows}):
        here = [row for row in rows if row.cell.precision == precision]
        compute = _best(here, COMPUTE, "TF/s")
        memory = _best(here, MEMORY, "GB/s")
        if compute is None or memory is None:
            continue
        placed = [(row, _point(row)) for row in here]
        found.append(
            Roofline(
                precision,
                compute,
                memory,
                [point for _, point in placed if point is not None],
                [row.cell.benchmark for row, point in placed if point is None and row.cell.model != MEMORY],
            )
        )
    return found


def _best(rows: Iterable[Row], model: str, units: str) -> Row | None:
    found = [row for row in rows if row.cell.model == model and row.units == units]
    return max(found, key=lambda row: row.score, default=None)


def _point(row: Row) -> Point | None:
    result = row.median_repeat
    flop, moved = (result.figures.get(name) for name in (FLOP, BYTES))
    if not flop or not moved or not result.step_ms:
        return None
    # 10^9 operations in a millisecond are 10^12 in a second.
    reached = row.score if row.units == "TF/s" else flop / statistics.median(result.step_ms)
    return Point(row.cell, flop * 1e9 / moved, reached)
