"""Bringing the ranks' gradients together: dense ones by allreduce, rows of tables by whichever moves fewer bytes."""

import dataclasses
from collections.abc import Sequence

import tensorflow as tf

from models.embedding import sum_by_row
from trainer.distributed import SingleProcess


@dataclasses.dataclass(frozen=True)
class Reduction:
    """How gradients are summed over ranks.

    Attributes:
      comm: the ranks.
      methods: "gather" or "allreduce" for each table.
      half: send float16. Values of tables are cast before and after, ids never.
      half_scale: multiplies what is cast to float16 and divides what comes back. Gradients of a mean over a large batch
        lie near the smallest float16 numbers; under loss scaling they come scaled, and this should be 1.
    """

    comm: SingleProcess
    methods: tuple[str, ...]
    half: bool = False
    half_scale: float = 1.0

    def __call__(
        self, dense: Sequence[tf.Tensor], slices: Sequence[tf.IndexedSlices], extras: tf.Tensor
    ) -> tuple[list[tf.Tensor], list[tf.IndexedSlices], tf.Tensor]:
        """Sums over ranks.

        Args:
          dense: gradients of dense variables.
          slices: gradients of tables, rows distinct within each.
          extras: small float32 vector summed along in full precision (loss, signals).

        Returns:
          The sums, in the same form and order, the same bits on every rank; rows distinct.
        """
        if self.comm.size == 1:
            return list(dense), list(slices), extras
        reduced_tables = [index for index, method in enumerate(self.methods) if method == "allreduce"]
        payload = [self._shrink(gradient) for gradient in dense]
        payload += [self._shrink(tf.convert_to_tensor(slices[index])) for index in reduced_tables]
        # One grouped call: Horovod fuses its members into few transfers. Half and full precision cannot share one.
        sums = self.comm.allreduce(payload, name="gradients")
        sums = [self._restore(total) for total in sums]
        (extras,) = self.comm.allreduce([extras], name="extras")
        tables = list(slices)
        for position, index in enumerate(reduced_tables):
            tables[index] = _touched_rows(sums[len(dense) + position], slices[index])
        for index, method in enumerate(self.methods):
            if method == "gather":
                tables[index] = self._gather(slices[index], name=f"table_{index}")
        return sums[: len(dense)], tables, extras

    def _gather(self, own: tf.IndexedSlices, *, name: str) -> tf.IndexedSlices:
        values = self.comm.allgather(self._shrink(own.values), name=f"{name}_values")
        rows = self.comm.allgather(own.indices, name=f"{name}_rows")
        # The row of absent ids comes with gradient zero from every rank and needs no second look.
        return sum_by_row(rows, self._restore(values), -1, tf.TensorShape(tf.get_static_value(own.dense_shape)))

    def _shrink(self, tensor: tf.Tensor) -> tf.Tensor:
        return tf.cast(tensor * self.half_scale, tf.float16) if self.half else tensor

    def _restore(self, tensor: tf.Tensor) -> tf.Tensor:
        return tf.cast(tensor, tf.float32) / self.half_scale if self.half else tensor


def _touched_rows(total: tf.Tensor, like: tf.IndexedSlices) -> tf.IndexedSlices:
    """The rows of a summed table gradient that are not zero.

    A row that was looked up and has gradient zero is left out: for our optimizers that is the same as untouched.
    NaN counts as not zero, so that it is seen.
    """
    touched = tf.reduce_any(total != 0.0, axis=1)
    rows = tf.cast(tf.squeeze(tf.where(touched), axis=1), like.indices.dtype)
    return tf.IndexedSlices(tf.gather(total, rows), rows, like.dense_shape)
