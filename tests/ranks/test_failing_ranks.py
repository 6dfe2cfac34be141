"""How a job ends when something is wrong on one of its ranks: all of them end, each with its line."""

import numpy as np
import pyarrow as pa
import pytest
from command_runs import PLAIN, error_lines, flags, losses, observed, own_lines
from rank_processes import run_ranks

from data.feature_spec import TRAIN, FeatureSpec
from data.input_pipeline import ParquetInput

TABLES = {
    "tables on every rank": (),
    "each table on one rank": ("--embedding_parallelism=model", "--data_parallel_threshold=0"),
}
WORST_END_S = 60  # from a fault in one rank to the end of the whole job, as promised to users


def traced(finished, rank: int) -> bool:
    return any("Traceback" in line for line in finished.lines(rank, "stderr"))


def ended_with_another(finished, rank: int) -> bool:
    """Whether all that a rank said is that another ended."""
    line, *more = own_lines(finished, rank) or [""]
    return line.startswith(f"main.py: rank {rank}: ended because another rank did") and not more


def seconds_since_fault(finished) -> float:
    """From the fault in one rank of observed_main.py to the end of horovodrun."""
    return finished.ended_at - float((finished.folder / "fault-at").read_text())


def test_a_missing_dataset_ends_every_rank_with_its_line(tmp_path):
    missing = tmp_path / "missing"
    finished = run_ranks(2, [*PLAIN, *flags(missing, tmp_path)], folder=tmp_path)
    assert finished.code != 0
    assert [finished.rank_code(rank) for rank in range(2)] == [2, 2], finished.text
    for rank in range(2):
        (line,) = error_lines(finished, rank)
        assert line.startswith(f"main.py: rank {rank}: {missing}")
        for remedy in ("--dataset_path", "python -m data.synthetic", "--dataset_type=synthetic"):
            assert remedy in line
        assert (tmp_path / "results" / f"rank-{rank}.log").read_text().splitlines()[-1] == line


SPOILT_STEP = 30


@pytest.fixture(scope="module")
def spoilt_dataset(changed_dataset):
    """One id that its table does not have, in a row of SPOILT_STEP's batch; small row groups make small windows."""
    folder = changed_dataset("train", lambda table: table, rows_per_group=16)
    rows = ParquetInput(FeatureSpec.from_yaml(str(folder / "feature_spec.yaml")), TRAIN, with_display=False)
    with rows.train_stream(global_batch_size=64, start_step=SPOILT_STEP, shuffle_buffer_rows=1) as stream:
        numerical = next(stream.arrays())["numerical"][0, 0]

    def spoil(table: pa.Table) -> pa.Table:
        (row,) = np.flatnonzero(table["age"].to_numpy() == numerical)
        ids = table["site"].to_numpy().copy()
        ids[row] = 2000
        return table.set_column(table.schema.get_field_index("site"), "site", pa.array(ids))

    return changed_dataset("train", spoil, rows_per_group=16)


@pytest.mark.parametrize("tables", TABLES)
def test_a_bad_value_that_one_rank_meets_while_training_ends_both(spoilt_dataset, tmp_path, tables):
    more = ("--shuffle_buffer_rows=1", "--max_steps=49", *TABLES[tables])
    finished = run_ranks(2, [*PLAIN, *flags(spoilt_dataset, tmp_path, *more)], folder=tmp_path)
    assert finished.code != 0
    assert [finished.rank_code(rank) for rank in range(2)] == [2, 2], finished.text
    assert 1 <= len(losses(tmp_path)) <= SPOILT_STEP
    assert_one_rank_told_the_other(finished)


@pytest.mark.parametrize("tables", TABLES)
def test_a_bad_value_that_one_rank_meets_while_evaluating_ends_both(changed_dataset, tmp_path, tables):
    """In the middle of its rows: where tables are shared out the other rank waits for it in every step."""

    def spoil(table: pa.Table) -> pa.Table:
        ids = table["site"].to_numpy().copy()
        ids[len(ids) // 4] = 2000
        return table.set_column(table.schema.get_field_index("site"), "site", pa.array(ids))

    more = ("--evaluate", "--eval_batch_size=32", *TABLES[tables])
    dataset = changed_dataset("valid", spoil, rows_per_group=16)
    finished = run_ranks(2, [*PLAIN, *flags(dataset, tmp_path, *more)], folder=tmp_path)
    assert finished.code != 0
    assert [finished.rank_code(rank) for rank in range(2)] == [2, 2], finished.text
    assert_one_rank_told_the_other(finished)


def assert_one_rank_told_the_other(finished) -> None:
    """Of the id 2000 of site that it met: each rank has one line."""
    lines = [error_lines(finished, rank) for rank in range(2)]
    assert [len(own) for own in lines] == [1, 1]
    told = [f"main.py: rank {rank}: stopped because of rank {1 - rank}: " for rank in range(2)]
    reader = 0 if lines[1][0].startswith(told[1]) else 1
    message = lines[reader][0].removeprefix(f"main.py: rank {reader}: ")
    assert lines[1 - reader][0] == told[1 - reader] + message
    for part in ("site", "2000", ".parquet"):
        assert part in message


@pytest.mark.parametrize("tables", TABLES)
def test_a_killed_rank_ends_the_job(dataset, tmp_path, tables):
    more = ("--max_steps=100000", "--num_epochs=100000", *TABLES[tables])
    command = [*observed(tmp_path, "1:9:kill"), *flags(dataset, tmp_path, *more)]
    finished = run_ranks(2, command, folder=tmp_path)
    assert 0 <= seconds_since_fault(finished) < WORST_END_S
    assert finished.code != 0
    assert [finished.rank_code(rank) for rank in range(2)] == [1, 128 + 9], finished.text
    assert ended_with_another(finished, 0), finished.text
    assert not traced(finished, 1)
    assert list(losses(tmp_path))[-1] >= 8


def test_a_mistake_on_one_rank_is_shown_once(dataset, tmp_path):
    more = ("--max_steps=100000", "--num_epochs=100000")
    command = [*observed(tmp_path, "0:9:raise"), *flags(dataset, tmp_path, *more)]
    finished = run_ranks(2, command, folder=tmp_path)
    assert 0 <= seconds_since_fault(finished) < WORST_END_S
    assert finished.code != 0
    assert [finished.rank_code(rank) for rank in range(2)] == [1, 1], finished.text
    lines = own_lines(finished, 0)
    assert lines[0] == "main.py: rank 0 failed:"
    assert lines[-1] == "ZeroDivisionError: a mistake of ours"
    assert traced(finished, 0)
    assert ended_with_another(finished, 1), finished.text
    assert "ZeroDivisionError: a mistake of ours" in (tmp_path / "results" / "rank-0.log").read_text()
