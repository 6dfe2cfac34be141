"""The training loop: when steps, log points, evaluations and checkpoints happen."""

import dataclasses
import math
import signal
import time
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from data.errors import InputError
from data.input_pipeline import BatchStream, blank_batch
from trainer.agreement import agree
from trainer.distributed import SingleProcess
from trainer.evaluate import Figures
from trainer.steps import FAILED, STOP
from trainer.writers import NullWriter


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How training ended.

    Attributes:
      step: steps done, those before a restored checkpoint included.
      loss: the last step's, over all ranks; NaN if there was no step.
      figures: the last evaluation; None if training was stopped before one.
      stopped: whether a signal ended it before its last step.
      steps: steps done in this run.
      timed_steps: those of them that `seconds` is of: all but the first, unless it is the only one.
      seconds: time in steps, without evaluations and checkpoints.
    """

    step: int
    loss: float
    figures: Figures | None
    stopped: bool
    steps: int
    timed_steps: int
    seconds: float


class StopSignal:
    """While entered, SIGTERM asks the training loop to stop instead of killing the process."""

    def __init__(self):
        self._requested = False
        self._before = None

    def requested(self) -> bool:
        return self._requested

    def __enter__(self) -> "StopSignal":
        self._before = signal.signal(signal.SIGTERM, self._request)
        return self

    def __exit__(self, *_) -> None:
        signal.signal(signal.SIGTERM, self._before)

    def _request(self, *_) -> None:
        self._requested = True


class SignalledBatches:
    """A rank's training batches, with a way to tell the other ranks that there are no more.

    A rank that simply raised would leave the others waiting in a collective for ever. It goes on with an empty
    contribution instead, and with the signal that it failed, until all ranks have seen that signal.
    """

    def __init__(self, stream: BatchStream):
        self._stream = stream
        self._batches = iter(stream)
        self.error: InputError | None = None

    def next(self) -> dict[str, tf.Tensor]:
        """The next batch; zeros after a failure, see `error`."""
        if self.error is None:
            try:
                return next(self._batches)
            except InputError as error:
                self.error = error
        return blank_batch(self._stream)

    def raise_together(self, signals: np.ndarray, comm: SingleProcess) -> None:
        """Raises InputError on every rank if the summed signals of a step say that one has failed."""
        if not signals[FAILED]:
            return

        def report() -> None:
            if self.error is not None:
                raise self.error

        agree(comm, report)


def train(
    *,
    comm: SingleProcess,
    train_step: Callable,
    batches: SignalledBatches,
    global_batch_size: int,
    first_step: int,
    last_step: int,
    steps_per_epoch: int,
    log_every_steps: int,
    checkpoint_every_steps: int | None,
    evaluate: Callable[[], Figures],
    save: Callable[[int], None],
    stop_requested: Callable[[], bool],
    learning_rate_flags: str,
    writer: NullWriter,
    clock: Callable[[], float] = time.perf_counter,
) -> Outcome:
    """Trains from `first_step` to `last_step`, evaluating and saving after every epoch and at the end.

    Args:
      comm: the ranks.
      train_step: see trainer.steps.make_train_step.
      batches: this rank's batches, beginning with that of `first_step`.
      global_batch_size: rows of a step over all ranks.
      first_step: steps done before; `last_step`: steps done after.
      steps_per_epoch: steps of one pass.
      log_every_steps, checkpoint_every_steps: periods; no checkpoints within an epoch if None.
      evaluate: evaluates the model as it is; all ranks call it.
      save: saves the state after the given number of steps; all ranks call it.
      stop_requested: whether this process was asked to end.
      learning_rate_flags: what to lower where the loss is not finite.
      writer: takes figures at log points and after evaluations.
      clock: seconds, for throughput.

    Raises:
      InputError: bad values in the data or a loss that is not finite, on every rank.
    """
    loss, figures, stopped = math.nan, None, False
    seconds, logged_seconds, logged_step, timed_from = 0.0, 0.0, first_step, first_step
    pending: tf.Tensor | None = None
    step = first_step
    started = clock()
    while step < last_step and not stopped:
        batch = batches.next()
        signals = np.zeros(2, np.float32)
        signals[STOP], signals[FAILED] = stop_requested(), batches.error is not None
        out = train_step(batch, tf.constant(signals), tf.constant(step))
        step += 1
        writer.step_done()
        epoch_ends = step % steps_per_epoch == 0
        saves = checkpoint_every_steps is not None and step % checkpoint_every_steps == 0
        logs = step % log_every_steps == 0
        pauses = epoch_ends or saves or logs or step == last_step
        # Reading a step's signals waits for that step. Elsewhere those of the step before are read, which the device
        # has done by now; every rank reads the same values at the same step, so all stop at the same one.
        seen = out["signals"] if pauses or pending is None else pending
        pending = out["signals"]
        batches.raise_together(seen.numpy(), comm)
        # A rank that is alone need not wait for the others to have heard of it.
        stopped = bool(seen.numpy()[STOP]) or (comm.size == 1 and stop_requested())
        if pauses or stopped:
            loss = float(out["loss"])
            if not math.isfinite(loss) and not float(out["skipped"]):
                # Summed over ranks, so all of them come here; and before anything is saved.
                raise InputError(
                    f"the loss of step {step} is {loss}: lower {learning_rate_flags}, or look for extreme numerical "
                    "features in the data"
                )
        now = clock()
        seconds += now - started
        if logs or epoch_ends or step == last_step:
            rows = (step - logged_step) * global_batch_size
            writer.write(step, {"loss": loss, "batch_samplesps": rows / max(seconds - logged_seconds, 1e-9)})
            logged_seconds, logged_step = seconds, step
        if (epoch_ends or step == last_step) and not stopped:
            figures = evaluate()
            writer.write(step, validation_figures(figures))
        if saves or epoch_ends or step == last_step or stopped:
            save(step)
        if step == first_step + 1 < last_step and not stopped:
            # The first step traces and compiles: its time says nothing of those that follow.
            seconds, logged_seconds, logged_step, timed_from = 0.0, 0.0, step, step
        started = clock()
    if figures is None and not stopped:
        figures = evaluate()  # a restored run that had nothing left to do
        writer.write(step, validation_figures(figures))
    return Outcome(
        step=step,
        loss=loss,
        figures=figures,
        stopped=stopped,
        seconds=seconds,
        steps=step - first_step,
        timed_steps=step - timed_from,
    )


def validation_figures(figures: Figures) -> dict[str, float]:
    """Figures of an evaluation by the names that readers of the log know."""
    named = {"loss_val": figures.log_loss, "auc_roc": figures.auc}
    return named if figures.map_at_12 is None else {**named, "streaming_map_val": figures.map_at_12}
