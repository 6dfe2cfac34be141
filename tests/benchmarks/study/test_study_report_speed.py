"""Tables of speed: figures worked by hand, and blanks where there is nothing."""

from study_cases import cell
from study_report_cases import runs, small_plan, study

from benchmarks.study.report import speed


def test_strong_scaling_is_against_one_rank_at_the_same_global_batch(tmp_path):
    plan = small_plan(precisions=["float32"], world_sizes=[1, 2], global_batch_sizes=[64, 128])
    its_runs = [
        *runs(cell(), [0.7], samples_per_sec=900.0),
        *runs(cell(), [None, 0.7], samples_per_sec=1100.0),
        *runs(cell(world_size=2), [0.7], samples_per_sec=1500.0),
        *runs(cell(world_size=2, global_batch_size=128), [0.7], samples_per_sec=2345.6),
    ]
    found = study(tmp_path, plan, its_runs)
    rows = speed.training_throughput(found).rows
    assert rows == [
        ["float32", "no", "64", "1", "1,000", "", "", "2"],
        ["float32", "no", "128", "1", "", "", "", "0"],
        ["float32", "no", "64", "2", "1,500", "1.50", "75.0 %", "1"],
        ["float32", "no", "128", "2", "2,346", "", "", "1"],
    ]
    assert speed.throughput_lines(found, "wide_deep") == {
        "float32, global batch 64": {1: cell(), 2: cell(world_size=2)},
        "float32, global batch 128": {2: cell(world_size=2, global_batch_size=128)},
    }


def test_evaluation_throughput_takes_training_batch_sizes_together(tmp_path):
    plan = small_plan(global_batch_sizes=[64, 128], xla=[False, True])
    its_runs = [
        *runs(cell(), [0.7, 0.7], eval_samples_per_sec=4000.0),
        *runs(cell(global_batch_size=128), [0.7], eval_samples_per_sec=7000.0),
        *runs(cell(precision="mixed_bfloat16"), [0.7], eval_samples_per_sec=3000.0),
        *runs(cell(xla=True), ["killed", 0.7], eval_samples_per_sec=None),
    ]
    grid = speed.evaluation_throughput(study(tmp_path, plan, its_runs))
    assert grid.headings == [
        "Ranks", "Evaluation batch", "XLA", "Samples/s float32", "Samples/s mixed bfloat16", "Runs",
    ]  # fmt: skip
    assert grid.rows == [["1", "128", "no", "4,000", "3,000", "3 + 1"]]


def test_time_to_target_counts_those_that_never_reach_it(tmp_path):
    plan = small_plan(precisions=["float32"], world_sizes=[1, 2], seeds=[1, 2, 3, 4, 5])
    control = plan.cells()[-1]
    its_runs = [*runs(cell(), [0.80, 0.70, 0.70, 0.5, 0.5]), *runs(control, [0.5, 0.5])]
    grid = speed.time_to_target(study(tmp_path, plan, its_runs), 0.69)
    assert grid.rows == [
        # At step 10, 20, 20, never, never.
        ["float32", "1 x 64", "60.0 %", "20", "8.00", "5"],
        ["float32", "2 x 32", "", "", "", "0"],
        ["float32, degraded (rates x 0.1)", "1 x 64", "0.0 %", "not reached", "not reached", "2"],
    ]


def test_where_half_of_the_runs_never_reach_it_the_median_is_never(tmp_path):
    its_runs = runs(cell(), [0.80, 0.80, 0.5, 0.5])
    grid = speed.time_to_target(study(tmp_path, small_plan(), its_runs), 0.69)
    assert grid.rows[0][2:5] == ["50.0 %", "not reached", "not reached"]
