"""How much memory a benchmark in plain Keras takes, told before anything is allocated. Without TensorFlow.

Keras makes a table's initial values beside the table, and each of its optimizers computes with tensors as large as
tables, of many tables at once; several ranks sum whole gradients besides. How many such tensors there are at the same
time depends on the order in which TensorFlow runs what it may run in any order, so the shares below were measured, on a
CPU, and rounded up: in one process with 1, 4, 8 and 16 tables of 488 MiB in all, on two ranks with 4 tables of 244 MiB
and 16 of 488 MiB.
"""

import dataclasses
import itertools

from benchmarks.ootb.settings import check_optimizer
from benchmarks.ootb.shapes import layer_widths, table_dims, table_sizes
from data.feature_spec import FeatureSpec
from trainer.config import RunConfig

BASE_BYTES = 720 << 20
"""Of a process with TensorFlow, Keras, Horovod and pyarrow that has read some rows."""

_VALUE_BYTES = 4
# The C library keeps freed blocks up to this size (data.freed_memory), and threads do not use each other's.
_KEPT_BYTES = 32 << 20
# Tensors of the size of what a layer hands on, at the same time: in training with their gradients.
_COPIES_IN_TRAINING, _COPIES_IN_INFERENCE = 5, 2


@dataclasses.dataclass(frozen=True)
class _Optimizer:
    """What an optimizer takes in units of the weights that it updates.

    Attributes:
      slots: state that it keeps.
      temporaries: of all tables together, at the same time.
      of_largest: the same, of the largest table alone, on top.
      kept: what is kept, freed, of small tables, on top.
      summed, summed_kept: in place of these three on several ranks, the summed gradients included.
    """

    slots: int
    temporaries: float
    of_largest: float
    kept: float
    summed: float
    summed_kept: float


_OPTIMIZERS = {
    "sgd": _Optimizer(0, 1.1, 0.0, 0.4, 2.8, 4.0),
    "adagrad": _Optimizer(1, 0.9, 0.7, 0.8, 4.1, 10.0),
    "rmsprop": _Optimizer(1, 2.3, 0.0, 4.2, 4.1, 10.0),
    "adam": _Optimizer(2, 1.0, 1.1, 0.2, 4.7, 10.0),
}


def predicted_bytes(config: RunConfig, spec: FeatureSpec, mode: str, world_size: int = 1) -> int:
    """The largest resident memory of a rank.

    Args:
      config: model, optimizer and batch size.
      spec: the features.
      mode: "training" or "inference".
      world_size: ranks that share a batch.

    Raises:
      InputError: the model cannot be made, or not be trained with that optimizer.
    """
    tables = [_VALUE_BYTES * size for size in table_sizes(config, spec)]
    stacks = layer_widths(config, spec)
    dense = _VALUE_BYTES * sum(width * units for stack in stacks for width, units in itertools.pairwise(stack))
    total, largest = sum(tables), max(tables, default=0)
    making = dense + total + 2 * largest
    training = mode == "training"
    copies = _COPIES_IN_TRAINING if training else _COPIES_IN_INFERENCE
    batch = config.training.global_batch_size if training else config.training.eval_batch_size
    lookups = sum(spec.features[name].max_hotness * dim for name, dim in table_dims(config, spec).items())
    values = copies * (lookups + sum(itertools.chain(*stacks)))
    running = dense + total + _VALUE_BYTES * -(-batch // world_size) * values
    if training:
        running += _update_bytes(config, tables, dense, several_ranks=world_size > 1)
    return BASE_BYTES + max(making, running)


def _update_bytes(config: RunConfig, tables: list[int], dense: int, *, several_ranks: bool) -> int:
    """Slots, and what an update takes for a while."""
    check_optimizer(config)
    # Of Wide & Deep's two optimizers, that of the deep part: the other one's tables have one column.
    name = "rmsprop" if config.model.model == "wide_deep" else config.training.optimizer
    optimizer = _OPTIMIZERS[name]
    total, small = sum(tables) + dense, sum(size for size in tables if size <= _KEPT_BYTES)
    if several_ranks:
        return round((optimizer.slots + optimizer.summed) * total + optimizer.summed_kept * small)
    temporaries = optimizer.temporaries * total + optimizer.of_largest * max(tables, default=0)
    return round(optimizer.slots * total + temporaries + optimizer.kept * small)
