"""FTRL, the optimizer of the wide part, for dense variables and for the touched rows of large tables."""

import math

import numpy as np
import tensorflow as tf

from trainer.optimizers import RowOptimizer


class Ftrl(RowOptimizer):
    """FTRL-Proximal with learning rate power -0.5. McMahan et al. (2013), as in Keras.

    n' = n + g^2;  z += g - (sqrt(n') - sqrt(n)) / rate * w;  w = (clip(z, -l1, l1) - z) / (sqrt(n') / rate + 2 l2)

    A row without a gradient keeps n, z and w, so touching only rows with one is exact, provided that w already is
    what z says: initial weights of zero, and a rate that never changes. Anything else is refused.
    """

    slots_per_weight = 2
    slots_per_row = 0

    def __init__(self, learning_rate: float, *, initial_accumulator: float = 0.1, l1: float = 0.0, l2: float = 0.0):
        """
        Args:
          learning_rate: constant, above 0. `apply_*` checks nothing: the schedule must hand back this value.
          initial_accumulator: n at first.
          l1, l2: penalties, at least 0. There is no shrinkage: it makes a row without a gradient move.
        """
        super().__init__()
        if not isinstance(learning_rate, float) or not 0 < learning_rate < math.inf:
            raise ValueError(f"FTRL on rows needs a constant learning rate above 0, got {learning_rate!r}")
        if not (l1 >= 0 and l2 >= 0 and initial_accumulator > 0):
            raise ValueError(
                f"FTRL needs l1, l2 >= 0 and an initial accumulator > 0, got {l1}, {l2}, {initial_accumulator}"
            )
        self.learning_rate = learning_rate
        self.initial_accumulator = initial_accumulator
        self.l1 = l1
        self.l2 = l2

    def create_slots(self, variable: tf.Variable, *, is_table: bool) -> None:
        if np.any(variable.numpy()):
            raise ValueError(f"FTRL on rows is exact only for initial weights of zero; '{variable.name}' holds others")
        self._slots[id(variable)] = {
            "accumulator": tf.Variable(tf.fill(variable.shape, self.initial_accumulator), trainable=False),
            "linear": tf.Variable(tf.zeros(variable.shape), trainable=False),
        }

    def _arguments(self, variable: tf.Variable) -> dict[str, tf.Tensor]:
        slots = self._slots[id(variable)]
        return {
            "var": variable.handle,
            "accum": slots["accumulator"].handle,
            "linear": slots["linear"].handle,
            "lr": tf.constant(self.learning_rate),
            "l1": tf.constant(self.l1),
            "l2": tf.constant(self.l2),
            "lr_power": tf.constant(-0.5),
        }

    def apply_dense(self, variable, gradient, learning_rate, applied_steps):
        tf.raw_ops.ResourceApplyFtrl(grad=gradient, **self._arguments(variable))

    def apply_rows(self, variable, rows, gradients, learning_rate, applied_steps):
        tf.raw_ops.ResourceSparseApplyFtrl(grad=gradients, indices=rows, **self._arguments(variable))
