"""Learning rates as functions of the updates applied so far."""

import tensorflow as tf


def warmup_then_steps_down(base: float, *, warmup_steps: int, decay_step: int, step: tf.Tensor) -> tf.Tensor:
    """The deep part's learning rate at a step: linear from 0 to base, then base / 4, then base / 8.

    Args:
      base: the rate reached at the end of the warm-up.
      warmup_steps: length of the warm-up; 0 begins at base / 4.
      decay_step: the first step at base / 8.
      step: scalar integer, updates applied so far.
    """
    step = tf.cast(step, tf.float32)
    ramp = base * step / max(warmup_steps, 1)
    flat = tf.where(step < float(decay_step), base / 4.0, base / 8.0)
    return tf.where(step < float(warmup_steps), ramp, flat)


def default_decay_step(warmup_steps: int, num_train_steps: int) -> int:
    """Half of the steps that remain after the warm-up."""
    return warmup_steps + max(0, num_train_steps - warmup_steps) // 2


def warmup_then_polynomial_decay(
    base: float, *, warmup_steps: int, decay_start_step: int, decay_steps: int, step: tf.Tensor
) -> tf.Tensor:
    """DLRM's learning rate at a step: linear from 0 to base, constant, then quadratic from base down to 0, then 0.

    While it decays it is base ((decay_start_step + decay_steps - step) / decay_steps)^2, as in NVIDIA's DLRM.

    Args:
      base: the rate reached at the end of the warm-up.
      warmup_steps: length of the warm-up, which goes before a decay that begins within it; 0 begins at base.
      decay_start_step: the last step at base.
      decay_steps: length of the decay; 0 stays at base for ever.
      step: scalar integer, updates applied so far.
    """
    step = tf.cast(step, tf.float32)
    rate = tf.constant(base, tf.float32)
    if decay_steps:
        left = (float(decay_start_step + decay_steps) - step) / float(decay_steps)
        rate *= tf.square(tf.clip_by_value(left, 0.0, 1.0))
    ramp = base * step / max(warmup_steps, 1)
    return tf.where(step < float(warmup_steps), ramp, rate)
