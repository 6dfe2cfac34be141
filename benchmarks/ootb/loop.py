"""The steps of several ranks: a plain loop with Horovod, because under Horovod's Keras integration ranks drift apart.

Every gradient is summed over ranks as a whole, those of tables too, and Keras's optimizer applies the sums on each
rank. trainer.benchmark has the loop itself.
"""

from collections.abc import Callable, Mapping

import keras
import numpy as np
import tensorflow as tf

from benchmarks.ootb.inputs import model_inputs
from data.feature_spec import FeatureSpec
from trainer.distributed import SingleProcess


def make_train_step(
    model: keras.Model,
    optimizer: keras.optimizers.Optimizer,
    comm: SingleProcess,
    *,
    spec: FeatureSpec,
    global_batch_size: int,
    xla: bool = False,
) -> Callable:
    """Makes `train_step(batch, signals, step) -> figures`, to be called as that of trainer.steps.make_train_step.

    Args:
      model: with its variables.
      optimizer: with its slots.
      comm: the ranks.
      spec: the features.
      global_batch_size: rows over all ranks.
      xla: compile forward and backward.
    """
    variables = [variable.value for variable in model.trainable_variables]  # Horovod and the tape need tf.Variable

    @tf.function(jit_compile=xla, autograph=False)
    def forward_and_backward(inputs, labels):
        with tf.GradientTape() as tape:
            logits = model(inputs, training=True)[:, 0]
            losses = tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=tf.cast(logits, tf.float32))
            loss = tf.reduce_sum(losses) / global_batch_size
            scaled = optimizer.scale_loss(loss)
        return loss, [_whole(gradient) for gradient in tape.gradient(scaled, variables)]

    @tf.function(reduce_retracing=True, autograph=False)
    def train_step(batch, signals, step):
        del step
        with comm.counting() as wire:
            loss, gradients = forward_and_backward(model_inputs(spec, batch), batch["labels"])
            gradients = comm.allreduce(gradients, name="gradients")
            (extras,) = comm.allreduce([tf.concat([[loss], signals], axis=0)], name="extras")
            sent = {"wire_bytes": wire.total(), "alltoall_bytes": wire.total("alltoall")}
        optimizer.apply(gradients, model.trainable_variables)
        return {"loss": extras[0], "signals": extras[1:], **sent}

    return train_step


def make_eval_step(model: keras.Model, *, spec: FeatureSpec, xla: bool = False) -> Callable:
    """Makes `eval_step(batch) -> logits` (rows,)."""

    @tf.function(jit_compile=xla, reduce_retracing=True, autograph=False)
    def eval_step(batch):
        return model(model_inputs(spec, batch), training=False)[:, 0]

    return eval_step


class RowCount:
    """Stands where our own evaluation has its metrics, and computes none: it waits for the logits and counts rows."""

    def update(self, batch: Mapping[str, tf.Tensor], logits: tf.Tensor) -> int:
        """Rows of a batch that are not padding."""
        logits.numpy()
        return int(np.count_nonzero(batch["mask"].numpy()))

    def compute(self, comm: SingleProcess) -> None:
        """No figures."""


def _whole(gradient: tf.Tensor | tf.IndexedSlices) -> tf.Tensor:
    """A gradient of the shape of its variable."""
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    # As tf.convert_to_tensor, which warns that a large table takes memory.
    rows = gradient.dense_shape[0]
    return tf.math.unsorted_segment_sum(gradient.values, gradient.indices, rows)
