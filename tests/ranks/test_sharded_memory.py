"""Ranks that share a table out hold half of it each: in memory, from the initial values to a restored checkpoint."""

import json

import pytest
from command_runs import PLAIN
from rank_processes import run_ranks

ROWS, DIM = 3_000_000, 32
WHOLE = ROWS * DIM * 4 * 2  # weights and the accumulators of Adagrad, bytes
SLACK = 0.12 * WHOLE  # an allocator's, and the blocks that pass through


@pytest.fixture(scope="module")
def peaks(tmp_path_factory):
    """Run -> the largest resident memory of each of two ranks, bytes."""
    cache = tmp_path_factory.mktemp("cache")

    def run(name, rows, *more, max_steps=3):
        folder = tmp_path_factory.getbasetemp() / f"sharded-memory-{name}"
        command = [
            *PLAIN,
            "--cpu",
            "--model=dlrm",
            "--dataset_type=synthetic",
            "--synthetic_rows=400",
            f"--synthetic_cache_dir={cache}",
            f"--synthetic_dataset_cardinalities={rows},100",
            "--synthetic_dataset_num_numerical_features=2",
            f"--results_dir={folder / 'results'}",
            f"--model_dir={folder / 'checkpoints'}",
            f"--embedding_dim={DIM}",
            f"--bottom_mlp_dims={DIM}",
            "--top_mlp_dims=8,1",
            "--optimizer=adagrad",
            "--learning_rate=0.01",
            "--global_batch_size=64",
            "--eval_batch_size=64",
            "--affinity=disabled",
            "--intra_op_threads=1",
            f"--max_steps={max_steps}",
            *more,
        ]
        finished = run_ranks(2, command, folder=folder)
        assert finished.code == 0, finished.text
        return json.loads((folder / "results" / "result.json").read_text())["peak_memory_bytes"]

    sliced = ("--embedding_parallelism=model", f"--row_slice_threshold={ROWS}")
    return {
        "small tables": run("small", 1000),
        "on every rank": run("data", ROWS),
        "by rows": run("rows", ROWS, *sliced),
        "by rows, restored": run("rows", ROWS, *sliced, "--use_checkpoint", max_steps=5),
        "by columns, restored": run(
            "rows",
            ROWS,
            "--embedding_parallelism=model",
            f"--column_slice_threshold={ROWS}",
            "--use_checkpoint",
            max_steps=6,
        ),
    }


def test_the_measure_sees_a_whole_table(peaks):
    for peak, base in zip(peaks["on every rank"], peaks["small tables"], strict=True):
        assert 0.95 * WHOLE < peak - base < WHOLE + 2 * SLACK


@pytest.mark.parametrize("run", ["by rows", "by rows, restored", "by columns, restored"])
def test_each_rank_takes_the_room_of_half_a_table(peaks, run):
    for peak, base in zip(peaks[run], peaks["small tables"], strict=True):
        assert 0.45 * WHOLE < peak - base < 0.5 * WHOLE + SLACK
