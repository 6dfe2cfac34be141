"""How pictures are drawn: what stands in the axes."""

import pytest

from benchmarks.study.report import drawings

pytest.importorskip("matplotlib", reason="matplotlib is not installed")


def test_a_curve_is_the_mean_and_its_band_goes_from_lowest_to_highest():
    points = {10: [0.1, 0.3], 20: [0.5, 0.7]}
    figure = drawings.curves({"1 x 64": {"float32": points, "degraded": {10: [0.0], 20: [0.1]}}}, {"degraded"})
    whole, half = figure.axes
    assert [list(line.get_ydata()) for line in whole.lines] == [pytest.approx([0.2, 0.6]), pytest.approx([0.0, 0.1])]
    band = whole.collections[0].get_paths()[0].vertices
    assert {(x, round(y, 6)) for x, y in band} == {(10, 0.1), (10, 0.3), (20, 0.5), (20, 0.7)}
    # The second half, without the control.
    assert [list(line.get_xdata()) for line in half.lines] == [[10, 20]]


def test_columns_have_all_points_and_the_last_is_apart():
    columns = {"a": [0.1, 0.2, 0.3], "b": [0.2], "all configurations": [0.1, 0.2, 0.3, 0.2]}
    (axes,) = drawings.columns(columns).axes
    assert [sorted(dots.get_offsets()[:, 1]) for dots in axes.collections] == [
        sorted(each) for each in columns.values()
    ]
    assert [label.get_text() for label in axes.get_xticklabels()] == list(columns)
    assert any(list(line.get_xdata()) == [1.5, 1.5] for line in axes.lines)


def test_pairs_join_seeds_that_both_sides_have():
    figure = drawings.pairs({"mixed": {"1 x 64": ({1: 0.1, 2: 0.2}, {2: 0.3, 3: 0.4})}})
    (axes,) = figure.axes
    assert [list(line.get_ydata()) for line in axes.lines] == [[0.2, 0.3]]


def test_lines_begin_at_zero():
    (axes,) = drawings.lines({"float32": {1: 100.0, 2: 150.0}}).axes
    assert axes.get_ylim()[0] == 0
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "2"]


def test_sizes_are_means_with_bars():
    (axes,) = drawings.sizes({"float32": {64: [0.1, 0.3], 128: [0.5]}}).axes
    assert list(axes.lines[0].get_ydata()) == pytest.approx([0.2, 0.5])
    assert [bar.tolist() for bar in axes.collections[0].get_segments()] == [
        [[64, 0.1], [64, 0.3]],
        [[128, 0.5], [128, 0.5]],
    ]
