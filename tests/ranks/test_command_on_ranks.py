"""The command under horovodrun: output, results, exit codes, stopping and going on."""

import json
import os

import pytest
from command_runs import PLAIN, WRAPPED, checkpoint_steps, error_lines, flags, losses, observed
from rank_processes import run_alone, run_ranks

STOPPED_IN = 7
TABLE_TITLE = "wide_deep {}, optimized, configuration default, version "


def tables(lines: list[str], mode: str) -> int:
    """How many result tables of a mode, "training" or "inference", begin in these lines."""
    return sum(line.startswith(TABLE_TITLE.format(mode)) for line in lines)


def logged(finished, rank: int) -> list[str]:
    """The lines of a rank's log, sorted: it has two streams, whose lines may meet in either order."""
    return sorted((finished.folder / "results" / f"rank-{rank}.log").read_text().splitlines())


def written(finished, rank: int) -> list[str]:
    """The lines of a rank's two streams, sorted."""
    return sorted(finished.lines(rank, "stdout") + finished.lines(rank, "stderr"))


@pytest.fixture(scope="module")
def uninterrupted(dataset, tmp_path_factory):
    """The very command of the README, with dropout as by default."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    return run_ranks(2, [*WRAPPED, *flags(dataset, folder)], folder=folder, asked=True)


@pytest.fixture(scope="module")
def benchmarked(dataset, uninterrupted, tmp_path_factory):
    """Evaluation timed with mixed precision and XLA, on the weights that the training left."""
    folder = tmp_path_factory.mktemp("benchmarked")
    more = (
        "--evaluate",
        "--benchmark",
        "--benchmark_steps=6",
        "--benchmark_warmup_steps=2",
        "--amp",
        "--xla",
        "--use_checkpoint",
        f"--model_dir={uninterrupted.folder / 'checkpoints'}",
    )
    return run_ranks(2, [*WRAPPED, *flags(dataset, folder, *more)], folder=folder)


@pytest.fixture(scope="module")
def interrupted(dataset, tmp_path_factory):
    """Rank 1 alone gets SIGTERM before its step 7; the signals of a step are read a step later."""
    folder = tmp_path_factory.mktemp("interrupted")
    command = observed(folder, f"1:{STOPPED_IN}:term")
    more = ("--log_every_steps=1000", "--affinity=single_unique")
    return run_ranks(2, [*command, *flags(dataset, folder, *more)], folder=folder)


@pytest.fixture(scope="module")
def resumed(dataset, interrupted):
    """The same command without the signal, in the same folder."""
    for rank in range(2):
        (interrupted.folder / f"code-{rank}").unlink()
    command = [*PLAIN, *flags(dataset, interrupted.folder, "--use_checkpoint")]
    return checkpoint_steps(interrupted.folder), run_ranks(2, command, folder=interrupted.folder)


def test_a_good_run_ends_well_on_every_rank(uninterrupted):
    assert uninterrupted.code == 0, uninterrupted.text
    assert [uninterrupted.rank_code(rank) for rank in range(2)] == [0, 0]
    assert error_lines(uninterrupted, 0) == error_lines(uninterrupted, 1) == []


def test_the_first_line_says_what_runs(uninterrupted):
    first = uninterrupted.lines(0, "stdout")[0]
    for part in ("training of wide_deep", "2 ranks (Horovod over ", "batch 64 global, 32 per rank", "float32"):
        assert part in first


def test_rank_0_alone_speaks_and_each_rank_keeps_a_log(uninterrupted):
    assert uninterrupted.lines(1, "stdout") == []
    assert tables(uninterrupted.lines(0, "stdout"), "training") == 1
    assert [logged(uninterrupted, rank) for rank in range(2)] == [written(uninterrupted, rank) for rank in range(2)]


def test_the_results_are_those_of_both_ranks(uninterrupted):
    result = json.loads((uninterrupted.folder / "results" / "result.json").read_text())
    assert result["world_size"] == 2
    assert len(result["peak_memory_bytes"]) == 2
    assert list(losses(uninterrupted.folder)) == list(range(1, 31))
    assert checkpoint_steps(uninterrupted.folder) == [30]


def test_a_benchmark_of_evaluation_ends_well_on_every_rank(benchmarked):
    assert benchmarked.code == 0, benchmarked.text
    assert [benchmarked.rank_code(rank) for rank in range(2)] == [0, 0]
    assert error_lines(benchmarked, 0) == error_lines(benchmarked, 1) == []


def test_a_benchmark_of_evaluation_has_one_table_and_a_log_of_each_rank(benchmarked):
    lines = benchmarked.lines(0, "stdout")
    assert benchmarked.lines(1, "stdout") == []
    for part in ("benchmark of evaluation, wide_deep", "2 ranks (Horovod over ", "mixed_float16", ", XLA"):
        assert part in lines[0]
    assert tables(lines, "inference") == 1
    assert [logged(benchmarked, rank) for rank in range(2)] == [written(benchmarked, rank) for rank in range(2)]


def test_a_benchmark_of_evaluation_measures_every_rank(uninterrupted, benchmarked):
    trained, result = (
        json.loads((run.folder / "results" / "result.json").read_text()) for run in (uninterrupted, benchmarked)
    )
    assert result["identity"]["mode"] == "inference"
    assert (result["precision"], result["world_size"], result["global_batch_size"]) == ("mixed_float16", 2, 512)
    assert (result["requested_steps"], result["warmup_steps"], result["measured_steps"]) == (6, 2, 4)
    medians = result["rank_step_ms"]
    assert len(medians) == 2 and min(medians) > 0
    assert len(result["peak_memory_bytes"]) == 2
    # The weights are the trained ones: the figures differ by the rounding of half precision alone.
    for name in ("auc", "log_loss", "map_at_12"):
        assert result[name] == pytest.approx(trained[name], abs=0.005), name


def test_a_signal_to_one_rank_stops_all_of_them_with_a_checkpoint(interrupted, resumed):
    steps, _ = resumed
    assert interrupted.code == 0, interrupted.text
    assert len(steps) == 1
    assert STOPPED_IN < steps[0] <= STOPPED_IN + 3
    assert f"Stopped by a signal after step {steps[0]}" in interrupted.stdout


def test_a_resumed_run_repeats_the_uninterrupted_one_bit_for_bit(uninterrupted, resumed):
    (stopped,), finished = resumed
    assert finished.code == 0, finished.text
    assert [finished.rank_code(rank) for rank in range(2)] == [0, 0]
    assert f"training goes on at step {stopped}" in finished.stdout
    expected = losses(uninterrupted.folder)
    assert losses(finished.folder) == {step: expected[step] for step in range(stopped + 1, 31)}
    figures = [
        json.loads((run.folder / "results" / "result.json").read_text())["log_loss"]
        for run in (uninterrupted, finished)
    ]
    assert figures[0] == figures[1]


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one CPU: nothing to share out")
def test_each_rank_of_a_run_has_its_own_cpu(interrupted):
    cpus = [json.loads((interrupted.folder / f"cpus-{rank}.json").read_text()) for rank in range(2)]
    assert [len(own) for own in cpus] == [1, 1]
    assert cpus[0] != cpus[1]


def test_a_launcher_that_horovod_does_not_know_is_refused(dataset, tmp_path):
    """As under mpirun with a build for Gloo: two processes that would each train alone on all rows."""
    finished = run_alone([*PLAIN, *flags(dataset, tmp_path)], folder=tmp_path, timeout_s=120, OMPI_COMM_WORLD_SIZE="2")
    assert finished.code == 2
    (line,) = finished.stderr.splitlines()
    assert line.startswith("main.py: the launcher started 2 processes but Horovod sees one")
    assert finished.stdout == ""
