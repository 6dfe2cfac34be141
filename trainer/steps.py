"""The training step and the evaluation step: what training, evaluation and benchmarks all run.

A step has three parts: gathers from the tables, the dense part with its gradients, and the update of touched rows.
Only the dense part is compiled by XLA: compiled, a scatter into a table would write the whole table, and shapes that
depend on how many distinct ids a batch holds would compile anew each step. Collectives stay outside for the same
reason, and because Horovod's cannot be compiled.
"""

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tensorflow as tf

from models import custom_ops
from models.backward_training import BackwardTrainer
from models.click_model import ClickModel
from trainer.direct_calls import DirectCalls
from trainer.optimizers import all_finite
from trainer.reduction import Reduction
from trainer.state import LOSS_SCALE_GROWTH_STEPS, TrainState

Batch = Mapping[str, tf.Tensor]
Schedule = Callable[[tf.Tensor], tf.Tensor]

# Positions in the vector of signals that ranks add up in every step.
STOP, FAILED = 0, 1


@functools.cache
def signals_of(*, stop: bool = False, failed: bool = False) -> tf.Tensor:
    """A rank's vector of signals, made once: making a tensor takes a tenth of a millisecond."""
    values = np.zeros(2, np.float32)
    values[STOP], values[FAILED] = stop, failed
    return tf.constant(values)


def make_train_step(
    state: TrainState,
    *,
    reduction: Reduction,
    schedules: Mapping[str, Schedule],
    global_batch_size: int,
    seed: int,
    xla: bool = False,
) -> Callable[[Batch, tf.Tensor, tf.Tensor], dict[str, tf.Tensor]]:
    """Makes `train_step(batch, signals, step) -> figures`; its attributes are the functions `traced` and `dense_part`.

    The batch has this rank's rows of a global batch: `ids` (rows, hotness), `numerical` (rows, n), `labels` (rows,).
    The loss is the sum of the rows' cross-entropies over `global_batch_size`, so ranks whose local batches differ by a
    row still add up to the mean over the global batch.

    `signals` is a float32 vector that is summed over ranks: by it all ranks learn in the same step that one of them
    was asked to stop or cannot go on. `step` is the scalar int32 number of the step, skipped ones counted; it decides
    the dropout masks.

    Figures, all scalars but the last: `loss` (mean over the global batch, all ranks), `skipped` (float32, 1 where a
    gradient was not finite on some rank and no rank changed a weight), `wire_bytes` and `alltoall_bytes` (int64, handed
    by this rank to all collectives, and to alltoall alone), `signals` (summed).

    Args:
      state: what the step changes.
      reduction: how gradients are summed over ranks.
      schedules: optimizer group -> learning rate as a function of the updates applied so far.
      global_batch_size: rows over all ranks.
      seed: of the dropout masks; ranks must pass different ones.
      xla: compile the dense part.
    """
    model = state.model
    dense_variables = [variable for _, variable in state.dense()]

    @tf.function(jit_compile=xla, autograph=False)
    def dense_part(embedded, numerical, labels, dropout_seed, loss_scale, backward_rate=None):
        trainer = BackwardTrainer([] if backward_rate is None else dense_variables, backward_rate)
        with trainer.entered():
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(dense_variables)
                tape.watch(embedded)
                with custom_ops.only_tensorflow() if xla else contextlib.nullcontext():
                    logits = model.dense_logits(embedded, numerical, seed=dropout_seed, training=True)
                loss = tf.reduce_sum(cross_entropies(labels, logits)) / global_batch_size
                scaled = loss * loss_scale
            gradients = tape.gradient(scaled, dense_variables + embedded)
        gradients, upstream = gradients[: len(dense_variables)], gradients[len(dense_variables) :]
        for variable, gradient in zip(dense_variables, gradients, strict=True):
            if (gradient is None) != trainer.trains(variable):
                raise RuntimeError(f"{variable.name} has no gradient, or one that has been applied")
        return loss, gradients, upstream

    tables = [*model.embeddings.replicated, *model.embeddings.sharded]
    num_replicated = len(model.embeddings.replicated)

    straight = updates_from_pools(state, reduction)
    in_backward = trains_in_backward(state, reduction)

    def apply(dense_gradients, table_gradients, rates):
        apply_dense(state, dense_gradients, rates)
        for table, found in zip(tables, table_gradients, strict=True):
            optimizer, rate = state.optimizers[table.group], rates[table.group]
            if straight:
                optimizer.apply_pools(table, *found, rate)
            else:
                optimizer.apply_rows(table.variable, found.indices, found.values, rate, state.applied_steps)
        state.applied_steps.assign_add(1)
        return tf.ones(())

    # float16 overflows, in the model or on the wire. Elsewhere what is not finite shows in the loss.
    may_overflow = _may_overflow(state, reduction)
    tells_overflow = may_overflow and model.embeddings.is_sharded

    @tf.function(reduce_retracing=True, autograph=False)
    def traced(ids, numerical, labels, signals, step):
        with reduction.comm.counting() as wire:
            lookup = model.embeddings.lookup(ids)
            loss_scale = state.loss_scale.read_value()
            rates = {
                group: tf.convert_to_tensor(schedule(state.applied_steps)) for group, schedule in schedules.items()
            }
            loss, dense_gradients, upstream = dense_part(
                lookup.embedded,
                numerical,
                labels,
                tf.stack([tf.constant(seed), step]),
                loss_scale,
                rates[in_backward] if in_backward else None,
            )
            slices = [] if straight else model.embeddings.row_gradients(lookup, upstream)
            slices, own = slices[:num_replicated], slices[num_replicated:]
            extras = tf.concat([[loss], signals], axis=0)
            if tells_overflow:
                # Gradients of a rank's own tables are seen by nobody else.
                overflow = 1.0 - tf.cast(all_finite([s.values for s in own]), tf.float32) if own else 0.0
                extras = tf.concat([extras, [overflow]], axis=0)
            dense_gradients, slices, extras = reduction(dense_gradients, slices, extras)
            sent = {"wire_bytes": wire.total(), "alltoall_bytes": wire.total("alltoall")}
        slices = list(zip(lookup.ids, upstream, strict=True)) if straight else slices + own
        if state.dynamic_loss_scale:
            dense_gradients = [gradient / loss_scale for gradient in dense_gradients]
            slices = [tf.IndexedSlices(s.values / loss_scale, s.indices, s.dense_shape) for s in slices]
        if may_overflow:
            # The sums are the same on every rank, and so is the verdict.
            summed = [*dense_gradients, *(s.values for s in slices[:num_replicated])]
            finite = all_finite(summed)
            if tells_overflow:
                finite &= extras[-1] == 0.0
            applied = tf.cond(finite, lambda: apply(dense_gradients, slices, rates), lambda: tf.zeros(()))
            if state.dynamic_loss_scale:
                _update_loss_scale(state, finite)
        else:
            applied = apply(dense_gradients, slices, rates)
        return {"loss": extras[0], "signals": extras[1 : 1 + signals.shape[0]], "skipped": 1.0 - applied, **sent}

    calls = DirectCalls(traced)

    def train_step(batch: Batch, signals: tf.Tensor, step: tf.Tensor) -> dict[str, tf.Tensor]:
        return calls(batch["ids"], batch["numerical"], batch["labels"], signals, step)

    train_step.traced = traced
    train_step.dense_part = dense_part  # so that a record can say what of it was compiled
    return train_step


def cross_entropies(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """The cross-entropy of each row, (rows,): -log sigmoid(logit) for a click, -log(1 - sigmoid(logit)) for none.

    Both are the softplus of the logit, with the sign that counts against the label. TensorFlow's function is for labels
    between 0 and 1 as well and has ten operations more, forward and backward, one after the other while nothing else
    is to be done: a tenth of a millisecond.

    Args:
      labels: (rows,) float32, 0 or 1.
      logits: (rows,) float32.
    """
    return tf.nn.softplus((1.0 - 2.0 * labels) * logits)


def apply_dense(state: TrainState, gradients: Sequence[tf.Tensor], rates: Mapping[str, tf.Tensor]) -> None:
    """Updates the dense variables with the rate of each optimizer group.

    Args:
      state: has the variables and their optimizers.
      gradients: in the order of `state.dense()`; None where the variable was trained in the backward pass.
      rates: by optimizer group.
    """
    for group, optimizer in state.optimizers.items():
        pairs = [
            (variable, gradient)
            for (its_group, variable), gradient in zip(state.dense(), gradients, strict=True)
            if its_group == group and gradient is not None
        ]
        optimizer.apply_all_dense(pairs, rates[group], state.applied_steps)


def updates_from_pools(state: TrainState, reduction: Reduction) -> bool:
    """Whether a step updates tables without summing the gradients of their rows.

    With one process nobody needs these sums but optimizers, and not all of those.
    """
    embeddings = state.model.embeddings
    return (
        reduction.comm.size == 1
        and not embeddings.is_sharded
        and not _may_overflow(state, reduction)
        and all(state.optimizers[table.group].applies_pools(table) for table in embeddings.replicated)
    )


def trains_in_backward(state: TrainState, reduction: Reduction) -> str | None:
    """The optimizer group whose layers may be trained by the operations that work out their gradients, if there is one.

    With one process, gradients that are always applied and plain SGD, nobody else needs those gradients.
    """
    groups = {group for group, _ in state.dense()}
    if reduction.comm.size > 1 or _may_overflow(state, reduction) or len(groups) != 1:
        return None
    (group,) = groups
    return group if state.optimizers[group].is_plain else None


def _may_overflow(state: TrainState, reduction: Reduction) -> bool:
    return state.dynamic_loss_scale or reduction.half


def _update_loss_scale(state: TrainState, finite: tf.Tensor) -> None:
    """Halves the scale after a step that overflowed, doubles it after many that did not."""
    good = tf.where(finite, state.good_steps + 1, 0)
    grow = good >= LOSS_SCALE_GROWTH_STEPS
    scale = tf.where(finite, tf.where(grow, state.loss_scale * 2.0, state.loss_scale), state.loss_scale / 2.0)
    state.loss_scale.assign(tf.clip_by_value(scale, 1.0, 2.0**40))
    state.good_steps.assign(tf.where(grow, 0, good))


def make_eval_step(model: ClickModel, *, xla: bool = False) -> Callable[[Batch], tf.Tensor]:
    """Makes `eval_step(batch) -> logits`: (rows,) float32, of every row of the local batch, padding included.

    Like a training step it has its `dense_part` as an attribute. `xla` compiles that.
    """
    no_seed = tf.zeros((2,), tf.int32)

    @tf.function(jit_compile=xla, autograph=False)
    def dense_part(embedded, numerical):
        with custom_ops.only_tensorflow() if xla else contextlib.nullcontext():
            return model.dense_logits(embedded, numerical, seed=no_seed, training=False)

    @tf.function(reduce_retracing=True, autograph=False)
    def traced(ids, numerical):
        return dense_part(model.embed(ids), numerical)

    calls = DirectCalls(traced)

    def eval_step(batch: Batch) -> tf.Tensor:
        return calls(batch["ids"], batch["numerical"])

    eval_step.dense_part = dense_part
    return eval_step
