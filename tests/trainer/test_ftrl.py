"""What FTRL refuses; its updates are compared with Keras's in test_optimizers.py."""

import keras
import pytest
import tensorflow as tf

from trainer.ftrl import Ftrl


def test_ftrl_refuses_initial_weights():
    for is_table in (False, True):
        with pytest.raises(ValueError, match=r"exact only for initial weights of zero; 'page.*' holds others"):
            Ftrl(0.1).create_slots(tf.Variable([[0.0], [1e-30]], name="page"), is_table=is_table)


@pytest.mark.parametrize(
    "rate", [lambda step: 0.1, keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5), tf.constant(0.1), "0.1", 0.0]
)
def test_ftrl_refuses_a_rate_that_is_not_constant(rate):
    with pytest.raises(ValueError, match="constant learning rate above 0, got"):
        Ftrl(rate)


@pytest.mark.parametrize("rate", [-0.1, float("nan"), float("inf")])
def test_ftrl_refuses_an_impossible_rate(rate):
    with pytest.raises(ValueError, match=f"constant learning rate above 0, got {rate}"):
        Ftrl(rate)


@pytest.mark.parametrize("bad", [{"l1": -0.1}, {"l2": -0.1}, {"initial_accumulator": 0.0}, {"l1": float("nan")}])
def test_ftrl_refuses_impossible_penalties(bad):
    with pytest.raises(ValueError, match="needs l1, l2 >= 0 and an initial accumulator > 0"):
        Ftrl(0.1, **bad)
