import pytest

from benchmarks.microbenchmarks import harness_overhead
from benchmarks.microbenchmarks.harness_overhead import BENCHMARK, MODE
from benchmarks.microbenchmarks.shapes import read_settings
from trainer.distributed import SingleProcess

SETTINGS = read_settings(BENCHMARK, MODE, params={"steps": 20, "turns": 3, "shrink": 64})


@pytest.mark.parametrize(("step_ms", "sound"), [(60_000.0, True), (1e-6, False)])
def test_its_share_of_a_real_step_decides(monkeypatch, step_ms, sound):
    monkeypatch.setattr(harness_overhead, "_wide_deep_ms", lambda shrink: step_ms)
    found = harness_overhead.run(SETTINGS, SingleProcess())
    figures = found.figures
    assert figures["wide_deep_step_ms"] == step_ms and figures["bare_step_us"] > 0
    assert figures["share_of_wide_deep_step"] == pytest.approx(figures["overhead_us"] / 1e3 / step_ms)
    assert figures["share_of_10_ms"] == pytest.approx(figures["overhead_us"] / 1e4)
    assert found.sound == sound and found.score == (figures["overhead_us"] if sound else None)
    assert "of 240 steps were run" in found.safeguard and len(found.step_ms) == 3
    assert ("ABOVE 1%" in found.reason) != sound


def test_slow_work_between_steps_is_the_harnesss(monkeypatch):
    """Every step waits for its batch; nothing of that is in the bare loop."""
    monkeypatch.setattr(harness_overhead, "_wide_deep_ms", lambda shrink: 60_000.0)

    class Slow(harness_overhead._SameBatch):
        def __iter__(self):
            for batch in super().__iter__():
                sum(range(100_000))  # more than a millisecond
                yield batch

    quick = harness_overhead.run(SETTINGS, SingleProcess()).figures["overhead_us"]
    monkeypatch.setattr(harness_overhead, "_SameBatch", Slow)
    assert harness_overhead.run(SETTINGS, SingleProcess()).figures["overhead_us"] > quick + 500


def test_a_step_of_wide_and_deep_takes_its_time():
    assert harness_overhead._wide_deep_ms(64) > 0.1
