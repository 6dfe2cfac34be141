"""The best batch size of a sweep, however throughput goes up and down."""

import pytest
import suite_cases

from benchmarks.suite import search
from benchmarks.suite.results import FAILED, Result


def result(batch, score, *, p95=1.0, mode="training", limit=None, **cell):
    one = suite_cases.definition(mode=mode)
    made = suite_cases.cell(one, batch_size=batch, **cell)
    if score is None:
        return Result(cell=made, status=FAILED, reason="x")
    return Result(cell=made, status="ok", score=score, step_ms=(p95,) * 5, latency_limit_ms=limit)


@pytest.mark.parametrize(
    ("least", "largest", "expected"),
    [(64, 512, (64, 128, 256, 512)), (65, 300, (128, 256)), (1, 4, (1, 2, 4)), (5, 7, ()), (8, 8, (8,))],
)
def test_powers_of_two(least, largest, expected):
    assert search.powers_of_two(least, largest) == expected


def test_the_best_of_a_sweep_that_is_not_monotone():
    rates = {64: 10.0, 128: 30.0, 256: 5.0, 512: 40.0, 1024: 20.0}
    cell, score = search.best([result(batch, rate) for batch, rate in rates.items()])
    assert (cell.batch_size, score) == (512, 40.0)


def test_medians_of_repeats_count_and_failed_ones_do_not():
    found = [result(64, rate) for rate in (1.0, 100.0, 2.0)] + [result(128, 3.0), result(256, None)]
    assert search.best(found)[0].batch_size == 128


def test_inference_keeps_to_its_limit_and_training_has_none():
    sweep = {64: (10.0, 5.0), 128: (20.0, 9.0), 256: (40.0, 11.0), 512: (30.0, 10.0)}
    for mode, expected in (("inference", 512), ("training", 256)):
        found = [result(b, s, p95=p, mode=mode, limit=10.0) for b, (s, p) in sweep.items()]
        assert search.best(found)[0].batch_size == expected


def test_nothing_is_best_where_nothing_holds_the_limit():
    found = [result(64, 10.0, p95=5.0, mode="inference", limit=1.0)]
    assert search.best(found) is None and search.best([]) is None
    text = search.summary([suite_cases.definition(mode="inference", latency_limit_ms=1.0)], found)
    assert text.endswith("none of 1 batch sizes has a score with p95 of at most 1 ms")


def test_each_implementation_has_a_best_of_its_own():
    found = [result(64, 10.0), result(128, 20.0), result(64, 9.0, implementation="optimized")]
    lines = search.summary([suite_cases.definition()], found).splitlines()
    assert lines[0].startswith("wide_deep-training-small ootb, fp32: best of 2 batch sizes is 128, 20.0 samples/s")
    assert lines[1].startswith("wide_deep-training-small optimized, fp32: best of 1 batch sizes is 64")
