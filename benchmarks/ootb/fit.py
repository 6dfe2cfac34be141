"""Benchmarks of one process: Keras's own `fit` and `predict`, timed by callbacks.

A callback reads what a step has computed before it reads the clock. No metrics are computed: `fit` has the loss, and
`predict` returns logits.
"""

import contextlib
from collections.abc import Callable, Iterator

import keras
import numpy as np
import tensorflow as tf

from benchmarks.ootb.clock import BenchmarkClock
from data.errors import InputError
from data.input_pipeline import BatchStream
from trainer.benchmark import Measurement


class TimedTraining(keras.callbacks.Callback):
    """Times training steps.

    Attributes:
      losses: of each step, before its update.
    """

    def __init__(self, clock: BenchmarkClock, batch_size: int):
        super().__init__()
        self.losses: list[float] = []
        self._clock = clock
        self._batch_size = batch_size

    def on_train_begin(self, logs=None):
        self._clock.start()

    def on_train_batch_begin(self, batch, logs=None):
        self.model.reset_metrics()  # or the loss in the logs is the mean over all steps so far

    def on_train_batch_end(self, batch, logs=None):
        self.losses.append(float(logs["loss"]))
        self.model.stop_training = self._clock.step_done(self._batch_size)

    def on_train_end(self, logs=None):
        tf.reduce_sum(self.model.trainable_variables[-1].value).numpy()  # the last step's update included
        self._clock.end()


class TimedPrediction(keras.callbacks.Callback):
    """Times prediction steps.

    Attributes:
      rows: scored so far, without those that only fill up a batch.
    """

    def __init__(self, clock: BenchmarkClock, rows_of: Callable[[int], int]):
        """
        Args:
          clock: takes the times.
          rows_of: number of a step, from 0 on -> rows that it scores.
        """
        super().__init__()
        self.rows = 0
        self._clock = clock
        self._rows_of = rows_of

    def on_predict_begin(self, logs=None):
        self._clock.start()

    def on_predict_batch_end(self, batch, logs=None):
        np.asarray(logs["outputs"])
        rows = self._rows_of(self._clock.steps_done)
        self.rows += rows
        self.model.stop_predicting = self._clock.step_done(rows)

    def on_predict_end(self, logs=None):
        self._clock.end()


def time_fit(
    model: keras.Model, stream: BatchStream, dataset: tf.data.Dataset, clock: BenchmarkClock
) -> tuple[Measurement, list[float]]:
    """Trains a compiled model by `fit`.

    Args:
      model: what is trained.
      stream: where the rows come from.
      dataset: batches of (inputs, labels) of the stream.
      clock: takes the times and says when to end.

    Returns:
      What was measured, and the loss of each step.

    Raises:
      InputError: the rows hold something that cannot be used.
    """
    timed = TimedTraining(clock, stream.local_batch_size)
    with _its_own_errors(stream):
        model.fit(dataset, steps_per_epoch=clock.num_steps, shuffle=False, verbose=0, callbacks=[timed])
    measured = Measurement(
        times=clock.times(),
        seconds=clock.measured_seconds,
        rows=clock.steps_done * stream.local_batch_size,
        loss=timed.losses[-1],
        wire_bytes=0,
        alltoall_bytes=0,
    )
    return measured, timed.losses


def time_predict(
    model: keras.Model, stream: BatchStream, dataset: tf.data.Dataset, clock: BenchmarkClock, *, num_rows: int
) -> Measurement:
    """Scores rows with a compiled model by `predict`.

    Args:
      model: what scores.
      stream: where the rows come from, again and again.
      dataset: batches of inputs of the stream.
      clock: takes the times and says when to end.
      num_rows: rows of one pass over the stream.

    Raises:
      InputError: the rows hold something that cannot be used.
    """
    size, last = stream.local_batch_size, stream.steps_per_epoch - 1

    def rows_of(step: int) -> int:
        return num_rows - last * size if step % stream.steps_per_epoch == last else size

    timed = TimedPrediction(clock, rows_of)
    with _its_own_errors(stream):
        model.predict(dataset, steps=clock.num_steps, verbose=0, callbacks=[timed])
    return Measurement(times=clock.times(), seconds=clock.measured_seconds, rows=timed.rows)


@contextlib.contextmanager
def _its_own_errors(stream: BatchStream) -> Iterator[None]:
    """What stopped the stream, in place of what Keras and TensorFlow make of it."""
    try:
        yield
    except Exception:
        if isinstance(stream.error, InputError):
            raise stream.error from None
        raise
