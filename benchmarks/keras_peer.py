"""The same Wide & Deep in plain Keras, written as its users write it: one Embedding a feature, `fit` and `predict`.

Every optimizer of Keras 3 updates whole tables; RMSprop here is for all weights. Absent ids are 0 and ids one more.
"""

import time
from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf

from benchmarks.comparison import Contender
from benchmarks.workloads import Batch, Workload
from data.feature_spec import FeatureSpec


class KerasPeer:
    """A compiled model; `fit` and `predict` as Keras has them."""

    def __init__(self, workload: Workload, batches: Sequence[Batch], dims: dict[str, int], *, jit_compile: bool):
        """
        Args:
          workload: shapes and rates.
          batches: what it works on, over and over.
          dims: embedding dimension of each categorical feature.
          jit_compile: compile whole steps by XLA.
        """
        self._workload = workload
        self.model = wide_deep(workload, dims)
        self.model.compile(
            optimizer=keras.optimizers.RMSprop(workload.learning_rates["deep"], rho=0.5),
            loss=keras.losses.BinaryCrossentropy(from_logits=True),
            jit_compile=jit_compile,
        )
        columns = [named_columns(workload.spec, batch) for batch in batches]
        stacked = {name: np.stack([batch[name] for batch in columns]) for name in columns[0]}
        labels = np.stack([batch["labels"] for batch in batches])
        self._data = tf.data.Dataset.from_tensor_slices((stacked, labels)).repeat()
        self._count, self._done = len(batches), 0

    def trains(self, steps: int) -> Contender:
        """`fit` on the next batches, `steps` at each turn."""

        def work() -> tuple[float, float]:
            data = self._next(steps)
            started = time.perf_counter()
            self.model.fit(data, epochs=1, steps_per_epoch=steps, shuffle=False, verbose=0)
            return steps * self._workload.batch_size, time.perf_counter() - started

        return work

    def scores(self, steps: int) -> Contender:
        """`predict` of the next batches, `steps` at each turn."""

        def work() -> tuple[float, float]:
            data = self._next(steps)
            started = time.perf_counter()
            self.model.predict(data, steps=steps, verbose=0)
            return steps * self._workload.batch_size, time.perf_counter() - started

        return work

    def _next(self, steps: int) -> tf.data.Dataset:
        data = self._data.skip(self._done % self._count).take(steps).prefetch(2)
        self._done += steps
        return data


def wide_deep(workload: Workload, dims: dict[str, int]) -> keras.Model:
    """Inputs by feature name and `numerical`; output: logits (rows, 1)."""
    spec, shape = workload.spec, workload.config.model
    numerical = keras.Input((len(spec.numerical),), name="numerical")
    inputs, wide, deep = {"numerical": numerical}, [keras.layers.Dense(1)(numerical)], [numerical]
    for name in spec.categorical:
        feature = spec.features[name]
        ids = inputs[name] = keras.Input((feature.max_hotness,), dtype="int32", name=name)
        for outputs, dim in ((wide, 1), (deep, dims[name])):
            rows = keras.layers.Embedding(feature.cardinality + (name in spec.multihot), dim)(ids)
            if name in spec.multihot:
                rows = rows * keras.ops.cast(ids > 0, "float32")[:, :, None]
            outputs.append(keras.ops.sum(rows, axis=1))
    hidden = keras.layers.Concatenate()(deep)
    for units in shape.deep_hidden_units:
        hidden = keras.layers.Dense(units, activation="relu")(hidden)
        hidden = keras.layers.Dropout(shape.deep_dropout)(hidden)
    logits = keras.layers.Add()([keras.layers.Dense(1)(hidden), *wide])
    return keras.Model(inputs, logits)


def named_columns(spec: FeatureSpec, batch: Batch) -> dict[str, np.ndarray]:
    """A batch by input name; ids (rows, hotness), of multi-hot features one more, so that absent ones are 0."""
    columns, column = {"numerical": batch["numerical"]}, 0
    for name in spec.categorical:
        hotness = spec.features[name].max_hotness
        columns[name] = batch["ids"][:, column : column + hotness] + (name in spec.multihot)
        column += hotness
    return columns
