"""Step times. A timer counts; it never logs, prints or ends anything, and merging ranks is a pure function.

A step's time runs from the end of the step before it to its own end, so that the times of consecutive steps tile the
time that has passed: whatever slows the loop, in the input pipeline, in the step, or in another rank that this one
waits for in a reduction, is in some step's time and none is counted twice.
"""

import math
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

_NS_PER_MS = 1e6
_NS_PER_S = 1e9

MOST_KEPT_STEPS = 1000
"""Of longer runs the figures say enough, and records stay small."""


@dataclass(frozen=True)
class StepTimes:
    """Times of one rank's measured steps; every figure is NaN where no step was measured.

    Percentiles are numpy's default ("linear"): for n sorted times x[0..n-1], percentile q is x at position (n - 1) q /
    100, interpolated linearly between neighbours. elapsed_s is the sum of the measured steps' times, input_wait_share
    the part of it that passed before each step's input was there (0 to 1). measured_rows counts the rows that this
    rank reported. step_times_ms are the steps' times in order; None of more than MOST_KEPT_STEPS.
    """

    mean_ms: float
    p50_ms: float
    p90_ms: float
    p95_ms: float
    p99_ms: float
    input_wait_share: float
    warmup_steps: int
    measured_steps: int
    elapsed_s: float
    measured_rows: int = 0
    step_times_ms: tuple[float, ...] | None = None

    @property
    def step_ms(self) -> dict[str, float]:
        """Mean and percentiles in milliseconds, under the names that records use."""
        return {"mean": self.mean_ms, "p50": self.p50_ms, "p90": self.p90_ms, "p95": self.p95_ms, "p99": self.p99_ms}


@dataclass(frozen=True)
class RunTimes:
    """Times of a run of several ranks.

    samples_per_sec: rows that all ranks measured, each counted once, over the longest rank's elapsed time.
    step_ms: of the rank with the longest elapsed time, which is the one that the run waits for.
    rank_step_ms: each rank's median. input_wait_share: of the rank that waits most for its input.
    step_times_ms: times of the steps, in order, of the rank that step_ms is of; None of too many.
    """

    samples_per_sec: float
    step_ms: dict[str, float]
    rank_step_ms: tuple[float, ...]
    input_wait_share: float
    warmup_steps: int
    measured_steps: int
    elapsed_s: float
    step_times_ms: tuple[float, ...] | None = None


class StepTimer:
    """Times the steps of a loop, the first `warmup_steps` of them excluded from every figure.

    timer.start()
    for batch in batches:
        timer.input_ready()   # the time since the last step's end was spent waiting for input
        run the step
        timer.step_done(rows)

    `start` may be called again after a pause (an evaluation, a checkpoint): what passed since the last step is left
    out. Memory: 8 bytes a measured step.
    """

    def __init__(
        self,
        warmup_steps: int = 0,
        *,
        clock: Callable[[], int] = time.perf_counter_ns,
        synchronize: Callable[[], object] | None = None,
    ):
        """clock: nanoseconds, monotonic. synchronize: waits until the device has done what it was given.

        It is called before each reading of the clock, without which an asynchronous device would only be timed at being
        given work.
        """
        if warmup_steps < 0:
            raise ValueError(f"warmup_steps must be at least 0, got {warmup_steps}")
        self._warmup_steps = warmup_steps
        self._clock = clock
        self._synchronize = synchronize
        self._steps_done = 0
        self._last_end_ns: int | None = None
        self._input_wait_ns = 0  # Of the step in progress.
        self._step_ns = array("q")
        self._measured_wait_ns = 0
        self._measured_rows = 0

    def start(self) -> None:
        """The clock starts (again): the next step begins now."""
        self._last_end_ns = self._now()
        self._input_wait_ns = 0

    def input_ready(self) -> None:
        """The step in progress has its input: the time since the last step's end counts as waiting for it."""
        self._input_wait_ns = self._now() - self._require_start()

    def step_done(self, rows: int = 0) -> None:
        """The step in progress, which has worked on `rows` rows of this rank, ends now, and the next one begins."""
        started = self._require_start()
        self._last_end_ns = self._now()
        self._steps_done += 1
        if self._steps_done > self._warmup_steps:
            self._step_ns.append(self._last_end_ns - started)
            self._measured_wait_ns += self._input_wait_ns
            self._measured_rows += rows
        self._input_wait_ns = 0

    def summary(self) -> StepTimes:
        """Figures of the steps measured so far."""
        times = np.array(self._step_ns, np.int64)
        elapsed_ns = int(times.sum())
        if len(times):
            mean = elapsed_ns / len(times)
            p50, p90, p95, p99 = np.percentile(times, [50, 90, 95, 99])
        else:
            mean = p50 = p90 = p95 = p99 = math.nan
        return StepTimes(
            *(float(value) / _NS_PER_MS for value in (mean, p50, p90, p95, p99)),
            input_wait_share=self._measured_wait_ns / elapsed_ns if elapsed_ns else math.nan,
            warmup_steps=min(self._steps_done, self._warmup_steps),
            measured_steps=len(times),
            elapsed_s=elapsed_ns / _NS_PER_S,
            measured_rows=self._measured_rows,
            step_times_ms=tuple((times / _NS_PER_MS).tolist()) if len(times) <= MOST_KEPT_STEPS else None,
        )

    def _now(self) -> int:
        if self._synchronize is not None:
            self._synchronize()
        return self._clock()

    def _require_start(self) -> int:
        if self._last_end_ns is None:
            raise RuntimeError("StepTimer.start() was not called before the first step")
        return self._last_end_ns


def merge_ranks(ranks: Sequence[StepTimes], *, measured_rows: int | None = None) -> RunTimes:
    """One run's times from those of its ranks, in the order of ranks.

    measured_rows: rows that all ranks together worked on in the measured steps, each counted once; None takes the sum
      of what the ranks reported to their timers.
    Raises ValueError if there is no rank, if ranks measured different numbers of steps, which no run may do, or if they
      measured steps and nobody says of how many rows.
    """
    if not ranks:
        raise ValueError("no rank's times to merge")
    steps = {(times.warmup_steps, times.measured_steps) for times in ranks}
    if len(steps) > 1:
        raise ValueError(f"ranks counted different (warm-up, measured) steps: {sorted(steps)}")
    slowest = max(ranks, key=lambda times: times.elapsed_s)
    rows = sum(times.measured_rows for times in ranks) if measured_rows is None else measured_rows
    if slowest.measured_steps and not rows:
        raise ValueError("no rows in the measured steps: give step_done() or merge_ranks() their number")
    return RunTimes(
        samples_per_sec=rows / slowest.elapsed_s if slowest.elapsed_s else math.nan,
        step_ms=slowest.step_ms,
        rank_step_ms=tuple(times.p50_ms for times in ranks),
        input_wait_share=max(times.input_wait_share for times in ranks),
        warmup_steps=slowest.warmup_steps,
        measured_steps=slowest.measured_steps,
        elapsed_s=slowest.elapsed_s,
        step_times_ms=slowest.step_times_ms,
    )


def steps_for(seconds: float, ranks: Sequence[StepTimes], *, least: int, most: int) -> int:
    """Steps whose measured times add up to `seconds` at the pace of the slowest rank so far: least .. most."""
    slowest = max(times.mean_ms for times in ranks) / 1000
    return max(least, min(most, math.ceil(seconds / slowest) if slowest > 0 else most))
