"""Pairs of cells compared, and what is said of each setting."""

import pytest
from study_cases import cell
from study_report_cases import MAPS, runs, small_plan, study, whole

from benchmarks.study.report import comparisons
from benchmarks.study.report.statistics import DIFFERENT, EQUIVALENT, UNDECIDED


def shifted(by):
    """Figures that lie higher, by not quite the same."""
    return [one + by + wobble for one, wobble in zip(MAPS, (1e-4, -1e-4, 2e-4, -2e-4), strict=True)]


@pytest.fixture
def plan():
    return small_plan(
        xla=[False, True], world_sizes=[1, 2], global_batch_sizes=[64, 128], alone=["world_sizes", "global_batch_sizes"]
    )


def test_every_pair_of_the_plan_is_compared_and_those_of_a_change_stand_together(tmp_path, plan):
    found = comparisons.compared(study(tmp_path, plan, whole(plan)))
    assert [(one.what, one.where) for one in found] == [
        ("float32 to mixed bfloat16", "no XLA, 1 x 64"),
        ("float32 to mixed bfloat16", "XLA, 1 x 64"),
        ("no XLA to XLA", "float32, 1 x 64"),
        ("no XLA to XLA", "mixed bfloat16, 1 x 64"),
        ("1 to 2 ranks", "float32, global batch 64"),
        ("global batch 64 to 128", "float32, 1 rank"),
        ("baseline to control degraded (rates x 0.1)", "float32, 1 x 64"),
    ]
    assert [one.is_control for one in found] == [False] * 6 + [True]
    assert [one.verdict for one in found][-2:] == [EQUIVALENT, DIFFERENT]


def test_grid_has_both_tests_and_the_verdict(tmp_path):
    plan = small_plan()
    its_runs = [*runs(cell()), *runs(cell(precision="mixed_bfloat16"), shifted(0.002))]
    found = comparisons.compared(study(tmp_path, plan, its_runs))
    grid = comparisons.equivalence_grid(found, plan.confidence)
    rows = [dict(zip(grid.headings, row, strict=True)) for row in grid.rows]
    assert rows[0] == {
        "Compared": "float32 to mixed bfloat16",
        "Both": "no XLA, 1 x 64",
        "Runs": "4 pairs",
        "Difference": "+0.00200",
        "90 % interval": "+0.00179 to +0.00221",
        "p (equal means)": "< 0.001",
        "p (TOST)": "< 0.001",
        "KS p": "0.229",
        "Verdict": "different but within the margin",
    }
    assert list(rows[1].values())[2:] == [""] * 7


def test_other_seeds_are_called_what_they_are(tmp_path):
    its_runs = [
        *runs(cell(), [0.7, 0.71, None, None]),
        *runs(cell(precision="mixed_bfloat16"), [None, None, 0.7, 0.71]),
    ]
    grid = comparisons.equivalence_grid(comparisons.compared(study(tmp_path, small_plan(), its_runs)), 0.95)
    assert grid.rows[0][2] == "2 + 2, Welch"


def test_one_run_of_each_has_a_difference_and_no_test(tmp_path):
    its_runs = [*runs(cell(), [0.7]), *runs(cell(precision="mixed_bfloat16"), [0.72])]
    found = comparisons.compared(study(tmp_path, small_plan(), its_runs))
    assert comparisons.equivalence_grid(found, 0.95).rows[0][3:] == ["+0.02000", "", "", "", "1.000", UNDECIDED]


def test_summary_counts_verdicts_and_what_could_not_be_compared(tmp_path):
    plan = small_plan(xla=[False, True])
    mixed = cell(precision="mixed_bfloat16")
    its_runs = [*runs(cell()), *runs(mixed, shifted(0.05)), *runs(cell(xla=True), shifted(0.0))]
    found = comparisons.compared(study(tmp_path, plan, its_runs))
    grid = comparisons.summary_grid(found)
    assert grid.headings[2:6] == ["Equivalent", "Different but within the margin", "Different", "Undecided"]
    assert grid.rows == [
        ["float32 to mixed bfloat16", "2", "", "", "1", "", "1", "0.05000"],
        ["no XLA to XLA", "2", "1", "", "", "", "1", "0.00000"],
        ["baseline to control degraded (rates x 0.1)", "1", "", "", "", "", "1", ""],
    ]
    assert comparisons.verdict_lines(found) == [
        "float32 to mixed bfloat16: of 2 comparisons 1 different, 1 without runs; largest difference +0.05000",
        "no XLA to XLA: of 2 comparisons 1 equivalent, 1 without runs; largest difference +0.00000",
        "baseline to control degraded (rates x 0.1): without runs",
    ]


def test_influence_of_mixed_precision_has_a_row_for_each_mixed_precision(tmp_path):
    plan = small_plan(precisions=["float32", "mixed_float16", "mixed_bfloat16"])
    its_runs = [*runs(cell()), *runs(cell(precision="mixed_float16"), [0.6, 0.602, None, None])]
    grid = comparisons.precision_grid(study(tmp_path, plan, its_runs))
    assert grid.headings[6:10] == ["Std float32", "Mean mixed", "Std mixed", "KS statistic"]
    # All of 2 below all of 4: 2 of 15 arrangements.
    assert grid.rows == [
        ["1", "64", "no", "mixed float16", "4 + 2", "0.70050", "0.00129", "0.60100", "0.00141", "1.000", "0.133"],
        ["1", "64", "no", "mixed bfloat16", "4 + 0", "0.70050", "0.00129", "", "", "", ""],
    ]


def test_of_several_models_each_is_named(tmp_path):
    plan = small_plan(models=["wide_deep", "dlrm"], flags={"dataset_type": "synthetic", "synthetic_rows": 2000})
    found = comparisons.compared(study(tmp_path, plan, []))
    assert [one.where for one in found][:2] == ["wide_deep, no XLA, 1 x 64", "dlrm, no XLA, 1 x 64"]
    assert [line.partition(":")[0] for line in comparisons.verdict_lines(found)][:2] == ["wide_deep", "dlrm"]
