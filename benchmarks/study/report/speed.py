"""Tables of speed: training and evaluation throughput, and the time to a target."""

import dataclasses
import math
import statistics

from benchmarks.report.tables import Grid
from benchmarks.study.cells import Cell
from benchmarks.study.report.counted import Study, to_target
from benchmarks.study.report.tables import median, model_column, model_heading, over
from benchmarks.study.report.wording import PRECISION, arithmetic, batches, rate, seconds, share, times


def training_throughput(study: Study) -> Grid:
    """Samples a second of each configuration, its speed-up over one rank at the same global batch, and efficiency."""
    rows = []
    for cell in study.settings:
        speed = median(study, cell, "samples_per_sec")
        one_rank = dataclasses.replace(cell, world_size=1)
        speed_up = over(speed, median(study, one_rank, "samples_per_sec")) if cell.world_size > 1 else None
        rows.append(
            [
                *model_column(study, cell),
                PRECISION[cell.precision],
                "yes" if cell.xla else "no",
                f"{cell.global_batch_size:,}",
                str(cell.world_size),
                rate(speed),
                times(speed_up),
                share(speed_up / cell.world_size if speed_up is not None else None),
                str(study.runs([cell])),
            ]
        )
    right = ["Global batch", "Ranks", "Samples/s", "Speed-up over 1 rank", "Efficiency", "Runs"]
    return Grid([*model_heading(study), "Precision", "XLA", *right], rows, right)


def throughput_lines(study: Study, model: str) -> dict[str, dict[int, Cell]]:
    """Name -> ranks -> cell with runs, of settings that differ in ranks alone; in the order of ranks."""
    lines: dict[str, dict[int, Cell]] = {}
    for cell in sorted(study.settings, key=lambda cell: cell.world_size):
        if cell.model == model and study.figures(cell, "samples_per_sec"):
            name = f"{arithmetic(cell)}, global batch {cell.global_batch_size:,}"
            lines.setdefault(name, {})[cell.world_size] = cell
    return lines


def evaluation_throughput(study: Study) -> Grid:
    """Samples a second of the last evaluations by ranks, batch size and compilation, columns for each precision."""
    precisions = study.plan.precisions
    groups: dict[tuple[str, int, int, bool], dict[str, list[float]]] = {}
    for cell in study.settings:
        for seed, speed in study.figures(cell, "eval_samples_per_sec").items():
            config = study.counted[cell][seed].get("config") or {}
            size = config.get("eval_batch_size")
            key = (cell.model, cell.world_size, size if isinstance(size, int) else 0, cell.xla)
            groups.setdefault(key, {}).setdefault(cell.precision, []).append(speed)
    rows = []
    for (model, ranks, size, xla), found in groups.items():
        rows.append(
            [
                *([model] if len(study.plan.models) > 1 else []),
                str(ranks),
                f"{size:,}" if size else "",
                "yes" if xla else "no",
                *(rate(statistics.median(found[one]) if one in found else None) for one in precisions),
                " + ".join(str(len(found.get(one, ()))) for one in precisions),
            ]
        )
    figures = [f"Samples/s {PRECISION[one]}" for one in precisions]
    headings = [*model_heading(study), "Ranks", "Evaluation batch", "XLA", *figures, "Runs"]
    return Grid(headings, rows, ("Ranks", "Evaluation batch", *figures, "Runs"))


def time_to_target(study: Study, target: float) -> Grid:
    """Share of runs that reached the target, and medians of steps and seconds."""
    rows = []
    for cell in study.counted:
        found = [to_target(record, target) for record in study.counted[cell].values()]
        reached = [one for one in found if one is not None]
        steps = _median_of_all([one[0] for one in reached], len(found))
        took = _median_of_all([one[1] for one in reached], len(found))
        rows.append(
            [
                *model_column(study, cell),
                arithmetic(cell),
                batches(cell),
                share(len(reached) / len(found)) if found else "",
                _or_never(None if steps is None else f"{steps:,.0f}", found),
                _or_never(None if took is None else seconds(took), found),
                str(len(found)),
            ]
        )
    right = ["Runs that reach it", "Median steps", "Median time (s)", "Runs"]
    return Grid([*model_heading(study), "Configuration", "Ranks x batch", *right], rows, right)


def _median_of_all(values: list[float], count: int) -> float | None:
    """Median of `count` runs, those without a value counting as never; None if it is never.

    The median of those alone that reached it would be the better, the fewer of them there are.
    """
    found = statistics.median([*values, *[math.inf] * (count - len(values))]) if count else math.inf
    return found if math.isfinite(found) else None


def _or_never(value: str | None, found: list) -> str:
    if not found:
        return ""
    return "not reached" if value is None else value
