"""The timer against a hand-driven clock."""

import math
import sys

import numpy as np
import pytest

from trainer.timing import MOST_KEPT_STEPS, StepTimer, StepTimes, merge_ranks, steps_for

MS = 1_000_000


class Clock:
    """Nanoseconds that pass only when told to."""

    def __init__(self):
        self.now = 123_456_789_000_000_000  # A big beginning: nothing may depend on it.

    def __call__(self):
        return self.now

    def pass_ms(self, ms):
        self.now += round(ms * MS)


def run(input_ms, step_ms, *, warmup_steps=0, rows=0):
    clock = Clock()
    timer = StepTimer(warmup_steps, clock=clock)
    timer.start()
    for waiting, working in zip(input_ms, step_ms, strict=True):
        clock.pass_ms(waiting)
        timer.input_ready()
        clock.pass_ms(working)
        timer.step_done(rows)
    return timer.summary()


def test_hand_worked_case():
    times = run([1, 2, 3, 4], [9, 18, 27, 36])
    assert times == StepTimes(
        mean_ms=25.0, p50_ms=25.0, p90_ms=pytest.approx(37.0), p95_ms=pytest.approx(38.5), p99_ms=pytest.approx(39.7),
        input_wait_share=0.1, warmup_steps=0, measured_steps=4, elapsed_s=0.1, step_times_ms=(10.0, 20.0, 30.0, 40.0),
    )  # fmt: skip
    assert times.step_ms == {
        "mean": times.mean_ms, "p50": times.p50_ms, "p90": times.p90_ms, "p95": times.p95_ms, "p99": times.p99_ms,
    }  # fmt: skip


def test_percentiles_are_those_of_sorted_times_interpolated_linearly():
    steps = np.random.default_rng(0).gamma(2.0, 10.0, 997).round(6)
    times = run(np.zeros(997), steps)
    in_order = np.sort(steps)
    for percent, value in [(50, times.p50_ms), (90, times.p90_ms), (95, times.p95_ms), (99, times.p99_ms)]:
        position = (len(in_order) - 1) * percent / 100
        below, share = int(position), position % 1
        assert value == pytest.approx(in_order[below] * (1 - share) + in_order[below + 1] * share, abs=1e-6)


def test_warmup_steps_count_nowhere():
    slow_start = run([900, 900, 5, 5], [5000, 9000, 15, 15], warmup_steps=2, rows=10)
    assert slow_start == StepTimes(20, 20, 20, 20, 20, 0.25, 2, 2, 0.04, measured_rows=20, step_times_ms=(20.0, 20.0))


@pytest.mark.parametrize(("extra_input", "extra_step", "share"), [(0, 0, 10 / 30), (50, 0, 60 / 80), (0, 50, 10 / 80)])
def test_fifty_ms_anywhere_are_fifty_ms_more(extra_input, extra_step, share):
    times = run([10 + extra_input] * 5, [20 + extra_step] * 5, warmup_steps=1)
    assert times.mean_ms == times.p50_ms == times.p99_ms == 30 + extra_input + extra_step
    assert times.input_wait_share == pytest.approx(share)


def test_pauses_are_left_out_when_started_again():
    clock = Clock()
    timer = StepTimer(clock=clock)
    for _ in range(2):
        timer.start()
        for _ in range(3):
            clock.pass_ms(7)
            timer.step_done()
        clock.pass_ms(60_000)  # An evaluation.
    times = timer.summary()
    assert (times.mean_ms, times.measured_steps, times.elapsed_s) == (7, 6, 0.042)


def test_input_wait_of_a_step_does_not_leak_into_the_next():
    clock = Clock()
    timer = StepTimer(clock=clock)
    timer.start()
    clock.pass_ms(10)
    timer.input_ready()
    timer.step_done()
    clock.pass_ms(10)
    timer.step_done()  # A step without input_ready has waited for nothing.
    assert timer.summary().input_wait_share == 0.5


def test_device_is_waited_for_before_every_reading_of_the_clock():
    clock, calls = Clock(), []

    def synchronize():
        calls.append(clock.now)
        clock.pass_ms(3)  # The device still had work for 3 ms.

    timer = StepTimer(clock=clock, synchronize=synchronize)
    timer.start()
    timer.input_ready()
    timer.step_done()
    assert len(calls) == 3
    assert timer.summary().mean_ms == 6


def test_no_measured_step_gives_nan_and_not_an_error():
    times = run([1], [1], warmup_steps=5)
    assert (times.warmup_steps, times.measured_steps, times.elapsed_s) == (1, 0, 0)
    assert all(map(math.isnan, [*times.step_ms.values(), times.input_wait_share]))
    assert math.isnan(merge_ranks([times, times]).samples_per_sec)


def test_memory_is_eight_bytes_a_step():
    timer = StepTimer(clock=Clock())
    timer.start()
    for _ in range(100_000):
        timer.step_done()
    assert sys.getsizeof(timer._step_ns) < 8 * 100_000 * 1.2


def test_misuse():
    with pytest.raises(RuntimeError, match="start"):
        StepTimer().step_done()
    with pytest.raises(ValueError, match="-1"):
        StepTimer(-1)


def test_ranks_merge_by_the_longest_and_count_each_row_once():
    fast = run([0] * 4, [20] * 4, warmup_steps=1, rows=100)
    slow = run([25] * 4, [25] * 4, warmup_steps=1, rows=60)
    merged = merge_ranks([fast, slow])
    assert merged.samples_per_sec == pytest.approx(3 * 160 / 0.150)
    assert merged.step_ms == slow.step_ms
    assert merged.rank_step_ms == (20, 50)
    assert merged.input_wait_share == 0.5
    assert (merged.warmup_steps, merged.measured_steps, merged.elapsed_s) == (1, 3, pytest.approx(0.15))
    assert merge_ranks([slow, fast], measured_rows=300).samples_per_sec == pytest.approx(2000)


def test_fifty_ms_on_one_rank_are_fifty_ms_more():
    ranks = [run([0] * 3, [20] * 3, rows=1) for _ in range(3)]
    slowed = [*ranks[:2], run([0] * 3, [70] * 3, rows=1)]
    assert merge_ranks(slowed).step_ms["mean"] - merge_ranks(ranks).step_ms["mean"] == 50


def test_ranks_that_disagree_are_refused():
    with pytest.raises(ValueError, match=r"\(0, 1\), \(0, 2\)"):
        merge_ranks([run([0] * 2, [1] * 2), run([0], [1])])
    with pytest.raises(ValueError, match="no rank"):
        merge_ranks([])
    with pytest.raises(ValueError, match="no rows"):
        merge_ranks([run([0], [1])])


def test_times_of_steps_are_kept_of_short_runs_and_are_those_of_the_slowest_rank():
    assert len(run([0] * MOST_KEPT_STEPS, [1] * MOST_KEPT_STEPS).step_times_ms) == MOST_KEPT_STEPS
    assert run([0] * (MOST_KEPT_STEPS + 1), [1] * (MOST_KEPT_STEPS + 1)).step_times_ms is None
    fast, slow = run([1, 2], [3, 3], rows=1), run([1, 5], [3, 4], rows=1)
    assert merge_ranks([fast, slow]).step_times_ms == (4.0, 9.0)


@pytest.mark.parametrize(
    ("seconds", "steps"),
    [(1.0, 20), (1.01, 21), (0.001, 5), (60.0, 100)],
)
def test_steps_that_fill_the_seconds_at_the_pace_of_the_slowest_rank(seconds, steps):
    ranks = [run([0] * 5, [ms] * 5) for ms in (20, 50)]
    assert steps_for(seconds, ranks, least=5, most=100) == steps


def test_steps_of_no_time_at_all_are_the_most_that_there_may_be():
    assert steps_for(1.0, [run([0], [0])], least=5, most=7) == 7
