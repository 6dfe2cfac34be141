import numpy as np
import pytest
import tensorflow as tf

from trainer.schedules import default_decay_step, warmup_then_polynomial_decay, warmup_then_steps_down


@pytest.mark.parametrize(
    ("step", "rate"),
    # base 0.8, 4 steps of warm-up, decay at step 10
    [(0, 0.0), (1, 0.2), (2, 0.4), (3, 0.6), (4, 0.2), (5, 0.2), (9, 0.2), (10, 0.1), (11, 0.1), (10**6, 0.1)],
)
def test_learning_rate_by_hand(step, rate):
    found = warmup_then_steps_down(0.8, warmup_steps=4, decay_step=10, step=tf.constant(step))
    assert found.dtype == tf.float32 and found.shape == ()
    np.testing.assert_allclose(found, rate, rtol=1e-6)


def test_learning_rate_without_a_warm_up_and_with_a_decay_within_it():
    def rates(**options):
        return [float(warmup_then_steps_down(0.8, step=tf.constant(step), **options)) for step in range(5)]

    np.testing.assert_allclose(rates(warmup_steps=0, decay_step=2), [0.2, 0.2, 0.1, 0.1, 0.1], rtol=1e-6)
    np.testing.assert_allclose(rates(warmup_steps=0, decay_step=0), [0.1] * 5, rtol=1e-6)
    np.testing.assert_allclose(rates(warmup_steps=4, decay_step=1), [0, 0.2, 0.4, 0.6, 0.1], rtol=1e-6)


@pytest.mark.parametrize(
    ("warmup", "total", "decay"),
    # 6 and 20 epochs of 100 steps: half of the remaining 14 epochs is done after 13
    [(600, 2000, 1300), (0, 10, 5), (0, 11, 5), (3, 10, 6), (10, 10, 10), (20, 10, 20)],
)
def test_default_decay_step(warmup, total, decay):
    assert default_decay_step(warmup, total) == decay


@pytest.mark.parametrize(
    ("step", "rate"),
    # base 24, 4 steps of warm-up, decay from step 10 over 4 steps: (3/4)^2, (2/4)^2, (1/4)^2 of the base
    [(0, 0), (1, 6), (3, 18), (4, 24), (9, 24), (10, 24), (11, 13.5), (12, 6), (13, 1.5), (14, 0), (15, 0), (10**6, 0)],
)
def test_polynomial_decay_by_hand(step, rate):
    found = warmup_then_polynomial_decay(
        24.0, warmup_steps=4, decay_start_step=10, decay_steps=4, step=tf.constant(step)
    )
    assert found.dtype == tf.float32 and found.shape == ()
    np.testing.assert_allclose(found, rate, rtol=1e-6)


@pytest.mark.parametrize(
    ("options", "rates"),
    [
        ({"warmup_steps": 0, "decay_start_step": 2, "decay_steps": 2}, [8, 8, 8, 2, 0, 0]),
        ({"warmup_steps": 0, "decay_start_step": 0, "decay_steps": 4}, [8, 4.5, 2, 0.5, 0, 0]),
        ({"warmup_steps": 2, "decay_start_step": 2, "decay_steps": 1}, [0, 4, 8, 0, 0, 0]),
        ({"warmup_steps": 2, "decay_start_step": 0, "decay_steps": 4}, [0, 4, 2, 0.5, 0, 0]),
        # no decay, wherever it would begin
        ({"warmup_steps": 2, "decay_start_step": 3, "decay_steps": 0}, [0, 4, 8, 8, 8, 8]),
        ({"warmup_steps": 0, "decay_start_step": 0, "decay_steps": 0}, [8] * 6),
    ],
)
def test_polynomial_decay_at_its_corners(options, rates):
    found = [float(warmup_then_polynomial_decay(8.0, step=tf.constant(step), **options)) for step in range(6)]
    np.testing.assert_allclose(found, rates, rtol=1e-6)


def test_polynomial_decay_of_dlrm_in_a_graph():
    rate = tf.function(
        lambda step: warmup_then_polynomial_decay(
            24.0, warmup_steps=8000, decay_start_step=48000, decay_steps=24000, step=step
        )
    )
    wanted = {0: 0, 1: 0.003, 7999: 23.997, 8000: 24, 48000: 24, 60000: 6, 71999: 24 / 24000**2, 72000: 0}
    for step, value in wanted.items():
        np.testing.assert_allclose(rate(tf.constant(step)), value, rtol=1e-6)
