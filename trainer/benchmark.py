"""Benchmarks: the very steps of training and evaluation, timed. They return figures and end nothing."""

import dataclasses
from collections.abc import Callable, Mapping

import tensorflow as tf

from data.input_pipeline import BatchStream
from trainer.agreement import agree
from trainer.distributed import SingleProcess
from trainer.evaluate import Figures, Scoreboard, scored_batches
from trainer.timing import RunTimes, StepTimer, merge_ranks
from trainer.train import SignalledBatches
from trainer.writers import NullWriter


@dataclasses.dataclass(frozen=True)
class Measurement:
    """What a benchmark measured.

    Attributes:
      times: over all ranks.
      rows: rows of all ranks in all steps, warm-up included.
      loss: the last training step's; None for evaluation.
      wire_bytes, alltoall_bytes: bytes that rank 0 handed to collectives, and to alltoall alone, in the last training
        step; None for evaluation.
      figures: of the last complete pass of an evaluation; None if there was none.
    """

    times: RunTimes
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
    first_step: int = 0,
    writer: NullWriter,
) -> Measurement:
    """Runs `num_steps` training steps and times those after the warm-up.

    The weights afterwards are those of `num_steps` steps of training.
    """
    batches = SignalledBatches(stream)
    out: dict[str, tf.Tensor] = {}
    # Reading the loss waits until the device has done the step.
    timer = StepTimer(warmup_steps, synchronize=lambda: out["loss"].numpy() if out else None)
    comm.barrier()
    timer.start()
    for step in range(first_step, first_step + num_steps):
        batch = batches.next()
        timer.input_ready()
        failed = float(batches.error is not None)
        out = train_step(batch, tf.constant([0.0, failed]), tf.constant(step))
        timer.step_done()
        writer.step_done()
        batches.raise_together(out["signals"].numpy(), comm)
    ranks = comm.allgather_object(timer.summary())
    measured = ranks[0].measured_steps * global_batch_size
    return Measurement(
        times=merge_ranks(ranks, measured_rows=measured),
        rows=num_steps * global_batch_size,
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
    writer: NullWriter,
    together: bool = False,
) -> Measurement:
    """Runs `num_steps` evaluation steps, metrics included, and times those after the warm-up.

    Args:
      stream: repeats the evaluation source.
      new_scoreboard: makes the metrics of one pass; figures are those of the last pass that was completed.
      together: `eval_step` is a collective.
    """
    timer = StepTimer(warmup_steps)
    complete: Scoreboard | None = None

    def score() -> int:
        nonlocal complete
        board, rows = new_scoreboard(), 0
        timer.start()
        for step, batch in enumerate(scored_batches(stream, num_steps, together=together), start=1):
            timer.input_ready()
            counted = board.update(batch, eval_step(batch))  # reads the logits, so it waits for the device
            timer.step_done(counted)
            writer.step_done()
            rows += counted
            if step % stream.steps_per_epoch == 0:
                complete, board = board, new_scoreboard()
        return rows

    comm.barrier()
    rows = agree(comm, score)
    return Measurement(
        times=merge_ranks(comm.allgather_object(timer.summary())),
        rows=sum(comm.allgather_object(rows)),
        figures=None if complete is None else complete.compute(comm),
    )
