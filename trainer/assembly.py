"""Model, state and training step as a configuration asks for them."""

import os
from collections.abc import Callable

import numpy as np

from data.errors import InputError
from data.feature_spec import FeatureSpec
from models.registry import build_model, embedding_dims
from models.wide_deep import WideDeep
from trainer.config import RunConfig
from trainer.distributed import SingleProcess
from trainer.optimizers import Ftrl, RMSprop, default_decay_step, warmup_then_steps_down
from trainer.reduction import Reduction, choose_method
from trainer.state import TrainState
from trainer.steps import make_train_step

_PROJECT_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

# Lifts gradients of a mean over 131072 rows above the smallest float16; leaves mean gradients of up to 63 room.
_HALF_SCALE = 1024.0


def check_memory(config: RunConfig, spec: FeatureSpec, comm: SingleProcess, memory_bytes: int | None) -> None:
    """Refuses tables or batches that this machine cannot hold, before any of it is allocated.

    Counts tables with their slots and a batch's ids and embeddings, of all ranks of this machine, against its whole
    memory: what passes may still not fit, what is refused cannot.

    Raises:
      InputError: the message names the largest feature, and both amounts.
    """
    if memory_bytes is None:
        return
    dims = embedding_dims(spec, _sizes_file(config.model.embedding_sizes_file))
    training = not config.mode.evaluate
    batch = config.training.global_batch_size if training else config.training.eval_batch_size
    rows_here = -(-batch // comm.size) * comm.local_size
    needs = {}
    for name in spec.categorical:
        feature = spec.features[name]
        # Training adds a slot to each embedding and its last step, and two slots to each weight of the wide part.
        row_values = 2 * dims[name] + 1 + 3 if training else dims[name] + 1
        tables = 4 * row_values * feature.cardinality * comm.local_size
        needs[name] = tables + 4 * (dims[name] + 1) * feature.max_hotness * rows_here
    needed = sum(needs.values())
    if needed > memory_bytes:
        largest = max(needs, key=needs.get)
        feature = spec.features[largest]
        raise InputError(
            f"{spec.path}: tables and batches need at least {needed / 2**30:,.1f} GiB and this machine has "
            f"{memory_bytes / 2**30:,.1f} GiB; most of it is feature '{largest}' (cardinality {feature.cardinality}, "
            f"max_hotness {feature.max_hotness}, embedding dimension {dims[largest]}): lower one of these, the batch "
            "size or the ranks on this machine"
        )


def make_model(config: RunConfig, spec: FeatureSpec) -> WideDeep:
    """The model with its initial weights, under the Keras precision policy in force.

    Raises:
      InputError: the file of embedding sizes cannot be used.
    """
    model = config.model
    return build_model(
        model.model,
        spec,
        dims=embedding_dims(spec, _sizes_file(model.embedding_sizes_file)),
        hidden_units=model.deep_hidden_units,
        dropout=model.deep_dropout,
        combiner=model.combiner,
        seed=config.training.seed,
    )


def make_state(config: RunConfig, model: WideDeep) -> TrainState:
    """The model's state before the first step."""
    training, device = config.training, config.device
    wide_rate = training.linear_learning_rate * training.learning_rate_factor()
    return TrainState(
        model,
        {"wide": Ftrl(wide_rate), "deep": RMSprop(rho=0.5)},
        dynamic_loss_scale=device.amp and device.amp_dtype == "float16",
    )


def make_step(config: RunConfig, comm: SingleProcess, state: TrainState, steps_per_epoch: int) -> Callable:
    """The training step: see trainer.steps.make_train_step.

    Args:
      config: rates, schedule, reduction and precision.
      comm: the ranks.
      state: what the step changes.
      steps_per_epoch: turns epochs of the schedule into steps.
    """
    training, device = config.training, config.device
    factor = training.learning_rate_factor()
    num_steps = training.num_epochs * steps_per_epoch
    warmup = training.deep_warmup_steps
    if warmup is None:
        warmup = round(training.deep_warmup_epochs * steps_per_epoch)
    decay = training.deep_decay_step
    if decay is None:
        decay = default_decay_step(warmup, num_steps)
    # The same choice on every rank, whose batches can differ by a row.
    largest = -(-training.global_batch_size // comm.size) + 1
    methods = tuple(
        choose_method(
            ids_per_rank=largest * table.ids_per_sample(),
            table_rows=table.padding_row,
            dim=table.dim,
            world_size=comm.size,
            value_bytes=2 if device.fp16_compression else 4,
        )
        if device.table_reduction == "auto"
        else device.table_reduction
        for table in state.model.tables
    )
    wide_rate = state.optimizers["wide"].learning_rate
    return make_train_step(
        state,
        reduction=Reduction(
            comm,
            methods,
            half=device.fp16_compression,
            half_scale=1.0 if state.dynamic_loss_scale else _HALF_SCALE,
        ),
        schedules={
            "wide": lambda step: np.float32(wide_rate),
            "deep": lambda step: warmup_then_steps_down(
                training.deep_learning_rate * factor, warmup_steps=warmup, decay_step=decay, step=step
            ),
        },
        global_batch_size=training.global_batch_size,
        # Ranks drop different units; ranks of one run never share a seed with those of the next.
        seed=(training.seed * 65537 + comm.rank) % 2**31,
        xla=device.xla,
    )


def _sizes_file(path: str) -> str:
    """The file as named, or as named from the project's folder, so that the default works from anywhere."""
    ours = os.path.join(_PROJECT_ROOT, path)
    return ours if os.path.exists(ours) and not os.path.exists(path) else path
