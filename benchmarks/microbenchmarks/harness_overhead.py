"""What the harness itself takes of a step: the loop that benchmarks time, around a step that does nothing.

`trainer.benchmark.benchmark_training` (its batches, signals between ranks, timer and writer) and a bare loop call the
same traced function in turns; the overhead is the difference of their times, a step, median over the turns. It is set
beside a step of 10 ms and beside one training step of Wide & Deep, which is measured here too. At most 1 % of that is
the target, and the check.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.microbenchmarks import checks
from benchmarks.microbenchmarks.shapes import PROCESS_BYTES, Benchmark, Parameter, Settings
from benchmarks.microbenchmarks.timed import Outcome

MODE = "step"
UNITS = "us/step"
MOST_SHARE = 0.01
_WARMUP = 10
_SHORT_STEP_MS = 10.0
_WIDE_DEEP_BYTES = 2 << 30  # of the model with its optimizers' slots, gradients and activations at batch 4096


class _SameBatch:
    """A stream that always has the next batch at once."""

    def __init__(self, batch: dict[str, Any]):
        self._batch = batch

    def __iter__(self) -> Iterator[dict[str, Any]]:
        while True:
            yield self._batch


def run(settings: Settings, comm: Any) -> Outcome:
    """Takes turns, then measures the step of Wide & Deep."""
    import tensorflow as tf

    from trainer import benchmark, machine
    from trainer.writers import NullWriter

    steps, turns = settings.parameters["steps"], settings.parameters["turns"]
    done = tf.Variable(0, dtype=tf.int64, trainable=False)
    sent = tf.constant(0, tf.int64)

    @tf.function(autograph=False)
    def nothing(batch, signals, step):
        del step
        done.assign_add(1)
        return {"loss": batch["labels"][0], "signals": signals, "wire_bytes": sent, "alltoall_bytes": sent}

    batch = {"labels": tf.constant([0.5])}
    signals, number = tf.zeros((2,)), tf.constant(0)

    def bare() -> float:
        for _ in range(_WARMUP):
            float(nothing(batch, signals, number)["loss"])
        started = time.perf_counter()
        for _ in range(steps):
            float(nothing(batch, signals, number)["loss"])
        return (time.perf_counter() - started) / steps

    def with_harness() -> float:
        measured = benchmark.benchmark_training(
            comm=comm,
            train_step=nothing,
            stream=_SameBatch(batch),
            global_batch_size=1,
            warmup_steps=_WARMUP,
            num_steps=_WARMUP + steps,
            writer=NullWriter(),
        )
        return measured.times.elapsed_s / steps

    times = [(with_harness(), bare()) for _ in range(turns + 1)][1:]  # the first turn traces
    overhead = statistics.median(harness - alone for harness, alone in times)
    asked = 2 * (turns + 1) * (steps + _WARMUP)
    step_ms = _wide_deep_ms(settings.parameters["shrink"])
    share = 1e3 * overhead / step_ms
    found = [
        checks.Check(f"{int(done)} of {asked} steps were run", int(done) == asked),
        checks.Check(
            f"{1e6 * overhead:.0f} us a step are {share:.3%} of a Wide & Deep step of {step_ms:.0f} ms, "
            f"{'at most' if share <= MOST_SHARE else 'ABOVE'} {MOST_SHARE:.0%}",
            share <= MOST_SHARE,
        ),
    ]
    failed = [check for check in found if not check.held]
    everyone = comm.allgather_object((statistics.median(harness for harness, _ in times), machine.peak_memory_bytes()))
    return Outcome(
        score=None if failed else 1e6 * overhead,
        units=UNITS,
        step_ms=[1e3 * harness for harness, _ in times],
        rank_step_ms=[1e3 * median for median, _ in everyone],
        figures={
            "overhead_us": 1e6 * overhead,
            "bare_step_us": 1e6 * statistics.median(alone for _, alone in times),
            "wide_deep_step_ms": step_ms,
            "share_of_10_ms": 1e3 * overhead / _SHORT_STEP_MS,
            "share_of_wide_deep_step": share,
        },
        safeguard=checks.one_line(found),
        sound=not failed,
        reason=failed[0].said if failed else "",
        peak_memory_bytes=[peak for _, peak in everyone],
        batch=settings.batch,
    )


def _wide_deep_ms(shrink: int) -> float:
    """Median time of a training step of Wide & Deep at full size, or `shrink` times smaller, on one rank."""
    from benchmarks import workloads
    from benchmarks.our_steps import OurSteps, endless

    workload = workloads.wide_deep(shrink=shrink)
    step: Callable = OurSteps(workload).trains(endless(workload.batches(2)), 1)
    step()  # traces
    return 1e3 * statistics.median(step()[1] for _ in range(5))


BENCHMARK = Benchmark(
    name="harness_overhead",
    units=UNITS,
    modes=(MODE,),
    default_batch=1,
    precisions=("fp32",),
    parameters={
        "steps": Parameter(500, "at each turn"),
        "turns": Parameter(9, "that count"),
        "shrink": Parameter(1, "how many times smaller than Wide & Deep the step is that it is compared with"),
    },
    predicted_bytes=lambda settings, ranks: PROCESS_BYTES + _WIDE_DEEP_BYTES,
    run=run,
)
