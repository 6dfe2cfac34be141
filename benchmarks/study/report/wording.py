"""How cells and figures are called in tables and pictures."""

import dataclasses
from collections.abc import Iterable, Sequence

from benchmarks.study.cells import Cell, trial_name
from benchmarks.study.plan import Plan

PRECISION = {"float32": "float32", "mixed_float16": "mixed float16", "mixed_bfloat16": "mixed bfloat16"}


def configuration(cell: Cell, plan: Plan) -> str:
    """A cell in words, such as "mixed float16, XLA, 2 x 512" (ranks x rows of a rank's batch)."""
    parts = [cell.model] if len(plan.models) > 1 else []
    parts += [arithmetic(cell), batches(cell)]
    return ", ".join(parts)


def arithmetic(cell: Cell) -> str:
    """Precision, compilation, and what sets a control apart."""
    parts = [PRECISION[cell.precision]]
    if cell.xla:
        parts.append("XLA")
    if cell.label:
        parts.append(f"{cell.label} (rates x {cell.learning_rate_factor:g})")
    return ", ".join(parts)


def batches(cell: Cell) -> str:
    """Ranks x rows of a rank's batch."""
    return f"{cell.world_size} x {per_rank(cell)}"


def per_rank(cell: Cell) -> str:
    """Rows of a rank's batch."""
    share, more = divmod(cell.global_batch_size, cell.world_size)
    return f"{share:,}" if not more else f"{share:,} or {share + 1:,}"


def without_precision(cells: Iterable[Cell]) -> dict[Cell, dict[str, Cell]]:
    """Cells that differ in precision alone, together: the first one -> precision -> cell."""
    found: dict[tuple, dict[str, Cell]] = {}
    for cell in cells:
        key = dataclasses.astuple(dataclasses.replace(cell, precision=""))
        found.setdefault(key, {})[cell.precision] = cell
    return {next(iter(group.values())): group for group in found.values()}


def trial(key: int | tuple[int, int]) -> str:
    """A run of a configuration: its seed, and its fold in a study of folds."""
    return str(key) if isinstance(key, int) else trial_name(*key).removeprefix("seed ")


def mean_figure(value: float | None) -> str:
    """MAP@12 and AUC; "" of none."""
    return "" if value is None else f"{value:.5f}"


def signed(value: float | None) -> str:
    """A difference of them."""
    return "" if value is None else f"{value:+.5f}"


def share(value: float | None) -> str:
    """Of a whole."""
    return "" if value is None else f"{100 * value:.1f} %"


def seconds(value: float | None) -> str:
    """A time."""
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}" if value >= 100 else f"{value:.2f}"


def rate(value: float | None) -> str:
    """Samples per second."""
    return "" if value is None else f"{value:,.0f}"


def times(value: float | None) -> str:
    """A speed-up."""
    return "" if value is None else f"{value:.2f}"


def p_value(value: float | None) -> str:
    """A chance."""
    if value is None:
        return ""
    return f"{value:.3f}" if value >= 0.001 else "< 0.001"


def runs(counts: int | Sequence[int]) -> str:
    """How many runs something rests on."""
    if isinstance(counts, int):
        return f"{counts} run" + ("" if counts == 1 else "s")
    lowest, highest = min(counts), max(counts)
    return str(lowest) if lowest == highest else f"{lowest} to {highest}"


def percent(value: float) -> str:
    """A confidence: 0.95 is "95 %"."""
    return f"{100 * value:.4g} %"
