"""Embedding tables of equal dimension stored as one variable, with lookup, pooling and row gradients.

A model with thirty features would need thirty gathers and thirty scatters a step. Tables of one dimension stand here
one below the other in a single variable, so that a step does one gather per block of equal hotness and one update.
"""

import dataclasses
import zlib
from collections.abc import Callable, Iterator, Sequence

import keras
import numpy as np
import tensorflow as tf

from models import custom_ops

_HUGE_PAGES_FROM = 64 << 20  # bytes of a table; smaller ones miss the TLB less than they miss the caches
_BLOCK_VALUES = 1 << 20  # initial values are drawn so many at a time: 4 MiB


@dataclasses.dataclass(frozen=True)
class LogicalTable:
    """One feature's table inside a fused table: all of it, or a rectangle of its rows and columns.

    Attributes:
      name: feature name.
      rows: rows that are held here; ids `first_row` .. `first_row + rows - 1` are found, others are somebody else's.
      column: first column of the feature in the packed id tensor.
      hotness: number of adjacent columns.
      first_row: id of the first row.
      first_column: which column of the whole table is the first one here.
      whole: (cardinality, dimension) of the whole table; None where all of it is here.
    """

    name: str
    rows: int
    column: int
    hotness: int
    first_row: int = 0
    first_column: int = 0
    whole: tuple[int, int] | None = None

    @property
    def has_all_rows(self) -> bool:
        return self.whole is None or self.rows == self.whole[0]


Draw = Callable[[tuple[int, int], int, int, int], tf.Tensor]
"""(seed, rows to draw, rows of the table, dim) -> initial values (rows to draw, dim) float32."""


def glorot_normal(seed: tuple[int, int], count: int, rows: int, dim: int) -> tf.Tensor:
    """Truncated normal of variance 2 / (rows + dim). Glorot and Bengio (2010).

    Truncated at two standard deviations and rescaled as Keras's GlorotNormal is.
    """
    stddev = np.sqrt(2.0 / (rows + dim)) / 0.87962566103423978
    return tf.random.stateless_truncated_normal((count, dim), seed=seed, stddev=stddev)


def uniform_by_rows(seed: tuple[int, int], count: int, rows: int, dim: int) -> tf.Tensor:
    """Uniform within +-sqrt(1 / rows), as DLRM begins. Naumov et al. (2019)."""
    limit = np.sqrt(1.0 / rows)
    return tf.random.stateless_uniform((count, dim), seed=seed, minval=-limit, maxval=limit)


def initial_rows(
    draw: Draw, name: str, rows: int, dim: int, seed: int, *, start: int = 0, stop: int | None = None
) -> Iterator[tuple[int, tf.Tensor]]:
    """Initial rows start..stop of a table of shape (rows, dim), block by block: (first row, values (n, dim)).

    The values depend on (seed, name) and the shape of the whole table alone: not on which tables are fused, on which
    rank draws them, or on how the table is cut.
    """
    stop = rows if stop is None else stop
    size = max(1, _BLOCK_VALUES // dim)
    for block in range(start // size, -(-stop // size)):
        first, last = block * size, min((block + 1) * size, rows)
        key = zlib.crc32(name.encode() if block == 0 else f"{name}/{block}".encode())
        values = draw((seed & 0x7FFFFFFF, key), last - first, rows, dim)
        low, high = max(first, start), min(last, stop)
        yield low, values[low - first : high - first]


class FusedTable(keras.layers.Layer):
    """Tables of one dimension in one (sum of rows + 1, dim) float32 variable.

    The last row stands for an absent id (-1 in the packed ids): it is zero and is never updated, so absent ids add
    nothing to a sum and need no masking of gathered rows.

    Always float32, whatever the precision policy: a policy that casts variables would cast the whole table each step.
    """

    def __init__(
        self,
        tables: Sequence[LogicalTable],
        dim: int,
        *,
        combiner: str,
        group: str,
        sum_features: bool = False,
        name: str,
    ):
        """
        Args:
          tables: the features, in output order; features of equal hotness that are adjacent share one gather.
          dim: columns of every table.
          combiner: "sum" or "mean" over the ids that are present in a multi-hot feature.
          group: the optimizer that updates this table ("wide" or "deep").
          sum_features: return the sum over features, (rows, dim), instead of their concatenation.
          name: layer name; names the variable.
        """
        super().__init__(name=name, dtype="float32")
        self.tables = tuple(tables)
        self.dim = dim
        self.combiner = combiner
        self.group = group
        self.sum_features = sum_features
        self.row_offsets = dict(
            zip((t.name for t in tables), np.cumsum([0] + [t.rows for t in tables])[:-1].tolist(), strict=True)
        )
        self.padding_row = sum(t.rows for t in tables)
        self._blocks = _blocks_of_equal_hotness(self.tables)
        self._ops = custom_ops.embedding_ops()
        self._has_all_rows = all(table.has_all_rows for table in self.tables)
        self.build()

    def build(self, input_shape=None):
        del input_shape
        self.table = self.add_weight(
            shape=(self.padding_row + 1, self.dim), initializer="zeros", name="table", trainable=True
        )
        if self._ops is not None and 4 * self.dim * self.padding_row >= _HUGE_PAGES_FROM:
            self._ops.recsys_use_huge_pages(table=self.variable.handle)  # a hint: without, rows take longer to reach
        self.built = True

    def initialize_rows(self, seed: int, draw: Draw) -> None:
        """Draws the initial values of every logical table; the row of absent ids stays zero."""
        for table in self.tables:
            offset = self.row_offsets[table.name] - table.first_row
            rows, dim = table.whole or (table.rows, self.dim)
            columns = slice(table.first_column, table.first_column + self.dim)
            blocks = initial_rows(
                draw, table.name, rows, dim, seed, start=table.first_row, stop=table.first_row + table.rows
            )
            for first, values in blocks:
                # Not by assigning to a slice, which copies the whole table first.
                rows = tf.range(offset + first, offset + first + values.shape[0])
                self.variable.scatter_update(tf.IndexedSlices(values[:, columns], rows))

    @property
    def variable(self) -> tf.Variable:
        """The underlying tf.Variable: Horovod and the row updates need it, not Keras's wrapper."""
        return self.table.value

    def ids_per_sample(self) -> int:
        """Looked-up ids of one sample."""
        return sum(table.hotness for table in self.tables)

    def call(self, ids: tf.Tensor) -> tf.Tensor:
        """Pooled rows.

        Args:
          ids: (rows, total_hotness) packed integer ids of the whole batch, -1 where absent.

        Returns:
          (rows, features * dim) float32, or (rows, dim) with `sum_features`.
        """
        if self._ops is not None:
            tf.gather(self.variable, tf.zeros((0,), ids.dtype))  # by this a gradient tape knows what our kernel reads
            return self._ops.recsys_pooled_lookup(table=self.variable.handle, ids=ids, **self._layout())
        pooled = []
        for block in self._blocks:
            positions, present = self._positions(ids, block)
            gathered = tf.gather(self.variable, positions)  # (rows, features, hotness, dim)
            values = gathered[:, :, 0, :] if block.hotness == 1 else tf.reduce_sum(gathered, axis=2)
            if self.combiner == "mean" and block.hotness > 1:
                values *= _reciprocal_counts(present)[:, :, tf.newaxis]
            pooled.append(values)
        if self.sum_features:
            return tf.add_n([tf.reduce_sum(values, axis=1) for values in pooled])
        return tf.concat([tf.reshape(values, (-1, values.shape[1] * self.dim)) for values in pooled], axis=1)

    def row_gradients(self, ids: tf.Tensor, upstream: tf.Tensor) -> tf.IndexedSlices:
        """The gradient of the table from the gradient of `call`'s output, summed by row.

        Args:
          ids: as for `call`.
          upstream: gradient with respect to `call(ids)`, same shape, float32.

        Returns:
          IndexedSlices of distinct rows; the row of absent ids may occur and has gradient zero.
        """
        if self._ops is not None:
            rows, values = self._ops.recsys_row_gradients(ids=ids, upstream=upstream, **self._layout())
            return tf.IndexedSlices(values, rows, tf.constant(self.variable.shape.as_list(), rows.dtype))
        positions_list, values_list = [], []
        column = 0
        for block in self._blocks:
            positions, present = self._positions(ids, block)
            features = len(block.columns)
            if self.sum_features:
                values = tf.broadcast_to(upstream[:, tf.newaxis, :], (tf.shape(ids)[0], features, self.dim))
            else:
                width = features * self.dim
                values = tf.reshape(upstream[:, column : column + width], (-1, features, self.dim))
                column += width
            if block.hotness > 1:
                if self.combiner == "mean":
                    values *= _reciprocal_counts(present)[:, :, tf.newaxis]
                values = tf.repeat(values, block.hotness, axis=1)
            positions_list.append(tf.reshape(positions, (-1,)))
            values_list.append(tf.reshape(values, (-1, self.dim)))
        return sum_by_row(
            tf.concat(positions_list, axis=0), tf.concat(values_list, axis=0), self.padding_row, self.variable.shape
        )

    @property
    def subtracts_pools(self) -> bool:
        """Whether there is a kernel for `subtract_pools`."""
        return self._ops is not None

    def subtract_pools(self, ids: tf.Tensor, upstream: tf.Tensor, rate: tf.Tensor) -> None:
        """Subtracts the rate times the gradient from every row that was looked up, in place.

        Args:
          ids: as for `call`.
          upstream: gradient with respect to `call(ids)`, same shape, float32.
          rate: scalar.
        """
        self._ops.recsys_subtract_pools(
            table=self.variable.handle, ids=ids, upstream=upstream, rate=rate, **self._layout()
        )

    def _layout(self) -> dict[str, list[int] | int | bool]:
        """Where the features are in the ids and in the table, as our own kernels want it."""
        return {
            "columns": [table.column for table in self.tables],
            "hotness": [table.hotness for table in self.tables],
            "offsets": [self.row_offsets[table.name] for table in self.tables],
            "first_rows": [table.first_row for table in self.tables],
            "row_counts": [table.rows for table in self.tables],
            "dim": self.dim,
            "mean": self.combiner == "mean",
            "sum_features": self.sum_features,
        }

    def _positions(self, ids: tf.Tensor, block: "_Block") -> tuple[tf.Tensor, tf.Tensor]:
        """Rows of the fused table, (rows, features, hotness), and which ids are present, be it here or elsewhere.

        An id whose row another owner has takes the row of absent ids: its part of a sum comes from there.
        """
        picked = tf.gather(ids, block.columns, axis=1)
        present = picked >= 0
        offsets = [[[self.row_offsets[table.name] - table.first_row] for table in block.tables]]
        here = present
        if not self._has_all_rows:
            first = tf.constant([[[table.first_row] for table in block.tables]], dtype=ids.dtype)
            last = tf.constant([[[table.first_row + table.rows] for table in block.tables]], dtype=ids.dtype)
            here = (picked >= first) & (picked < last)
        positions = tf.where(
            here, picked + tf.constant(offsets, ids.dtype), tf.constant(self.padding_row, dtype=ids.dtype)
        )
        return positions, present


@dataclasses.dataclass(frozen=True)
class _Block:
    tables: tuple[LogicalTable, ...]
    columns: np.ndarray  # (features, hotness)
    hotness: int


def _blocks_of_equal_hotness(tables: Sequence[LogicalTable]) -> list[_Block]:
    blocks: list[list[LogicalTable]] = []
    for table in tables:
        if blocks and blocks[-1][-1].hotness == table.hotness:
            blocks[-1].append(table)
        else:
            blocks.append([table])
    return [
        _Block(
            tables=tuple(block),
            columns=np.array([[t.column + i for i in range(t.hotness)] for t in block], dtype=np.int32),
            hotness=block[0].hotness,
        )
        for block in blocks
    ]


def _reciprocal_counts(present: tf.Tensor) -> tf.Tensor:
    """1 / number of present ids along the last axis, and 1 where there is none (the sum is zero there)."""
    return 1.0 / tf.maximum(tf.reduce_sum(tf.cast(present, tf.float32), axis=2), 1.0)


def sum_by_row(positions: tf.Tensor, values: tf.Tensor, padding_row: int, shape: tf.TensorShape) -> tf.IndexedSlices:
    """Adds up the gradients of equal rows; the row of absent ids gets zero.

    Args:
      positions: (n,) rows, repeated ones allowed.
      values: (n, dim) float32.
      padding_row: the row whose gradient is dropped.
      shape: shape of the table.
    """
    rows, inverse = tf.unique(positions, out_idx=tf.int32)
    summed = tf.math.unsorted_segment_sum(values, inverse, tf.size(rows))
    is_real = tf.cast(rows != tf.constant(padding_row, rows.dtype), summed.dtype)[:, tf.newaxis]
    # multiply_no_nan: an overflow in the gradient of an absent id must not reach the row that stays zero.
    return tf.IndexedSlices(tf.math.multiply_no_nan(summed, is_real), rows, tf.constant(shape.as_list(), rows.dtype))
