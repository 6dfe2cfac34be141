"""When a benchmark that runs in callbacks is timed, and after which step it ends. Without TensorFlow."""

import time
from collections.abc import Callable

from trainer.setting_checks import LEAST_TIMED_STEPS
from trainer.timing import RunTimes, StepTimer, merge_ranks, steps_for


class BenchmarkClock:
    """Times the steps of one process after the warm-up, as trainer.benchmark does.

    Attributes:
      num_steps: steps in all; with `seconds` the most that there may be, until it is known how many take so long.
      steps_done: steps so far.
    """

    def __init__(
        self,
        *,
        warmup_steps: int,
        num_steps: int,
        seconds: float | None,
        timer: StepTimer | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        """
        Args:
          warmup_steps: the first steps, which are not timed.
          num_steps: the steps, or with `seconds` the most that there may be.
          seconds: to measure.
          timer: of the steps.
          clock: seconds, of its own.
        """
        self.num_steps = num_steps
        self.steps_done = 0
        self._warmup_steps = warmup_steps
        self._seconds = seconds
        self._timer = timer or StepTimer(warmup_steps)
        self._clock = clock
        self._began = self._ended = 0.0

    def start(self) -> None:
        """The first step begins now."""
        self._timer.start()
        self._began = self._clock()

    def step_done(self, rows: int) -> bool:
        """A step over so many rows ends now, its results read; returns whether it was the last one."""
        self._timer.step_done(rows)
        self.steps_done += 1
        if self.steps_done == self._warmup_steps:
            self._began = self._clock()
        if self._seconds is not None and self.steps_done == self._warmup_steps + LEAST_TIMED_STEPS:
            most = self.num_steps - self._warmup_steps
            measured = steps_for(self._seconds, [self._timer.summary()], least=LEAST_TIMED_STEPS, most=most)
            self.num_steps = self._warmup_steps + measured
            self._timer.start()
        return self.steps_done >= self.num_steps

    def end(self) -> None:
        """The device has nothing left to do."""
        self._ended = self._clock()

    def times(self) -> RunTimes:
        """The times of the measured steps. How long each waited for its input is not known: no callback says so."""
        return merge_ranks([self._timer.summary()])

    @property
    def measured_seconds(self) -> float:
        """Of the measured steps by the other clock."""
        return self._ended - self._began
