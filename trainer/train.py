"""The training loop: when steps, log points, evaluations and checkpoints happen."""

import dataclasses
import math
import signal
import time
from collections.abc import Callable, Mapping

import numpy as np
import tensorflow as tf

from data.errors import InputError
from data.input_pipeline import BatchStream, blank_batch
from trainer.agreement import agree
from trainer.distributed import SingleProcess
from trainer.evaluate import Figures
from trainer.loss_watch import LossWatch
from trainer.steps import FAILED, STOP, signals_of
from trainer.writers import NullWriter

# How training ended, in Outcome.ended_by.
BY_STEPS, BY_TARGET, BY_SIGNAL = "steps", "target", "signal"


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How training ended.

    Attributes:
      step: steps done, those before a restored checkpoint included.
      loss: the last step's, over all ranks; NaN if there was no step.
      figures: the last evaluation; None if training was stopped before one.
      ended_by: "steps" for its last step, "target" for an evaluation that reached the target, "signal".
      steps: steps done in this run.
      timed_steps: those of them that `seconds` is of: all but the first, unless it is the only one.
      seconds: time in steps, without evaluations and checkpoints.
      train_seconds: the same of all steps of this run, the first one's compilation included.
      evaluations: those of this run, in order.
    """

    step: int
    loss: float
    figures: Figures | None
    ended_by: str
    steps: int
    timed_steps: int
    seconds: float
    train_seconds: float
    evaluations: tuple["Evaluation", ...]

    @property
    def stopped(self) -> bool:
        """Whether a signal ended it before its last step."""
        return self.ended_by == BY_SIGNAL


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """An evaluation on the way.

    Attributes:
      step: steps done before it.
      train_seconds: of the steps of this run until then; see Outcome.
      seconds: that it took.
      figures: what it found.
    """

    step: int
    train_seconds: float
    seconds: float
    figures: Figures

    @property
    def samples_per_sec(self) -> float:
        """Rows over all ranks a second, metrics included."""
        return self.figures.rows / self.seconds if self.seconds else math.nan


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


def evaluates_after(step: int, *, steps_per_epoch: int, evals_per_epoch: int) -> bool:
    """Whether there is an evaluation after so many steps: N in an epoch, evenly placed, the last at its end.

    Step s of an epoch of E steps has one where s N / E passes a whole number, so every run has them at the same steps.
    """
    return step * evals_per_epoch // steps_per_epoch > (step - 1) * evals_per_epoch // steps_per_epoch


def check_evaluations(evals_per_epoch: int, steps_per_epoch: int) -> None:
    """Refuses more evaluations than steps with InputError; every rank comes to the same verdict."""
    if evals_per_epoch > steps_per_epoch:
        raise InputError(
            f"--evals_per_epoch={evals_per_epoch} with {steps_per_epoch} steps in an epoch: give at most "
            f"{steps_per_epoch}, or lower --global_batch_size"
        )


def reaches(figures: Figures, target_map12: float | None, comm: SingleProcess) -> bool:
    """Whether an evaluation is as good as the target, on all ranks, which must all call it.

    Raises:
      RuntimeError: ranks have different figures, and would not all stop.
    """
    if target_map12 is None or figures.map_at_12 is None:
        return False
    found = comm.allgather_object(figures.map_at_12)
    if len(set(map(repr, found))) > 1:
        raise RuntimeError(f"ranks disagree on MAP@12: {found}")
    return figures.map_at_12 >= target_map12


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
    describe_batch: Callable[[Mapping[str, tf.Tensor]], str],
    writer: NullWriter,
    evals_per_epoch: int = 1,
    target_map12: float | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Outcome:
    """Trains from `first_step` to `last_step`, evaluating on the way, and saving after every epoch and at the end.

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
      describe_batch: what is remarkable about a batch of this rank, for the same message.
      writer: takes figures at log points and after evaluations.
      evals_per_epoch: evaluations in each epoch; see `evaluates_after`. One more follows the last step.
      target_map12: MAP@12 at which training ends.
      clock: seconds, for throughput.

    Raises:
      InputError: bad values in the data or a loss that is not finite, on every rank.
    """
    loss, figures, ended_by = math.nan, None, BY_STEPS
    seconds, logged_seconds, logged_step, timed_from = 0.0, 0.0, first_step, first_step
    earlier_seconds = 0.0  # those that `seconds` leaves out
    evaluations: list[Evaluation] = []
    watch = LossWatch(learning_rate_flags, describe_batch)
    pending: Mapping[str, tf.Tensor] | None = None
    step = first_step

    def evaluate_now() -> Figures:
        began = clock()
        found = evaluate()
        evaluations.append(Evaluation(step, earlier_seconds + seconds, clock() - began, found))
        writer.write(step, validation_figures(found))
        return found

    started = clock()
    while step < last_step and ended_by == BY_STEPS:
        batch = batches.next()
        signals = signals_of(stop=stop_requested(), failed=batches.error is not None)
        out = train_step(batch, signals, tf.constant(step))
        step += 1
        watch.saw(step, batch)
        writer.step_done()
        epoch_ends = step % steps_per_epoch == 0
        ends = step == last_step
        evaluates = ends or evaluates_after(step, steps_per_epoch=steps_per_epoch, evals_per_epoch=evals_per_epoch)
        saves = checkpoint_every_steps is not None and step % checkpoint_every_steps == 0
        logs = step % log_every_steps == 0
        pauses = evaluates or epoch_ends or saves or logs
        # Reading a step's signals waits for that step. Elsewhere those of the step before are read, which the device
        # has done by now; every rank reads the same values at the same step, so all stop at the same one.
        seen = (out if pauses or pending is None else pending)["signals"].numpy()
        batches.raise_together(seen, comm)
        # A loss is summed over ranks, so all of them find the same; and before anything is saved.
        if pending is not None:
            watch.check(step - 1, pending)
        pending = out
        # A rank that is alone need not wait for the others to have heard of it.
        if bool(seen[STOP]) or (comm.size == 1 and stop_requested()):
            ended_by = BY_SIGNAL
        if pauses or ended_by == BY_SIGNAL:
            loss = watch.check(step, out)
        now = clock()
        seconds += now - started
        if logs or epoch_ends or ends:
            rows = (step - logged_step) * global_batch_size
            writer.write(step, {"loss": loss, "batch_samplesps": rows / max(seconds - logged_seconds, 1e-9)})
            logged_seconds, logged_step = seconds, step
        if evaluates and ended_by == BY_STEPS:
            figures = evaluate_now()
            if reaches(figures, target_map12, comm):
                ended_by = BY_TARGET
        if saves or epoch_ends or ends or ended_by != BY_STEPS:
            save(step)
        if step == first_step + 1 < last_step and ended_by == BY_STEPS:
            # The first step traces and compiles: its time says nothing of those that follow.
            earlier_seconds = seconds
            seconds, logged_seconds, logged_step, timed_from = 0.0, 0.0, step, step
        started = clock()
    if figures is None and ended_by == BY_STEPS:
        figures = evaluate_now()  # a restored run that had nothing left to do
    return Outcome(
        step=step,
        loss=loss,
        figures=figures,
        ended_by=ended_by,
        seconds=seconds,
        steps=step - first_step,
        timed_steps=step - timed_from,
        train_seconds=earlier_seconds + seconds,
        evaluations=tuple(evaluations),
    )


def validation_figures(figures: Figures) -> dict[str, float]:
    """Figures of an evaluation by the names that readers of the log know."""
    named = {"loss_val": figures.log_loss, "auc_roc": figures.auc}
    return named if figures.map_at_12 is None else {**named, "streaming_map_val": figures.map_at_12}
