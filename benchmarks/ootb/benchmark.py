"""One benchmark of plain Keras on a rank, from the configuration to the record."""

import os
import sys

import keras

from benchmarks.ootb import fit, inputs, loop, memory
from benchmarks.ootb.clock import BenchmarkClock
from benchmarks.ootb.models import build_model, make_variables
from benchmarks.ootb.optimizers import make_optimizer
from data.errors import InputError
from data.feature_spec import TEST, TRAIN, FeatureSpec
from data.input_pipeline import BatchStream, ParquetInput
from data.row_plan import shard_strata
from models import custom_ops
from trainer import benchmark as trainer_benchmark
from trainer import machine, nvml
from trainer.agreement import agree
from trainer.benchmark import Measurement
from trainer.config import RunConfig
from trainer.dataset import open_spec
from trainer.distributed import SingleProcess
from trainer.record_fields import benchmark_fields, finish, run_fields, skipped_note
from trainer.records import Record
from trainer.runtime import Surroundings
from trainer.writers import NullWriter


def run(config: RunConfig, comm: SingleProcess, surroundings: Surroundings) -> Record:
    """Benchmarks training or, with --evaluate, inference, on an initialised rank.

    Args:
      config: what to run; see benchmarks.ootb.settings.
      comm: the ranks.
      surroundings: the device, and what else the first line of output has to say.

    Returns:
      The record, the same on every rank; `result.json` has it too.

    Raises:
      InputError: on every rank, if any finds something wrong.
    """
    # What this installation has and not what runs here: it describes the machine, beside runs of our own models.
    environment = machine.environment() | {"embedding_kernels": custom_ops.in_use()}
    if comm.rank == 0:
        print(_first_line(config, comm, surroundings), flush=True)
    who = f"rank {comm.rank}: " if comm.size > 1 else ""
    for warning in surroundings.warnings:
        print(f"main.py: warning: {who}{warning}", file=sys.stderr, flush=True)
    training, data = config.training, config.data
    agree(comm, lambda: shard_strata(training.global_batch_size, data.data_shards, comm.rank, comm.size))
    spec = agree(comm, lambda: open_spec(config))
    agree(comm, lambda: check_memory(config, spec, comm, has_gpu=surroundings.device.has_gpu))
    # Layers draw their seeds from this when they are made; ranks then drop different units.
    keras.utils.set_random_seed((training.seed + comm.rank * 65537) % 2**31)
    model = agree(comm, lambda: build_model(config, spec))
    make_variables(model, spec)
    measured, rows, skipped = (_inference if config.mode.evaluate else _training)(config, comm, spec, model)
    return _finish(config, comm, surroundings, spec, environment, measured, rows, skipped)


def _training(
    config: RunConfig, comm: SingleProcess, spec: FeatureSpec, model: keras.Model
) -> tuple[Measurement, int, int]:
    """What was measured, rows of an epoch, and steps that were skipped."""
    mode, training = config.mode, config.training
    rows = agree(comm, lambda: ParquetInput(spec, TRAIN, with_display=False))
    with agree(comm, lambda: train_stream(config, rows, comm)) as stream:
        model.compile(
            optimizer=make_optimizer(config, model, stream.steps_per_epoch),
            loss=keras.losses.BinaryCrossentropy(from_logits=True),
            jit_compile=config.device.xla,
        )
        model.optimizer.build(model.trainable_variables)
        limits = {
            "warmup_steps": mode.benchmark_warmup_steps,
            "num_steps": mode.benchmark_steps,
            "seconds": mode.benchmark_seconds,
        }
        if comm.size == 1:
            dataset = inputs.training_dataset(stream, spec)
            measured, _ = fit.time_fit(model, stream, dataset, BenchmarkClock(**limits))
        else:
            _broadcast(model, comm)
            measured = trainer_benchmark.benchmark_training(
                comm=comm,
                train_step=loop.make_train_step(
                    model,
                    model.optimizer,
                    comm,
                    spec=spec,
                    global_batch_size=training.global_batch_size,
                    xla=config.device.xla,
                ),
                stream=stream,
                global_batch_size=training.global_batch_size,
                writer=NullWriter(),
                **limits,
            )
        usable = stream.steps_per_epoch * training.global_batch_size
    steps = measured.times.warmup_steps + measured.times.measured_steps
    return measured, usable, steps - updates(model.optimizer)


def _inference(
    config: RunConfig, comm: SingleProcess, spec: FeatureSpec, model: keras.Model
) -> tuple[Measurement, int, int]:
    """What was measured, rows of a pass, and 0."""
    mode = config.mode
    rows = agree(comm, lambda: ParquetInput(spec, TEST, with_display=False))
    batch_size = config.training.eval_batch_size
    with agree(
        comm,
        lambda: rows.eval_stream(global_batch_size=batch_size, rank=comm.rank, world_size=comm.size, repeat=True),
    ) as stream:
        model.compile(jit_compile=config.device.xla)
        limits = {
            "warmup_steps": mode.benchmark_warmup_steps,
            "num_steps": mode.benchmark_steps,
            "seconds": mode.benchmark_seconds,
        }
        if comm.size == 1:
            dataset = inputs.scoring_dataset(stream, spec)
            clock = BenchmarkClock(**limits)
            return fit.time_predict(model, stream, dataset, clock, num_rows=rows.num_rows), rows.num_rows, 0
        _broadcast(model, comm)
        measured = trainer_benchmark.benchmark_inference(
            comm=comm,
            eval_step=loop.make_eval_step(model, spec=spec, xla=config.device.xla),
            stream=stream,
            new_scoreboard=loop.RowCount,
            writer=NullWriter(),
            **limits,
        )
    return measured, rows.num_rows, 0


def train_stream(config: RunConfig, rows: ParquetInput, comm: SingleProcess) -> BatchStream:
    """The batches of our own training."""
    return rows.train_stream(
        global_batch_size=config.training.global_batch_size,
        rank=comm.rank,
        world_size=comm.size,
        seed=config.training.seed,
        data_shards=config.data.data_shards,
        shuffle_buffer_rows=config.data.shuffle_buffer_rows,
    )


def _broadcast(model: keras.Model, comm: SingleProcess) -> None:
    """Gives every rank the weights and slots of rank 0; each keeps its own dropout.

    Horovod matches them by name, so all ranks must have made the same layers so far: Keras numbers them.
    """
    slots = [] if model.optimizer is None else model.optimizer.variables
    comm.broadcast_variables([variable.value for variable in [*model.trainable_variables, *slots]])


def updates(optimizer: keras.optimizers.Optimizer) -> int:
    """Updates that an optimizer has applied: under loss scaling, steps whose gradients were finite."""
    return int(getattr(optimizer, "inner_optimizer", optimizer).iterations.numpy())


def check_memory(config: RunConfig, spec: FeatureSpec, comm: SingleProcess, *, has_gpu: bool) -> None:
    """Refuses what this machine cannot hold, before it is allocated."""
    mode = "inference" if config.mode.evaluate else "training"
    needed = memory.predicted_bytes(config, spec, mode, comm.size)
    available = nvml.free_memory_bytes(os.environ) if has_gpu else machine.read_available_memory_bytes()
    if available is None:
        return
    share = available if has_gpu else available // comm.local_size
    # What the process has already taken is no longer among what is available.
    if needed - memory.BASE_BYTES > share:
        raise InputError(
            f"{spec.path}: {mode} in plain Keras needs about {needed / 2**30:.1f} GiB a rank, where "
            f"{share / 2**30:.1f} GiB are available: lower the cardinalities, the embedding dimension or the batch size"
        )


def _finish(
    config: RunConfig,
    comm: SingleProcess,
    surroundings: Surroundings,
    spec: FeatureSpec,
    environment: dict,
    measured: Measurement,
    usable_rows: int,
    skipped: int,
) -> Record:
    """Writes the record and prints its table, on rank 0 alone."""
    fields = benchmark_fields(measured, config.mode, usable_rows=usable_rows)
    if comm.size == 1:
        fields["input_wait_share"] = None  # no callback of Keras says when a step has its input
    untrained = ("Untrained weights, and no metrics.",) if config.mode.evaluate else ()
    ran = run_fields(config, comm, surroundings, spec, environment, implementation="ootb")
    return finish(Record(**ran, **fields, notes=(*untrained, *skipped_note(skipped))), config, comm)


def _first_line(config: RunConfig, comm: SingleProcess, surroundings: Surroundings) -> str:
    """Says in one line what runs on what."""
    training, mode, device = config.training, config.mode, config.device
    batch = training.eval_batch_size if mode.evaluate else training.global_batch_size
    by = "predict" if mode.evaluate else "fit"
    parts = [
        f"benchmark of {'evaluation' if mode.evaluate else 'training'} out of the box, {config.model.model}",
        f"Keras {keras.__version__}, {by if comm.size == 1 else 'a loop with Horovod'}",
        surroundings.device.description,
        surroundings.device.describe_precision(device.precision) + (", XLA" if device.xla else ""),
        f"{comm.size} rank{'s' if comm.size > 1 else ''} ({comm.description})",
        f"batch {batch} global",
    ]
    if surroundings.fell_back:
        parts.append("fell back: " + ", ".join(surroundings.fell_back))
    if surroundings.without_effect:
        parts.append("without effect here: " + ", ".join(surroundings.without_effect))
    return " | ".join(parts)
