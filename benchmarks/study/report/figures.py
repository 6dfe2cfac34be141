"""The pictures of a study. Each says in words what it shows and how many runs it rests on."""

import re
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any

from benchmarks.report import drawing
from benchmarks.study.cells import Cell
from benchmarks.study.report import drawings
from benchmarks.study.report.blocks import Picture
from benchmarks.study.report.comparisons import Compared
from benchmarks.study.report.counted import MAP, Study, curve
from benchmarks.study.report.speed import throughput_lines
from benchmarks.study.report.tables import median
from benchmarks.study.report.wording import (
    PRECISION,
    arithmetic,
    batches,
    percent,
    runs,
    without_precision,
)


def learning_curves(study: Study, model: str) -> list[Picture]:
    """MAP@12 against step, a panel for each number of ranks and batch size."""
    panels: dict[str, dict[str, dict[int, list[float]]]] = {}
    cells, controls = [], set()
    for cell in study.counted:
        points = _common_points([curve(record) for record in study.counted[cell].values()])
        if cell.model == model and points:
            panels.setdefault(batches(cell), {})[arithmetic(cell)] = points
            cells.append(cell)
            controls |= {arithmetic(cell)} if cell.label else set()
    if not panels:
        return []
    text = (
        "Lines: mean over the runs of a configuration; bands: lowest to highest of them, at the steps that all of "
        "them have. A row for each ranks x rows of a rank's batch; right: the second half of the steps again, larger "
        "and without controls. "
        f"{_rests_on(study, cells)}"
    )
    make = partial(drawings.curves, panels, controls)
    return [_picture("learning-curves", f"MAP@12 against step, {model}", text, make)]


def distributions(study: Study, model: str) -> list[Picture]:
    """MAP@12 of the runs of each configuration, and of all together."""
    cells = [cell for cell in study.settings if cell.model == model and study.figures(cell, MAP)]
    if not cells:
        return []
    columns = {f"{arithmetic(cell)}\n{batches(cell)}": list(study.figures(cell, MAP).values()) for cell in cells}
    columns["all configurations"] = [value for values in columns.values() for value in values]
    text = (
        "A point is a run; boxes: quartiles and median, whiskers from lowest to highest. Controls are left out. "
        f"{_rests_on(study, cells)}"
    )
    return [_picture("stability", f"Distribution of MAP@12, {model}", text, partial(drawings.columns, columns))]


def pairs(study: Study, model: str) -> list[Picture]:
    """MAP@12 in full and in mixed precision, runs of the same seed joined."""
    full = study.plan.precisions[0]
    panels: dict[str, dict[str, tuple[Mapping[int, float], Mapping[int, float]]]] = {}
    cells: set[Cell] = set()
    for precision, group in product(study.plan.precisions[1:], without_precision(study.settings).values()):
        if full not in group or precision not in group or group[full].model != model:
            continue
        sides = study.figures(group[full], MAP), study.figures(group[precision], MAP)
        if all(sides):
            name = batches(group[full]) + ("\nXLA" if group[full].xla else "\nno XLA")
            panels.setdefault(PRECISION[precision], {})[name] = sides
            cells |= {group[full], group[precision]}
    if not panels:
        return []
    text = (
        f"In each pair of columns {PRECISION[full]} is left and the mixed precision right; a line joins runs of the "
        f"same seed, a bar is the mean. {_rests_on(study, cells)}"
    )
    title = f"MAP@12 in {PRECISION[full]} and in mixed precision, {model}"
    return [_picture("mixed-precision", title, text, partial(drawings.pairs, panels))]


def throughput(study: Study, model: str) -> list[Picture]:
    """Samples a second against ranks."""
    found = {name: of for name, of in throughput_lines(study, model).items() if len(of) > 1}
    if not found:
        return []
    lines = {
        name: {ranks: median(study, cell, "samples_per_sec") for ranks, cell in of.items()}
        for name, of in found.items()
    }
    cells = [cell for of in found.values() for cell in of.values()]
    text = f"Strong scaling: the batch over all ranks stays. Points: medians over runs. {_rests_on(study, cells)}"
    return [_picture("throughput", f"Training throughput against ranks, {model}", text, partial(drawings.lines, lines))]


def batch_sizes(study: Study, groups: Mapping[str, Sequence[Cell]], model: str) -> list[Picture]:
    """MAP@12 against the global batch size; groups: name -> cells that differ in it alone."""
    lines = {
        name: {c.global_batch_size: list(study.figures(c, MAP).values()) for c in of} for name, of in groups.items()
    }
    lines = {name: {size: values for size, values in of.items() if values} for name, of in lines.items()}
    lines = {name: points for name, points in lines.items() if len(points) > 1}
    if not lines:
        return []
    text = (
        "Points: means, bars from lowest to highest run. "
        f"{_rests_on(study, [cell for name in lines for cell in groups[name]])}"
    )
    title = f"MAP@12 against global batch size, {model}"
    return [_picture("batch-size", title, text, partial(drawings.sizes, lines))]


def differences(study: Study, compared: Sequence[Compared]) -> list[Picture]:
    """Differences of MAP@12 with their intervals beside the margin; controls are far off and left out."""
    shown = [one for one in compared if one.difference is not None and one.difference.low is not None]
    shown = [one for one in shown if not one.is_control]
    if not shown:
        return []
    cells = {cell for one in shown for cell in (one.reference, one.other)}
    text = (
        f"Dotted: the margin of {study.plan.equivalence_margin:g} to either side. An interval "
        f"({percent(2 * study.plan.confidence - 1)}) that lies between is of two settings as good as equal. Controls "
        f"are left out. {_rests_on(study, cells)}"
    )
    make = partial(drawings.differences, shown, study.plan.equivalence_margin)
    return [_picture("equivalence", "Differences of MAP@12", text, make)]


def _common_points(curves: Sequence[Mapping[int, float]]) -> dict[int, list[float]]:
    """step -> figures of all runs, of the steps that each of them has."""
    if not curves:
        return {}
    steps = set.intersection(*(set(one) for one in curves))
    return {step: [one[step] for one in curves] for step in sorted(steps)}


def _picture(name: str, title: str, text: str, make: Any) -> Picture:
    _, _, model = title.rpartition(", ")
    slug = re.sub(r"[^a-z0-9_]+", "-", f"{name}-{model}".lower()) if model != title else name
    return Picture(slug.strip("-"), drawing.plot(title, text, make, png=True))


def _rests_on(study: Study, cells: Any) -> str:
    cells = list(cells)
    counts = [len(study.counted[cell]) for cell in cells]
    return f"Rests on {runs(sum(counts))}, {runs(counts)} a configuration."
