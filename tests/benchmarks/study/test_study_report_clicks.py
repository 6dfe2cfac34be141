"""Real clicks in the report, on cases worked by hand: the folds of study_report_cases.FOLDS."""

import math

import pytest
from study_cases import cell
from study_click_cases import click_plan, click_runs
from study_report_cases import folder, small_plan, study, whole

from benchmarks.study.report import blocks, clicks, comparisons, counted
from benchmarks.study.report.sections import sections


def text(found):
    return blocks.markdown("", clicks.sections(found))


def test_over_folds_worked_by_hand(tmp_path):
    found = clicks.over_folds(study(tmp_path, click_plan(), click_runs(cell())), cell())
    # Fold means 0.60 and 0.61 less rates 0.56 and 0.58: differences 0.04 and 0.03, though the second has more displays.
    assert (found.mean, found.baseline, found.chance) == pytest.approx((0.605, 0.57, 0.49))
    assert found.difference == pytest.approx(0.035)
    # With one degree of freedom the 97.5 % quantile is 12.7062; the standard error is 0.01 / sqrt(2) / sqrt(2).
    assert (found.low, found.high) == pytest.approx((0.035 - 12.7062 * 0.005, 0.035 + 12.7062 * 0.005), abs=1e-6)
    # Seeds' means over folds: 0.60, 0.61, 0.60, 0.61.
    assert found.over_seeds.mean == pytest.approx(0.605)
    assert found.over_seeds.std == pytest.approx(math.sqrt(4 * 0.005**2 / 3))
    assert (found.folds, found.runs, found.displays) == (2, 8, 1400)


def test_the_tables(tmp_path):
    found = text(study(tmp_path, click_plan(precisions=["float32"]), click_runs(cell())))
    assert "1,400 displays of real clicks in 2 folds" in found and "2 folds are few, and the training displays" in found
    assert (
        "| float32 | 1 x 64 | 1 | 100 | 0.48000 | 0.56000 | 0.60000 | 0.00816 | 0.59000 | 0.61000 | +0.04000 | 4 |"
        in found
    )
    assert "| float32 | 1 x 64 | 2 | 1,300 | 0.50000 | 0.58000 | 0.61000 | 0.00816 |" in found
    assert "| 0.49000 | 0.57000 | 0.60500 | 0.00577 | 0.60000 | 0.61000 | +0.03500 | -0.02853 to +0.09853 |" in found
    assert "(8 runs)" in found


@pytest.mark.parametrize(
    ("above", "said"), [(0.04, "better than it"), (-0.04, "worse than it"), (0.0, "not told apart from it")]
)
def test_what_may_be_said(tmp_path, above, said):
    # Differences are `above` a thousandth less and more.
    maps = {1: [0.56 + above - 0.001], 2: [0.58 + above + 0.001]}
    line = clicks.verdict(study(tmp_path, click_plan(), click_runs(cell(), maps)), cell())
    assert line.endswith(said) and f"difference to the latter {above:+.4f} (95 % interval" in line


def test_folds_and_seeds_without_runs(tmp_path):
    plan = click_plan()
    of_one = study(tmp_path / "a", plan, click_runs(cell(), {1: (0.6, 0.62)}))
    found = clicks.over_folds(of_one, cell())
    assert (found.low, found.over_seeds, found.folds, found.baseline) == (None, None, 1, 0.56)
    assert clicks.verdict(of_one, cell()).endswith("of one fold nothing can be said of others")
    part = study(tmp_path / "b", plan, click_runs(cell(), {1: (0.6, 0.62), 2: (None, 0.64)}))
    assert clicks.over_folds(part, cell()).over_seeds.runs == 1
    none = study(tmp_path / "c", plan, [])
    assert clicks.over_folds(none, cell()) is None and clicks.verdict(none, cell()).endswith(": no runs")
    assert "| 0 | 0 |" in text(none)


def test_before_the_datasets_are_made_it_says_so(tmp_path):
    plan = click_plan()
    place = folder(tmp_path, plan, [])
    (tmp_path / "folds.json").unlink()
    assert clicks.NO_FOLDS in text(counted.load(place)) and clicks.verdicts(counted.load(place)) == []


def test_the_section_is_of_studies_of_folds_alone_and_stands_second(tmp_path):
    plain = small_plan()
    assert clicks.sections(study(tmp_path / "a", plain, whole(plain))) == []
    found = study(tmp_path / "b", click_plan(), [*click_runs(cell()), *click_runs(cell(precision="mixed_bfloat16"))])
    compared = comparisons.compared(found)
    made = sections(found, compared, [])
    assert made[1].title == "Real clicks"
    assert (compared[0].difference.runs, compared[0].verdict) == ((8, 8), "equivalent")
    whole_text = blocks.markdown("", made)
    assert "16 of 16 planned runs count: 2 configurations, 4 seeds each on each of 2 folds" in whole_text
    assert "Runs of the same seed and the same fold are paired" in whole_text and clicks.ALL_FOLDS in whole_text
    assert "| folds | 2 |" in whole_text and "| sample\\_path |" in whole_text
