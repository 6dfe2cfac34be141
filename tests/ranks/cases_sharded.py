"""Cases: training with embedding tables on different ranks beside the same training in one process."""

import numpy as np
from rank_cases import DLRM, WIDE_DEEP, Context, case, replaced, run_main, trained

from trainer.distributed import HorovodRanks, SingleProcess

STEPS = 20
BATCH = "--global_batch_size=65"  # divides by no number of ranks that is tried
ALL_SHARDED = ("--embedding_parallelism=model", "--data_parallel_threshold=0")

# name -> (model's flags, flags of the optimizer).
TRAININGS = {
    "sgd": (DLRM, ("--optimizer=sgd", "--learning_rate=0.5")),
    "adagrad": (DLRM, ("--optimizer=adagrad", "--learning_rate=0.05", "--combiner=mean")),
    "rowwise_adagrad": (DLRM, ("--optimizer=rowwise_adagrad", "--learning_rate=0.05")),
    "rmsprop": (DLRM, ("--optimizer=rmsprop", "--learning_rate=0.01")),
    "adam": (DLRM, ("--optimizer=adam", "--learning_rate=0.01")),
    "wide_deep": (WIDE_DEEP, ("--deep_dropout=0",)),
}
# How the tables site (2000 rows), place (300), topics (200) and ad (30), of 8 columns in DLRM, are cut.
CUTS = {
    "whole": (),
    "by rows": ("--row_slice_threshold=2000",),  # site and place
    "by columns": ("--column_slice_threshold=2000",),
    "both, small ones everywhere": (
        "--row_slice_threshold=10000",
        "--column_slice_threshold=2000",
        "--data_parallel_threshold=240",  # ad
    ),
    # Of what the others send it, a rank that has no table needs nothing, and must take part all the same.
    "one table on one rank": ("--data_parallel_threshold=2400",),  # site
}


# Row-wise Adagrad refuses slices by columns: the accumulator of a row needs all of them.
COMBINATIONS = [
    (training, cut)
    for training in TRAININGS
    for cut, flags in CUTS.items()
    if training != "rowwise_adagrad" or not any("column" in flag for flag in flags)
]
# What jobs of three and four ranks try.
ON_MANY = {
    ("sgd", "by rows"),
    ("sgd", "one table on one rank"),
    ("adagrad", "both, small ones everywhere"),
    ("rmsprop", "by columns"),
    ("wide_deep", "whole"),
}


def train(context: Context, training: str, *flags: str, **options) -> dict:
    model, optimizer = TRAININGS[training]
    return trained(context, *optimizer, BATCH, *flags, model=model, **{"steps": STEPS, "name": training} | options)


@case(2)
def sharded_reference(context: Context) -> dict:
    """Training -> what one process makes of it; on rank 0."""
    if context.comm.rank != 0:
        return {}
    return {name: train(context, name, comm=SingleProcess()) for name in TRAININGS}


@case(2, 3, 4)
def sharded(context: Context) -> dict:
    """(training, cut) -> the result."""
    return {
        (training, cut): train(context, training, *ALL_SHARDED, *CUTS[cut], name=f"{training} {cut}")
        for training, cut in COMBINATIONS
        if context.comm.size == 2 or (training, cut) in ON_MANY
    }


@case(2)
def sharded_by_default(context: Context) -> dict:
    """No threshold: small tables stay with every rank."""
    return train(context, "sgd", "--embedding_parallelism=model")


@case(2)
def sharded_and_compiled(context: Context) -> dict:
    return train(context, "sgd", *ALL_SHARDED, "--xla")


@case(2)
def sharded_with_half_on_the_wire(context: Context) -> dict:
    return train(context, "sgd", *ALL_SHARDED, "--fp16_compression")


@case(2)
def sharded_benchmark(context: Context) -> dict:
    steps = (f"--benchmark_steps={STEPS}", "--benchmark_warmup_steps=5")
    return train(context, "sgd", *ALL_SHARDED, "--benchmark", *steps, name="benchmark")


@case(2)
def alltoalls(context: Context) -> dict:
    """Names of the alltoalls in the graphs of training and of evaluation, in the order of tracing."""
    names = []
    alltoall = HorovodRanks.alltoall

    def counted(self, parts, *, name):
        names.append(name)
        return alltoall(self, parts, name=name)

    with replaced(HorovodRanks, "alltoall", counted):
        train(context, "wide_deep", *ALL_SHARDED, steps=3, name="counted")
    return {"names": names}


@case(2)
def returned_vectors_permuted(context: Context) -> dict:
    """A fault: rank 1's answer to rank 0 has its values in another order."""
    alltoall = HorovodRanks.alltoall

    def permuted(self, parts, *, name):
        received = alltoall(self, parts, name=name)
        if name == "vectors" and self.rank == 0:
            received[1] = received[1][::-1]
        return received

    with replaced(HorovodRanks, "alltoall", permuted):
        return train(context, "sgd", *ALL_SHARDED)


OVERFLOW_STEP = 6


@case(2)
def sharded_overflow_on_one_rank(context: Context) -> dict:
    """Rank 1 alone meets numericals that its float16 layers cannot hold."""
    import keras

    def change(step: int, batch: dict) -> dict:
        if step != OVERFLOW_STEP or context.comm.rank != 1:
            return batch
        return {**batch, "numerical": batch["numerical"] + np.float32(1e9)}

    policy = keras.mixed_precision.global_policy()
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        return train(context, "sgd", *ALL_SHARDED, "--amp", steps=12, change_batch=change, name="amp")
    finally:
        keras.mixed_precision.set_global_policy(policy)


# Checkpoints. Each is restored by jobs of other sizes, see conftest.py.

RESTORED = ("rmsprop", "by columns")  # has slots for rows and for weights
HALF = 10


@case(2)
def sharded_checkpoint(context: Context) -> dict:
    """Two ranks train half of the steps and save; then everybody goes on from copies of that."""
    import shutil

    training, cut = RESTORED
    train(context, training, *ALL_SHARDED, *CUTS[cut], steps=HALF, name="half")
    found = {}
    ways = {
        "as it was": (*ALL_SHARDED, *CUTS[cut]),
        "cut otherwise": (*ALL_SHARDED, *CUTS["by rows"]),
        "data-parallel": (),
    }
    for way, flags in ways.items():
        if context.comm.rank == 0:
            shutil.copytree(context.folder / "half" / "checkpoints", context.folder / way / "checkpoints")
        context.comm.barrier()
        found[way] = train(context, training, *flags, name=way)
    if context.comm.rank == 0:
        shutil.copytree(context.folder / "half" / "checkpoints", context.folder / "alone" / "checkpoints")
        found["in one process"] = train(context, training, comm=SingleProcess(), name="alone")
    context.comm.barrier()
    found["evaluated"] = run_main(
        context, *TRAININGS[training][1], "--evaluate", "--embedding_parallelism=model", model=DLRM, name="as it was"
    )
    return found


@case(3, 4)
def sharded_checkpoint_of_two_ranks(context: Context) -> dict:
    """Goes on from what `sharded_checkpoint` saved after half of the steps."""
    import shutil

    training, cut = RESTORED
    if context.comm.rank == 0:
        shutil.copytree(context.datasets["half"], context.folder / "run" / "checkpoints")
    context.comm.barrier()
    return train(context, training, *ALL_SHARDED, *CUTS[cut], name="run")
