"""Model, state and training step as a configuration asks for them."""

import itertools
import os
from collections.abc import Callable, Sequence

import numpy as np

from data.feature_spec import FeatureSpec
from data.parquet_decode import id_type
from data.row_plan import shard_strata
from models import registry
from models.click_model import ClickModel
from models.registry import build_model, embedding_dims, embedding_dims_from
from models.table_groups import ReplicatedTables, TableGroup, Tables
from trainer.agreement import agree
from trainer.config import RunConfig
from trainer.distributed import SingleProcess
from trainer.ftrl import Ftrl
from trainer.optimizers import SGD, Adagrad, Adam, RMSprop, RowOptimizer, RowwiseAdagrad
from trainer.placed_tables import Placement, TableShape
from trainer.placement import plan
from trainer.placement_report import check_memory, render
from trainer.reduction import Reduction
from trainer.schedules import default_decay_step, warmup_then_polynomial_decay, warmup_then_steps_down
from trainer.sharded_tables import ShardedTables, Wire
from trainer.state import TrainState
from trainer.steps import Schedule, make_train_step
from trainer.wire_costs import choose_method

_PROJECT_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

# Lifts gradients of a mean over 131072 rows above the smallest float16; leaves mean gradients of up to 63 room.
_HALF_SCALE = 1024.0


def table_groups(config: RunConfig, spec: FeatureSpec) -> list[TableGroup]:
    """The embedding tables of the model, none of them allocated.

    Raises:
      InputError: the embedding dimensions cannot be used.
    """
    return registry.table_groups(
        config.model.model,
        spec,
        dims=_embedding_dims(config, spec),
        combiner=config.model.combiner,
        seed=config.training.seed,
    )


def place_tables(
    config: RunConfig, spec: FeatureSpec, comm: SingleProcess, memory_bytes: int | None, *, own_device: bool = False
) -> Placement:
    """Where each embedding table is going to live: the same on every rank, and nothing is allocated.

    Args:
      config: model, optimizer, parallelism and thresholds.
      spec: the features.
      comm: the ranks, which must all call it.
      memory_bytes: available for tables; None where it is not known.
      own_device: it is that of a device which this rank has for itself, and not of the machine that ranks share.

    Raises:
      InputError: on every rank, if the tables cannot be made as asked for, or some memory cannot hold its part.
    """
    first = comm.rank - comm.local_rank  # the first rank of this machine
    sharing = [comm.rank] if own_device else range(first, first + comm.local_size)
    # Ranks may have different memories and must come to the same plan.
    shares = comm.allgather_object(None if memory_bytes is None else memory_bytes // len(sharing))
    known = [share for share in shares if share is not None]
    batch_size = config.training.eval_batch_size if config.mode.evaluate else config.training.global_batch_size

    def place() -> Placement:
        embeddings, traffic = config.embeddings, _traffic(config, spec)
        placement = plan(
            _table_shapes(config, spec),
            world_size=comm.size,
            parallelism=embeddings.embedding_parallelism,
            global_batch_size=batch_size,
            column_slice_threshold=embeddings.column_slice_threshold,
            row_slice_threshold=embeddings.row_slice_threshold,
            data_parallel_threshold=embeddings.data_parallel_threshold,
            id_bytes=traffic["id_bytes"],
            value_bytes=traffic["value_bytes"],
            memory_bytes_per_rank=min(known, default=None),
        )
        check_memory(
            placement,
            ranks=sharing,
            batch_size=batch_size,
            available_bytes=memory_bytes,
            source=spec.path,
            training=traffic["training"],
            id_bytes=traffic["id_bytes"],
        )
        return placement

    return agree(comm, place)


def local_batch_sizes(config: RunConfig, comm: SingleProcess) -> list[int]:
    """Rows of a global batch that each rank has, by rank; of evaluation batches where the run evaluates."""
    if config.mode.evaluate:
        bounds = [rank * config.training.eval_batch_size // comm.size for rank in range(comm.size + 1)]
        return [stop - start for start, stop in itertools.pairwise(bounds)]
    size, shards = config.training.global_batch_size, config.data.data_shards
    strata = [shard_strata(size, shards, rank, comm.size) for rank in range(comm.size)]
    return [last - first for first, last in strata]


def predicted_alltoall_bytes(config: RunConfig, comm: SingleProcess, spec: FeatureSpec, placement: Placement) -> int:
    """Bytes that this rank is going to hand to alltoall in a step."""
    return placement.wire_bytes(comm.rank, local_batch_sizes(config, comm), **_traffic(config, spec))


def describe_placement(config: RunConfig, comm: SingleProcess, spec: FeatureSpec, placement: Placement) -> str:
    """The table of tables that is printed at the start."""
    return render(placement, local_batch_sizes(config, comm), **_traffic(config, spec))


def _traffic(config: RunConfig, spec: FeatureSpec) -> dict[str, int | bool]:
    """What the bytes of a step depend on besides the placement."""
    return {
        "id_bytes": id_type(sum(spec.features[name].cardinality for name in spec.categorical)).itemsize,
        "value_bytes": _value_bytes(config),
        "training": not config.mode.evaluate,
    }


def _table_shapes(config: RunConfig, spec: FeatureSpec) -> list[TableShape]:
    optimizers = {} if config.mode.evaluate else make_optimizers(config)
    shapes = []
    for group in table_groups(config, spec):
        optimizer = optimizers.get(group.optimizer_group)
        shapes += [
            TableShape(
                name=group.table_name(table),
                feature=table.name,
                group=group.name,
                rows=table.rows,
                dim=group.dim,
                hotness=table.hotness,
                summed=group.sum_features,
                slots_per_weight=optimizer.slots_per_weight if optimizer else 0,
                slots_per_row=optimizer.slots_per_row if optimizer else 0,
                couples_columns=optimizer.couples_columns if optimizer else False,
            )
            for table in group.tables
        ]
    return shapes


def make_model(config: RunConfig, spec: FeatureSpec, comm: SingleProcess, placement: Placement) -> ClickModel:
    """The model with its initial weights, its tables where `placement` says, under the Keras policy in force.

    Raises:
      InputError: the shape that is asked for cannot be.
    """
    model = config.model
    shape = {
        "wide_deep": {"hidden_units": model.deep_hidden_units, "dropout": model.deep_dropout},
        "dlrm": {"interaction": model.interaction, "self_interaction": model.self_interaction},
        "dcnv2": {
            "num_cross_layers": model.num_cross_layers,
            "cross_layer_projection_dim": model.cross_layer_projection_dim,
        },
    }[model.model]
    if model.model != "wide_deep":
        shape |= {"bottom_mlp_dims": model.bottom_mlp_dims, "top_mlp_dims": model.top_mlp_dims}

    def spread(groups: Sequence[TableGroup]) -> Tables:
        wire = Wire(half=config.device.fp16_compression, gradient_scale=_half_scale(config))
        return ShardedTables(groups, placement=placement, comm=comm, wire=wire)

    return build_model(
        model.model,
        spec,
        dims=_embedding_dims(config, spec),
        combiner=model.combiner,
        seed=config.training.seed,
        embeddings=ReplicatedTables if placement.is_replicated else spread,
        **shape,
    )


def make_optimizers(config: RunConfig) -> dict[str, RowOptimizer]:
    """Optimizer group -> a new optimizer without slots."""
    training = config.training
    if config.model.model == "wide_deep":
        return {
            "wide": Ftrl(training.linear_learning_rate * config.learning_rate_factor()),
            "deep": RMSprop(rho=0.5),
        }
    return {
        "main": {
            "sgd": SGD,
            "adagrad": Adagrad,
            "rowwise_adagrad": RowwiseAdagrad,
            "rmsprop": lambda: RMSprop(rho=0.9),
            "adam": Adam,
        }[training.optimizer]()
    }


def make_state(config: RunConfig, model: ClickModel, rank: int) -> TrainState:
    """The model's state before the first step, on one rank."""
    return TrainState(model, make_optimizers(config), dynamic_loss_scale=_dynamic_loss_scale(config), rank=rank)


def make_step(config: RunConfig, comm: SingleProcess, state: TrainState, steps_per_epoch: int) -> Callable:
    """The training step: see trainer.steps.make_train_step.

    Args:
      config: rates, schedule, reduction and precision.
      comm: the ranks.
      state: what the step changes.
      steps_per_epoch: turns epochs of the schedule into steps.
    """
    training, device = config.training, config.device
    # The same choice on every rank, whose batches can differ by a row.
    largest = -(-training.global_batch_size // comm.size) + 1
    methods = tuple(
        choose_method(
            ids_per_rank=largest * table.ids_per_sample(),
            table_rows=table.padding_row,
            dim=table.dim,
            world_size=comm.size,
            value_bytes=_value_bytes(config),
        )
        if device.table_reduction == "auto"
        else device.table_reduction
        for table in state.model.embeddings.replicated
    )
    return make_train_step(
        state,
        reduction=Reduction(comm, methods, half=device.fp16_compression, half_scale=_half_scale(config)),
        schedules=_schedules(config, state, steps_per_epoch),
        global_batch_size=training.global_batch_size,
        # Ranks drop different units; ranks of one run never share a seed with those of the next.
        seed=(training.seed * 65537 + comm.rank) % 2**31,
        xla=device.xla,
    )


def _schedules(config: RunConfig, state: TrainState, steps_per_epoch: int) -> dict[str, Schedule]:
    training, factor = config.training, config.learning_rate_factor()
    if config.model.model != "wide_deep":
        return {
            "main": lambda step: warmup_then_polynomial_decay(
                training.learning_rate * factor,
                warmup_steps=training.warmup_steps,
                decay_start_step=training.decay_start_step,
                decay_steps=training.decay_steps,
                step=step,
            )
        }
    warmup, decay = training.deep_warmup_steps, training.deep_decay_step
    if warmup is None:
        warmup = round(training.deep_warmup_epochs * steps_per_epoch)
    if decay is None:
        decay = default_decay_step(warmup, training.num_epochs * steps_per_epoch)
    wide_rate = state.optimizers["wide"].learning_rate
    return {
        "wide": lambda step: np.float32(wide_rate),
        "deep": lambda step: warmup_then_steps_down(
            training.deep_learning_rate * factor, warmup_steps=warmup, decay_step=decay, step=step
        ),
    }


def _dynamic_loss_scale(config: RunConfig) -> bool:
    return config.device.amp and config.device.amp_dtype == "float16"


def _half_scale(config: RunConfig) -> float:
    """What multiplies gradients before they become float16 on the wire; those under loss scaling are large enough."""
    return 1.0 if _dynamic_loss_scale(config) else _HALF_SCALE


def _value_bytes(config: RunConfig) -> int:
    return 2 if config.device.fp16_compression else 4


def _embedding_dims(config: RunConfig, spec: FeatureSpec) -> dict[str, int]:
    if config.model.model == "wide_deep":
        return embedding_dims(spec, _sizes_file(config.model.embedding_sizes_file))
    return embedding_dims_from(spec, config.model.embedding_dim)


def _sizes_file(path: str) -> str:
    """The file as named, or as named from the project's folder, so that the default works from anywhere."""
    ours = os.path.join(_PROJECT_ROOT, path)
    return ours if os.path.exists(ours) and not os.path.exists(path) else path
