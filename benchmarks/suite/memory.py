"""How much memory a rank is going to take, before anything is started. No TensorFlow.

Predictions are of the largest resident memory on a CPU, and meant to tell what cannot fit, not to fill a machine to the
last byte: tests hold them against measured peaks. What is counted:

  base          of a process that has imported TensorFlow and Horovod and traced a step, as measured
  tables        weights with optimizer slots
  dense layers  weights, slots, a gradient
  batch         ids, vectors and activations, in training their gradients too, and looked-up rows before they are pooled
  rows          the windows of decoded rows that the input holds
"""

import itertools

from benchmarks.ootb import memory as ootb_memory
from benchmarks.ootb.shapes import layer_widths, table_dims
from benchmarks.suite import micro
from benchmarks.suite.definitions import OOTB, Definition
from benchmarks.suite.results import Cell
from benchmarks.suite.settings import resolve
from data.feature_spec import FeatureSpec
from trainer.config import RunConfig
from trainer.dataset import planned_spec

BASE_BYTES = 700 << 20

SLOTS_PER_WEIGHT = {"sgd": 0, "adagrad": 1, "rowwise_adagrad": 0, "rmsprop": 1, "adam": 2, "ftrl": 2}
SLOTS_PER_ROW = {"rowwise_adagrad": 1, "rmsprop": 1}
_VALUE_BYTES = 4
_MODEL_PARALLEL_IMBALANCE = 1.1  # the heaviest rank's share of tables against the mean's


def predicted_bytes(definition: Definition, cell: Cell) -> int:
    """Bytes that each rank of a cell takes.

    Raises:
      InputError: the cell's settings cannot be, or name a dataset that is not there.
    """
    if definition.is_micro:
        return micro.predicted_bytes(definition, cell)
    config = resolve(definition, cell)
    spec = planned_spec(config)
    if cell.implementation == OOTB:
        return ootb_memory.predicted_bytes(config, spec, cell.mode, cell.world_size)
    return optimized_bytes(config, spec, cell.world_size)


def optimized_bytes(config: RunConfig, spec: FeatureSpec, world_size: int = 1) -> int:
    """The same for our own models."""
    training = not config.mode.evaluate
    tables = table_bytes(config, spec)
    if config.embeddings.embedding_parallelism == "model" and world_size > 1:
        tables = int(tables / world_size * _MODEL_PARALLEL_IMBALANCE)
    stacks = layer_widths(config, spec)
    dense = sum(inputs * outputs for widths in stacks for inputs, outputs in itertools.pairwise(widths))
    copies = 2 + SLOTS_PER_WEIGHT[_dense_optimizer(config)] if training else 1
    layers = _VALUE_BYTES * dense * copies
    return BASE_BYTES + tables + layers + _batch_bytes(config, spec, world_size) + _row_bytes(config, spec)


def table_bytes(config: RunConfig, spec: FeatureSpec) -> int:
    """Weights of all tables, in training with optimizer slots."""
    wide_deep = config.model.model == "wide_deep"
    dims = table_dims(config, spec)
    total = 0
    for name, dim in dims.items():
        rows = spec.features[name].cardinality
        parts = [(dim, _dense_optimizer(config)), (1, "ftrl")] if wide_deep else [(dim, config.training.optimizer)]
        for width, optimizer in parts:
            values = width
            if not config.mode.evaluate:
                values = width * (1 + SLOTS_PER_WEIGHT[optimizer]) + SLOTS_PER_ROW.get(optimizer, 0)
            total += _VALUE_BYTES * rows * values
    return total


def _dense_optimizer(config: RunConfig) -> str:
    return "rmsprop" if config.model.model == "wide_deep" else config.training.optimizer


def _batch_bytes(config: RunConfig, spec: FeatureSpec, world_size: int) -> int:
    training = not config.mode.evaluate
    rows = -(-(config.training.global_batch_size if training else config.training.eval_batch_size) // world_size)
    looked_up = sum(dim * spec.features[name].max_hotness for name, dim in table_dims(config, spec).items())
    widths = [width for stack in layer_widths(config, spec) for width in stack]
    # In training each layer's output, its dropped version and the gradients of both exist together.
    values = 4 * sum(widths) + 2 * looked_up if training else 2 * max(widths) + sum(widths) + looked_up
    return _VALUE_BYTES * rows * values


def _row_bytes(config: RunConfig, spec: FeatureSpec) -> int:
    """Decoded rows: two windows of them, and what shares them out."""
    row = _VALUE_BYTES * (spec.total_hotness + len(spec.numerical) + 3)
    rows = max(config.training.global_batch_size, config.data.shuffle_buffer_rows)
    if config.data.dataset_type == "synthetic":
        rows = min(rows, config.data.synthetic_rows)
    return 2 * rows * row
