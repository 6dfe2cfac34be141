"""The loop and what it makes of times, by hand-driven clocks."""

import dataclasses

import pytest
from micro_cases import Clock, Device, Together

from benchmarks.microbenchmarks.checks import Check
from benchmarks.microbenchmarks.timed import Work, measure
from trainer.distributed import SingleProcess

GOOD = Check("it is right", True)


def work_on(device, **changes):
    settings = {
        "step": device.step,
        "wait": device.wait,
        "read": device.read,
        "before": lambda: [GOOD],
        "after": lambda result: [GOOD],
        "amount": 2e12,
    }
    return Work(**settings | changes)


def timed(device, comm=None, *, units="TF/s", seconds=3.0, most_steps=30, work=None):
    return measure(
        work or work_on(device),
        comm or SingleProcess(),
        units=units,
        batch=7,
        seconds=seconds,
        most_steps=most_steps,
        clock=device.clock,
        peak_memory_bytes=lambda: 99,
    )


def test_hand_worked_case():
    device = Device(Clock(), step_ms=9.0, launch_ms=1.0)
    found = timed(device, work=work_on(device, rates={"bus_gb_per_s": 5e9}, figures={"layers": 3}))
    assert found.step_ms == pytest.approx([10.0] * 30) and found.rank_step_ms == pytest.approx([10.0])
    assert found.score == pytest.approx(200.0) and found.units == "TF/s"
    assert found.figures == {"layers": 3, "bus_gb_per_s": pytest.approx(500.0)}
    assert (found.sound, found.reason, found.peak_memory_bytes, found.batch) == (True, "", [99], 7)
    assert found.safeguard.startswith("it is right; work left after") and found.safeguard.endswith("it is right")
    assert device.done == 3 + 30  # three warm up


@pytest.mark.parametrize(("step_ms", "steps"), [(10, 30), (199, 16), (200, 15), (599, 6), (601, 5), (5000, 5)])
def test_it_ends_at_30_steps_or_3_seconds_but_not_before_5_steps(step_ms, steps):
    device = Device(Clock(), step_ms=step_ms, launch_ms=0)
    assert len(timed(device).step_ms) == steps


def test_longer_warm_up():
    device = Device(Clock())
    assert len(timed(device, most_steps=5, work=work_on(device, warmup_steps=8)).step_ms) == 5
    assert device.done == 13


@pytest.mark.parametrize(("units", "score"), [("GB/s", 2e12 / 0.01 / 1e9), ("samples/s", 2e12 / 0.01)])
def test_units(units, score):
    assert timed(Device(Clock(), step_ms=10, launch_ms=0), units=units).score == pytest.approx(score)


def test_median_of_steady_steps_and_mean_of_others():
    class Uneven(Device):
        def wait(self, result=None):
            self.step_ms = 40.0 if self.done % 5 == 4 else 10.0
            super().wait(result)

    device = Uneven(Clock(), launch_ms=0)
    found = timed(device, units="GB/s", most_steps=10)
    assert found.score == pytest.approx(2e12 / 0.010 / 1e9) and sum(found.step_ms) == pytest.approx(160.0)
    device = Uneven(Clock(), launch_ms=0)
    found = timed(device, units="GB/s", most_steps=10, work=work_on(device, steady=False))
    assert found.score == pytest.approx(2e12 / 0.016 / 1e9)


def test_a_clock_that_is_never_synchronised_has_no_score():
    device = Device(Clock())
    found = timed(device, work=work_on(device, wait=lambda result: None))
    assert sum(found.step_ms) < 1.0  # this is what it would have been scored by
    assert found.score is None and not found.sound and "bus" not in found.figures
    assert "the clock was NOT SYNCHRONISED with the work" in found.reason


@pytest.mark.parametrize("queue", [4, 10])
def test_a_clock_that_waits_only_when_the_queue_is_full_has_no_score(queue):
    device = Device(Clock(), queue=queue)
    found = timed(device, most_steps=35, work=work_on(device, wait=lambda result: None))
    assert found.score is None and "NOT SYNCHRONISED" in found.reason


def test_a_moment_of_other_work_costs_no_score():
    class Hiccup(Device):
        readings = 0

        def read(self, result):
            super().read(result)
            self.readings += 1
            if self.readings == 2:  # the first after timed steps
                self.clock.pass_ms(500)

    device = Hiccup(Clock(), launch_ms=0)
    found = timed(device)
    assert found.sound and found.score == pytest.approx(200.0) and device.done == 3 + 2 * 30


def test_what_fails_its_check_is_not_timed():
    device = Device(Clock())
    found = timed(device, work=work_on(device, before=lambda: [GOOD, Check("zero gradients", False)]))
    assert (found.score, found.sound, found.reason, found.step_ms) == (None, False, "zero gradients", [])
    assert found.safeguard == "it is right; zero gradients" and device.done == 0


def test_what_is_wrong_after_the_loop_has_no_score():
    device = Device(Clock())
    found = timed(device, work=work_on(device, after=lambda result: [Check(f"{len(result)} results, wrong", False)]))
    assert found.score is None and found.reason == "1 results, wrong" and len(found.step_ms) == 30


def test_ranks_take_as_many_steps_as_the_slowest_allows(run_ranks):
    devices = [Device(Clock(), step_ms=ms, launch_ms=0) for ms in (100, 300)]
    outcomes = run_ranks(2, lambda comm: timed(devices[comm.rank], Together(comm)))
    assert outcomes[0] == outcomes[1]
    assert outcomes[0].step_ms == pytest.approx([300.0] * 10)
    assert outcomes[0].rank_step_ms == pytest.approx([100.0, 300.0]) and outcomes[0].peak_memory_bytes == [99, 99]
    assert outcomes[0].score == pytest.approx(2 / 0.3) and devices[0].done == devices[1].done == 13


def test_ranks_share_what_one_of_them_finds(run_ranks):
    def work(comm):
        device = Device(Clock())
        wrong = work_on(device, before=lambda: [Check("sums", comm.rank == 0)])
        return timed(device, Together(comm), work=wrong)

    outcomes = run_ranks(2, work)
    assert outcomes[0] == outcomes[1]
    assert outcomes[0].reason == "rank 1: sums" and outcomes[0].score is None


def test_one_unsynchronised_rank_is_enough(run_ranks):
    def work(comm):
        device = Device(Clock())
        waits = work_on(device)
        return timed(
            device, Together(comm), work=dataclasses.replace(waits, wait=lambda result: None) if comm.rank else waits
        )

    outcomes = run_ranks(2, work)
    assert outcomes[0] == outcomes[1] and outcomes[0].reason.startswith("rank 1: work left after")
