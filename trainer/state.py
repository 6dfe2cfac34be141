"""Everything that changes while a model trains, in one object that can be broadcast and saved."""

import zlib
from collections.abc import Callable, Mapping

import numpy as np
import tensorflow as tf

from models.embedding import FusedTable, LogicalTable
from models.wide_deep import WideDeep
from trainer.checkpoint import OPTIMIZER_PREFIX
from trainer.optimizers import RowOptimizer

INITIAL_LOSS_SCALE = 2.0**15
LOSS_SCALE_GROWTH_STEPS = 2000


class TrainState:
    """A model, its optimizers' slots, the loss scale and the counters.

    Attributes:
      model: the model.
      optimizers: optimizer group ("wide", "deep") -> optimizer.
      applied_steps: int32, updates applied: steps less those that loss scaling skipped.
      loss_scale: float32; 1 and fixed unless `dynamic_loss_scale`.
      good_steps: int32, steps since the loss scale last changed.
    """

    def __init__(self, model: WideDeep, optimizers: Mapping[str, RowOptimizer], *, dynamic_loss_scale: bool):
        self.model = model
        self.optimizers = dict(optimizers)
        self.dynamic_loss_scale = dynamic_loss_scale
        self.applied_steps = tf.Variable(0, dtype=tf.int32, trainable=False)
        self.loss_scale = tf.Variable(INITIAL_LOSS_SCALE if dynamic_loss_scale else 1.0, trainable=False)
        self.good_steps = tf.Variable(0, dtype=tf.int32, trainable=False)
        self._dense = [
            (group, variable) for group, variables in model.dense_variables().items() for variable in variables
        ]
        for group, variable in self._dense:
            self.optimizers[group].create_slots(variable, is_table=False)
        for table in model.tables:
            self.optimizers[table.group].create_slots(table.variable, is_table=True)

    def dense(self) -> list[tuple[str, tf.Variable]]:
        """(optimizer group, variable) of everything that is not a table, in a fixed order."""
        return list(self._dense)

    def variables(self) -> list[tf.Variable]:
        """All of the state, in the same order on every rank."""
        found = [self.applied_steps, self.loss_scale, self.good_steps]
        for group, variable in self._dense:
            found += [variable, *self.optimizers[group].slots(variable).values()]
        for table in self.model.tables:
            found += [table.variable, *self.optimizers[table.group].slots(table.variable).values()]
        return found

    def digest(self) -> int:
        """A checksum of every bit of the state, for comparing ranks and runs.

        Slots of the rows of absent ids are left out: they mean nothing, and checkpoints do not hold them.
        """
        lengths = {
            id(slot): table.padding_row
            for table in self.model.tables
            for slot in self.optimizers[table.group].slots(table.variable).values()
        }
        checksum = 0
        for variable in self.variables():
            values = variable.numpy()
            if id(variable) in lengths:
                values = values[: lengths[id(variable)]]
            checksum = zlib.crc32(np.ascontiguousarray(values).tobytes(), checksum)
        return checksum

    def checkpoint_tables(self) -> list["TableView"]:
        """Every logical table of both parts with its slots, for trainer.checkpoint."""
        return table_views(self.model, lambda table: self.optimizers[table.group].slots(table.variable))

    def dense_variables(self) -> dict[str, tf.Variable]:
        """Variables and slots outside tables, by the names that checkpoints use."""
        named = dense_weights(self.model)
        for name, (group, variable) in zip(list(named), self.dense(), strict=True):
            for slot, value in self.optimizers[group].slots(variable).items():
                named[f"{OPTIMIZER_PREFIX}{name}/{slot}"] = value
        named[f"{OPTIMIZER_PREFIX}applied_steps"] = self.applied_steps
        named[f"{OPTIMIZER_PREFIX}loss_scale"] = self.loss_scale
        named[f"{OPTIMIZER_PREFIX}good_steps"] = self.good_steps
        return named


def dense_weights(model: WideDeep) -> dict[str, tf.Variable]:
    """The weights outside tables, by a name that does not depend on how tables are fused."""
    return {
        f"{group}/{index}": variable
        for group, variables in model.dense_variables().items()
        for index, variable in enumerate(variables)
    }


def table_views(
    model: WideDeep, slots: Callable[[FusedTable], Mapping[str, tf.Variable]] = lambda _: {}
) -> list["TableView"]:
    """The model's logical tables as trainer.checkpoint reads and writes them, weights alone unless given slots."""
    return [TableView(table, logical, slots(table)) for table in model.tables for logical in table.tables]


class TableView:
    """A logical table inside a fused one, with its slots, read and written by rows (trainer.checkpoint.Table)."""

    def __init__(self, fused: FusedTable, logical: LogicalTable, slots: Mapping[str, tf.Variable]):
        self.name = f"{fused.group}/{logical.name}"
        self.rows = logical.rows
        self._offset = fused.row_offsets[logical.name]
        self._variables = {"weights": fused.variable, **slots}
        self.arrays = {
            name: (tuple(variable.shape[1:]), np.dtype(variable.dtype.as_numpy_dtype))
            for name, variable in self._variables.items()
        }

    def read(self, array: str, start: int, stop: int) -> np.ndarray:
        """Rows start..stop of one array."""
        return self._variables[array][self._offset + start : self._offset + stop].numpy()

    def write(self, array: str, start: int, stop: int, values: np.ndarray) -> None:
        """Overwrites rows start..stop of one array."""
        self._variables[array][self._offset + start : self._offset + stop].assign(values)
