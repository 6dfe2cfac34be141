"""Our own steps on batches in memory: made as training and evaluation make them, to be measured beside peers'."""

import itertools
import time
from collections.abc import Iterator, Sequence

import numpy as np
import tensorflow as tf

from benchmarks.comparison import Contender
from benchmarks.workloads import Batch, Workload
from models.click_model import ClickModel
from models.embedding import FusedTable
from trainer.assembly import make_model, make_optimizers, make_step, place_tables
from trainer.distributed import SingleProcess
from trainer.evaluate import Scoreboard
from trainer.optimizers import SGD, RMSprop, RowOptimizer
from trainer.state import TrainState
from trainer.steps import make_eval_step, signals_of

_STEPS_PER_EPOCH = 1000  # turns epochs of a schedule into steps; rates cost the same whatever they are


class RMSpropBesideSGD(RowOptimizer):
    """SGD on tables and RMSprop on dense variables: what a peer with sparse gradients can do, to compare losses with.

    Its epsilon stands under the root, so it is the square of the peer's, which adds its own to the root.
    """

    slots_per_weight = 0
    slots_per_row = 0

    def __init__(self, learning_rate: float, epsilon: float):
        super().__init__()
        self.learning_rate = learning_rate  # where the schedule of the wide part finds it
        self._dense, self._rows = RMSprop(rho=0.5, epsilon=epsilon**2), SGD()

    def slots(self, variable: tf.Variable) -> dict[str, tf.Variable]:
        return {}

    def create_slots(self, variable: tf.Variable, *, is_table: bool) -> None:
        (self._rows if is_table else self._dense).create_slots(variable, is_table=is_table)

    def apply_dense(self, variable, gradient, learning_rate, applied_steps):
        self._dense.apply_dense(variable, gradient, learning_rate, applied_steps)

    def apply_rows(self, variable, rows, gradients, learning_rate, applied_steps):
        self._rows.apply_rows(variable, rows, gradients, learning_rate, applied_steps)


class OurSteps:
    """A model with its initial weights, and its training and evaluation steps.

    Attributes:
      workload: what it was made for.
      model: see models.click_model.ClickModel.
      comm: of one process, unless given.
      state: see trainer.state.TrainState; None without a training step.
    """

    def __init__(
        self,
        workload: Workload,
        *,
        optimizers: dict[str, RowOptimizer] | None = None,
        training: bool = True,
        comm: SingleProcess | None = None,
    ):
        """
        Args:
          workload: model, training and features.
          optimizers: by optimizer group; those of the configuration by default.
          training: whether there is a training step.
          comm: the ranks.
        """
        config = workload.config
        self.workload, self.comm = workload, comm or SingleProcess()
        placement = place_tables(config, workload.spec, self.comm, None)
        self.model: ClickModel = make_model(config, workload.spec, self.comm, placement)
        self.state = None
        if training:
            optimizers = make_optimizers(config) if optimizers is None else optimizers
            self.state = TrainState(self.model, optimizers, dynamic_loss_scale=False)
            self.train_step = make_step(config, self.comm, self.state, _STEPS_PER_EPOCH)
        self.eval_step = make_eval_step(self.model, xla=config.device.xla)
        self._steps = itertools.count()

    def hidden_layers(self) -> list[tuple[int, int]]:
        """(inputs, units) of each dense layer but those of one unit."""
        dense = [variable for variables in self.model.dense_variables().values() for variable in variables]
        return [tuple(variable.shape) for variable in dense if variable.shape.rank == 2 and variable.shape[1] > 1]

    def losses(self, batches: Sequence[Batch]) -> list[float]:
        """Trains on each batch once; the loss of each before its update."""
        return [float(self.train(batch)["loss"]) for batch in as_tensors(batches)]

    def train(self, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """A training step, as the training loop calls it; see trainer.steps.make_train_step."""
        return self.train_step(batch, signals_of(), tf.constant(next(self._steps)))

    def trains(self, batches: Iterator[dict[str, tf.Tensor]], steps: int) -> Contender:
        """Trains on the next batches, `steps` at each turn; its work is counted in samples."""

        def work() -> tuple[float, float]:
            started = time.perf_counter()
            for _ in range(steps):
                out = self.train(next(batches))
                out["signals"].numpy()  # as training reads them
            float(out["loss"])
            return steps * self.workload.batch_size, time.perf_counter() - started

        return work

    def scores(self, batches: Iterator[dict[str, tf.Tensor]], steps: int, *, with_metrics: bool) -> Contender:
        """Evaluates on the next batches, `steps` at each turn, MAP@12 and AUC of them included if `with_metrics`."""

        def work() -> tuple[float, float]:
            started = time.perf_counter()
            board = Scoreboard(with_map=True) if with_metrics else None
            for _ in range(steps):
                batch = next(batches)
                logits = self.eval_step(batch)
                if board is None:
                    logits.numpy()
                else:
                    board.update(batch, logits)
            if board is not None:
                board.compute(self.comm)
            return steps * self.workload.batch_size, time.perf_counter() - started

        return work


def as_tensors(batches: Sequence[Batch]) -> list[dict[str, tf.Tensor]]:
    """The batches as TensorFlow has them."""
    return [{name: tf.constant(array) for name, array in batch.items()} for batch in batches]


def endless(batches: Sequence[Batch]) -> Iterator[dict[str, tf.Tensor]]:
    """The batches as tensors, made now, over and over."""
    return itertools.cycle(as_tensors(batches))


def drawn(workload: Workload) -> Iterator[dict[str, tf.Tensor]]:
    """Batches that are drawn when they are asked for."""
    for batch in workload.endless_batches(share_numericals=False):
        yield {name: tf.constant(batch[name]) for name in ("ids", "numerical", "labels")}


def weights(model: ClickModel) -> dict[str, np.ndarray | list[np.ndarray]]:
    """The weights for a peer: "GROUP/FEATURE" -> table (rows, dim), and GROUP -> its dense variables in order."""
    found: dict[str, np.ndarray | list[np.ndarray]] = {
        group: [variable.numpy() for variable in variables] for group, variables in model.dense_variables().items()
    }
    for fused in model.tables:
        for table in fused.tables:
            found[f"{fused.group}/{table.name}"] = _rows(fused, table.name, table.rows)
    return found


def _rows(fused: FusedTable, name: str, rows: int) -> np.ndarray:
    first = fused.row_offsets[name]
    # Gathered: reading the variable as a whole would copy all of it first.
    return tf.gather(fused.variable, tf.range(first, first + rows)).numpy()
