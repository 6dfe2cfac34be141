import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from micro_cases import Clock, Device, after_the_checks, outcome_of, work_of

from benchmarks.microbenchmarks import gemm
from benchmarks.microbenchmarks.gemm import BENCHMARK
from benchmarks.microbenchmarks.timed import measure
from trainer.distributed import SingleProcess

SIZES = {"shapes": "24,16,33;5,40,64"}
OPERATIONS = 2 * (24 * 16 * 33 + 5 * 40 * 64)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_products_are_right_and_scored_by_their_operations(precision):
    found = outcome_of(BENCHMARK, "forward", precision=precision, **SIZES)
    assert found.sound, found.reason
    assert found.score == pytest.approx(OPERATIONS / 1e-3 / 1e12) and found.units == "TF/s"
    bytes_of = 4 if precision == "fp32" else 2
    moved = 24 * 33 + 33 * 16 + 24 * 16 + 5 * 64 + 64 * 40 + 5 * 40
    assert found.figures == {"gflop_per_step": OPERATIONS / 1e9, "bytes_per_step": bytes_of * moved}
    assert found.safeguard.count("rows of the product") == 4 and found.batch == 29


def test_fambenchs_size():
    assert gemm.operations(BENCHMARK.presets["small"]) == 2 * 256 * 1024 * 1024


def test_of_large_products_some_rows_are_checked(monkeypatch):
    monkeypatch.setattr(gemm, "_CHECKED_OPERATIONS", 2 * 16 * 33 * 7)
    assert "before, 7 of 24 rows of the product 24,16,33" in outcome_of(BENCHMARK, "forward", **SIZES).safeguard


def test_ranks_have_operands_of_their_own():
    results = [work_of(BENCHMARK, "forward", SingleProcess(rank=rank), **SIZES)[1].step()[0][0] for rank in (0, 1)]
    assert not np.allclose(*results)


def rounded(left, right):
    """A product in less than the stated precision."""
    return tf.cast(MATMUL(tf.cast(left, tf.bfloat16), tf.cast(right, tf.bfloat16)), left.dtype)


MATMUL = tf.matmul


@pytest.mark.parametrize(
    "fault",
    [
        lambda left, right: tf.zeros((left.shape[0], right.shape[1])),
        lambda left, right: tf.roll(MATMUL(left, right), 1, axis=0),  # rows in other places
        lambda left, right: MATMUL(left, right) * 1.001,
        rounded,
    ],
)
def test_a_wrong_product_has_no_score(monkeypatch, fault):
    monkeypatch.setattr(tf, "matmul", fault)
    found = outcome_of(BENCHMARK, "forward", **SIZES)
    assert found.score is None and found.reason.startswith("before, 24 of 24 rows of the product") and not found.step_ms


def test_a_loop_that_does_something_else_has_no_score():
    def change(work):
        return after_the_checks(work, 3, lambda result: ([tf.zeros_like(one) for one in result[0]], result[1]))

    found = outcome_of(BENCHMARK, "forward", change=change, **SIZES)
    assert found.score is None and found.reason.startswith("after, 24 of 24 rows")


@pytest.mark.parametrize("synchronised", [True, False])
def test_a_clock_that_does_not_wait_for_the_product_has_no_score(synchronised):
    _, work = work_of(BENCHMARK, "forward", **SIZES)
    device = Device(Clock(), launch_ms=0.0 if synchronised else 0.01)
    slow = device.slow(work, synchronised=synchronised)
    found = measure(slow, SingleProcess(), units="TF/s", batch=1, clock=device.clock)
    assert found.sound == synchronised
    if synchronised:
        assert found.score == pytest.approx(OPERATIONS / 1e-2 / 1e12)
    else:
        assert found.score is None and "NOT SYNCHRONISED" in found.reason


def test_waiting_reads_a_value_of_the_product():
    _, work = work_of(BENCHMARK, "forward", **SIZES)
    products, last = result = work.step()
    assert work.wait(result) == pytest.approx(sum(product.numpy()[-1, -1] for product in products), rel=1e-6)
    assert work.read(result) == pytest.approx([product.numpy().sum() for product in products], rel=1e-3)
    assert dataclasses.is_dataclass(work) and last.shape == ()
