"""What must hold of a run before its figure is a score. Pure functions of records; the runner gets what they ask for.

A clock that does not wait for the device shows times of giving work, not of doing it. It is found out by a second clock
that is read before the first and after the last measured step, when nothing is left to do: the steps' times must fill
what it shows. And no product is faster than the machine's units: what the dense layers multiply in a step bounds its
time from below.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Any

from benchmarks.microbenchmarks.checks import Check, one_line
from trainer.setting_checks import LEAST_TIMED_STEPS

CLOCK_TOLERANCE = 0.05
"""Share of the measured time that the sum of the step times may differ by: garbage collection, a late wake-up."""
_CLOCK_SLACK_S = 0.005

FLOPS_PER_CYCLE = {"avx512f": 64, "avx2": 32}
"""Of a core in float32: two fused multiply-adds of a vector, which none has more of (AMX, for bfloat16, left out)."""
_OTHER_FLOPS_PER_CYCLE = 32
_HIGHEST_HZ = 6.5e9
_BELOW_FLOAT32 = 16  # units for 16-bit types do so many times as much at most


@dataclasses.dataclass(frozen=True)
class Verdict:
    """Whether a run has a score: what was checked in one line, and what did not hold, "" if all did."""

    safeguard: str
    reason: str

    @property
    def sound(self) -> bool:
        return not self.reason


def verdict(checks: Iterable[Check]) -> Verdict:
    """All of them together."""
    checks = list(checks)
    return Verdict(one_line(checks), one_line(check for check in checks if not check.held))


def of_record(
    record: Mapping[str, Any], *, flops_per_step: float = 0.0, peak_flops: float | None = None
) -> list[Check]:
    """Checks of a trainer's record, as JSON.

    Args:
      record: see trainer.records.Record.
      flops_per_step: of the dense layers' products, over all ranks.
      peak_flops: a bound on what the machine can do in a second; None where nobody knows.
    """
    checks = [_steps(record), _clock(record), _throughput(record)]
    if record.get("identity", {}).get("mode") == "training":
        checks.append(finite_loss(record))
    if flops_per_step and peak_flops is not None:
        checks.append(_products(record, flops_per_step, peak_flops))
    return checks


def finite_loss(record: Mapping[str, Any]) -> Check:
    """JSON has no other numbers, so a loss that is none of them is null."""
    loss = record.get("loss")
    if not isinstance(loss, int | float) or not math.isfinite(loss):
        return Check("the loss is not finite", False)
    return Check(f"loss {loss:.4f} is finite", True)


def loss_in_band(record: Mapping[str, Any], *, steps: int, low: float, high: float) -> Check:
    """Whether a short training on planted data learned what can be learned, and no more than that."""
    loss = record.get("loss")
    band = f"{low:g} to {high:g} after {steps} steps on planted data"
    if not isinstance(loss, int | float) or not math.isfinite(loss):
        return Check(f"the loss is not finite, and should be {band}", False)
    return Check(f"loss {loss:.4f}, must be {band}", low <= loss <= high)


def peak_flops(cpus: int, cpu_flags: Iterable[str], *, precision: str = "fp32") -> float:
    """More than so many CPUs can do in a second, whatever their model."""
    flags = set(cpu_flags)
    per_cycle = max((count for flag, count in FLOPS_PER_CYCLE.items() if flag in flags), default=_OTHER_FLOPS_PER_CYCLE)
    return cpus * per_cycle * _HIGHEST_HZ * (1 if precision == "fp32" else _BELOW_FLOAT32)


def _measured_steps(record: Mapping[str, Any]) -> int:
    return record.get("measured_steps") or 0


def _steps_s(record: Mapping[str, Any]) -> float | None:
    """Sum of the step times in seconds; None where there are none."""
    times = record.get("step_times_ms")
    if times:
        return sum(times) / 1000
    mean = (record.get("step_ms") or {}).get("mean")
    return None if mean is None else mean * _measured_steps(record) / 1000


def _steps(record: Mapping[str, Any]) -> Check:
    steps = _measured_steps(record)
    return Check(f"{steps} steps measured, at least {LEAST_TIMED_STEPS} needed", steps >= LEAST_TIMED_STEPS)


def _clock(record: Mapping[str, Any]) -> Check:
    total, seconds = _steps_s(record), record.get("measured_seconds")
    if total is None or seconds is None:
        return Check("the record does not say how long the measured steps took by a second clock", False)
    allowed = CLOCK_TOLERANCE * seconds + _CLOCK_SLACK_S
    return Check(
        f"step times add up to {total:.3f} s of {seconds:.3f} s by a second clock", abs(seconds - total) <= allowed
    )


def _throughput(record: Mapping[str, Any]) -> Check:
    """Rows and times give the throughput that is reported. A last batch can be short, so it may be a little below."""
    rate, total, batch = record.get("samples_per_sec"), _steps_s(record), record.get("global_batch_size")
    if not rate or not total or not batch:
        return Check("the record has no throughput", False)
    most = batch * _measured_steps(record) / total
    return Check(f"{rate:,.0f} rows/s of at most {most:,.0f} by the step times", 0 < rate <= most * (1 + 1e-6))


def _products(record: Mapping[str, Any], flops_per_step: float, peak: float) -> Check:
    total = _steps_s(record)
    if not total:
        return Check("no step times to compare with the machine's products", False)
    speed = flops_per_step * _measured_steps(record) / total
    return Check(f"{speed / 1e9:,.0f} GFLOP/s of dense products, at most {peak / 1e9:,.0f} can be", speed <= peak)
