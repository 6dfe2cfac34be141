"""Pooled lookups in embedding tables: forward, or forward, gradients of rows and SGD's update, as training does them.

The tables are `models.embedding.FusedTable`, the update is that of `trainer.optimizers.SGD`. A shape is a table: rows,
dimension, and pooling, the ids that each sample looks up in it and whose rows are added up. Tables of one dimension
stand one below the other, as in a model. A step reads batch x pooling x dimension x 4 bytes of each table; an update
counts three times that, as FAMBench counts it.

Ids are drawn independently: uniform, or by the power law of `data.power_law`. Steps go through eight batches of them,
so that no step finds the rows of the one before it in caches, unless the law makes them frequent. Before the loop the
ids are held against their law, pooled rows against numpy's sums, and the update against -rate x gradient: on rows that
were looked up and on rows that were not, which must keep every bit. After the loop the same rows must have changed by
what all steps together should have done to them.
"""

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.microbenchmarks import checks
from benchmarks.microbenchmarks.operands import read_sums
from benchmarks.microbenchmarks.shapes import PROCESS_BYTES, Benchmark, Parameter, Settings, Shape
from benchmarks.microbenchmarks.timed import Work
from data import power_law
from data.id_draw import IdDraw
from data.parquet_decode import id_type

if TYPE_CHECKING:
    import tensorflow as tf

FORWARD, UPDATE = "forward", "forward_backward_update"
UNIFORM, POWER_LAW = "uniform", "power_law"
RATE = 0.01
BATCHES = 8
_CHECKED_SAMPLES, _CHECKED_ROWS = 512, 4096


def step_bytes(tables: Sequence[Shape], batch: int, mode: str) -> int:
    """Bytes of a step by FAMBench's formula."""
    return (3 if mode == UPDATE else 1) * sum(batch * pooling * dim * 4 for _, dim, pooling in tables)


def predicted_bytes(settings: Settings, ranks: int) -> int:
    """Tables, ids, and what a step makes: without our kernels the rows that are looked up, and gradients."""
    del ranks
    tables = sum(rows * dim * 4 for rows, dim, _ in settings.shapes)
    ids = BATCHES * settings.batch * sum(pooling for _, _, pooling in settings.shapes) * 8
    looked_up = step_bytes(settings.shapes, settings.batch, FORWARD)
    widest = max(dim for _, dim, _ in settings.shapes)
    checked = (BATCHES + 4) * 4 * _CHECKED_ROWS * widest * 8
    return PROCESS_BYTES + tables + 2 * ids + checked + looked_up * (3 if settings.mode == UPDATE else 2)


def draw_ids(rng: np.random.Generator, rows: int, shape: tuple[int, int], exponent: float) -> np.ndarray:
    """Independent ids of a table, of the given shape."""
    return IdDraw(exponent).ids(rng, rows, shape[0] * shape[1]).reshape(shape)


def prepare(settings: Settings, comm: Any) -> Work:
    """Every rank has tables and ids of its own."""
    bags = [
        _Bags(list(tables), settings, np.random.default_rng([comm.rank, number]))
        for number, (_, tables) in enumerate(itertools.groupby(settings.shapes, key=lambda shape: shape[1]))
    ]
    amount = step_bytes(settings.shapes, settings.batch, settings.mode)
    counter = itertools.count()

    def step() -> list[tuple]:
        number = next(counter)
        return [bag.step(number % BATCHES) for bag in bags]

    return Work(
        step=step,
        wait=lambda result: [done.numpy() for _, _, done in result],
        read=lambda result: [bag.read(pooled) for bag, (_, pooled, _) in zip(bags, result, strict=True)],
        before=lambda: [check for bag in bags for check in bag.before()],
        after=lambda result: [
            check for bag, (number, pooled, _) in zip(bags, result, strict=True) for check in bag.after(number, pooled)
        ],
        amount=amount * comm.size,
        figures={"bytes_per_step": amount, "lookups_per_step": settings.batch * sum(s[2] for s in settings.shapes)},
    )


class _Bags:
    """Tables of one dimension, batches of ids, and what numpy says of both."""

    def __init__(self, tables: Sequence[Shape], settings: Settings, rng: np.random.Generator):
        import tensorflow as tf

        from models.embedding import FusedTable, LogicalTable, uniform_by_rows
        from trainer.optimizers import SGD

        self._tables, self._batch = tables, settings.batch
        self._updates = settings.mode == UPDATE
        self._exponent = 0.0 if settings.parameters["ids"] == UNIFORM else settings.parameters["exponent"]
        starts = np.cumsum([0] + [pooling for _, _, pooling in tables]).tolist()
        self._columns = [slice(*ends) for ends in itertools.pairwise(starts)]
        dim = tables[0][1]
        self._fused = FusedTable(
            [LogicalTable(f"table_{n}", shape[0], starts[n], shape[2]) for n, shape in enumerate(tables)],
            dim,
            combiner="sum",
            group="main",
            name=f"bags_of_{dim}",
        )
        self._fused.initialize_rows(int(rng.integers(1 << 31)), uniform_by_rows)
        kind = id_type(sum(rows for rows, _, _ in tables))
        self._ids = [
            tf.constant(
                np.concatenate(
                    [draw_ids(rng, rows, (self._batch, pooling), self._exponent) for rows, _, pooling in tables], axis=1
                ).astype(kind)
            )
            for _ in range(BATCHES)
        ]
        self._upstream = rng.standard_normal((self._batch, len(tables) * dim), dtype=np.float32)
        self._optimizer = SGD()
        self._optimizer.create_slots(self._fused.variable, is_table=True)
        self._step = self._make_step(tf)
        self._done = [0] * BATCHES  # steps with each batch
        self._samples = checks.sampled(self._batch, _CHECKED_SAMPLES)

    def _make_step(self, tf: Any) -> Any:
        table, optimizer, updates = self._fused, self._optimizer, self._updates

        @tf.function(autograph=False)
        def step(ids, upstream):
            pooled = table(ids)
            if not updates:
                return pooled, pooled[-1, -1]
            slices = table.row_gradients(ids, upstream)
            optimizer.apply_rows(table.variable, slices.indices, slices.values, tf.constant(RATE), tf.constant(0))
            # Reads what the update has written, so it comes after it.
            last = tf.gather(table.variable, slices.indices[-1:])
            return pooled, pooled[-1, -1] + last[0, -1]

        self._upstream_tensor = tf.constant(self._upstream)
        return step

    def step(self, number: int) -> tuple[int, "tf.Tensor", "tf.Tensor"]:
        """A step with a batch: its number, the pooled rows, and a value to wait for."""
        self._done[number] += 1
        return (number, *self._step(self._ids[number], self._upstream_tensor))

    def read(self, pooled: "tf.Tensor") -> None:
        """Reads a step's results back; that of an update is in the table, of which a row is read."""
        read_sums([pooled])
        if self._updates:
            self._rows(np.array([0]))

    def before(self) -> list[checks.Check]:
        """The ids, the first batch's pooled rows and, where there are any, its update and gradients."""
        found = []
        for shape, columns in zip(self._tables, self._columns, strict=True):
            ids = np.stack([batch.numpy()[:, columns] for batch in self._ids])
            what = f"{ids.size:,} ids of a table of {shape[0]:,} rows"
            found += checks.follow_law(what, ids, shape[0], self._exponent)
        if self._updates:
            self._choose_rows()
            self._start = self._rows(self._chosen)
        expected = self._pooled_by_numpy(0)
        _, pooled, done = self.step(0)
        done.numpy()
        found.append(self._pooled_check("before", pooled, expected))
        return found + (self._change_checks("before, in one step") if self._updates else [])

    def after(self, number: int, pooled: "tf.Tensor") -> list[checks.Check]:
        """The last step's pooled rows, or the changes of all steps: pooled rows were read before the last of them."""
        if not self._updates:
            return [self._pooled_check("after", pooled, self._pooled_by_numpy(number))]
        return self._change_checks(f"after, in {sum(self._done):,} steps")

    def _pooled_check(self, when: str, pooled: "tf.Tensor", expected: np.ndarray) -> checks.Check:
        what = f"{when}, pooled rows of {len(self._samples):,} of {self._batch:,} samples"
        return checks.close(what, pooled.numpy()[self._samples], expected, "fp32")

    def _pooled_by_numpy(self, number: int) -> np.ndarray:
        """Sums of the rows as they are now, for the checked samples: (samples, features x dimension)."""
        rows = self._fused_rows(self._ids[number].numpy()[self._samples])
        different, inverse = np.unique(rows, return_inverse=True)
        values = self._rows(different).astype(np.float64)[inverse.reshape(rows.shape)]
        return np.concatenate([values[:, columns].sum(axis=1) for columns in self._columns], axis=1)

    def _fused_rows(self, ids: np.ndarray) -> np.ndarray:
        """Rows of the fused table: those of the tables above are added to an id."""
        offsets = np.cumsum([0] + [rows for rows, _, _ in self._tables[:-1]])
        return ids.astype(np.int64) + np.repeat(offsets, [pooling for _, _, pooling in self._tables])

    def _choose_rows(self) -> None:
        """Rows that the first batch looks up, their neighbours, others from all over, and the row of absent ids."""
        total = sum(rows for rows, _, _ in self._tables)
        touched = np.unique(self._fused_rows(self._ids[0].numpy()))
        touched = touched[checks.sampled(len(touched), _CHECKED_ROWS)]
        spread = checks.sampled(total, _CHECKED_ROWS, seed=1)
        near = np.clip(np.concatenate([touched - 1, touched + 1]), 0, total - 1)
        self._chosen = np.unique(np.concatenate([touched, near, spread, [total]]))
        self._gradients = [self._gradients_by_numpy(batch.numpy()) for batch in self._ids]

    def _gradients_by_numpy(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Gradients of the chosen rows by a batch, (rows, dimension), and how often it looks each up, (rows,)."""
        rows = self._fused_rows(ids)
        place = np.searchsorted(self._chosen, rows)
        samples, columns = np.nonzero(self._chosen[np.minimum(place, len(self._chosen) - 1)] == rows)
        feature = np.repeat(np.arange(len(self._tables)), [pooling for _, _, pooling in self._tables])[columns]
        where = place[samples, columns]
        upstream = self._upstream.reshape(self._batch, len(self._tables), -1)[samples, feature]
        gradients = np.zeros((len(self._chosen), upstream.shape[1]))
        np.add.at(gradients, where, upstream)
        return gradients, np.bincount(where, minlength=len(self._chosen))

    def _change_checks(self, when: str) -> list[checks.Check]:
        """Whether the chosen rows have changed by -rate x gradient of every step so far, and no others at all."""
        now = self._rows(self._chosen)
        looked_up, gradients = np.zeros(len(now), np.int64), np.zeros(now.shape)
        for times, (gradient, count) in zip(self._done, self._gradients, strict=True):
            gradients += times * gradient
            looked_up += times * count
        touched = looked_up > 0
        change = (self._start[touched].astype(np.float64) - now[touched]) / RATE
        what = f"{when}, the gradient by which {touched.sum():,} rows that were looked up have changed"
        return [
            checks.close(what, change, gradients[touched], "fp32"),
            checks.exact(
                f"{when}, bits of {(~touched).sum():,} rows that were not looked up",
                now[~touched].view(np.int32),
                self._start[~touched].view(np.int32),
            ),
        ]

    def _rows(self, rows: np.ndarray) -> np.ndarray:
        import tensorflow as tf

        return tf.gather(self._fused.variable, rows).numpy()


BENCHMARK = Benchmark(
    name="embedding_bag",
    units="GB/s",
    modes=(FORWARD, UPDATE),
    numbers=("rows", "dimension", "pooling"),
    presets={"small": ((4_800_000, 56, 34),), "tiny": ((1_000_000, 64, 100),) * 8},  # tiny: the tables of DLRM "tiny"
    default_batch=2048,
    precisions=("fp32",),  # tables are float32 whatever the precision of a model
    parameters={
        "ids": Parameter(UNIFORM, "law of the ids", choices=(UNIFORM, POWER_LAW)),
        "exponent": Parameter(power_law.DEFAULT_EXPONENT, "of the power law", least=0.0),
    },
    predicted_bytes=predicted_bytes,
    prepare=prepare,
)
