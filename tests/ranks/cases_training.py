"""Cases: training on several ranks beside training on one, and the same with each guarantee taken away."""

import contextlib
import time

import numpy as np
from rank_cases import STEPS, Context, case, replaced, run_main, trained

from data.input_pipeline import ParquetInput
from trainer import assembly
from trainer.distributed import HorovodRanks, SingleProcess
from trainer.reduction import Reduction

EVEN, ODD = 64, 65  # 64 does not divide by 3 ranks, 65 not by 2
NO_DROPOUT = "--deep_dropout=0"


@case(2)
def one_rank(context: Context) -> dict:
    """What all others are compared with, by batch size; on rank 0 alone, as if there were no others."""
    if context.comm.rank != 0:
        return {}
    return {
        size: trained(context, NO_DROPOUT, f"--global_batch_size={size}", comm=SingleProcess(), name=str(size))
        for size in (EVEN, ODD)
    }


@case(2, 3)
def gather(context: Context) -> dict:
    return trained(context, NO_DROPOUT, f"--global_batch_size={EVEN}", "--table_reduction=gather")


@case(2, 3)
def allreduce(context: Context) -> dict:
    return trained(context, NO_DROPOUT, f"--global_batch_size={EVEN}", "--table_reduction=allreduce")


@case(2)
def uneven_batches(context: Context) -> dict:
    return trained(context, NO_DROPOUT, f"--global_batch_size={ODD}")


@case(2)
def half_on_the_wire(context: Context) -> dict:
    return trained(
        context, NO_DROPOUT, f"--global_batch_size={EVEN}", "--table_reduction=allreduce", "--fp16_compression"
    )


@case(2)
def half_gathered(context: Context) -> dict:
    return trained(
        context, NO_DROPOUT, f"--global_batch_size={EVEN}", "--table_reduction=gather", "--fp16_compression", steps=5
    )


@case(2)
def dropout(context: Context) -> dict:
    """Ranks drop different units, and are the same at the end all the same."""
    return trained(context, "--deep_dropout=0.5", f"--global_batch_size={EVEN}", steps=10)


@case(2)
def compiled(context: Context) -> dict:
    return trained(context, NO_DROPOUT, f"--global_batch_size={EVEN}", "--xla", steps=10)


@case(2)
def benchmark(context: Context) -> dict:
    """As many steps as `gather` trains."""
    steps = (f"--benchmark_steps={STEPS}", "--benchmark_warmup_steps=10")
    return trained(
        context, NO_DROPOUT, f"--global_batch_size={EVEN}", "--table_reduction=gather", "--benchmark", *steps
    )


@case(2)
def benchmark_with_a_slow_rank(context: Context) -> dict:
    """The same, rank 1 taking 50 ms longer over each step."""

    def delayed(step: int, batch: dict) -> dict:
        if context.comm.rank == 1:
            time.sleep(0.05)
        return batch

    steps = ("--benchmark_steps=20", "--benchmark_warmup_steps=5")
    return trained(
        context,
        NO_DROPOUT,
        f"--global_batch_size={EVEN}",
        "--table_reduction=gather",
        "--benchmark",
        *steps,
        change_batch=delayed,
    )


@case(2)
def evaluation_of_a_checkpoint(context: Context) -> dict:
    """The records of a training, of an evaluation of its checkpoint, and of a benchmark of that."""
    return {
        "training": trained(context, f"--global_batch_size={EVEN}", steps=20)["record"],
        "evaluation": run_main(context, "--evaluate"),
        "benchmark": run_main(
            context, "--evaluate", "--benchmark", "--benchmark_steps=5", "--benchmark_warmup_steps=1"
        ),
    }


# Faults: tests assert that they are found out.


@case(2)
def gradients_not_reduced(context: Context) -> dict:
    def reduce_nothing_but_the_loss(self, dense, slices, extras):
        return list(dense), list(slices), self.comm.allreduce([extras], name="extras")[0]

    with replaced(Reduction, "__call__", reduce_nothing_but_the_loss):
        return gather(context)


@case(2)
def tables_not_reduced(context: Context) -> dict:
    """Of the two forms of a gradient only the sparse one stays at home."""
    with replaced(Reduction, "_gather", lambda self, own, name: own):
        return gather(context)


@contextlib.contextmanager
def initial_weights_by_rank(rank: int):
    build_model = assembly.build_model

    def build(*args, seed: int, **kwargs):
        return build_model(*args, seed=seed + rank, **kwargs)

    with replaced(assembly, "build_model", build):
        yield


@case(2)
def different_initial_weights(context: Context) -> dict:
    """No fault: the broadcast makes up for it."""
    with initial_weights_by_rank(context.comm.rank):
        return gather(context)


@case(2)
def not_broadcast(context: Context) -> dict:
    with (
        initial_weights_by_rank(context.comm.rank),
        replaced(HorovodRanks, "broadcast_variables", lambda self, variables: None),
    ):
        return gather(context)


@case(2)
def same_rows_on_both_ranks(context: Context) -> dict:
    train_stream = ParquetInput.train_stream

    def always_rank_0(self, **arguments):
        return train_stream(self, **(arguments | {"rank": 0}))

    with replaced(ParquetInput, "train_stream", always_rank_0):
        return gather(context)


# Loss scaling.

OVERFLOW_STEP = 6


@case(2)
def overflow_on_one_rank(context: Context) -> dict:
    """Rank 1 alone meets numericals that its float16 layers cannot hold."""
    import keras

    def change(step: int, batch: dict) -> dict:
        if step != OVERFLOW_STEP or context.comm.rank != 1:
            return batch
        return {**batch, "numerical": batch["numerical"] + np.float32(1e9)}

    policy = keras.mixed_precision.global_policy()
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        return trained(context, NO_DROPOUT, "--amp", f"--global_batch_size={EVEN}", steps=12, change_batch=change)
    finally:
        keras.mixed_precision.set_global_policy(policy)


# Benchmarks of so many seconds.

SECONDS, SLOW_S, WARMUP = 0.2, 0.02, 1


@case(2)
def timed_seconds(context: Context) -> dict:
    """Rank 1 takes longer for every evaluation step, and no step makes rank 0 wait for it."""
    from trainer.evaluate import Scoreboard

    update = Scoreboard.update

    def slow_update(self, batch, logits):
        if context.comm.rank == 1:
            time.sleep(SLOW_S)
        return update(self, batch, logits)

    benchmark = ("--benchmark", f"--benchmark_warmup_steps={WARMUP}", "--benchmark_steps=900")
    limits = (*benchmark, f"--benchmark_seconds={SECONDS}", f"--global_batch_size={EVEN}", "--nouse_checkpoint")
    with replaced(Scoreboard, "update", slow_update):
        inference = run_main(context, *limits, "--evaluate", "--eval_batch_size=16", name="inference")
    return {"training": run_main(context, *limits, name="training"), "inference": inference}
