"""Optimizers of dense variables and of the touched rows of large tables.

Keras's optimizers update every row of a table at every step, or, given sparse gradients, stop being the optimizer that
they are for dense ones. Here only touched rows are read and written, and the result still equals the dense update: of
all but Adam, which is lazy.
"""

import abc
import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import tensorflow as tf

from models import custom_ops
from models.embedding import FusedTable


class RowOptimizer(abc.ABC):
    """An optimizer of dense variables and of rows of tables.

    Slots are made once per variable by `create_slots`, before the first step, so that they can be broadcast and saved.

    Attributes:
      slots_per_weight: 4-byte slot values for each weight of a table.
      slots_per_row: 4-byte slot values for each row of a table, however many columns it has.
      lazy: whether a table's weights without a gradient miss what a dense update would have done to them.
      couples_columns: whether the update of a row needs all of its columns at once.
      is_plain: whether a dense update is w -= rate * g and nothing else.
    """

    slots_per_weight: ClassVar[int]
    slots_per_row: ClassVar[int]
    lazy: ClassVar[bool] = False
    couples_columns: ClassVar[bool] = False
    is_plain: ClassVar[bool] = False

    def __init__(self):
        self._slots: dict[int, dict[str, tf.Variable]] = {}

    def slots(self, variable: tf.Variable) -> dict[str, tf.Variable]:
        """The slots of a variable, by name."""
        return self._slots[id(variable)]

    @abc.abstractmethod
    def create_slots(self, variable: tf.Variable, *, is_table: bool) -> None:
        """Makes the slots of a variable."""

    @abc.abstractmethod
    def apply_dense(
        self, variable: tf.Variable, gradient: tf.Tensor, learning_rate: tf.Tensor, applied_steps: tf.Tensor
    ) -> None:
        """Updates a whole variable.

        Args:
          variable: float32 of any shape.
          gradient: the same shape.
          learning_rate: scalar.
          applied_steps: scalar int32, updates applied so far, this one not counted.
        """

    def apply_all_dense(
        self, pairs: Sequence[tuple[tf.Variable, tf.Tensor]], learning_rate: tf.Tensor, applied_steps: tf.Tensor
    ) -> None:
        """`apply_dense` of each variable and its gradient."""
        for variable, gradient in pairs:
            self.apply_dense(variable, gradient, learning_rate, applied_steps)

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

    def applies_pools(self, table: FusedTable) -> bool:
        """Whether `apply_pools` can stand for `apply_rows`."""
        return False

    def apply_pools(self, table: FusedTable, ids: tf.Tensor, upstream: tf.Tensor, learning_rate: tf.Tensor) -> None:
        """Updates the rows that were looked up, without their gradients having been summed before.

        Args:
          table: one for which `applies_pools`.
          ids: (rows, total hotness) packed ids of the global batch.
          upstream: gradient with respect to `table(ids)`.
          learning_rate: scalar.
        """
        raise NotImplementedError(f"{type(self).__name__} needs the gradients of rows")

    def bring_up_to_date(self, variable: tf.Variable, applied_steps: int) -> None:
        """Applies to every row what a dense optimizer would have done by now to rows without a gradient."""
        del variable, applied_steps  # most optimizers do nothing to such rows


class SGD(RowOptimizer):
    """w -= rate * g."""

    slots_per_weight = 0
    slots_per_row = 0
    is_plain = True

    def create_slots(self, variable: tf.Variable, *, is_table: bool) -> None:
        self._slots[id(variable)] = {}

    def apply_dense(self, variable, gradient, learning_rate, applied_steps):
        variable.assign_sub(learning_rate * gradient)

    def apply_all_dense(self, pairs, learning_rate, applied_steps):
        ops = custom_ops.embedding_ops()
        if ops is None or not pairs:
            super().apply_all_dense(pairs, learning_rate, applied_steps)
        else:
            variables, gradients = zip(*pairs, strict=True)
            ops.recsys_subtract_dense(
                variables=[variable.handle for variable in variables], values=gradients, scale=learning_rate
            )

    def apply_rows(self, variable, rows, gradients, learning_rate, applied_steps):
        ops = custom_ops.embedding_ops()
        if ops is None:
            variable.scatter_sub(tf.IndexedSlices(learning_rate * gradients, rows))
        else:
            ops.recsys_subtract_rows(table=variable.handle, rows=rows, values=gradients, scale=learning_rate)

    def applies_pools(self, table):
        return table.subtracts_pools

    def apply_pools(self, table, ids, upstream, learning_rate):
        table.subtract_pools(ids, upstream, learning_rate)


class Adagrad(RowOptimizer):
    """n += g^2;  w -= rate g / sqrt(n + epsilon). Duchi et al. (2011), as in Keras.

    The slot holds n + epsilon: epsilon stands in it from the start, as TensorFlow's fused kernels add none under the
    root. A row without a gradient keeps n and w, so touching only rows with one is exact.
    """

    slots_per_weight = 1
    slots_per_row = 0

    def __init__(self, initial_accumulator: float = 0.1, epsilon: float = 1e-7):
        """
        Args:
          initial_accumulator: n at first, at least 0.
          epsilon: at least 0; above 0 where n begins at 0.
        """
        super().__init__()
        start = initial_accumulator + epsilon
        if not (initial_accumulator >= 0 and epsilon >= 0 and 0 < start < math.inf):
            raise ValueError(
                "Adagrad needs an initial accumulator and an epsilon of at least 0 and not both 0, got "
                f"{initial_accumulator} and {epsilon}"
            )
        self.initial_accumulator = initial_accumulator
        self.epsilon = epsilon
        self._start = start

    def create_slots(self, variable: tf.Variable, *, is_table: bool) -> None:
        self._slots[id(variable)] = {"accumulator": tf.Variable(tf.fill(variable.shape, self._start), trainable=False)}

    def apply_dense(self, variable, gradient, learning_rate, applied_steps):
        tf.raw_ops.ResourceApplyAdagrad(
            var=variable.handle,
            accum=self._slots[id(variable)]["accumulator"].handle,
            lr=learning_rate,
            grad=gradient,
        )

    def apply_rows(self, variable, rows, gradients, learning_rate, applied_steps):
        # Not TensorFlow's kernel for rows: it is slower than these operations.
        accumulator = self._slots[id(variable)]["accumulator"]
        updated = tf.gather(accumulator, rows) + tf.square(gradients)
        accumulator.scatter_update(tf.IndexedSlices(updated, rows))
        variable.scatter_sub(tf.IndexedSlices(learning_rate * gradients * tf.math.rsqrt(updated), rows))


class RowwiseAdagrad(Adagrad):
    """Adagrad with one accumulator for each row of a table: n += mean over the row of g^2.

    As FBGEMM's, which trains DLRM, but with epsilon under the root. Dense variables get plain Adagrad. Cut by columns,
    a row would have several accumulators, which is another optimizer.
    """

    slots_per_weight = 0
    slots_per_row = 1
    couples_columns = True

    def create_slots(self, variable: tf.Variable, *, is_table: bool) -> None:
        if not is_table:
            super().create_slots(variable, is_table=False)
            return
        start = tf.fill(variable.shape[:1], self._start)
        self._slots[id(variable)] = {"accumulator": tf.Variable(start, trainable=False)}

    def apply_rows(self, variable, rows, gradients, learning_rate, applied_steps):
        accumulator = self._slots[id(variable)]["accumulator"]
        updated = tf.gather(accumulator, rows) + tf.reduce_mean(tf.square(gradients), axis=1)
        accumulator.scatter_update(tf.IndexedSlices(updated, rows))
        scale = learning_rate * tf.math.rsqrt(updated)
        variable.scatter_sub(tf.IndexedSlices(scale[:, tf.newaxis] * gradients, rows))


class Adam(RowOptimizer):
    """Adam with bias correction. Kingma and Ba (2015), as in Keras for dense variables; lazy on tables.

    m += (1 - beta_1) (g - m);  v += (1 - beta_2) (g^2 - v);  with t the updates including this one,
    w -= rate sqrt(1 - beta_2^t) / (1 - beta_1^t) m / (sqrt(v) + epsilon)

    Dense Adam moves every weight at every step, for m outlives the gradient. In a table, a weight whose gradient is
    zero keeps m, v and w instead, and t counts the updates of the model and not those of the weight. That is another
    optimizer than dense Adam wherever rows are missing from a batch. A zero counts as missing whether or not its row
    was looked up: otherwise the result would depend on how gradients are summed over ranks and on how tables are cut.
    """

    slots_per_weight = 2
    slots_per_row = 0
    lazy = True

    def __init__(self, beta_1: float = 0.9, beta_2: float = 0.999, epsilon: float = 1e-7):
        """
        Args:
          beta_1, beta_2: decay of m and of v, above 0 and below 1.
          epsilon: above 0.
        """
        super().__init__()
        if not (0 < beta_1 < 1 and 0 < beta_2 < 1 and 0 < epsilon < math.inf):
            raise ValueError(f"Adam needs 0 < beta_1, beta_2 < 1 and epsilon > 0, got {beta_1}, {beta_2}, {epsilon}")
        # 1 - beta_2 is off by 1e-5 in float32: the bias correction must be that of the value which decays v.
        self.beta_1 = np.float32(beta_1)
        self.beta_2 = np.float32(beta_2)
        self.epsilon = epsilon

    def create_slots(self, variable: tf.Variable, *, is_table: bool) -> None:
        self._slots[id(variable)] = {
            name: tf.Variable(tf.zeros(variable.shape), trainable=False) for name in ("m", "v")
        }

    def _corrected_rate(self, learning_rate: tf.Tensor, applied_steps: tf.Tensor) -> tf.Tensor:
        """rate sqrt(1 - beta_2^t) / (1 - beta_1^t), without cancellation at small t."""
        t = tf.cast(applied_steps + 1, tf.float32)
        rest_1, rest_2 = (-tf.math.expm1(t * math.log(beta)) for beta in (self.beta_1, self.beta_2))
        return learning_rate * tf.sqrt(rest_2) / rest_1

    def apply_dense(self, variable, gradient, learning_rate, applied_steps):
        slots = self._slots[id(variable)]
        # With powers of zero the kernel corrects nothing.
        tf.raw_ops.ResourceApplyAdam(
            var=variable.handle,
            m=slots["m"].handle,
            v=slots["v"].handle,
            beta1_power=tf.constant(0.0),
            beta2_power=tf.constant(0.0),
            lr=self._corrected_rate(learning_rate, applied_steps),
            beta1=tf.constant(self.beta_1),
            beta2=tf.constant(self.beta_2),
            epsilon=tf.constant(self.epsilon),
            grad=gradient,
        )

    def apply_rows(self, variable, rows, gradients, learning_rate, applied_steps):
        slots = self._slots[id(variable)]
        touched = gradients != 0.0  # NaN too
        moments = []
        for name, beta, sample in (("m", self.beta_1, gradients), ("v", self.beta_2, tf.square(gradients))):
            old = tf.gather(slots[name], rows)
            moments.append(tf.where(touched, old + (np.float32(1) - beta) * (sample - old), old))
            slots[name].scatter_update(tf.IndexedSlices(moments[-1], rows))
        m, v = moments
        step = self._corrected_rate(learning_rate, applied_steps) * m / (tf.sqrt(v) + self.epsilon)
        variable.scatter_sub(tf.IndexedSlices(tf.where(touched, step, 0.0), rows))


class RMSprop(RowOptimizer):
    """v = rho v + (1 - rho) g^2;  w -= rate g / sqrt(v + epsilon). Tieleman and Hinton (2012), as in Keras.

    Without momentum and not centred, a row without a gradient only has its v decayed. That decay is made up for when
    the row is next touched, from the step at which it was last touched: v *= rho ^ (steps missed).
    """

    slots_per_weight = 1
    slots_per_row = 1

    def __init__(self, rho: float = 0.5, epsilon: float = 1e-7):
        super().__init__()
        self.rho = rho
        self.epsilon = epsilon

    def create_slots(self, variable: tf.Variable, *, is_table: bool) -> None:
        slots = {"rms": tf.Variable(tf.zeros(variable.shape), trainable=False)}
        if is_table:
            slots["last_step"] = tf.Variable(tf.zeros(variable.shape[:1], tf.int32), trainable=False)
        else:
            # TensorFlow's fused kernel wants it; with momentum 0 it holds the last increment and is not state.
            slots["increment"] = tf.Variable(tf.zeros(variable.shape), trainable=False)
        self._slots[id(variable)] = slots

    def slots(self, variable: tf.Variable) -> dict[str, tf.Variable]:
        return {name: slot for name, slot in self._slots[id(variable)].items() if name != "increment"}

    def apply_dense(self, variable, gradient, learning_rate, applied_steps):
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
            # Gathered and scattered: a slice of a variable that was updated by rows copies all of it first.
            rows = tf.range(start, min(start + block, variable.shape[0]))
            missed = tf.cast(applied_steps - tf.gather(last_step, rows), tf.float32)
            decayed = tf.gather(rms, rows) * tf.pow(tf.constant(self.rho), missed)[:, tf.newaxis]
            rms.scatter_update(tf.IndexedSlices(decayed, rows))
            last_step.scatter_update(tf.IndexedSlices(tf.fill(rows.shape, tf.constant(applied_steps, tf.int32)), rows))


def all_finite(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Scalar bool: whether every element of every tensor is finite."""
    # A sum is finite only if its terms are, save for overflow of the sum itself, which a skipped step answers as well;
    # and it reads each tensor once without writing a mask.
    return tf.reduce_all([tf.math.is_finite(tf.reduce_sum(tensor)) for tensor in tensors])
