"""What counts in a study's folder."""

import math

import pytest
from study_cases import cell
from study_click_cases import click_plan, click_runs
from study_report_cases import MAPS, folder, record, runs, small_plan, study, whole

from benchmarks.study.cells import Run
from benchmarks.study.report import counted
from benchmarks.study.report.counted import curve, finite, to_target
from data.errors import InputError


def test_a_whole_study_counts(tmp_path):
    plan = small_plan()
    found = study(tmp_path, plan, whole(plan))
    assert list(found.counted) == list(plan.cells())
    assert found.runs(plan.cells()) == len(found.records) == 12
    assert (found.uncounted, found.missing, found.damaged) == ((), {}, ())
    assert found.figures(plan.baseline("wide_deep"), "map_at_12") == dict(enumerate(MAPS, start=1))
    assert [one.label for one in found.settings] == ["", ""]


def test_what_does_not_count_has_its_reason(tmp_path):
    plan = small_plan(xla=[False, True])
    unproven = record(cell(xla=True), 1)
    unproven["settings_in_force"]["jit_compiled"] = []
    stranger = cell(global_batch_size=4096)
    found = study(
        tmp_path,
        plan,
        [
            *runs(cell(), [0.7, "killed by\nsignal 9"]),
            Run(cell(xla=True), 1, "ok", None, unproven),
            *runs(stranger, [0.7]),
            Run(cell(), 99, "ok", None, record(cell(), 99)),
        ],
        '{"cell": {"mod',
    )
    assert found.counted[cell()].keys() == {1}
    assert found.runs([cell(xla=True), stranger]) == 0
    assert [(one.cell, one.seed, one.reason) for one in found.uncounted] == [
        (cell(), 2, "failed: killed by signal 9"),
        (cell(), 99, "the plan does not have it"),
        (cell(xla=True), 1, "XLA was asked for, and no compiled function ran"),
        (stranger, 1, "the plan does not have it"),
    ]
    assert found.missing[cell()] == (3, 4)
    assert found.missing[cell(precision="mixed_bfloat16", xla=True)] == (1, 2, 3, 4)
    assert len(found.damaged) == 1 and "line 6" in found.damaged[0]


def test_a_run_counts_on_the_fold_whose_displays_it_evaluated(tmp_path):
    plan = click_plan(precisions=["float32"], seeds=[1, 2])
    good, other = click_runs(cell(), {1: (0.6,), 2: (0.7,)})
    other.record["displays"] = 100
    third = Run(cell(), 1, "ok", None, good.record, fold=3)
    found = study(tmp_path, plan, [other, third, good])
    assert found.figures(cell(), "map_at_12") == {(1, 1): 0.6}
    assert [(one.seed, one.fold, one.reason) for one in found.uncounted] == [
        (1, 2, "fold 2 has 1300 displays, and 100 were evaluated"),
        (1, 3, "the plan does not have it"),
    ]
    assert found.missing == {cell(): ((2, 1), (2, 2))}
    assert found.folds[1]["ctr_map_at_12"] == 0.56


def test_a_run_made_again_counts_once(tmp_path):
    found = study(tmp_path, small_plan(), [*runs(cell(), ["killed"]), *runs(cell(), [0.7])])
    assert found.figures(cell(), "map_at_12") == {1: 0.7}
    assert found.uncounted == ()


def test_figures_that_are_missing_are_left_out(tmp_path):
    found = study(tmp_path, small_plan(), [*runs(cell(), [0.7]), *runs(cell(), [None, 0.7], train_seconds=None)])
    assert found.figures(cell(), "train_seconds") == {1: 8.0}
    assert found.figures(cell(), "no_such_figure") == {}
    assert found.figures(cell(world_size=8), "map_at_12") == {}


@pytest.mark.parametrize("name", ["plan.yaml", "runs.jsonl"])
def test_a_folder_without_a_study_is_bad_input(tmp_path, name):
    with pytest.raises(InputError, match=r"it has no plan\.yaml; name the --results_dir"):
        counted.load(str(tmp_path))
    folder(tmp_path, small_plan(), [])
    (tmp_path / name).unlink()
    with pytest.raises(InputError, match=f"it has no {name}"):
        counted.load(str(tmp_path))


def test_another_file_in_place_of_the_runs_is_one_line(tmp_path):
    folder(tmp_path, small_plan(), [])
    (tmp_path / "runs.jsonl").write_text("root:x:0\ndaemon:x:1\n")
    with pytest.raises(InputError, match=r"runs\.jsonl, line 1: .*, nor is any other line; name the") as caught:
        counted.load(str(tmp_path))
    assert "\n" not in str(caught.value)


def test_curve_and_target_are_of_the_evaluations():
    found = record(cell(), 1, 0.7)
    assert curve(found) == pytest.approx({10: 0.6, 20: 0.7})
    assert to_target(found, 0.55) == (10, 4.0)
    assert to_target(found, 0.7) == (20, 8.0)
    assert to_target(found, 0.71) is None
    found["evaluations"][0]["map_at_12"] = None
    assert curve(found) == {20: 0.7}
    assert to_target(found, 0.5) == (20, 8.0)
    assert curve({}) == {} and to_target({}, 0.5) is None


@pytest.mark.parametrize("value", [None, math.nan, math.inf, "0.5", True])
def test_what_is_no_finite_number(value):
    assert finite(value) is None
    assert finite(3) == 3.0
