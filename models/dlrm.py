"""DLRM and DCNv2: embeddings and a dense vector interact, and an MLP reads what comes of it.

Naumov et al. (2019), "Deep learning recommendation model for personalization and recommendation systems".
Wang et al. (2021), "DCN V2: improved deep & cross network".
"""

import zlib
from collections.abc import Mapping, Sequence

import keras
import tensorflow as tf

from data.errors import InputError
from data.feature_spec import FeatureSpec
from models.embedding import uniform_by_rows
from models.interaction import LowRankCross, first_and_products, num_interactions
from models.layers import MLP, NORMAL, build_dense
from models.table_groups import ReplicatedTables, TableGroup, TablesFactory, logical_tables

MAIN = "main"
INTERACTIONS = ("dot", "concat", "cross")


class DLRM(keras.Model):
    """logit = top MLP(interaction(bottom MLP(numericals), embeddings)).

    The vectors that interact are the bottom MLP's output, where there are numericals, and then the embeddings in the
    order of the specification.

    - dot: the bottom MLP's output followed by the dot products of all pairs of vectors, which are of one dimension.
    - concat: the vectors side by side.
    - cross (DCNv2): the vectors side by side, through cross layers.

    Computes in the Keras policy in force when it is made, the last layer in the precision of the variables. As in
    WideDeep, `embed` gathers and `dense_logits` does everything else.

    Attributes:
      embeddings: where the tables are kept; see models.table_groups.Tables.
      tables: the fused tables of this rank, replicated ones first.
      bottom_mlp: None without numerical features.
      cross_layers: empty unless the interaction is "cross".
      top_mlp: all layers but the last.
      head: the last layer.
    """

    def __init__(
        self,
        spec: FeatureSpec,
        embedding_dims: Mapping[str, int],
        *,
        bottom_mlp_dims: Sequence[int] = (512, 256, 128),
        top_mlp_dims: Sequence[int] = (1024, 1024, 512, 256, 1),
        interaction: str = "dot",
        self_interaction: bool = False,
        num_cross_layers: int = 3,
        cross_layer_projection_dim: int = 512,
        combiner: str = "sum",
        seed: int = 0,
        embeddings: TablesFactory = ReplicatedTables,
        name: str = "dlrm",
    ):
        """
        Args:
          spec: the features.
          embedding_dims: dimension of each categorical feature's embedding.
          bottom_mlp_dims: sizes of the layers over the numericals, a ReLU after each; unused where there are none.
          top_mlp_dims: sizes of the layers over the interaction, a ReLU after each but the last, which is 1.
          interaction: one of INTERACTIONS.
          self_interaction: whether "dot" has each vector's product with itself.
          num_cross_layers: of "cross".
          cross_layer_projection_dim: rank of each cross layer's matrix.
          combiner: "sum" or "mean" over the ids of a multi-hot feature.
          seed: initial values depend on it alone.
          embeddings: makes the tables from their groups.
          name: model name.

        Raises:
          InputError: shapes that do not fit together.
        """
        widths = _vector_widths(spec, embedding_dims, bottom_mlp_dims)
        width = _interaction_width(widths, spec, interaction, self_interaction)
        if not top_mlp_dims or top_mlp_dims[-1] != 1:
            stated = ",".join(map(str, top_mlp_dims)) or "none"
            raise InputError(f"--top_mlp_dims must end with 1, the logit, got {stated}")
        # float32 here keeps the inputs as they are; layers take their precision from the policy.
        super().__init__(name=name, dtype="float32")
        policy = keras.config.dtype_policy()
        self._precision = tf.as_dtype(policy.compute_dtype)
        self._interaction, self._self_interaction = interaction, self_interaction
        self._dim = widths[0] if interaction == "dot" else None
        self._groups = self.table_groups(spec, embedding_dims, combiner=combiner, seed=seed)
        self._features = spec.categorical
        self.embeddings = embeddings(self._groups)
        self.tables = [*self.embeddings.replicated, *self.embeddings.sharded]
        self.bottom_mlp = (
            MLP(
                len(spec.numerical),
                bottom_mlp_dims,
                reads_data=True,
                seed=_seed_of("bottom_mlp", seed),
                initial=NORMAL,
                dtype=policy,
                name="bottom_mlp",
            )
            if spec.numerical
            else None
        )
        self.cross_layers = [
            LowRankCross(
                width, cross_layer_projection_dim, seed=_seed_of(f"cross_{i}", seed), dtype=policy, name=f"cross_{i}"
            )
            for i in range(num_cross_layers if interaction == "cross" else 0)
        ]
        self.top_mlp = MLP(
            width, top_mlp_dims[:-1], seed=_seed_of("top_mlp", seed), initial=NORMAL, dtype=policy, name="top_mlp"
        )
        # The logit stays in float32 under mixed precision.
        self.head = build_dense(
            self.top_mlp.output_width,
            1,
            seed=_seed_of("head", seed),
            bias_seed=_seed_of("head bias", seed),
            initial=NORMAL,
            dtype=policy.variable_dtype,
            name="head",
        )
        self.built = True

    @staticmethod
    def table_groups(
        spec: FeatureSpec, embedding_dims: Mapping[str, int], *, combiner: str, seed: int
    ) -> list[TableGroup]:
        """The tables by falling dimension. None where the specification has no categorical feature."""
        logical = logical_tables(spec)
        groups = []
        for dim in sorted({embedding_dims[table.name] for table in logical}, reverse=True):
            members = tuple(table for table in logical if embedding_dims[table.name] == dim)
            groups.append(TableGroup(f"embedding_{dim}", members, dim, combiner, MAIN, draw=uniform_by_rows, seed=seed))
        return groups

    def dense_variables(self) -> dict[str, list[tf.Variable]]:
        """The variables that are not tables, by optimizer group."""
        layers = [
            *([self.bottom_mlp] if self.bottom_mlp is not None else []),
            *self.cross_layers,
            self.top_mlp,
            self.head,
        ]
        return {MAIN: [variable.value for layer in layers for variable in layer.trainable_variables]}

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
          seed: unused: nothing is drawn.
          training: unused for the same reason.

        Returns:
          (rows,) logits, float32 whatever the policy, float64 excepted.
        """
        del training
        vectors = [tf.cast(tensor, self._precision) for tensor in self._in_order(embedded)]
        bottom = None if self.bottom_mlp is None else self.bottom_mlp(numerical, seed=seed)
        if self._interaction == "dot":
            hidden = first_and_products(bottom, vectors, self._dim, self_interaction=self._self_interaction)
        else:
            hidden = tf.concat([*([] if bottom is None else [bottom]), *vectors], axis=1)
        first = hidden
        for layer in self.cross_layers:
            hidden = layer(first, hidden)
        return tf.squeeze(self.top_mlp(hidden, seed=seed, head=self.head), axis=1)

    def call(self, inputs: Mapping[str, tf.Tensor], training: bool = False, seed: tf.Tensor | None = None) -> tf.Tensor:
        """Logits (rows,) of a batch with `ids` (rows, total hotness) and `numerical` (rows, n)."""
        seed = tf.zeros((2,), tf.int32) if seed is None else seed
        return self.dense_logits(self.embed(inputs["ids"]), inputs["numerical"], seed=seed, training=training)

    def _in_order(self, embedded: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """The embeddings in the order of the specification; one group has it already."""
        if len(embedded) < 2:
            return list(embedded)
        by_feature = {}
        for group, tensor in zip(self._groups, embedded, strict=True):
            pieces = tf.split(tensor, len(group.tables), axis=1)
            by_feature.update(zip((table.name for table in group.tables), pieces, strict=True))
        return [by_feature[name] for name in self._features]


def _vector_widths(spec: FeatureSpec, embedding_dims: Mapping[str, int], bottom_mlp_dims: Sequence[int]) -> list[int]:
    """Widths of what interacts: the bottom MLP's output, where there is one, then the embeddings."""
    widths = [embedding_dims[name] for name in spec.categorical]
    if spec.numerical:
        widths.insert(0, bottom_mlp_dims[-1] if bottom_mlp_dims else len(spec.numerical))
    return widths


def _interaction_width(widths: Sequence[int], spec: FeatureSpec, interaction: str, self_interaction: bool) -> int:
    """Columns of what the top MLP reads.

    Raises:
      InputError: the vectors cannot interact.
    """
    if interaction not in INTERACTIONS:
        raise InputError(f"--interaction must be one of {', '.join(INTERACTIONS)}, got {interaction!r}")
    if interaction != "dot":
        return sum(widths)
    embeddings = widths[1:] if spec.numerical else widths
    if len(set(embeddings)) > 1:
        raise InputError(
            f"the dot interaction needs one embedding dimension for all features, got {min(embeddings)} and "
            f"{max(embeddings)}: give --embedding_dim one number or use --interaction=concat"
        )
    if len(set(widths)) > 1:
        raise InputError(
            f"the dot interaction needs embeddings as wide as the bottom MLP's output, got embeddings of {widths[1]} "
            f"and an output of {widths[0]}: make --embedding_dim and the last of --bottom_mlp_dims equal or use "
            "--interaction=concat"
        )
    width = num_interactions(len(widths), self_interaction=self_interaction) + (widths[0] if spec.numerical else 0)
    if width == 0:
        raise InputError(
            "one categorical feature and no numerical one leave the dot interaction no pair: add --self_interaction or "
            "use --interaction=concat"
        )
    return width


def _seed_of(layer: str, seed: int) -> int:
    """A seed for each layer, as far from its neighbours' as chance has it."""
    return zlib.crc32(f"{layer}/{seed}".encode()) & 0x7FFFFFFF
