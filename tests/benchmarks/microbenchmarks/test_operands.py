import numpy as np
import pytest
import tensorflow as tf

from benchmarks.microbenchmarks import operands


@pytest.mark.parametrize(
    ("precision", "dtype", "rounded"),
    [
        ("fp32", tf.float32, 1 + 2**-12),
        ("tf32", tf.float32, 1 + 2**-12),
        ("bf16", tf.bfloat16, 1),
        ("fp16", tf.float16, 1),
    ],
)
def test_operands_have_the_same_value_for_numpy(precision, dtype, rounded):
    found = operands.tensor(np.array([1 + 2**-12], np.float32), precision)
    assert found.dtype == dtype
    assert operands.float64(found).tolist() == [rounded] and operands.float64(found).dtype == np.float64


def test_normal_values_are_drawn_by_the_generator():
    first, second = (operands.normal(np.random.default_rng(1), (300, 40), "fp32", 0.1) for _ in range(2))
    assert np.array_equal(first, second)
    assert first.numpy().std() == pytest.approx(0.1, rel=0.05) and abs(first.numpy().mean()) < 0.01


def test_values_to_wait_for_and_to_read():
    matrix = tf.constant([[1.0, 2.0], [3.0, 4.5]], tf.bfloat16)
    assert float(operands.last_value(matrix)) == 4.5 and operands.last_value(matrix).dtype == tf.float32
    assert operands.read_sums([matrix, tf.ones(3)]) == [10.5, 3.0]
