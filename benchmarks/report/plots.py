"""Plots of a summary."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from benchmarks.report import drawing
from benchmarks.report.drawing import Plot
from benchmarks.report.roofline import Roofline, rooflines
from benchmarks.report.rows import Row
from benchmarks.report.scaling import Step, scaling_steps
from benchmarks.report.tables import number
from benchmarks.suite.results import Cell


def batch_size_plots(rows: Sequence[Row]) -> list[Plot]:
    """Score and p95 latency against batch size, one plot for each benchmark that has several sizes."""
    groups: dict[tuple[str, ...], dict[str, list[Row]]] = {}
    for row in rows:
        cell = row.cell
        key = (cell.model, cell.mode, cell.config, row.units)
        groups.setdefault(key, {}).setdefault(_line(cell, rows), []).append(row)
    plots = []
    for (model, mode, config, units), lines in groups.items():
        lines = {name: sorted(found, key=lambda row: row.cell.batch_size) for name, found in lines.items()}
        if max(len({row.cell.batch_size for row in found}) for found in lines.values()) < 2:
            continue
        title = f"{model} {mode}, {config}: against batch size"
        plots.append(drawing.plot(title, _batch_text(lines, units), partial(_batch_size_figure, lines, units)))
    return plots


def scaling_plots(rows: Sequence[Row]) -> list[Plot]:
    """Speed-up against ranks, strong and weak, beside the ideal; one plot for each benchmark that has several."""
    groups: dict[tuple[str, ...], list[Step]] = {}
    for step in scaling_steps(rows):
        if step.speed_up is not None:
            cell = step.cell
            groups.setdefault((cell.model, cell.mode, cell.config), []).append(step)
    plots = []
    for (model, mode, config), steps in groups.items():
        title = f"{model} {mode}, {config}: scaling"
        said = [
            f"{_scaling_line(step)} at {step.cell.world_size} ranks: speed-up {step.speed_up:.2f}, "
            f"efficiency {step.efficiency:.0%}"
            for step in steps
        ]
        plots.append(drawing.plot(title, "; ".join(said) + ".", partial(_scaling_figure, steps)))
    return plots


def roofline_plots(rows: Sequence[Row]) -> list[Plot]:
    """One for each precision that has both roofs."""
    plots = []
    for roofline in rooflines(rows):
        title = f"Roofline, {roofline.precision}"
        text = (
            f"Compute roof {number(roofline.compute.score)} TF/s (GEMM), memory roof {roofline.memory.score:.4g} GB/s "
            f"(EmbeddingBag). " + "; ".join(
                f"{_name(point.cell)}: {point.tflops:.3g} TF/s at {point.intensity:.3g} flop per byte, "
                f"{point.tflops / roofline.roof(point.intensity):.0%} of the roof"
                for point in roofline.points
            )
        )  # fmt: skip
        plots.append(drawing.plot(title, text.strip(), partial(_roofline_figure, roofline)))
    return plots


def _batch_size_figure(lines: Mapping[str, Sequence[Row]], units: str) -> Any:
    figure = drawing.figure(9.0, 3.8)
    left, right = figure.subplots(1, 2)
    for (name, found), look in zip(lines.items(), drawing.looks(), strict=False):
        sizes = [row.cell.batch_size for row in found]
        scores = [row.score for row in found]
        left.plot(sizes, scores, **look)
        bars = [(row.cell.batch_size, *row.interval) for row in found if row.interval]
        left.vlines([bar[0] for bar in bars], [bar[1] for bar in bars], [bar[2] for bar in bars], color=look["color"])
        timed = [(row.cell.batch_size, row.p95_ms) for row in found if row.p95_ms is not None]
        right.plot([size for size, _ in timed], [p95_ms for _, p95_ms in timed], label=f" {name}", **look)
    limits = {row.latency_limit_ms for found in lines.values() for row in found if row.latency_limit_ms is not None}
    for limit in sorted(limits):
        right.axhline(limit, color=drawing.INK, linestyle=":", linewidth=1, label=f"limit {limit:g} ms")
    sizes = sorted({row.cell.batch_size for found in lines.values() for row in found})
    for axes, label in ((left, units), (right, "p95 latency, ms")):
        axes.set_xscale("log", base=2)
        axes.set_xticks(sizes, [f"{size:,}" for size in sizes], rotation=30 if len(sizes) > 5 else 0)
        axes.minorticks_off()
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter("{x:,g}")
        axes.set(xlabel="batch size", ylabel=label)
    # Not in the axes: lines that cross it would be hard to read there.
    figure.legend(*right.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def _scaling_figure(steps: Sequence[Step]) -> Any:
    figure = drawing.figure(6.0, 3.8)
    axes = figure.subplots()
    lines: dict[str, list[Step]] = {}
    for step in steps:
        lines.setdefault(_scaling_line(step), []).append(step)
    ranks = [1, *sorted({step.cell.world_size for step in steps})]
    axes.plot(ranks, ranks, color=drawing.INK, linestyle=":", linewidth=1, label="ideal")
    for (name, found), look in zip(lines.items(), drawing.looks(), strict=False):
        found = sorted(found, key=lambda step: step.cell.world_size)
        counts = [1, *(step.cell.world_size for step in found)]
        axes.plot(counts, [1, *(step.speed_up for step in found)], label=f" {name}", **look)
        for step in found:
            place = (step.cell.world_size, step.speed_up)
            axes.annotate(f"{step.efficiency:.0%}", place, xytext=(5, 5), textcoords="offset points", fontsize=8)
    axes.set_xticks(ranks, [str(count) for count in ranks])
    axes.set_ylim(bottom=0)
    axes.margins(x=0.12)
    axes.set(xlabel="ranks", ylabel="speed-up over one rank")
    figure.legend(loc="outside lower center", ncols=2)
    return figure


def _roofline_figure(roofline: Roofline) -> Any:
    figure = drawing.figure(8.0, 4.2)
    axes = figure.subplots()
    ridge = 1000 * roofline.compute.score / roofline.memory.score
    places = [point.intensity for point in roofline.points]
    low, high = min([ridge / 30, *places]) / 2, max([ridge * 30, *places]) * 2
    axes.plot([low, ridge, high], [roofline.roof(at) for at in (low, ridge, high)], color=drawing.INK, linewidth=1.5)
    axes.annotate(
        f"EmbeddingBag, {roofline.memory.score:.4g} GB/s", (low * 3, roofline.roof(low * 3)),
        xytext=(12, -4), textcoords="offset points", fontsize=9,
    )  # fmt: skip
    axes.annotate(
        f"GEMM, {roofline.compute.score:.4g} TF/s", (high, roofline.compute.score), xytext=(0, 5), ha="right",
        textcoords="offset points", fontsize=9,
    )  # fmt: skip
    for point, look in zip(roofline.points, drawing.looks(), strict=False):
        look |= {"linestyle": "none", "label": f" {_name(point.cell)}"}
        axes.plot([point.intensity], [point.tflops], **look)
    axes.set_xscale("log")
    axes.set_yscale("log")
    # The formatter that logarithmic axes have by default writes formulas, and those are not drawn (see _STYLE).
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter("")
    axes.set(xlabel="flop per byte", ylabel="TF/s")
    if roofline.points:
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


def _batch_text(lines: Mapping[str, Sequence[Row]], units: str) -> str:
    said = []
    for name, found in lines.items():
        best = max(found, key=lambda row: row.score)
        sizes = " and ".join(f"{row.cell.batch_size:,}" for row in (found[0], found[-1]))
        about = f"best between {sizes}" if len(found) > 1 else "one size"
        said.append(f"{name}: {number(best.score)} {units} at {best.cell.batch_size:,}, {about}")
    return "; ".join(said) + ". Upright bars: 95 % intervals from repeats."


def _line(cell: Cell, rows: Sequence[Row]) -> str:
    """Name of a line: the implementation, and what else differs between rows."""
    parts = [cell.implementation]
    if cell.world_size > 1:
        parts.append(
            f"{cell.world_size} ranks {cell.scaling}" if cell.scaling != "single" else f"{cell.world_size} ranks"
        )
    if len({row.cell.precision for row in rows}) > 1:
        parts.append(cell.precision)
    if len({row.cell.version for row in rows}) > 1:
        parts.append(f"version {cell.version}")
    return ", ".join(parts)


def _name(cell: Cell) -> str:
    return f"{cell.model} {cell.implementation} {cell.mode} {cell.config} @ {cell.batch_size:,}"


def _scaling_line(step: Step) -> str:
    cell = step.cell
    per = "over all ranks" if cell.scaling == "strong" else "a rank"
    batch = cell.batch_size if cell.scaling == "strong" else cell.batch_size // cell.world_size
    return f"{cell.implementation}, {cell.scaling}, {batch:,} rows {per}, {cell.precision}"
