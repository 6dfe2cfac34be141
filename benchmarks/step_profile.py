"""One of our training steps taken apart: a TensorBoard trace of some steps, and how long each part takes by itself."""

import statistics
import time
from collections.abc import Callable, Iterator

import tensorflow as tf

from benchmarks.our_steps import OurSteps
from benchmarks.workloads import Workload
from data import synthetic
from data.feature_spec import TRAIN, FeatureSpec
from data.input_pipeline import ParquetInput
from trainer.distributed import SingleProcess
from trainer.reduction import Reduction
from trainer.steps import apply_dense, trains_in_backward, updates_from_pools

_REPEATS = 7
_ROWS, _MOST_BATCHES = 100_000, 256


Tensors = dict[str, tf.Tensor]


def trace(ours: OurSteps, batches: Iterator[Tensors], *, first: int, last: int, folder: str | None) -> None:
    """Trains to step `last` and writes a trace of steps `first` to `last` below `folder`, if given, for TensorBoard."""
    for number in range(1, last + 1):
        if number == first and folder is not None:
            tf.profiler.experimental.start(folder)
        with tf.profiler.experimental.Trace("train", step_num=number, _r=1):
            float(ours.train(next(batches))["loss"])
    if folder is not None:
        tf.profiler.experimental.stop()


def breakdown(ours: OurSteps, batches: Iterator[Tensors]) -> dict[str, float]:
    """Milliseconds of the parts of a step, each run by itself on ready inputs, and of the whole: medians.

    Parts that overlap in the whole step add up to more than it; what a part leaves in caches for the next is lost. Rows
    of tables are summed over ranks by gathering them. What a step has not is 0: gradients of rows where tables are
    updated from those of pools, and a reduction where there is one rank. Layers that a step trains in its backward pass
    are trained in "dense".

    Args:
      ours: with a training step; its weights change.
      batches: of this rank; "input" is the wait for the next one.
    """
    workload, model, state = ours.workload, ours.model, ours.state
    batch = next(batches)
    tables = [*model.embeddings.replicated, *model.embeddings.sharded]
    rates = workload.learning_rates
    reduction = Reduction(ours.comm, ("gather",) * len(model.embeddings.replicated))
    straight = updates_from_pools(state, reduction)

    backward_group = trains_in_backward(state, reduction)
    # Passed as a training step passes them.
    seed, loss_scale = tf.zeros((2,), tf.int32), tf.constant(1.0)
    backward_rate = tf.constant(rates[backward_group]) if backward_group else None

    @tf.function(autograph=False)
    def gather(ids):
        return model.embeddings.lookup(ids)

    def dense(embedded, numerical, labels):
        return ours.train_step.dense_part(embedded, numerical, labels, seed, loss_scale, backward_rate)[1:]

    @tf.function(autograph=False)
    def row_gradients(lookup, upstream):
        return model.embeddings.row_gradients(lookup, upstream)

    @tf.function(autograph=False)
    def reduce(gradients, slices):
        return reduction(gradients, slices, tf.zeros((3,)))[:2]

    @tf.function(autograph=False)
    def update(gradients, found):
        steps = state.applied_steps
        apply_dense(state, gradients, {group: tf.constant(rate) for group, rate in rates.items()})
        for table, of_table in zip(tables, found, strict=True):
            optimizer, rate = state.optimizers[table.group], tf.constant(rates[table.group])
            if straight:
                optimizer.apply_pools(table, *of_table, rate)
            else:
                optimizer.apply_rows(table.variable, of_table.indices, of_table.values, rate, steps)

    def nothing():
        pass

    lookup = gather(batch["ids"])
    gradients, upstream = dense(lookup.embedded, batch["numerical"], batch["labels"])
    slices = [] if straight else row_gradients(lookup, upstream)
    found = list(zip(lookup.ids, upstream, strict=True)) if straight else slices
    work: dict[str, Callable] = {
        "input": lambda: next(batches),
        "gather": lambda: gather(batch["ids"]),
        "dense": lambda: dense(lookup.embedded, batch["numerical"], batch["labels"]),
        "row gradients": nothing if straight else lambda: row_gradients(lookup, upstream),
        "reduction": nothing if ours.comm.size == 1 else lambda: reduce(gradients, slices),
        "update": lambda: update(gradients, found),
        "whole step": lambda: ours.train(batch)["loss"].numpy(),
    }
    times: dict[str, list[float]] = {name: [] for name in work}
    for repeat in range(_REPEATS + 1):
        for name, do in work.items():
            started = time.perf_counter()
            do()
            if repeat:
                times[name].append(1e3 * (time.perf_counter() - started))
    return {name: statistics.median(values) for name, values in times.items()}


def render(times: dict[str, float]) -> str:
    """The breakdown, for people."""
    whole = times["whole step"]
    return "\n".join(f"{name:14}{value:10.2f} ms {value / whole:7.1%}" for name, value in times.items())


def profile(workload: Workload, comm: SingleProcess, *, first: int, last: int, rank: int, folder: str) -> str:
    """Traces some steps on one of the ranks, which must all call it, and takes a step apart.

    Batches come from generated parquet files, as in training.

    Returns:
      What that rank has to say; "" on the others.
    """
    ours = OurSteps(workload, comm=comm)
    rows = max(4 * workload.batch_size, min(_ROWS, _MOST_BATCHES * workload.batch_size))
    spec = FeatureSpec.from_yaml(synthetic.cached_dataset(rows=rows, seed=1, spec=workload.spec, draw=workload.draw))
    source = ParquetInput(spec, TRAIN, with_display=False)
    chosen = comm.rank == rank
    with source.train_stream(global_batch_size=workload.batch_size, rank=comm.rank, world_size=comm.size) as stream:
        batches = iter(stream)
        trace(ours, batches, first=first, last=last, folder=folder if chosen else None)
        text = render(breakdown(ours, batches))
    return f"{text}\ntrace of steps {first} to {last}: tensorboard --logdir {folder}" if chosen else ""
