import keras
import numpy as np
import pyarrow.parquet as pq
import pytest
from ootb_cases import BATCH, make_dataset, make_keras, make_pair, make_workload

from benchmarks.ootb import fit, inputs
from benchmarks.ootb.clock import BenchmarkClock
from benchmarks.ootb.optimizers import make_optimizer
from data.errors import InputError
from data.feature_spec import TEST, TRAIN, FeatureSpec
from data.input_pipeline import ParquetInput


def clock(num_steps=8, warmup_steps=2, seconds=None):
    return BenchmarkClock(warmup_steps=warmup_steps, num_steps=num_steps, seconds=seconds)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rows")
    make_dataset(folder)
    return folder


@pytest.fixture(scope="module")
def spec(folder):
    return FeatureSpec.from_yaml(str(folder / "feature_spec.yaml"))


def compiled(model, workload):
    model.compile(
        optimizer=make_optimizer(workload.config, model, 1000),
        loss=keras.losses.BinaryCrossentropy(from_logits=True),
        jit_compile=False,
    )
    return model


def fitted(model, workload, spec, given):
    """What was measured of `fit`, and the losses."""
    rows = ParquetInput(spec, TRAIN, with_display=False)
    with rows.train_stream(global_batch_size=BATCH, seed=2) as stream:
        return fit.time_fit(compiled(model, workload), stream, inputs.training_dataset(stream, spec), given)


def our_losses(ours, spec, steps):
    rows = ParquetInput(spec, TRAIN, with_display=False)
    with rows.train_stream(global_batch_size=BATCH, seed=2) as stream:
        return ours.losses([batch for batch, _ in zip(stream.arrays(), range(steps), strict=False)])


@pytest.mark.parametrize("name", ["dlrm", "dcnv2"])
def test_fit_with_sgd_has_our_losses(name, spec):
    workload = make_workload(name)
    ours, model = make_pair(workload)
    measured, losses = fitted(model, workload, spec, clock())
    expected = our_losses(ours, spec, 8)
    assert abs(expected[0] - expected[-1]) > 0.01
    np.testing.assert_allclose(losses, expected, rtol=0, atol=1e-4)
    assert measured.loss == losses[-1]


def test_fit_takes_rmsprops_squares_before_the_sum(spec):
    """Of ids that repeat in a batch, as benchmarks.ootb.optimizers says; the first loss is before any update."""
    workload = make_workload("dlrm", optimizer="rmsprop", learning_rate=0.02)
    ours, model = make_pair(workload)
    _, losses = fitted(model, workload, spec, clock(5))
    difference = np.abs(np.array(losses) - our_losses(ours, spec, 5))
    assert difference[0] < 1e-6 and 1e-4 < difference.max() < 0.2


def test_steps_are_timed_after_the_warm_up(spec):
    workload = make_workload("dlrm")
    measured, losses = fitted(make_keras(workload), workload, spec, clock(9, 3))
    assert len(losses) == 9 and measured.rows == 9 * BATCH
    assert (measured.times.warmup_steps, measured.times.measured_steps) == (3, 6)
    assert sum(measured.times.step_times_ms) / 1000 == pytest.approx(measured.seconds, rel=0.2, abs=2e-3)
    assert measured.times.samples_per_sec == pytest.approx(6 * BATCH / (sum(measured.times.step_times_ms) / 1000))


def test_seconds_end_fit_early(spec):
    workload = make_workload("dlrm")
    measured, losses = fitted(make_keras(workload), workload, spec, clock(500, 2, seconds=1e-9))
    assert len(losses) == 7 and measured.times.measured_steps == 5


def test_a_step_is_over_when_its_loss_is_there(spec):
    """The clock is read after the loss."""
    read = []

    class Loss:
        def __float__(self):
            read.append("loss")
            return 0.5

    class Clock:
        def step_done(self, rows):
            read.append("clock")
            return True

    timed = fit.TimedTraining(Clock(), BATCH)
    timed.set_model(make_keras(make_workload("dlrm")))
    timed.on_train_batch_end(0, {"loss": Loss()})
    assert read == ["loss", "clock"] and timed.losses == [0.5] and timed.model.stop_training


def test_predict_counts_each_row_once(spec):
    workload = make_workload("dlrm")
    model = make_keras(workload)
    model.compile(jit_compile=False)
    rows = ParquetInput(spec, TEST, with_display=False)
    with rows.eval_stream(global_batch_size=BATCH, repeat=True) as stream:
        steps = stream.steps_per_epoch
        assert rows.num_rows % BATCH
        dataset = inputs.scoring_dataset(stream, spec)
        measured = fit.time_predict(model, stream, dataset, clock(2 * steps + 1, 1), num_rows=rows.num_rows)
    assert measured.rows == 2 * rows.num_rows + BATCH and measured.loss is None
    timed = measured.times
    assert (timed.warmup_steps, timed.measured_steps) == (1, 2 * steps)
    assert timed.samples_per_sec * sum(timed.step_times_ms) / 1000 == pytest.approx(2 * rows.num_rows)


def test_seconds_end_predict_early(spec):
    workload = make_workload("dlrm")
    model = make_keras(workload)
    model.compile(jit_compile=False)
    rows = ParquetInput(spec, TEST, with_display=False)
    with rows.eval_stream(global_batch_size=BATCH, repeat=True) as stream:
        dataset = inputs.scoring_dataset(stream, spec)
        measured = fit.time_predict(model, stream, dataset, clock(300, 1, seconds=1e-9), num_rows=rows.num_rows)
    assert measured.times.measured_steps == 5


def test_bad_rows_are_said_in_our_words(folder, tmp_path):
    import shutil

    shutil.copytree(folder, tmp_path / "bad")
    (path,) = (tmp_path / "bad" / "train").glob("*.parquet")
    table = pq.read_table(path)
    column = table.column_names.index("site")
    ids = table["site"].to_numpy().copy()
    ids[5] = 7
    # Without statistics, or the footer would say it before any row is read.
    pq.write_table(table.set_column(column, "site", [ids]), path, write_statistics=False)
    workload = make_workload("dlrm")
    spec = FeatureSpec.from_yaml(str(tmp_path / "bad" / "feature_spec.yaml"))
    with pytest.raises(InputError, match="site"):
        fitted(make_keras(workload), workload, spec, clock())
