"""Benchmarks: the very steps of training and evaluation, timed. They return figures and end nothing."""

import dataclasses
import time
from collections.abc import Callable, Mapping

import tensorflow as tf

from data.input_pipeline import BatchStream
from trainer.agreement import agree
from trainer.distributed import SingleProcess
from trainer.evaluate import Figures, Scoreboard, scored_batches
from trainer.setting_checks import LEAST_TIMED_STEPS
from trainer.steps import signals_of
from trainer.timing import RunTimes, StepTimer, merge_ranks, steps_for
from trainer.train import SignalledBatches
from trainer.writers import NullWriter


@dataclasses.dataclass(frozen=True)
class Measurement:
    """What a benchmark measured.

    Attributes:
      times: over all ranks.
      seconds: of the measured steps by a clock of its own, until the device had nothing left to do: the longest of the
        ranks. It is what the step times add up to, unless they were read too early.
      rows: rows of all ranks in all steps, warm-up included.
      loss: the last training step's; None for evaluation.
      wire_bytes, alltoall_bytes: bytes that rank 0 handed to collectives, and to alltoall alone, in the last training
        step; None for evaluation.
      figures: of the last complete pass of an evaluation; None if there was none.
    """

    times: RunTimes
    seconds: float
    rows: int
    loss: float | None = None
    wire_bytes: int | None = None
    alltoall_bytes: int | None = None
    figures: Figures | None = None


def benchmark_training(
    *,
    comm: SingleProcess,
    train_step: Callable,
    stream: BatchStream,
    global_batch_size: int,
    warmup_steps: int,
    num_steps: int,
    seconds: float | None = None,
    first_step: int = 0,
    writer: NullWriter,
) -> Measurement:
    """Runs training steps and times those after the warm-up.

    The weights afterwards are those of as many steps of training.

    Args:
      warmup_steps: the first steps, which are not timed.
      num_steps: the steps, or with `seconds` the most that there may be.
      seconds: to measure; see `_in_parts`.
      first_step: number of the first one.
    """
    batches = SignalledBatches(stream)
    out: dict[str, tf.Tensor] = {}
    # Reading the loss waits until the device has done the step.
    timer = StepTimer(warmup_steps, synchronize=lambda: out["loss"].numpy() if out else None)

    def run(start: int, stop: int) -> None:
        nonlocal out
        for step in range(first_step + start, first_step + stop):
            batch = batches.next()
            timer.input_ready()
            out = train_step(batch, signals_of(failed=batches.error is not None), tf.constant(step))
            timer.step_done()
            writer.step_done()
            batches.raise_together(out["signals"].numpy(), comm)
        if out:
            float(out["loss"])  # whatever the timer has waited for

    comm.barrier()
    steps, measured_s = _in_parts(comm, timer, run, warmup_steps=warmup_steps, num_steps=num_steps, seconds=seconds)
    ranks = comm.allgather_object(timer.summary())
    measured = ranks[0].measured_steps * global_batch_size
    return Measurement(
        times=merge_ranks(ranks, measured_rows=measured),
        seconds=measured_s,
        rows=steps * global_batch_size,
        loss=float(out["loss"]),
        wire_bytes=int(out["wire_bytes"]),
        alltoall_bytes=int(out["alltoall_bytes"]),
    )


def benchmark_inference(
    *,
    comm: SingleProcess,
    eval_step: Callable[[Mapping[str, tf.Tensor]], tf.Tensor],
    stream: BatchStream,
    new_scoreboard: Callable[[], Scoreboard],
    warmup_steps: int,
    num_steps: int,
    seconds: float | None = None,
    writer: NullWriter,
    together: bool = False,
) -> Measurement:
    """Runs evaluation steps, metrics included, and times those after the warm-up.

    Args:
      stream: repeats the evaluation source.
      new_scoreboard: makes the metrics of one pass; figures are those of the last pass that was completed.
      warmup_steps, num_steps, seconds: as for `benchmark_training`.
      together: `eval_step` is a collective.
    """
    timer = StepTimer(warmup_steps)
    batches = iter(stream)
    complete: Scoreboard | None = None
    board, rows = new_scoreboard(), 0

    def run(start: int, stop: int) -> None:
        nonlocal complete, board, rows
        part = scored_batches(stream, stop - start, together=together, batches=batches)
        for step, batch in enumerate(part, start=start + 1):
            timer.input_ready()
            counted = board.update(batch, eval_step(batch))  # reads the logits, so it waits for the device
            timer.step_done(counted)
            writer.step_done()
            rows += counted
            if step % stream.steps_per_epoch == 0:
                complete, board = board, new_scoreboard()

    comm.barrier()
    _, measured_s = _in_parts(comm, timer, run, warmup_steps=warmup_steps, num_steps=num_steps, seconds=seconds)
    return Measurement(
        times=merge_ranks(comm.allgather_object(timer.summary())),
        seconds=measured_s,
        rows=sum(comm.allgather_object(rows)),
        figures=None if complete is None else complete.compute(comm),
    )


def _in_parts(
    comm: SingleProcess,
    timer: StepTimer,
    run: Callable[[int, int], None],
    *,
    warmup_steps: int,
    num_steps: int,
    seconds: float | None,
) -> tuple[int, float]:
    """Runs the warm-up and then the steps to measure; all ranks take the same number of them.

    With `seconds` the ranks agree on that number once, after the first LEAST_TIMED_STEPS measured steps and outside the
    timed time: as many as take so long at the pace of the slowest rank, at most `num_steps` with the warm-up.

    Args:
      timer: of the steps; started here.
      run: runs the steps from its first argument to before its second, and waits until the device has done them.

    Returns:
      The number of steps, and the seconds of those that were measured, on the rank where they took longest.

    Raises:
      InputError: on every rank, if `run` raises it on any.
    """
    measured_s = 0.0

    def part(start: int, stop: int) -> None:
        nonlocal measured_s
        began = time.monotonic()
        timer.start()
        run(start, stop)
        if start >= warmup_steps:
            measured_s += time.monotonic() - began

    first = num_steps if seconds is None else warmup_steps + LEAST_TIMED_STEPS
    agree(comm, lambda: part(0, warmup_steps))
    agree(comm, lambda: part(warmup_steps, first))
    if seconds is not None:
        ranks = comm.allgather_object(timer.summary())
        most = num_steps - warmup_steps
        num_steps = warmup_steps + steps_for(seconds, ranks, least=LEAST_TIMED_STEPS, most=most)
        agree(comm, lambda: part(first, num_steps))
    return num_steps, max(comm.allgather_object(measured_s))
