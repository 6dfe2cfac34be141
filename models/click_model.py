"""What training and evaluation ask of a model."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import tensorflow as tf

from models.embedding import FusedTable
from models.table_groups import Tables


class ClickModel(Protocol):
    """A Keras model in two halves, so that a step can compile the second and keep gradients of the first sparse.

    Attributes:
      embeddings: where the tables are kept.
      tables: the fused tables of this rank, replicated ones first.
    """

    embeddings: Tables
    tables: Sequence[FusedTable]

    def dense_variables(self) -> dict[str, list[tf.Variable]]:
        """The variables that are not tables, by optimizer group."""

    def embed(self, ids: tf.Tensor) -> list[tf.Tensor]:
        """Pooled rows of packed ids (rows, total hotness): one float32 tensor for each table group."""

    def dense_logits(
        self, embedded: Sequence[tf.Tensor], numerical: tf.Tensor, *, seed: tf.Tensor, training: bool
    ) -> tf.Tensor:
        """Logits (rows,) float32 from the result of `embed` and numericals (rows, n).

        seed: (2,) int32, of this step's dropout masks, for models that have any.
        """

    def __call__(self, inputs: Mapping[str, tf.Tensor]) -> tf.Tensor:
        """Logits of a batch."""
