import pytest

from benchmarks.ootb.clock import BenchmarkClock
from trainer.setting_checks import LEAST_TIMED_STEPS
from trainer.timing import StepTimer


class Time:
    """A clock that a test moves; read in nanoseconds or in seconds."""

    def __init__(self):
        self.ms = 5000

    def clock(self, **arguments):
        timer = StepTimer(arguments["warmup_steps"], clock=lambda: self.ms * 10**6)
        return BenchmarkClock(**arguments, timer=timer, clock=lambda: self.ms / 1000)

    def run(self, clock, step_ms):
        """Steps of so many milliseconds until the clock says that it was the last."""
        clock.start()
        for ms in step_ms:
            self.ms += ms
            if clock.step_done(8):
                break
        clock.end()


def test_the_warm_up_is_left_out():
    time = Time()
    clock = time.clock(warmup_steps=2, num_steps=5, seconds=None)
    time.run(clock, [900, 700, 10, 20, 30, 1000])
    times = clock.times()
    assert times.step_times_ms == (10, 20, 30) and (times.warmup_steps, times.measured_steps) == (2, 3)
    assert times.samples_per_sec == pytest.approx(24 / 0.06) and clock.measured_seconds == pytest.approx(0.06)
    assert clock.steps_done == 5


def test_without_a_warm_up_every_step_counts():
    time = Time()
    clock = time.clock(warmup_steps=0, num_steps=2, seconds=None)
    time.run(clock, [10, 20])
    assert clock.times().step_times_ms == (10, 20) and clock.measured_seconds == pytest.approx(0.03)


@pytest.mark.parametrize(
    ("seconds", "measured"), [(0.2, 10), (0.191, 10), (0.01, LEAST_TIMED_STEPS), (60.0, 48)], ids=str
)
def test_seconds_say_how_many_steps(seconds, measured):
    time = Time()
    clock = time.clock(warmup_steps=2, num_steps=50, seconds=seconds)
    time.run(clock, [500, 500] + [20] * 100)
    assert clock.times().measured_steps == measured and clock.steps_done == clock.num_steps == measured + 2
    assert clock.measured_seconds == pytest.approx(0.02 * measured)
