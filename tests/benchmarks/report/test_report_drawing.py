"""Pictures: SVG for a page, PNG for elsewhere, the same bytes each time."""

import re

import pytest

from benchmarks.report import drawing

pytest.importorskip("matplotlib", reason="matplotlib is not installed")

HARD = '<b>&"$x_1$'


def made():
    figure = drawing.figure(2.0, 1.5)
    axes = figure.subplots()
    axes.plot([1, 2], [3, 4], label=f" {HARD}", color=drawing.INK)
    axes.legend()
    return figure


def test_svg_is_an_element_with_the_pages_ink():
    plot = drawing.plot(HARD, "A line.", made)
    assert plot.svg.startswith('<svg role="img" aria-label="&lt;b&gt;&amp;&quot;$x_1$"')
    assert "currentColor" in plot.svg and drawing.INK not in plot.svg
    assert "<b>" not in plot.svg
    assert (plot.title, plot.text, plot.png) == (HARD, "A line.", None)


def test_png_is_made_where_it_is_asked_for():
    assert drawing.plot("a", "", made, png=True).png.startswith(b"\x89PNG\r\n")


def test_the_same_each_time_and_ids_of_their_own():
    assert drawing.plot("a", "", made, png=True) == drawing.plot("a", "", made, png=True)
    ids = [set(re.findall(r' id="([^"]+)"', drawing.plot(title, "", made).svg)) for title in "ab"]
    assert ids[0] and ids[0].isdisjoint(ids[1])


def test_the_first_twelve_looks_differ():
    looks = [tuple(look.values()) for look, _ in zip(drawing.looks(), range(12), strict=False)]
    assert len(set(looks)) == 12
