"""Wide & Deep: a linear model over all categories beside an MLP over their embeddings. Cheng et al. (2016)."""

from collections.abc import Mapping, Sequence

import keras
import tensorflow as tf

from data.feature_spec import FeatureSpec
from models.embedding import glorot_normal
from models.layers import MLP
from models.table_groups import ReplicatedTables, TableGroup, TablesFactory, logical_tables

WIDE = "wide"
DEEP = "deep"


class WideDeep(keras.Model):
    """logit = wide(ids, numericals) + deep(ids, numericals).

    Wide: one weight per category of each categorical feature and per numerical feature, and a bias, all zero at
    first. Deep: embeddings concatenated with the numericals, ReLU layers with dropout, one linear unit.

    A forward pass has two halves, so that a training step can compile the second and keep gradients of the first
    sparse: `embed` (gathers) and `dense_logits` (everything else).

    Attributes:
      embeddings: where the tables are kept; see models.table_groups.Tables.
      tables: the fused tables of this rank, replicated ones first; of those the wide one first.
    """

    def __init__(
        self,
        spec: FeatureSpec,
        embedding_dims: Mapping[str, int],
        *,
        hidden_units: Sequence[int] = (1024,) * 5,
        dropout: float = 0.1,
        combiner: str = "sum",
        seed: int = 0,
        embeddings: TablesFactory = ReplicatedTables,
        name: str = "wide_deep",
    ):
        """
        Args:
          spec: the features.
          embedding_dims: dimension of each categorical feature's embedding.
          hidden_units: sizes of the hidden layers.
          dropout: drop probability after each hidden layer.
          combiner: "sum" or "mean" over the ids of a multi-hot feature.
          seed: initial values depend on it alone.
          embeddings: makes the tables from their groups.
          name: model name.
        """
        # float32 here keeps the inputs in float32; the MLP takes its own precision from the policy.
        super().__init__(name=name, dtype="float32")
        groups = self.table_groups(spec, embedding_dims, combiner=combiner, seed=seed)
        self.embeddings = embeddings(groups)
        self.tables = [*self.embeddings.replicated, *self.embeddings.sharded]
        width = sum(embedding_dims[name] for name in spec.categorical) + len(spec.numerical)
        self.mlp = MLP(width, hidden_units, dropout=dropout, seed=seed + 1, name="mlp")
        # The last layer and everything after it stay in float32 under mixed precision.
        self.head = keras.layers.Dense(
            1, kernel_initializer=keras.initializers.GlorotUniform(seed=seed), dtype="float32", name="head"
        )
        self.head.build((None, self.mlp.output_width))
        self.wide_bias = self.add_weight(shape=(), initializer="zeros", dtype="float32", name="wide_bias")
        self.wide_numerical = (
            self.add_weight(shape=(len(spec.numerical),), initializer="zeros", dtype="float32", name="wide_numerical")
            if spec.numerical
            else None
        )
        self.built = True

    @staticmethod
    def table_groups(
        spec: FeatureSpec, embedding_dims: Mapping[str, int], *, combiner: str, seed: int
    ) -> list[TableGroup]:
        """The tables: those of the wide part, of dimension 1, then embeddings by falling dimension.

        None where the specification has no categorical feature.
        """
        logical = logical_tables(spec)
        groups = [TableGroup("wide_table", logical, 1, combiner, WIDE, sum_features=True)] if logical else []
        for dim in sorted({embedding_dims[table.name] for table in logical}, reverse=True):
            members = tuple(table for table in logical if embedding_dims[table.name] == dim)
            groups.append(TableGroup(f"embedding_{dim}", members, dim, combiner, DEEP, draw=glorot_normal, seed=seed))
        return groups

    def dense_variables(self) -> dict[str, list[tf.Variable]]:
        """The variables that are not tables, by optimizer group."""
        wide = [self.wide_bias] + ([] if self.wide_numerical is None else [self.wide_numerical])
        deep = self.mlp.trainable_variables + self.head.trainable_variables
        return {WIDE: [v.value for v in wide], DEEP: [v.value for v in deep]}

    def embed(self, ids: tf.Tensor) -> list[tf.Tensor]:
        """Pooled embeddings, one float32 tensor (rows, width) for each of `table_groups`."""
        return self.embeddings.lookup(ids).embedded

    def dense_logits(
        self, embedded: Sequence[tf.Tensor], numerical: tf.Tensor, *, seed: tf.Tensor, training: bool
    ) -> tf.Tensor:
        """
        Args:
          embedded: the result of `embed`.
          numerical: (rows, numerical features) float32.
          seed: (2,) int32, the seed of this step's dropout masks.
          training: whether dropout is active.

        Returns:
          (rows,) float32 logits.
        """
        hidden = self.mlp(tf.concat([*embedded[1:], numerical], axis=1), seed=seed, training=training)
        logits = tf.squeeze(self.head(hidden), axis=1) + self.wide_bias.value
        if embedded:
            logits += tf.squeeze(embedded[0], axis=1)
        if self.wide_numerical is not None:
            logits += tf.linalg.matvec(numerical, self.wide_numerical.value)
        return logits

    def call(self, inputs: Mapping[str, tf.Tensor], training: bool = False, seed: tf.Tensor | None = None) -> tf.Tensor:
        """Logits (rows,) of a batch with `ids` (rows, total hotness) and `numerical` (rows, n)."""
        seed = tf.zeros((2,), tf.int32) if seed is None else seed
        return self.dense_logits(self.embed(inputs["ids"]), inputs["numerical"], seed=seed, training=training)
