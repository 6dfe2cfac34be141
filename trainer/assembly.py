"""Model, state and training step as a configuration asks for them."""

import os
from collections.abc import Callable

import numpy as np

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
