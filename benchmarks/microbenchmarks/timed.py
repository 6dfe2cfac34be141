"""The loop that times a microbenchmark, and what it makes of the times. Knows nothing of what is timed.

Three steps or more warm up. Five are timed; from the time of the slowest rank's all ranks agree on how many more there
will be, so that there are 30 or 3 seconds of them, whichever comes first. A step's time runs from the end of the step
before it to its own end, and ends when a value that the step computed has been read back: the device is done by then.

Whether it is, is not taken on trust. After the last step the whole of its result is read back, twice. Work that was
still to be done is done in the first reading, so what that takes longer than the second must be little beside the sum
of the times: else the clock was read before the work was done. Nor may most steps be far shorter than their mean, as
they are where a device takes work in without doing it and is only waited for when its queue is full.
"""

import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.microbenchmarks.checks import Check, one_line
from trainer.setting_checks import LEAST_TIMED_STEPS

WARMUP_STEPS = 3
MOST_STEPS = 30
MOST_SECONDS = 3.0
"""What all of the suite measures after the warm-up: LEAST_TIMED_STEPS, then these, whichever comes first."""

UNACCOUNTED_SHARE = 0.1
"""Largest share of the steps' times that may pass unseen after them: a score is at most that much too high."""
MEAN_OF_MEDIAN = 2.0
"""How many medians the mean of a steady step may be."""
_ATTEMPTS = 3  # a machine that does something else for a moment must not cost a score

_NS = 1e9
_SCALES = {"TF/s": 1e12, "GB/s": 1e9, "samples/s": 1.0}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Work:
    """What a microbenchmark gives to be checked and timed.

    Attributes:
      step: does a step, or has the device begin with it; returns its result.
      wait: returns when the step of a result is done, because it has read a value of it.
      read: reads all of a result back.
      before: checks, ahead of any timing.
      after: checks the last timed step's result.
      amount: what a step does over all ranks or, of a collective, on each: flop, bytes or samples.
      rates: name -> bytes of a step: becomes a figure in GB/s.
      figures: others, as they are.
      warmup_steps: at least 3.
      steady: whether every step does the same, so that the median time is a step's time. Otherwise the mean is.
      close: gives back what it holds.
    """

    step: Callable[[], Any]
    wait: Callable[[Any], object]
    read: Callable[[Any], object]
    before: Callable[[], Sequence[Check]]
    after: Callable[[Any], Sequence[Check]]
    amount: float
    rates: Mapping[str, float] = dataclasses.field(default_factory=dict)
    figures: Mapping[str, float] = dataclasses.field(default_factory=dict)
    warmup_steps: int = WARMUP_STEPS
    steady: bool = True
    close: Callable[[], object] = lambda: None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came out; the JSON object of a run.

    Attributes:
      score: in `units`; None unless it is sound.
      step_ms: of the measured steps, in order, of the rank with the longest time in all.
      rank_step_ms: each rank's median.
      figures: by name.
      safeguard: what was checked and found, one line.
      sound: whether every check held.
      reason: which did not, one line; "" if all did.
      peak_memory_bytes: each rank's.
      batch: see benchmarks.microbenchmarks.shapes.Settings.
    """

    score: float | None
    units: str
    step_ms: Sequence[float] = ()
    rank_step_ms: Sequence[float] = ()
    figures: Mapping[str, float] = dataclasses.field(default_factory=dict)
    safeguard: str = ""
    sound: bool = True
    reason: str = ""
    peak_memory_bytes: Sequence[int] = ()
    batch: int = 0


@dataclasses.dataclass(frozen=True)
class _Run:
    """Steps that were timed: nanoseconds of each, what passed unseen after them, and the last result."""

    times: list[int]
    unaccounted: int
    result: Any


def measure(
    work: Work,
    comm: Any,
    *,
    units: str,
    batch: int,
    seconds: float = MOST_SECONDS,
    most_steps: int = MOST_STEPS,
    clock: Callable[[], int] = time.perf_counter_ns,
    peak_memory_bytes: Callable[[], int] = lambda: 0,
) -> Outcome:
    """Checks, times and checks again. All ranks call it; all get the same.

    Args:
      work: of this rank.
      comm: see trainer.distributed.
      units: of the score.
      batch: for the outcome.
      seconds: after which no step begins that need not, from the fifth on.
      most_steps: measured steps; at least 5.
      clock: nanoseconds, monotonic.
      peak_memory_bytes: of this process, asked at the end.
    """
    checks = _everyones(comm, work.before())
    if not all(check.held for check in checks):  # no time is worth knowing of what is wrong
        return _outcome(work, comm, [], checks, units, batch, peak_memory_bytes())
    for _ in range(max(WARMUP_STEPS, work.warmup_steps)):
        result = work.step()
        work.wait(result)
    work.read(result)  # what reading makes once, it has made now
    del result
    for _ in range(_ATTEMPTS):
        comm.barrier()
        runs = [_timed(work, LEAST_TIMED_STEPS, clock)]
        slowest = max(comm.allgather_object(sum(runs[0].times)))
        more = min(most_steps, math.ceil(seconds * _NS * LEAST_TIMED_STEPS / max(1, slowest))) - LEAST_TIMED_STEPS
        if more > 0:
            comm.barrier()
            runs.append(_timed(work, more, clock))
        times = [duration for run in runs for duration in run.times]
        clock_checks = _everyones(comm, _look_at_clock(times, sum(run.unaccounted for run in runs), work.steady))
        if all(check.held for check in clock_checks):
            break
    checks += clock_checks + _everyones(comm, work.after(runs[-1].result))
    return _outcome(work, comm, times, checks, units, batch, peak_memory_bytes())


def _timed(work: Work, steps: int, clock: Callable[[], int]) -> _Run:
    times, result = [], None
    last = clock()
    for _ in range(steps):
        result = None  # its memory is there for the next one
        result = work.step()
        work.wait(result)
        now = clock()
        times.append(now - last)
        last = now
    work.read(result)
    read = clock()
    work.read(result)
    return _Run(times, max(0, (read - last) - (clock() - read)), result)


def _look_at_clock(times: Sequence[int], unaccounted: int, steady: bool) -> list[Check]:
    total = max(1, sum(times))
    share = unaccounted / total
    held = share <= UNACCOUNTED_SHARE
    said = "at most" if held else "the clock was NOT SYNCHRONISED with the work, for that is ABOVE"
    checks = [
        Check(f"work left after the last reading of the clock: {share:.1%} of the time, {said} {UNACCOUNTED_SHARE:.0%}",
              held)
    ]  # fmt: skip
    if steady:
        ratio = total / len(times) / max(1.0, statistics.median(times))
        held = ratio <= MEAN_OF_MEDIAN
        said = "at most" if held else "the clock was NOT SYNCHRONISED at every step or the machine is busy: ABOVE"
        checks.append(Check(f"mean step is {ratio:.2f} medians, {said} {MEAN_OF_MEDIAN:g}", held))
    return checks


def _everyones(comm: Any, checks: Sequence[Check]) -> list[Check]:
    """This rank's checks, and those that failed on other ranks; rank 0's if all held. The same on every rank."""
    everyone = comm.allgather_object([(check.said, check.held) for check in checks])
    found = [Check(said, held) for said, held in everyone[0]]
    for rank, others in enumerate(everyone[1:], start=1):
        found += [Check(f"rank {rank}: {said}", held) for said, held in others if not held]
    return found


def _outcome(
    work: Work, comm: Any, times: Sequence[int], checks: Sequence[Check], units: str, batch: int, peak: int
) -> Outcome:
    everyone = comm.allgather_object((list(times), peak))
    slowest = max((ranks_times for ranks_times, _ in everyone), key=sum)
    failed = [check for check in checks if not check.held]
    figures, score = dict(work.figures), None
    if not failed:
        step_s = (statistics.median(slowest) if work.steady else statistics.fmean(slowest)) / _NS
        score = work.amount / step_s / _SCALES[units]
        figures |= {name: amount / step_s / _SCALES["GB/s"] for name, amount in work.rates.items()}
    return Outcome(
        score=score,
        units=units,
        step_ms=[duration / 1e6 for duration in slowest],
        rank_step_ms=[statistics.median(ranks_times) / 1e6 for ranks_times, _ in everyone if ranks_times],
        figures=figures,
        safeguard=one_line(checks),
        sound=not failed,
        reason=failed[0].said if failed else "",
        peak_memory_bytes=[ranks_peak for _, ranks_peak in everyone],
        batch=batch,
    )
