"""The Wide & Deep of benchmarks.ootb on batches in memory: plain Keras, with `fit` and `predict`.

RMSprop is for all weights here. Keras's updates whole tables.
"""

import time
from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf

from benchmarks.comparison import Contender
from benchmarks.ootb.inputs import model_inputs
from benchmarks.ootb.models import WideDeep, make_variables
from benchmarks.workloads import Batch, Workload


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
        self.model = WideDeep(workload.spec, workload.config.model, dims)
        make_variables(self.model, workload.spec)
        self.model.compile(
            optimizer=keras.optimizers.RMSprop(workload.learning_rates["deep"], rho=0.5),
            loss=keras.losses.BinaryCrossentropy(from_logits=True),
            jit_compile=jit_compile,
        )
        pairs = [(model_inputs(workload.spec, batch), batch["labels"][:, None]) for batch in batches]
        stacked = keras.tree.map_structure(lambda *arrays: np.stack(arrays), *pairs)
        self._data = tf.data.Dataset.from_tensor_slices(stacked).repeat()
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
