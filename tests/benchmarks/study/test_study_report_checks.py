"""When a study must not be relied on."""

import pytest
from study_cases import cell
from study_click_cases import click_plan, click_runs
from study_report_cases import MAPS, runs, small_plan, study, whole

from benchmarks.study.report import checks, comparisons


def problems(path, plan, its_runs):
    found = study(path, plan, its_runs)
    return checks.problems(found, comparisons.compared(found))


def with_control(plan, maps, **changed):
    (control,) = (one for one in plan.cells() if one.label)
    return [*runs(cell(), **changed), *runs(control, maps)]


def test_nothing_to_say_of_a_sound_study(tmp_path):
    plan = small_plan()
    assert problems(tmp_path, plan, whole(plan)) == []


@pytest.mark.parametrize(
    ("maps", "came_out"),
    [
        (MAPS, "equivalent"),
        # A tenth of the margin, and never more or less.
        ([one - 0.001 for one in MAPS], "different but within the margin"),
        ([0.5, 0.9, 0.5, 0.9], "undecided"),
    ],
)
def test_a_control_that_does_not_come_out_different(tmp_path, maps, came_out):
    plan = small_plan()
    (found,) = problems(tmp_path, plan, with_control(plan, maps))
    assert found.startswith("This study cannot tell settings apart: baseline to control degraded (rates x 0.1) must")
    assert f"came out {came_out} (" in found


def test_a_control_that_came_out_better(tmp_path):
    plan = small_plan()
    (found,) = problems(tmp_path, plan, with_control(plan, [one + 0.1 for one in MAPS]))
    assert "came out better than the baseline" in found and "+0.10000" in found


def test_a_control_without_runs_and_no_control_at_all(tmp_path):
    plan = small_plan()
    (found,) = problems(tmp_path / "a", plan, runs(cell()))
    assert "cannot tell settings apart yet" in found
    (found,) = problems(tmp_path / "b", small_plan(controls={}), runs(cell()))
    assert "its plan has no control" in found


def test_of_real_clicks_neither_a_control_nor_a_margin_is_asked(tmp_path):
    plan = click_plan(controls={})
    its_runs = click_runs(cell(), map_margin_share=0.1)
    assert problems(tmp_path / "a", plan, its_runs) == []
    with_one = click_plan(controls={"degraded": 0.1})
    (found,) = problems(tmp_path / "b", with_one, its_runs)
    assert "cannot tell settings apart yet: no runs to compare" in found


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"map_margin_share": 0.79}, "its MAP@12 is 79.0 % of the attainable margin, and the plan asks for 80.0 %"),
        ({"auc_margin_share": 0.5}, "its AUC is 50.0 % of"),
    ],
)
def test_a_baseline_that_has_not_learned(tmp_path, changed, said):
    plan = small_plan()
    (found,) = problems(tmp_path, plan, with_control(plan, [0.5, 0.501, 0.502, 0.5], **changed))
    assert found.startswith("The baseline wide_deep, float32, 1 x 64, has not learned enough") and said in found


def test_of_data_that_are_not_generated_nothing_is_asked(tmp_path):
    plan = small_plan()
    its_runs = with_control(plan, [0.5, 0.501, 0.502, 0.5], map_margin_share=None, auc_margin_share=None)
    assert problems(tmp_path, plan, its_runs) == []
