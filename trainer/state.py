"""Everything that changes while a model trains, in one object that can be broadcast and saved."""

import zlib
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tensorflow as tf

from models.click_model import ClickModel
from models.embedding import FusedTable, LogicalTable
from trainer.checkpoint import OPTIMIZER_PREFIX
from trainer.optimizers import RowOptimizer

INITIAL_LOSS_SCALE = 2.0**15
LOSS_SCALE_GROWTH_STEPS = 2000


class TrainState:
    """A model, its optimizers' slots, the loss scale and the counters, as one rank has them.

    Attributes:
      model: the model.
      optimizers: optimizer group ("wide", "deep"; "main") -> optimizer.
      rank: whose; rank 0 reads and writes for all what is equal on all ranks.
      applied_steps: int32, updates applied: steps less those that loss scaling skipped.
      loss_scale: float32; 1 and fixed unless `dynamic_loss_scale`.
      good_steps: int32, steps since the loss scale last changed.
    """

    def __init__(
        self, model: ClickModel, optimizers: Mapping[str, RowOptimizer], *, dynamic_loss_scale: bool, rank: int = 0
    ):
        self.model = model
        self.rank = rank
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

    def replicated_variables(self) -> list[tf.Variable]:
        """What every rank has, in the same order on every rank: to be broadcast before the first step."""
        found = [self.applied_steps, self.loss_scale, self.good_steps]
        for group, variable in self._dense:
            found += [variable, *self.optimizers[group].slots(variable).values()]
        return found + self._table_variables(self.model.embeddings.replicated)

    def variables(self) -> list[tf.Variable]:
        """All of the state that this rank has, its own tables last."""
        return self.replicated_variables() + self._table_variables(self.model.embeddings.sharded)

    def _table_variables(self, tables: Sequence[FusedTable]) -> list[tf.Variable]:
        return [
            variable
            for table in tables
            for variable in (table.variable, *self.optimizers[table.group].slots(table.variable).values())
        ]

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
        """The tables, with their slots, that this rank reads and writes for trainer.checkpoint."""
        return table_views(self.model, self.rank, lambda table: self.optimizers[table.group].slots(table.variable))

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


def dense_weights(model: ClickModel) -> dict[str, tf.Variable]:
    """The weights outside tables, by a name that does not depend on how tables are fused."""
    return {
        f"{group}/{index}": variable
        for group, variables in model.dense_variables().items()
        for index, variable in enumerate(variables)
    }


def table_views(
    model: ClickModel, rank: int, slots: Callable[[FusedTable], Mapping[str, tf.Variable]] = lambda _: {}
) -> list["TableView"]:
    """The logical tables that a rank reads and writes for trainer.checkpoint, weights alone unless given slots.

    They are its own and, on rank 0, those that all ranks have.
    """
    tables = [*(model.embeddings.replicated if rank == 0 else ()), *model.embeddings.sharded]
    return [TableView(table, logical, slots(table)) for table in tables for logical in table.tables]


class TableView:
    """A logical table, or the rectangle of it that a fused table holds, with its slots (trainer.checkpoint.Table)."""

    def __init__(self, fused: FusedTable, logical: LogicalTable, slots: Mapping[str, tf.Variable]):
        self.name = f"{fused.group}/{logical.name}"
        self.rows, dim = logical.whole or (logical.rows, fused.dim)
        self.first_row, self.stop_row = logical.first_row, logical.first_row + logical.rows
        self.first_column, self.stop_column = logical.first_column, logical.first_column + fused.dim
        self._offset = fused.row_offsets[logical.name] - logical.first_row
        self._variables = {"weights": fused.variable, **slots}
        self.arrays = {
            name: ((dim,) if variable.shape.rank == 2 else (), np.dtype(variable.dtype.as_numpy_dtype))
            for name, variable in self._variables.items()
        }

    # Gathers and scatters, not slices: slicing a variable that a step has written copies all of it first.

    def read(self, array: str, start: int, stop: int) -> np.ndarray:
        """Rows start..stop of the whole table's, of those columns that are held here."""
        return tf.gather(self._variables[array], tf.range(self._offset + start, self._offset + stop)).numpy()

    def write(self, array: str, start: int, stop: int, values: np.ndarray, first_column: int = 0) -> None:
        """Overwrites rows start..stop of one array; of a matrix, from column `first_column` of the whole table on."""
        variable = self._variables[array]
        if values.ndim == 2 and values.shape[1] < variable.shape[1]:
            part = values
            values = self.read(array, start, stop)
            values[:, first_column - self.first_column :][:, : part.shape[1]] = part
        rows = tf.range(self._offset + start, self._offset + stop)
        variable.scatter_update(tf.IndexedSlices(tf.constant(values), rows))
