"""How the pictures of a study are drawn, of plain figures; each function returns a matplotlib figure."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from benchmarks.report import drawing
from benchmarks.study.report.comparisons import Compared
from benchmarks.study.report.statistics import DIFFERENT, EQUIVALENT, UNDECIDED, WITHIN

_LOOK_OF = {
    EQUIVALENT: {"color": "#009e73", "marker": "o"},
    WITHIN: {"color": "#0072b2", "marker": "s"},
    DIFFERENT: {"color": "#d55e00", "marker": "D"},
    UNDECIDED: {"color": "#808080", "marker": "v"},
}


def curves(panels: Mapping[str, Mapping[str, Mapping[int, Sequence[float]]]], controls: Collection[str]) -> Any:
    """Learning curves: panel -> line -> step -> figures of the runs. A row of two for each panel."""
    figure = drawing.figure(9.0, 2.9 * len(panels) + 0.9)
    rows = figure.subplots(len(panels), 2, sharey="col", squeeze=False)
    names = list(dict.fromkeys(name for lines in panels.values() for name in lines))
    looks = dict(zip(names, drawing.looks(), strict=False))
    drawn = {}
    for (whole, half), (panel, lines) in zip(rows, panels.items(), strict=True):
        for name, points in lines.items():
            drawn[name] = _curve(whole, points, looks[name], name)
            middle = max(points) / 2
            if name not in controls:
                _curve(half, {step: values for step, values in points.items() if step >= middle}, looks[name], name)
        whole.set(ylabel="MAP@12")
        for axes in (whole, half):
            axes.set_title(panel)
            axes.xaxis.set_major_formatter("{x:,g}")
    for axes in rows[-1]:
        axes.set(xlabel="step")
    figure.legend(handles=[drawn[name] for name in names], loc="outside lower center", ncols=min(3, len(names)))
    return figure


def _curve(axes: Any, points: Mapping[int, Sequence[float]], look: Mapping[str, Any], name: str) -> Any:
    """Draws the mean of each step, and a band; returns the line."""
    steps = list(points)
    means = [sum(values) / len(values) for values in points.values()]
    (line,) = axes.plot(steps, means, label=f" {name}", **{**look, "markersize": 4, "linewidth": 1.2})
    low, high = [min(values) for values in points.values()], [max(values) for values in points.values()]
    axes.fill_between(steps, low, high, color=look["color"], alpha=0.15, linewidth=0)
    return line


def columns(columns: Mapping[str, Sequence[float]]) -> Any:
    """A column of points and a box for each name, the last one apart from the others."""
    figure = drawing.figure(max(5.0, 1.2 + 0.62 * len(columns)), 4.2)
    axes = figure.subplots()
    for place, (values, name) in enumerate(zip(columns.values(), columns, strict=True)):
        is_all = name == "all configurations"
        color = drawing.INK if is_all else drawing.COLORS[0]
        axes.scatter(_beside(place, values), values, s=9, color=color, alpha=0.55, linewidths=0)
        look = {part: {"color": color} for part in ("boxprops", "medianprops", "whiskerprops", "capprops")}
        axes.boxplot([values], positions=[place], widths=0.7, whis=(0, 100), showfliers=False, **look)
    if len(columns) > 1:
        axes.axvline(len(columns) - 1.5, color=drawing.INK, linewidth=0.8, linestyle=":")
    axes.set_xticks(range(len(columns)), list(columns), rotation=50, ha="right", rotation_mode="anchor", fontsize=8)
    axes.set_xlim(-0.6, len(columns) - 0.4)
    axes.grid(visible=False, axis="x")
    axes.set(ylabel="MAP@12")
    return figure


def pairs(panels: Mapping[str, Mapping[str, tuple[Mapping[int, float], Mapping[int, float]]]]) -> Any:
    """panel -> columns -> seed -> figure in full and in mixed precision."""
    widest = max(map(len, panels.values()))
    figure = drawing.figure(max(4.0, min(12.0, 1.0 + 0.95 * widest * len(panels))), 3.8)
    places = figure.subplots(1, len(panels), sharey=True, squeeze=False).ravel()
    for axes, (panel, columns) in zip(places, panels.items(), strict=True):
        for place, (full, mixed) in enumerate(columns.values()):
            left, right = place - 0.2, place + 0.2
            for seed in full.keys() & mixed.keys():
                axes.plot([left, right], [full[seed], mixed[seed]], color="#808080", linewidth=0.7, alpha=0.7)
            for at, values, look in ((left, full, 0), (right, mixed, 1)):
                found, color = list(values.values()), drawing.COLORS[look]
                axes.scatter([at] * len(found), found, s=14, color=color, marker="os"[look], zorder=3, linewidths=0)
                axes.hlines(sum(found) / len(found), at - 0.14, at + 0.14, color=color, linewidth=2)
        axes.set_xticks(range(len(columns)), list(columns), fontsize=8)
        axes.set_xlim(-0.6, len(columns) - 0.4)
        axes.grid(visible=False, axis="x")
        axes.set_title(panel)
    places[0].set(ylabel="MAP@12")
    return figure


def lines(lines: Mapping[str, Mapping[int, float]]) -> Any:
    """line -> ranks -> samples a second."""
    figure = drawing.figure(8.0, 3.6)
    axes = figure.subplots()
    for (name, points), look in zip(lines.items(), drawing.looks(), strict=False):
        axes.plot(list(points), list(points.values()), label=f" {name}", **look)
    ranks = sorted({count for points in lines.values() for count in points})
    axes.set_xticks(ranks, [f"{count}" for count in ranks])
    axes.set_ylim(bottom=0)
    axes.margins(x=0.1)
    axes.yaxis.set_major_formatter("{x:,g}")
    axes.set(xlabel="ranks", ylabel="samples/s")
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


def sizes(lines: Mapping[str, Mapping[int, Sequence[float]]]) -> Any:
    """line -> global batch size -> figures of the runs."""
    figure = drawing.figure(7.0, 3.4)
    axes = figure.subplots()
    for (name, points), look in zip(lines.items(), drawing.looks(), strict=False):
        axes.plot(list(points), [sum(values) / len(values) for values in points.values()], label=f" {name}", **look)
        axes.vlines(list(points), list(map(min, points.values())), list(map(max, points.values())), color=look["color"])
    sizes = sorted({size for points in lines.values() for size in points})
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axes.minorticks_off()
    axes.margins(x=0.15)
    axes.set(xlabel="global batch size", ylabel="MAP@12")
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


def differences(compared: Sequence[Compared], margin: float) -> Any:
    """A row for each comparison, all of which have an interval."""
    figure = drawing.figure(9.0, 1.3 + 0.27 * len(compared))
    axes = figure.subplots()
    named = set()
    for place, one in enumerate(compared):
        found = one.difference
        label = None if found.verdict in named else f" {found.verdict}"
        named.add(found.verdict)
        look = _LOOK_OF[found.verdict]
        axes.hlines(place, found.low, found.high, color=look["color"], linewidth=1.8)
        axes.plot([found.difference], [place], linestyle="none", label=label, markersize=5, **look)
    axes.axvline(0, color=drawing.INK, linewidth=0.8)
    for at in (-margin, margin):
        axes.axvline(at, color=drawing.INK, linewidth=1, linestyle=":")
    axes.set_yticks(range(len(compared)), [one.name for one in compared], fontsize=8)
    axes.set_ylim(len(compared) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")
    axes.set(xlabel="difference of mean MAP@12")
    figure.legend(loc="outside lower center", ncols=len(named))
    return figure


def _beside(place: int, values: Sequence[float]) -> list[float]:
    """Where points of a column stand, so that they do not hide each other: by turns to the left and to the right."""
    order = sorted(range(len(values)), key=values.__getitem__)
    found = [0.0] * len(values)
    for rank, index in enumerate(order):
        found[index] = place + 0.09 * ((rank % 5) - 2)
    return found
