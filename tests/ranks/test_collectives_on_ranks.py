"""The microbenchmarks of collectives between real ranks."""

import pytest

NAMES = ("allreduce", "alltoall", "allgather")


@pytest.fixture(scope="module")
def found(two_ranks):
    """What came out, the same on both ranks."""
    first, second = two_ranks.results("collective_benchmarks")
    assert first == second
    return first


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize(
    ("name", "algorithm", "bus"), [("allreduce", 2288, 2288), ("alltoall", 2288, 1144), ("allgather", 4576, 2288)]
)
def test_exact_results_have_a_score(found, name, algorithm, bus, precision):
    outcome = found[name, precision]
    assert outcome["sound"], outcome["reason"]
    # The slower clock is that of rank 1, 30 ms a step: seven steps take the 0.2 seconds.
    assert outcome["step_ms"] == pytest.approx([30.0] * 7) and outcome["rank_step_ms"] == pytest.approx([10.0, 30.0])
    assert outcome["score"] == pytest.approx(algorithm / 0.030 / 1e9)
    assert outcome["figures"]["bus_gb_per_s"] == pytest.approx(bus / 0.030 / 1e9)
    assert outcome["safeguard"].count(f"{name} of") == 4


@pytest.mark.parametrize("fault", [*((name, "identity") for name in NAMES), ("alltoall", "wrong way")])
def test_wrong_collectives_have_none(found, fault):
    outcome = found[fault]
    assert outcome["score"] is None and not outcome["sound"] and outcome["step_ms"] == []
    assert outcome["reason"].startswith(f"before, {fault[0]} of")
