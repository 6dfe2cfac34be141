import numpy as np
import pytest
from micro_cases import outcome_of

from benchmarks.microbenchmarks import input_rows
from benchmarks.microbenchmarks.input_rows import BENCHMARK, MODE
from data import synthetic
from data.errors import InputError
from data.feature_spec import TRAIN, FeatureSpec
from data.input_pipeline import ParquetInput
from trainer.distributed import SingleProcess

SIZES = {"batch": 300, "params": {"rows": 4000}}


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path_factory):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))


def test_batches_are_rows_of_the_files_and_scored_by_their_number():
    found = outcome_of(BENCHMARK, MODE, **SIZES)
    assert found.sound, found.reason
    assert found.score == pytest.approx(300 / 1e-3) and found.units == "samples/s" and found.batch == 300
    assert "10 batches of the first epoch, 3,000 rows: all of them rows of the files" in found.safeguard
    assert found.figures == {"distinct_rows": 3000}


def test_ranks_share_out_a_batch():
    found = outcome_of(BENCHMARK, MODE, SingleProcess(rank=1, size=2), **SIZES)
    assert found.sound and "10 batches of the first epoch, 1,500 rows: all" in found.safeguard


def test_rows_by_pyarrow_are_those_of_the_pipeline():
    spec = FeatureSpec.from_yaml(synthetic.cached_dataset(rows=500, seed=1))
    rows = input_rows.rows_of_files(spec)
    source = ParquetInput(spec, TRAIN, with_display=False)
    with source.train_stream(global_batch_size=source.num_rows, shuffle=False) as stream:
        (batch,) = (next(stream.arrays()) for _ in range(1))
    assert (rows["ids"] == -1).any()  # absent ones of lists too
    for name, values in batch.items():
        assert np.array_equal(np.sort(rows[name], axis=0), np.sort(values, axis=0)), name
    assert np.array_equal(np.sort(input_rows.row_hashes(rows)), np.sort(input_rows.row_hashes(batch)))


@pytest.mark.parametrize(("name", "where"), [("ids", (4, 0)), ("numerical", (4, 2)), ("labels", (4,))])
def test_a_hash_depends_on_every_value(name, where):
    batch = {"ids": np.arange(24).reshape(8, 3), "numerical": np.ones((8, 3), np.float32), "labels": np.zeros(8)}
    changed = {key: values.copy() for key, values in batch.items()}
    changed[name][where] += 1
    before, after = input_rows.row_hashes(batch), input_rows.row_hashes(changed)
    assert (before != after).tolist() == [row == 4 for row in range(8)] and len(np.unique(before)) == 8


ARRAYS, ROWS = input_rows._arrays, input_rows.rows_of_files


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (lambda batch: batch | {"ids": np.ones_like(batch["ids"])}, "3,000 are NO ROWS of the files"),
        (lambda batch: batch | {"labels": 1 - batch["labels"]}, "are NO ROWS of the files"),
        (lambda batch: {name: values[[0] * len(values)] for name, values in batch.items()}, "2,990 REPEATED"),
    ],
)
def test_other_rows_have_no_score(monkeypatch, fault, said):
    monkeypatch.setattr(input_rows, "_arrays", lambda batch: fault(ARRAYS(batch)))
    found = outcome_of(BENCHMARK, MODE, **SIZES)
    assert found.score is None and said in found.reason


def test_files_with_constant_ids_have_no_score(monkeypatch):
    monkeypatch.setattr(
        input_rows, "rows_of_files", lambda spec: {name: np.ones_like(values) for name, values in ROWS(spec).items()}
    )
    found = outcome_of(BENCHMARK, MODE, **SIZES)
    assert found.score is None and "ids 'ad_id'" in found.reason


def test_a_batch_of_most_of_the_rows_is_refused():
    with pytest.raises(InputError, match="--batch=2001: give at most half of the 4000 rows"):
        outcome_of(BENCHMARK, MODE, **SIZES | {"batch": 2001})
