import dataclasses
import functools
import json
import types

import numpy as np
import pytest
import small_runs
import tensorflow as tf
from small_runs import EVAL_ROWS, STEPS_PER_EPOCH

from data.errors import InputError
from trainer import benchmark
from trainer.distributed import SingleProcess
from trainer.evaluate import Scoreboard
from trainer.timing import StepTimer, StepTimes
from trainer.writers import NullWriter


class Clock:
    """A clock that only moves when it is told to."""

    def __init__(self):
        self.ns = 0

    def pass_ms(self, milliseconds):
        self.ns += round(milliseconds * 1e6)

    def __call__(self):
        return self.ns


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(benchmark, "StepTimer", functools.partial(StepTimer, clock=clock))
    monkeypatch.setattr(benchmark.time, "monotonic", lambda: clock.ns / 1e9)
    return clock


class Stream:
    """Endless batches of four rows, each of which takes its time to come."""

    steps_per_epoch = 3

    def __init__(self, clock, input_ms, error_at=None):
        self.clock, self.input_ms, self.error_at = clock, input_ms, error_at
        self.dataset = types.SimpleNamespace(element_spec={"labels": tf.TensorSpec((4,), tf.float32)})

    def __iter__(self):
        number = 0
        while True:
            if number == self.error_at:
                raise InputError("row 7 holds nonsense")
            self.clock.pass_ms(self.input_ms)
            # The last batch of each pass has one row of padding.
            mask = [1, 1, 1, float((number + 1) % self.steps_per_epoch != 0)]
            yield {"labels": tf.constant([1.0, 0, 0, 1]), "mask": tf.constant(mask)}
            number += 1


class LateLoss:
    """A loss that the device has not computed yet when the step returns."""

    def __init__(self, clock, device_ms):
        self.clock, self.device_ms = clock, device_ms

    def numpy(self):
        self.clock.pass_ms(self.device_ms)
        self.device_ms = 0
        return np.float32(0.25)

    def __float__(self):
        return float(self.numpy())


class Ranks(SingleProcess):
    """This rank and, for step times, another one."""

    def __init__(self, other=None):
        super().__init__(size=1 if other is None else 2)
        self.other = other
        self.own = None

    def allgather_object(self, value):
        if not isinstance(value, StepTimes):
            return super().allgather_object(value)
        self.own = value
        return [value] if self.other is None else [value, self.other]


def train(
    clock,
    *,
    input_ms=2,
    step_ms=10,
    device_ms=3,
    warmup_steps=2,
    num_steps=8,
    seconds=None,
    comm=None,
    error_at=None,
):
    def train_step(batch, signals, step):
        clock.pass_ms(step_ms if step >= warmup_steps else 1000)
        loss = LateLoss(clock, device_ms)
        sent = {"wire_bytes": tf.constant(11, tf.int64), "alltoall_bytes": tf.constant(5, tf.int64)}
        return {"loss": loss, "signals": tf.constant(signals), **sent}

    return benchmark.benchmark_training(
        comm=comm or Ranks(),
        train_step=train_step,
        stream=Stream(clock, input_ms, error_at),
        global_batch_size=4,
        warmup_steps=warmup_steps,
        num_steps=num_steps,
        seconds=seconds,
        writer=NullWriter(),
    )


def infer(clock, *, input_ms=2, step_ms=10, warmup_steps=2, num_steps=8, seconds=None, comm=None, error_at=None):
    steps = iter(range(num_steps))

    def eval_step(batch):
        clock.pass_ms(step_ms if next(steps) >= warmup_steps else 1000)
        return tf.constant([3.0, 1, 2, 0])

    return benchmark.benchmark_inference(
        comm=comm or Ranks(),
        eval_step=eval_step,
        stream=Stream(clock, input_ms, error_at),
        new_scoreboard=lambda: Scoreboard(with_map=False),
        warmup_steps=warmup_steps,
        num_steps=num_steps,
        seconds=seconds,
        writer=NullWriter(),
    )


# What is measured, on a clock of our own.


def test_a_step_lasts_from_end_to_end_and_until_the_device_is_done(clock):
    measured = train(clock)
    assert measured.times.step_ms == {name: pytest.approx(15) for name in ("mean", "p50", "p90", "p95", "p99")}
    assert measured.times.samples_per_sec == pytest.approx(4 / 0.015)
    assert measured.times.input_wait_share == pytest.approx(2 / 15)
    assert (measured.times.warmup_steps, measured.times.measured_steps) == (2, 6)
    assert (measured.rows, measured.loss, measured.wire_bytes, measured.alltoall_bytes) == (32, 0.25, 11, 5)


def test_slow_warm_up_steps_are_left_out(clock):
    assert train(clock, warmup_steps=0).times.step_ms["mean"] == pytest.approx(15)
    slow_first = train(clock, warmup_steps=7)
    assert slow_first.times.step_ms["mean"] == pytest.approx(15) and slow_first.times.measured_steps == 1


@pytest.mark.parametrize("run", [train, infer])
@pytest.mark.parametrize("place", ["input_ms", "step_ms"])
def test_50_ms_more_in_the_pipeline_or_the_step_are_50_ms_more(clock, run, place):
    before = run(clock).times
    after = run(clock, **{place: 50 + {"input_ms": 2, "step_ms": 10}[place]}).times
    for name, value in before.step_ms.items():
        assert after.step_ms[name] - value == pytest.approx(50)
    waited = 1000 * after.elapsed_s * after.input_wait_share - 1000 * before.elapsed_s * before.input_wait_share
    assert waited == pytest.approx(50 * 6 if place == "input_ms" else 0, abs=1e-6)


def test_50_ms_more_on_one_rank_are_50_ms_more(clock):
    slow = Ranks()
    train(clock, step_ms=60, comm=slow)
    both = train(clock, comm=Ranks(other=slow.own)).times
    assert both.step_ms["mean"] == pytest.approx(65) and both.rank_step_ms == pytest.approx((15, 65))
    # The global batch counts once, at the pace of the slower rank.
    assert both.samples_per_sec == pytest.approx(4 / 0.065)


def test_inference_counts_real_rows_and_waits_for_the_logits(clock):
    measured = infer(clock)
    assert measured.times.step_ms["mean"] == pytest.approx(12)
    # Of the 6 measured batches two end a pass and have three rows.
    assert measured.times.samples_per_sec == pytest.approx((6 * 4 - 2) / (6 * 0.012))
    assert measured.rows == 8 * 4 - 2
    assert measured.loss is None is measured.wire_bytes


def test_figures_are_those_of_a_complete_pass(clock):
    assert infer(clock, num_steps=2, warmup_steps=0).figures is None
    figures = infer(clock, num_steps=5).figures
    assert figures.rows == 11 and figures.map_at_12 is None
    labels = np.array([1, 0, 0, 1] * 3)[:11]
    scores = np.array([3, 1, 2, 0] * 3)[:11]
    pairs = scores[labels == 1][:, None] - scores[labels == 0][None, :]
    assert figures.auc == pytest.approx(((pairs > 0) + 0.5 * (pairs == 0)).mean())


def test_bad_rows_end_a_benchmark_with_their_error(clock):
    with pytest.raises(InputError, match="row 7 holds nonsense"):
        train(clock, error_at=4)


@pytest.mark.parametrize("run", [train, infer])
def test_bad_rows_end_a_benchmark_of_so_many_seconds_with_their_error(clock, run):
    for row in (1, 4, 12):
        with pytest.raises(InputError, match="row 7 holds nonsense"):
            run(clock, error_at=row, num_steps=30, seconds=1.0)


# So many seconds.


@pytest.mark.parametrize(("run", "step_ms"), [(train, 15), (infer, 12)])
@pytest.mark.parametrize(
    ("seconds", "steps"), [(0.001, 5), (0.12, None), (100.0, 98)], ids=["least", "as many as it takes", "most"]
)
def test_a_benchmark_measures_so_many_seconds(clock, run, step_ms, seconds, steps):
    measured = run(clock, num_steps=100, seconds=seconds)
    expected = steps or -(-120 // step_ms)
    assert (measured.times.warmup_steps, measured.times.measured_steps) == (2, expected)
    assert measured.times.step_times_ms == pytest.approx([step_ms] * expected)
    assert measured.times.elapsed_s == pytest.approx(expected * step_ms / 1000)


@pytest.mark.parametrize("run", [train, infer])
def test_what_ranks_need_to_agree_is_in_nobodys_time(clock, run):
    class Talkative(Ranks):
        def allgather_object(self, value):
            clock.pass_ms(500)
            return super().allgather_object(value)

    measured = run(clock, num_steps=40, seconds=0.3, comm=Talkative())
    quiet = run(clock, num_steps=40, seconds=0.3)
    assert measured.times == quiet.times and measured.seconds == pytest.approx(quiet.seconds)


def test_the_slowest_rank_decides_how_many_steps_there_are(clock):
    slow = Ranks()
    train(clock, step_ms=60, warmup_steps=0, num_steps=5, comm=slow)  # 65 ms a step, of which 5 were measured

    class Beside(Ranks):
        def allgather_object(self, value):
            if isinstance(value, StepTimes):
                self.own = value
                same = dataclasses.replace(slow.own, measured_steps=value.measured_steps)
                return [value, dataclasses.replace(same, warmup_steps=value.warmup_steps)]
            return super().allgather_object(value)

    assert train(clock, num_steps=100, seconds=0.65, comm=Beside()).times.measured_steps == 10
    assert train(clock, num_steps=100, seconds=0.65).times.measured_steps == 44


@pytest.mark.parametrize("run", [train, infer])
@pytest.mark.parametrize("settings", [{}, {"seconds": 0.2}, {"warmup_steps": 0}])
def test_the_steps_fill_the_time_that_a_second_clock_shows(clock, run, settings):
    measured = run(clock, num_steps=20, **settings)
    assert measured.seconds == pytest.approx(measured.times.elapsed_s)


def test_a_clock_that_is_read_too_early_shows_less_than_the_second_one(clock, monkeypatch):
    unsynchronised = functools.partial(StepTimer, clock=clock)
    monkeypatch.setattr(benchmark, "StepTimer", lambda warmup_steps, synchronize: unsynchronised(warmup_steps))
    owed = []

    class Queue(LateLoss):
        # Reading a loss waits for all steps before it, and nobody reads one before the end.
        def numpy(self):
            clock.pass_ms(sum(owed))
            owed.clear()
            return np.float32(0.25)

    monkeypatch.setattr(f"{__name__}.LateLoss", lambda clock, device_ms: owed.append(device_ms) or Queue(clock, 0))
    measured = train(clock, device_ms=30, warmup_steps=0, num_steps=10)
    assert measured.seconds - measured.times.elapsed_s == pytest.approx(0.3)


# Whole benchmarks, with real steps.


def is_compiled(train_step):
    """Whether a traced step calls a function that XLA must compile."""
    (concrete,) = train_step.traced._list_all_concrete_functions()
    functions = concrete.graph.as_graph_def().library.function
    return any(function.attr["_XlaMustCompile"].b for function in functions)


def test_a_benchmark_runs_the_very_steps_of_training(dataset, tmp_path, monkeypatch, capsys):
    steps = 11  # more than an epoch
    settings = {"deep_dropout": 0.5, "amp": False}
    with small_runs.watching(monkeypatch) as watched:
        trained = small_runs.configure(dataset, tmp_path / "train", max_steps=steps, **settings)
        small_runs.open_experiment(trained).train()
        config = small_runs.configure(
            dataset, tmp_path / "bench", benchmark=True, benchmark_warmup_steps=3, benchmark_steps=steps, **settings
        )
        capsys.readouterr()
        record = small_runs.open_experiment(config).benchmark_training()
    training, benchmarked = watched.states
    assert benchmarked.digest() == training.digest()
    assert record.loss == small_runs.losses(trained)[steps]
    for state in watched.states:  # else the same bits would say little
        assert int(state.applied_steps) == steps
        assert all(np.any(table.variable.numpy()) for table in state.model.tables)
    assert not any(is_compiled(step) for step in watched.train_steps)

    assert (record.warmup_steps, record.measured_steps, record.requested_steps) == (3, 8, 11)
    assert (
        record.missing_steps == 0
        and record.passes == pytest.approx(11 / 8)
        and record.distinct_rows == STEPS_PER_EPOCH * small_runs.BATCH
    )
    assert record.data_source == "generated" and len(record.rank_step_ms) == 1
    assert not (tmp_path / "bench/checkpoints").exists()
    out = capsys.readouterr().out
    assert out.startswith("benchmark of training, wide_deep | ") and out.count("throughput") == 2  # final line, table
    (_, parameters), (end, final) = small_runs.log_lines(config)
    assert parameters["benchmark_steps"] == 11 and end == [] and set(final) == {"train_throughput", "loss"}
    assert final["train_throughput"] == record.samples_per_sec > 0
    written = json.loads((tmp_path / "bench/results/result.json").read_text())
    assert set(written["step_ms"]) == {"mean", "p50", "p90", "p95", "p99"}
    named = "samples_per_sec input_wait_share warmup_steps measured_steps loss log_loss auc map_at_12 displays"
    assert set(f"{named} displays_without_click identity environment config".split()) <= set(written)
    assert set(written["identity"]) >= {"model", "implementation", "mode", "config", "version"}


def test_a_short_benchmark_reads_each_row_once(dataset, tmp_path, monkeypatch):
    config = small_runs.configure(
        dataset, tmp_path, benchmark=True, benchmark_warmup_steps=1, benchmark_steps=3, use_checkpoint=True
    )
    with small_runs.idling(monkeypatch) as idle:
        record = small_runs.open_experiment(config).benchmark_training()
    assert len(small_runs.rows_of(idle.batches)) == record.distinct_rows == 3 * small_runs.BATCH
    assert record.passes == pytest.approx(3 / 8)


def test_a_benchmark_of_a_restored_state_goes_on_at_its_step(dataset, tmp_path, monkeypatch):
    with small_runs.idling(monkeypatch) as idle:
        small_runs.open_experiment(small_runs.configure(dataset, tmp_path, max_steps=5)).train()
        config = small_runs.configure(
            dataset, tmp_path, benchmark=True, benchmark_warmup_steps=1, benchmark_steps=4, use_checkpoint=True
        )
        seen = []
        idle.before_step = seen.append
        record = small_runs.open_experiment(config).benchmark_training()
    assert seen == [5, 6, 7, 8] and record.measured_steps == 3
    assert not any("skipped" in note for note in record.notes)


def test_inference_with_a_checkpoint_and_without(dataset, tmp_path, monkeypatch, capsys):
    with small_runs.idling(monkeypatch):
        small_runs.open_experiment(small_runs.configure(dataset, tmp_path, num_epochs=1)).train()
        settings = {"evaluate": True, "benchmark": True, "benchmark_warmup_steps": 1, "benchmark_steps": 7}
        config = small_runs.configure(dataset, tmp_path, use_checkpoint=True, **settings)
        capsys.readouterr()
        record = small_runs.open_experiment(config).benchmark_inference()
        out = capsys.readouterr().out
        fewer = dataclasses.replace(config.mode, use_checkpoint=False, benchmark_steps=2)
        short = small_runs.open_experiment(dataclasses.replace(config, mode=fewer)).benchmark_inference()
    assert out.startswith("benchmark of evaluation, wide_deep | ") and "batch 50 global" in out.splitlines()[0]
    # Two passes of three steps, and one step more.
    assert record.passes == pytest.approx((2 * EVAL_ROWS + 50) / EVAL_ROWS) and record.distinct_rows == EVAL_ROWS
    assert record.identity.mode == "inference" and record.global_batch_size == 50 and record.notes == ()
    assert record.displays > 0 and 0 < record.map_at_12 < 1
    assert short.distinct_rows == 100 and short.auc is None
    assert short.notes == (
        "Untrained weights: --use_checkpoint was not given.",
        "No accuracy figures: the steps did not cover the evaluation rows once.",
    )
    assert set(small_runs.log_lines(config)[-1][1]) == {"validation_throughput"}


def test_xla_compiles_the_dense_part_in_either_precision(default_precision, dataset, tmp_path, monkeypatch):
    config = small_runs.configure(
        dataset,
        tmp_path,
        benchmark=True,
        benchmark_warmup_steps=1,
        benchmark_steps=3,
        xla=True,
        amp=True,
        amp_dtype="bfloat16",
    )
    with small_runs.watching(monkeypatch) as watched:
        record = small_runs.open_experiment(config).benchmark_training()
    assert is_compiled(watched.train_steps[0])
    assert watched.state.model.mlp.compute_dtype == "bfloat16" and np.isfinite(record.loss)
    assert record.precision == "mixed_bfloat16"


@pytest.mark.parametrize("evaluate", [False, True])
def test_a_record_of_so_many_seconds_is_what_was_asked_for(dataset, tmp_path, monkeypatch, capsys, evaluate):
    config = small_runs.configure(
        dataset,
        tmp_path,
        benchmark=True,
        evaluate=evaluate,
        benchmark_warmup_steps=1,
        benchmark_steps=500,
        benchmark_seconds=1e-6,
        benchmark_name="short",
    )
    with small_runs.idling(monkeypatch):
        opened = small_runs.open_experiment(config)
        record = opened.benchmark_inference() if evaluate else opened.benchmark_training()
    assert (record.warmup_steps, record.measured_steps, record.requested_steps) == (1, 5, 6)
    assert record.identity.config == "short" and len(record.step_times_ms) == 5
    assert sum(record.step_times_ms) <= 1000 * record.measured_seconds
    assert "Shorter than asked" not in capsys.readouterr().out
    written = json.loads((tmp_path / "results/result.json").read_text())
    assert written["step_times_ms"] == list(record.step_times_ms)
    assert not any("skipped" in note for note in record.notes)
