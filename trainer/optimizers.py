"""FTRL, RMSprop and SGD for dense variables and for the touched rows of large tables.

Keras's optimizers update every row of a table at every step, or, given sparse gradients, stop being the optimizer that
they are for dense ones. Here only touched rows are read and written, and the result still equals the dense update.
"""

import abc
import math
from collections.abc import Sequence

import numpy as np
import tensorflow as tf


class RowOptimizer(abc.ABC):
    """An optimizer of dense variables and of rows of tables.

    Slots are made once per variable by `create_slots`, before the first step, so that they can be broadcast and saved.
    """

    def __init__(self):
        self._slots: dict[int, dict[str, tf.Variable]] = {}

    def slots(self, variable: tf.Variable) -> dict[str, tf.Variable]:
        """The slots of a variable, by name."""
        return self._slots[id(variable)]

    @abc.abstractmethod
    def create_slots(self, variable: tf.Variable, *, is_table: bool) -> None:
        """Makes the slots of a variable."""

    @abc.abstractmethod
    def apply_dense(self, variable: tf.Variable, gradient: tf.Tensor, learning_rate: tf.Tensor) -> None:
        """Updates a whole variable."""

    @abc.abstractmethod
    def apply_rows(
        self,
        variable: tf.Variable,
        rows: tf.Tensor,
        gradients: tf.Tensor,
        learning_rate: tf.Tensor,
        applied_steps: tf.Tensor,
    ) -> None:
        """Updates distinct rows of a table.

        Args:
          variable: (table rows, dim) float32.
          rows: (n,) distinct rows.
          gradients: (n, dim) float32.
          learning_rate: scalar.
          applied_steps: scalar int32, updates applied so far, this one not counted.
        """

    def bring_up_to_date(self, variable: tf.Variable, applied_steps: int) -> None:
        """Applies to every row what a dense optimizer would have done by now to rows without a gradient."""
        del variable, applied_steps  # most optimizers do nothing to such rows


class SGD(RowOptimizer):
    """w -= rate * g."""

    def create_slots(self, variable: tf.Variable, *, is_table: bool) -> None:
        self._slots[id(variable)] = {}

    def apply_dense(self, variable, gradient, learning_rate):
        variable.assign_sub(learning_rate * gradient)

    def apply_rows(self, variable, rows, gradients, learning_rate, applied_steps):
        variable.scatter_sub(tf.IndexedSlices(learning_rate * gradients, rows))


class RMSprop(RowOptimizer):
    """v = rho v + (1 - rho) g^2;  w -= rate g / sqrt(v + epsilon). Tieleman and Hinton (2012), as in Keras.

    Without momentum and not centred, a row without a gradient only has its v decayed. That decay is made up for when
    the row is next touched, from the step at which it was last touched: v *= rho ^ (steps missed).
    """

    def __init__(self, rho: float = 0.5, epsilon: float = 1e-7):
        super().__init__()
        self.rho = rho
        self.epsilon = epsilon

    def create_slots(self, variable: tf.Variable, *, is_table: bool) -> None:
        slots = {"rms": tf.Variable(tf.zeros_like(variable), trainable=False)}
        if is_table:
            slots["last_step"] = tf.Variable(tf.zeros(variable.shape[:1], tf.int32), trainable=False)
        else:
            # TensorFlow's fused kernel wants it; with momentum 0 it holds the last increment and is not state.
            slots["increment"] = tf.Variable(tf.zeros_like(variable), trainable=False)
        self._slots[id(variable)] = slots

    def slots(self, variable: tf.Variable) -> dict[str, tf.Variable]:
        return {name: slot for name, slot in self._slots[id(variable)].items() if name != "increment"}

    def apply_dense(self, variable, gradient, learning_rate):
        slots = self._slots[id(variable)]
        # One pass over memory instead of one per arithmetic operation.
        tf.raw_ops.ResourceApplyRMSProp(
            var=variable.handle,
            ms=slots["rms"].handle,
            mom=slots["increment"].handle,
            lr=learning_rate,
            rho=tf.constant(self.rho),
            momentum=tf.constant(0.0),
            epsilon=tf.constant(self.epsilon),
            grad=gradient,
        )

    def apply_rows(self, variable, rows, gradients, learning_rate, applied_steps):
        slots = self._slots[id(variable)]
        rms, last_step = slots["rms"], slots["last_step"]
        missed = tf.cast(applied_steps - tf.gather(last_step, rows), tf.float32)
        decay = tf.pow(tf.constant(self.rho), missed + 1.0)[:, tf.newaxis]
        updated = decay * tf.gather(rms, rows) + (1.0 - self.rho) * tf.square(gradients)
        rms.scatter_update(tf.IndexedSlices(updated, rows))
        last_step.scatter_update(tf.IndexedSlices(tf.fill(tf.shape(rows), applied_steps + 1), rows))
        variable.scatter_sub(tf.IndexedSlices(learning_rate * gradients * tf.math.rsqrt(updated + self.epsilon), rows))

    def bring_up_to_date(self, variable: tf.Variable, applied_steps: int) -> None:
        slots = self._slots[id(variable)]
        rms, last_step = slots["rms"], slots["last_step"]
        block = max(1, (16 << 20) // (4 * variable.shape[1]))
        for start in range(0, variable.shape[0], block):
            part = slice(start, start + block)
            missed = tf.cast(applied_steps - last_step[part], tf.float32)
            rms[part].assign(rms[part] * tf.pow(tf.constant(self.rho), missed)[:, tf.newaxis])
            last_step[part].assign(tf.fill(missed.shape, tf.constant(applied_steps, tf.int32)))


class Ftrl(RowOptimizer):
    """FTRL-Proximal with learning rate power -0.5. McMahan et al. (2013), as in Keras.

    n' = n + g^2;  z += g - (sqrt(n') - sqrt(n)) / rate * w;  w = (clip(z, -l1, l1) - z) / (sqrt(n') / rate + 2 l2)

    A row without a gradient keeps n, z and w, so touching only rows with one is exact, provided that w already is
    what z says: initial weights of zero, and a rate that never changes. Anything else is refused.
    """

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
            "linear": tf.Variable(tf.zeros_like(variable), trainable=False),
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

    def apply_dense(self, variable, gradient, learning_rate):
        tf.raw_ops.ResourceApplyFtrl(grad=gradient, **self._arguments(variable))

    def apply_rows(self, variable, rows, gradients, learning_rate, applied_steps):
        tf.raw_ops.ResourceSparseApplyFtrl(grad=gradients, indices=rows, **self._arguments(variable))


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


def all_finite(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Scalar bool: whether every element of every tensor is finite."""
    # A sum is finite only if its terms are, save for overflow of the sum itself, which a skipped step answers as well;
    # and it reads each tensor once without writing a mask.
    return tf.reduce_all([tf.math.is_finite(tf.reduce_sum(tensor)) for tensor in tensors])
