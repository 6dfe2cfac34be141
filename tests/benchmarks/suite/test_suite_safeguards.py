"""What must hold of a record. Each planted fault takes the score away."""

import math

import pytest
import suite_cases

from benchmarks.suite import safeguards
from benchmarks.suite.safeguards import loss_in_band, of_record, peak_flops, verdict


def reason(record, **bounds):
    return verdict(of_record(record, **bounds)).reason


def test_a_good_record_is_sound_and_says_what_was_looked_at():
    found = verdict(of_record(suite_cases.record(), flops_per_step=1e6, peak_flops=1e9))
    assert found.sound and found.reason == ""
    for part in ("10 steps measured", "add up to 0.200 s of 0.200 s", "1,600 rows/s", "loss 0.5000", "GFLOP/s"):
        assert part in found.safeguard


def test_inference_has_no_loss_to_look_at():
    assert reason(suite_cases.record(mode="inference", loss=None)) == ""


@pytest.mark.parametrize("loss", [math.nan, math.inf, None])
def test_a_loss_that_is_not_finite(loss):
    assert reason(suite_cases.record(loss=loss)) == "the loss is not finite"


def test_too_few_steps():
    times = {"step_times_ms": (20.0,) * 4, "measured_steps": 4, "measured_seconds": 0.08}
    assert reason(suite_cases.record(**times)) == "4 steps measured, at least 5 needed"


@pytest.mark.parametrize(
    "changes",
    [
        # The steps were given to the device in no time, and it was waited for at the end.
        {"step_times_ms": (0.1,) * 10, "samples_per_sec": 320_000.0},
        {"step_times_ms": (18.0,) * 10, "samples_per_sec": 32 / 0.018},
        # Times that the loop did not take.
        {"step_times_ms": (30.0,) * 10, "samples_per_sec": 32 / 0.030},
        # Of long runs only the mean is kept.
        {"step_times_ms": None, "step_ms": {"mean": 2.0}, "samples_per_sec": 16_000.0},
    ],
)
def test_a_clock_that_does_not_wait_for_the_device(changes):
    assert "by a second clock" in reason(suite_cases.record(**changes))


def test_a_record_without_a_second_clock_has_no_score():
    assert "does not say how long" in reason(suite_cases.record(measured_seconds=None))
    assert "does not say how long" in reason(suite_cases.record(step_times_ms=None, step_ms=None))


def test_little_differences_of_the_clocks_are_none():
    assert reason(suite_cases.record(measured_seconds=0.204)) == ""
    assert reason(suite_cases.record(measured_seconds=0.196)) == ""


@pytest.mark.parametrize("rate", [1700.0, 3200.0])
def test_a_throughput_that_the_times_do_not_give(rate):
    assert reason(suite_cases.record(samples_per_sec=rate)).startswith(f"{rate:,.0f} rows/s of at most 1,600")


@pytest.mark.parametrize("rate", [None, 0.0, math.nan])
def test_no_throughput(rate):
    assert "no throughput" in reason(suite_cases.record(samples_per_sec=rate))


def test_short_last_batches_lower_the_throughput_and_nothing_is_wrong():
    assert reason(suite_cases.record(samples_per_sec=1550.0)) == ""


def test_products_that_no_machine_can_do():
    assert reason(suite_cases.record(), flops_per_step=2e7, peak_flops=1.01e9) == ""
    assert reason(suite_cases.record(), flops_per_step=2e7, peak_flops=0.99e9).startswith("1 GFLOP/s of dense products")
    assert reason(suite_cases.record(), flops_per_step=2e7, peak_flops=None) == ""


def test_peaks_are_above_what_processors_reach():
    # Two cores of a Zen 4 machine: 158 GFLOP/s in products, as measured.
    assert 158e9 < peak_flops(2, {"avx2", "avx512f"}) < 1e12
    assert peak_flops(2, {"avx2"}) < peak_flops(2, {"avx512f"}) < peak_flops(2, {"avx512f"}, precision="bf16")
    assert peak_flops(4, ()) == 2 * peak_flops(2, ())


@pytest.mark.parametrize(
    ("loss", "held"),
    [(0.45, True), (0.4, True), (0.5, True), (0.39, False), (0.693, False), (None, False), (math.nan, False)],
)
def test_a_loss_in_its_band(loss, held):
    check = loss_in_band(suite_cases.record(loss=loss), steps=60, low=0.4, high=0.5)
    assert check.held == held and "0.4 to 0.5 after 60 steps" in check.said


def test_a_verdict_names_what_did_not_hold_and_nothing_else():
    checks = [safeguards.Check("a", True), safeguards.Check("b", False), safeguards.Check("c", False)]
    found = verdict(checks)
    assert (found.safeguard, found.reason, found.sound) == ("a; b; c", "b; c", False)
