"""Cases: benchmarks of plain Keras on two ranks beside one."""

import numpy as np
from rank_cases import Context, case, replaced

from trainer.distributed import HorovodRanks, SingleProcess

STEPS = 12
_WIDE_DEEP = ("--deep_hidden_units=16,8", "--deep_dropout=0.3", "--deep_warmup_steps=0", "--deep_learning_rate=0.02")
_DLRM = (
    "--model=dlrm",
    "--embedding_dim=8",
    "--bottom_mlp_dims=12,8",
    "--top_mlp_dims=16,1",
    "--learning_rate=0.5",
    "--warmup_steps=0",
    "--decay_steps=0",
)


def measured(context: Context, *flags: str, comm=None, name: str = "run") -> dict:
    """The loss of each step, weights and seeds of dropout at the end, and the record."""
    from benchmarks.ootb import benchmark
    from trainer import flags as command_line
    from trainer.runtime import Device, Surroundings

    losses, models = [], []
    build_model, time_fit, make_train_step = (
        benchmark.build_model,
        benchmark.fit.time_fit,
        benchmark.loop.make_train_step,
    )

    def keep_model(*given):
        models.append(build_model(*given))
        return models[-1]

    def keep_losses_of_fit(*given):
        found, of_steps = time_fit(*given)
        losses.extend(of_steps)
        return found, of_steps

    def keep_losses_of_steps(*given, **named):
        train_step = make_train_step(*given, **named)

        def step(*inputs):
            out = train_step(*inputs)
            losses.append(float(out["loss"]))
            return out

        return step

    results = context.folder / name
    arguments = [
        "--cpu",
        "--affinity=disabled",
        "--benchmark",
        f"--benchmark_steps={STEPS}",
        "--benchmark_warmup_steps=2",
        "--eval_batch_size=500",
        "--shuffle_buffer_rows=1500",
        f"--dataset_path={context.datasets['plain']}",
        f"--results_dir={results}",
        f"--model_dir={results / 'checkpoints'}",
        *flags,
    ]
    with (
        replaced(benchmark, "build_model", keep_model),
        replaced(benchmark.fit, "time_fit", keep_losses_of_fit),
        replaced(benchmark.loop, "make_train_step", keep_losses_of_steps),
    ):
        record = benchmark.run(command_line.parse(arguments), comm or context.comm, Surroundings(Device(False, "CPU")))
    return {
        "losses": np.array(losses),
        "weights": models[0].get_weights(),
        "seeds": [variable.numpy() for variable in models[0].non_trainable_variables],
        "record": record,
    }


@case(2)
def ootb_one_rank(context: Context) -> dict:
    """`fit` alone, as if there were no others, by batch size.

    On both ranks: Horovod matches variables by name, and Keras numbers the layers that a process has made.
    """
    return {
        size: measured(
            context,
            *_DLRM,
            f"--global_batch_size={size}",
            comm=SingleProcess(),
            name=f"{size}-{context.comm.rank}",
        )
        for size in (64, 65)
    }


@case(2)
def ootb_two_ranks(context: Context) -> dict:
    return {size: measured(context, *_DLRM, f"--global_batch_size={size}", name=str(size)) for size in (64, 65)}


@case(2)
def ootb_with_dropout(context: Context) -> dict:
    return measured(context, *_WIDE_DEEP, "--global_batch_size=64")


@case(2)
def ootb_inference(context: Context) -> dict:
    return measured(context, *_DLRM, "--evaluate")


@case(2)
def ootb_seconds(context: Context) -> dict:
    return measured(context, *_DLRM, "--global_batch_size=64", "--benchmark_steps=90", "--benchmark_seconds=0.000001")


@case(2)
def ootb_not_reduced(context: Context) -> dict:
    """A fault: each rank applies its own gradients."""
    allreduce = HorovodRanks.allreduce

    def all_but_gradients(self, tensors, *, name):
        return list(tensors) if name == "gradients" else allreduce(self, tensors, name=name)

    with replaced(HorovodRanks, "allreduce", all_but_gradients):
        return measured(context, *_DLRM, "--global_batch_size=64")
