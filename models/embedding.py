"""Embedding tables of equal dimension stored as one variable, with lookup, pooling and row gradients.

A model with thirty features would need thirty gathers and thirty scatters a step. Tables of one dimension stand here
one below the other in a single variable, so that a step does one gather per block of equal hotness and one update.
"""

import dataclasses
import zlib
from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class LogicalTable:
    """One feature's rows inside a fused table.

    Attributes:
      name: feature name.
      rows: cardinality; valid ids are 0..rows-1.
      column: first column of the feature in the packed id tensor.
      hotness: number of adjacent columns.
    """

    name: str
    rows: int
    column: int
    hotness: int


def glorot_normal_rows(name: str, rows: int, dim: int, seed: int) -> tf.Tensor:
    """Initial rows of a logical table: truncated normal of variance 2 / (rows + dim), (rows, dim) float32.

    The values depend on (seed, name) alone, not on which tables are fused or which rank draws them. Glorot and
    Bengio (2010); truncated at two standard deviations and rescaled as Keras's GlorotNormal is.
    """
    stddev = np.sqrt(2.0 / (rows + dim)) / 0.87962566103423978
    return tf.random.stateless_truncated_normal(
        (rows, dim), seed=(seed & 0x7FFFFFFF, zlib.crc32(name.encode())), stddev=stddev
    )


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
        self.build()

    def build(self, input_shape=None):
        del input_shape
        self.table = self.add_weight(
            shape=(self.padding_row + 1, self.dim), initializer="zeros", name="table", trainable=True
        )
        self.built = True

    def initialize_rows(self, seed: int) -> None:
        """Draws Glorot normal values for every logical table; the row of absent ids stays zero."""
        for table in self.tables:
            start = self.row_offsets[table.name]
            self.variable[start : start + table.rows].assign(glorot_normal_rows(table.name, table.rows, self.dim, seed))

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

    def _positions(self, ids: tf.Tensor, block: "_Block") -> tuple[tf.Tensor, tf.Tensor]:
        """Rows of the fused table, (rows, features, hotness), and which of them stand for a present id."""
        picked = tf.gather(ids, block.columns, axis=1)
        present = picked >= 0
        offsets = tf.constant([[[self.row_offsets[name]] for name in block.names]], dtype=ids.dtype)
        positions = tf.where(present, picked + offsets, tf.constant(self.padding_row, dtype=ids.dtype))
        return positions, present


@dataclasses.dataclass(frozen=True)
class _Block:
    names: tuple[str, ...]
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
            names=tuple(t.name for t in block),
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
