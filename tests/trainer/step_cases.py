"""A small Wide & Deep, batches for it, and its training written the plain way, for the tests of steps and state."""

import contextlib

import keras
import numpy as np
import tensorflow as tf

from data.feature_spec import Feature, FeatureSpec
from models.wide_deep import WideDeep
from trainer.distributed import SingleProcess
from trainer.ftrl import Ftrl
from trainer.optimizers import RMSprop
from trainer.reduction import Reduction
from trainer.state import TrainState
from trainer.steps import make_train_step

BATCH = 16
SEED = 11
WIDE_RATE = 0.05
DIMS = {"page": 3, "platform": 2, "topics": 3}


def make_spec(page_rows=23):
    features = [
        Feature("page", cardinality=page_rows),
        Feature("platform", cardinality=3),
        Feature("topics", cardinality=9, max_hotness=3),
        Feature("ctr"),
        Feature("age"),
        Feature("clicked"),
    ]
    return FeatureSpec(
        features={feature.name: feature for feature in features},
        onehot=("page", "platform"),
        multihot=("topics",),
        numerical=("ctr", "age"),
        label="clicked",
    )


def make_model(*, seed=0, dropout=0.0, page_rows=23):
    return WideDeep(make_spec(page_rows), DIMS, hidden_units=(8, 4), dropout=dropout, combiner="mean", seed=seed)


def make_state(*, dynamic_loss_scale=False, optimizers=None, **options):
    optimizers = optimizers or {"wide": Ftrl(WIDE_RATE), "deep": RMSprop(rho=0.5)}
    return TrainState(make_model(**options), optimizers, dynamic_loss_scale=dynamic_loss_scale)


def deep_rate(step):
    """A rate that changes with every update."""
    return 0.01 / (1.0 + 0.1 * tf.cast(step, tf.float32))


def make_step(state, *, methods=("gather",) * 3, comm=None, reduction=None, rate=None, seed=SEED, xla=False):
    """The training step; `rate` is a constant one for both groups."""
    return make_train_step(
        state,
        reduction=reduction or Reduction(comm or SingleProcess(), methods),
        schedules={
            "wide": lambda step: np.float32(WIDE_RATE if rate is None else rate),
            "deep": deep_rate if rate is None else lambda step: np.float32(rate),
        },
        global_batch_size=BATCH,
        seed=seed,
        xla=xla,
    )


def make_batch(step, rows=BATCH, page_rows=23):
    """Batch `step`: repeated ids, absent ones in any place, and in the first row nothing but absent ones."""
    rng = np.random.default_rng([7, step])
    ids = np.stack([(page_rows * rng.random(rows) ** 3), *(rng.integers(0, n, rows) for n in (3, 9, 9, 9))], axis=1)
    ids = np.where(rng.random(ids.shape) < 0.25, -1, ids).astype("i4")
    ids[0] = -1
    return {
        "ids": tf.constant(ids),
        "numerical": tf.constant(rng.standard_normal((rows, 2)).astype("f4")),
        "labels": tf.constant((rng.random(rows) < 0.3).astype("f4")),
    }


def run(train_step, batch, step, signals=(0.0, 0.0)):
    """A step's figures as numpy values."""
    figures = train_step(batch, tf.constant(signals, tf.float32), tf.constant(step))
    return {name: value.numpy() for name, value in figures.items()}


def graph_of(train_step, batch):
    """The graph of a step for such batches."""
    tensors = (batch["ids"], batch["numerical"], batch["labels"], tf.zeros((2,)), tf.constant(0))
    return train_step.traced.get_concrete_function(*tensors).graph


@contextlib.contextmanager
def precision(policy):
    """Models made inside compute in this Keras policy."""
    before = keras.mixed_precision.global_policy()
    keras.mixed_precision.set_global_policy(policy)
    try:
        yield
    finally:
        keras.mixed_precision.set_global_policy(before)


def bits(variables):
    return [variable.numpy().tobytes() for variable in variables]


class PlainTraining:
    """The same training, written with a tape through the whole model and Keras's dense optimizers."""

    def __init__(self, model, *, seed=SEED):
        self.model = model
        self.losses = []
        self._seed = seed
        self._tables = {id(table.table): table.padding_row for table in model.tables}
        wide = [table.table for table in model.tables if table.group == "wide"]
        wide += [model.wide_bias, model.wide_numerical]
        deep = [v for v in model.trainable_variables if not any(v is other for other in wide)]
        self._groups = [(wide, keras.optimizers.Ftrl(WIDE_RATE)), (deep, keras.optimizers.RMSprop(rho=0.5))]
        for variables, optimizer in self._groups:
            optimizer.build(variables)

    def step(self, batch, step, *, applied_steps=None):
        """One update; `applied_steps` decides the rate where it is not the step's number."""
        weights = [v for variables, _ in self._groups for v in variables]
        with tf.GradientTape() as tape:
            logits = self.model(batch, training=True, seed=tf.constant([self._seed, step]))
            loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=batch["labels"], logits=logits))
        gradients = tape.gradient(loss, [v.value for v in weights])
        self.losses.append(float(loss))
        self._groups[1][1].learning_rate.assign(deep_rate(step if applied_steps is None else applied_steps))
        for variables, optimizer in self._groups:
            own, gradients = gradients[: len(variables)], gradients[len(variables) :]
            optimizer.apply([self._dense(v, g) for v, g in zip(variables, own, strict=True)])

    def _dense(self, variable, gradient):
        gradient = tf.convert_to_tensor(gradient)
        padding_row = self._tables.get(id(variable))
        # Absent ids have no weight; the tape does not know.
        return gradient if padding_row is None else tf.concat([gradient[:padding_row], gradient[:1] * 0], axis=0)
