"""What tests of microbenchmarks share: a clock that tests drive, a device that works later, and runs on tiny sizes."""

import dataclasses
import itertools

from benchmarks.microbenchmarks.shapes import read_settings
from benchmarks.microbenchmarks.timed import measure
from trainer.distributed import SingleProcess


class Clock:
    """Nanoseconds that pass when told to, and a fixed time at each reading."""

    def __init__(self, reading_ms=0.0):
        self.now = 123_456_789_000_000_000
        self.reading_ms = reading_ms

    def __call__(self):
        self.pass_ms(self.reading_ms)
        return self.now

    def pass_ms(self, ms):
        self.now += round(ms * 1e6)


class Device:
    """A device that takes steps in at once, and does them when it is waited for or when its queue is full.

    Attributes:
      done: steps done.
    """

    def __init__(self, clock, *, step_ms=10.0, launch_ms=0.01, queue=10**9, compute=lambda: None):
        self.clock, self.step_ms, self.launch_ms, self.queue = clock, step_ms, launch_ms, queue
        self.compute = compute
        self.pending, self.done = [], 0

    def step(self):
        self.clock.pass_ms(self.launch_ms)
        result = []
        self.pending.append(result)
        if len(self.pending) >= self.queue:
            self.wait()
        return result

    def wait(self, result=None):
        """Does what is pending."""
        for pending in self.pending:
            self.clock.pass_ms(self.step_ms)
            pending.append(self.compute())
            self.done += 1
        self.pending = []

    def read(self, result):
        self.wait()
        self.clock.pass_ms(0.5)

    def slow(self, work, *, synchronised):
        """The same work on this device, with a clock that waits for it or does not."""
        self.compute = work.step
        return dataclasses.replace(
            work,
            step=self.step,
            wait=self.wait if synchronised else lambda result: None,
            read=self.read,
            after=lambda result: work.after(result[0]),
        )


class Together:
    """Adds what the communicator of tests/conftest.py lacks."""

    def __init__(self, comm):
        self._comm = comm
        self.rank, self.size, self.allgather_object = comm.rank, comm.size, comm.allgather_object

    def barrier(self):
        self.allgather_object(None)


def work_of(benchmark, mode, comm=None, **stated):
    """(settings, work) of a microbenchmark."""
    settings = read_settings(benchmark, mode, **stated)
    return settings, benchmark.prepare(settings, comm or SingleProcess())


def outcome_of(benchmark, mode, comm=None, change=lambda work: work, **stated):
    """Six steps of a microbenchmark by a clock on which each takes a millisecond."""
    settings, work = work_of(benchmark, mode, comm, **stated)
    try:
        return measure(
            change(work),
            comm or SingleProcess(),
            units=benchmark.units,
            batch=settings.batch,
            most_steps=6,
            clock=Clock(reading_ms=1.0),
        )
    finally:
        work.close()


def after_the_checks(work, steps, change):
    """The same work, whose results are changed once so many steps were done: by a fault that sets in late."""
    number = itertools.count(1)
    return dataclasses.replace(work, step=lambda: change(work.step()) if next(number) > steps else work.step())
