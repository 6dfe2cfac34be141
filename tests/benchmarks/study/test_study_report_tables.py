"""Tables of accuracy: figures worked by hand, and blanks where there is nothing."""

import pytest
from study_cases import cell
from study_report_cases import runs, small_plan, study, whole

from benchmarks.study.report import tables

THREE = ["float32", "mixed_float16", "mixed_bfloat16"]


def test_training_accuracy_has_a_column_for_each_precision(tmp_path):
    plan = small_plan(precisions=THREE, world_sizes=[1, 2])
    found = study(
        tmp_path,
        plan,
        [
            *runs(cell(), [0.70, 0.72]),
            *runs(cell(precision="mixed_float16"), [0.71, "killed"], train_seconds=16.0),
            *runs(cell(precision="mixed_bfloat16", world_size=2), [0.6], train_seconds=1234.5),
        ],
    )
    grid = tables.training_accuracy(found)
    assert grid.headings == [
        "Ranks", "Batch per rank", "XLA", "MAP@12 float32", "MAP@12 mixed float16", "MAP@12 mixed bfloat16",
        "Time to train float32 (s)", "Time to train mixed float16 (s)", "Time to train mixed bfloat16 (s)",
        "Speed-up mixed float16", "Speed-up mixed bfloat16", "Runs",
    ]  # fmt: skip
    assert grid.rows == [
        ["1", "64", "no", "0.71000", "0.71000", "", "8.00", "16.00", "", "0.50", "", "2 + 1 + 0"],
        ["2", "32", "no", "", "", "0.60000", "", "", "1,234", "", "", "0 + 0 + 1"],
    ]


def test_time_to_train_is_the_median(tmp_path):
    its_runs = [one for seconds, maps in ((1.0, [0.7]), (2.0, [None, 0.7]), (60.0, [None, None, 0.7])) for one in
                runs(cell(), maps, train_seconds=seconds)]  # fmt: skip
    found = study(tmp_path, small_plan(), its_runs)
    assert tables.median(found, cell(), "train_seconds") == 2.0
    assert tables.median(found, cell(xla=True), "train_seconds") is None
    assert tables.mean(found, None, "train_seconds") is None


def test_shares_of_what_is_attainable(tmp_path):
    plan = small_plan()
    its_runs = [*runs(cell(), [0.7]), *runs(cell(), [None, 0.7], map_margin_share=0.8, auc_margin_share=None)]
    grid = tables.attainable(study(tmp_path, plan, its_runs))
    assert grid.rows[0] == ["float32", "1 x 64", "0.70000", "85.0 %", "0.75000", "95.0 %", "2"]
    assert grid.rows[1] == ["mixed bfloat16", "1 x 64", "", "", "", "", "0"]
    assert grid.rows[2][0] == "float32, degraded (rates x 0.1)"


def test_nothing_is_attainable_on_data_of_which_nothing_is_known(tmp_path):
    its_runs = runs(cell(), map_margin_share=None, auc_margin_share=None)
    assert tables.attainable(study(tmp_path, small_plan(), its_runs)) is None


def test_stability_of_each_and_of_all_configurations_without_controls(tmp_path):
    plan = small_plan()
    control = plan.cells()[-1]
    its_runs = [
        *runs(cell(), [0.2, 0.4, 0.6]),
        *runs(cell(precision="mixed_bfloat16"), [0.8]),
        *runs(control, [0.1, 0.1]),
    ]
    assert tables.stability(study(tmp_path, plan, its_runs)).rows == [
        ["float32", "1 x 64", "0.40000", "0.20000", "0.20000", "0.60000", "3"],
        ["mixed bfloat16", "1 x 64", "0.80000", "", "0.80000", "0.80000", "1"],
        ["float32, degraded (rates x 0.1)", "1 x 64", "0.10000", "0.00000", "0.10000", "0.10000", "2"],
        # 0.2, 0.4, 0.6 and 0.8: variance 0.2 / 3.
        ["all configurations", "", "0.50000", "0.25820", "0.20000", "0.80000", "4"],
    ]


def test_batch_sizes_and_what_the_rule_makes_of_the_rates(tmp_path):
    plan = small_plan(global_batch_sizes=[128, 512, 64], alone=["global_batch_sizes"], lr_scaling="sqrt")
    its_runs = [*runs(cell(), [0.7]), *runs(cell(global_batch_size=512), [0.6, 0.8])]
    found = study(tmp_path, plan, its_runs)
    groups = tables.batch_size_groups(found, "wide_deep")
    assert list(groups) == ["float32, 1 rank"]
    assert [row[1:5] + row[-1:] for row in tables.batch_sizes(found, groups).rows] == [
        ["64", "1", "0.70000", "", "1"],
        ["128", "1.41", "", "", "0"],
        ["512", "2.83", "0.70000", "0.14142", "2"],
    ]
    assert tables.rate_rule(found).startswith("sqrt: rates grow with the root")


def test_one_batch_size_is_no_group(tmp_path):
    plan = small_plan()
    assert tables.batch_size_groups(study(tmp_path, plan, whole(plan)), "wide_deep") == {}


@pytest.mark.parametrize(("rule", "factor"), [("none", 1), ("sqrt", 2), ("linear", 4)])
def test_rate_factor(rule, factor):
    assert tables.rate_factor(rule, 4.0) == factor


def test_a_ratio_of_what_is_missing_is_missing():
    assert tables.over(6.0, 3.0) == 2
    assert tables.over(None, 3.0) is tables.over(3.0, None) is tables.over(3.0, 0.0) is None


def test_several_models_have_a_column(tmp_path):
    plan = small_plan(models=["wide_deep", "dlrm"])
    found = study(tmp_path, plan, [])
    for grid in (tables.training_accuracy(found), tables.stability(found)):
        assert grid.headings[0] == "Model"
        assert {row[0] for row in grid.rows} == {"wide_deep", "dlrm"}
        assert all(len(row) == len(grid.headings) for row in grid.rows)
