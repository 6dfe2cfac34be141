"""Wide & Deep, DLRM and DCNv2 in plain Keras. The same mathematics as our own models, under the Keras policy in force.

Ids come one more than they are in the data, so that 0 stands for an absent one (benchmarks.ootb.inputs). In a list of
ids it adds nothing. As the only id of a feature it has a row of its own, which is trained like any other; in our own
models it adds nothing there either.
"""

from collections.abc import Mapping

import keras
import numpy as np

from benchmarks.ootb.inputs import model_inputs
from benchmarks.ootb.shapes import ABSENT_ROWS, layer_widths, table_dims
from data.feature_spec import FeatureSpec
from trainer.config import ModelConfig, RunConfig


class WideDeep(keras.Model):
    """logit = wide + deep: a weight for each id and numerical, beside an MLP over embeddings. Cheng et al. (2016).

    Attributes:
      wide_tables, deep_tables: feature -> keras.layers.Embedding.
      wide_numerical: the numericals' weights and the bias of the wide part.
      hidden: Dense layers of the deep part, and head its last.
    """

    def __init__(self, spec: FeatureSpec, shape: ModelConfig, dims: Mapping[str, int]):
        """
        Args:
          spec: the features, at least one numerical one among them.
          shape: sizes of the layers, dropout and combiner.
          dims: embedding dimension of each categorical feature.
        """
        super().__init__(name="ootb_wide_deep")
        self._spec, self._combiner = spec, shape.combiner
        self.wide_tables = {name: _embedding(spec, name, 1, "zeros", dtype="float32") for name in spec.categorical}
        self.deep_tables = {name: _embedding(spec, name, dims[name], "glorot_normal") for name in spec.categorical}
        self.wide_numerical = keras.layers.Dense(1, kernel_initializer="zeros", dtype="float32")
        self.hidden = [keras.layers.Dense(units, activation="relu") for units in shape.deep_hidden_units]
        self.dropouts = [keras.layers.Dropout(shape.deep_dropout) for _ in shape.deep_hidden_units]
        self.head = keras.layers.Dense(1, dtype="float32")

    def call(self, inputs, training=False):
        """Logits (rows, 1) of `ids`, feature -> (rows, hotness), and `numerical` (rows, n)."""
        ids, numerical = inputs["ids"], inputs["numerical"]
        wide = pooled_rows(self.wide_tables, ids, self._spec, self._combiner)
        deep = pooled_rows(self.deep_tables, ids, self._spec, self._combiner)
        hidden = keras.ops.concatenate([numerical, *deep], axis=1)
        for dense, dropout in zip(self.hidden, self.dropouts, strict=True):
            hidden = dropout(dense(hidden), training=training)
        return sum([self.head(hidden), *wide], start=self.wide_numerical(numerical))

    def wide_variables(self) -> list[keras.Variable]:
        """The variables of the wide part, which has an optimizer of its own."""
        layers = [*self.wide_tables.values(), self.wide_numerical]
        return [variable for layer in layers for variable in layer.trainable_variables]


class DLRM(keras.Model):
    """DLRM, Naumov et al. (2019), and DCNv2, Wang et al. (2021).

    logit = top MLP(interaction(bottom MLP(numericals), embeddings))

    Attributes:
      tables: feature -> keras.layers.Embedding.
      bottom, top: Dense layers, and head the last one; bottom is empty without numerical features.
      crosses: (projection, expansion) of each cross layer; empty but for DCNv2.
    """

    def __init__(self, spec: FeatureSpec, shape: ModelConfig, dims: Mapping[str, int]):
        """
        Args:
          spec: the features.
          shape: sizes of the layers, interaction and combiner; fit together, see benchmarks.ootb.shapes.layer_widths.
          dims: embedding dimension of each categorical feature.
        """
        super().__init__(name=f"ootb_{shape.model}")
        self._spec, self._shape = spec, shape
        self.tables = {
            name: _embedding(spec, name, dims[name], _uniform_by_rows(spec, name)) for name in spec.categorical
        }
        self.bottom = [_dense(units) for units in shape.bottom_mlp_dims if spec.numerical]
        self.top = [_dense(units) for units in shape.top_mlp_dims[:-1]]
        self.head = _dense(1, activation=None, dtype="float32")
        width = sum(dims.values()) + (shape.bottom_mlp_dims[-1] if spec.numerical else 0)
        rank = shape.cross_layer_projection_dim
        self.crosses = [
            (keras.layers.Dense(rank, use_bias=False), keras.layers.Dense(width))
            for _ in range(shape.num_cross_layers if shape.model == "dcnv2" else 0)
        ]

    def call(self, inputs, training=False):
        """Logits (rows, 1) of `ids`, feature -> (rows, hotness), and `numerical` (rows, n)."""
        del training  # nothing here depends on it
        vectors = pooled_rows(self.tables, inputs["ids"], self._spec, self._shape.combiner)
        if self.bottom:
            hidden = inputs["numerical"]
            for dense in self.bottom:
                hidden = dense(hidden)
            vectors.insert(0, hidden)
        if self._shape.model == "dlrm" and self._shape.interaction == "dot":
            products = dot_products(vectors, self._shape.self_interaction)
            hidden = keras.ops.concatenate([vectors[0], products], axis=1) if self.bottom else products
        else:
            hidden = first = keras.ops.concatenate(vectors, axis=1)
            for project, expand in self.crosses:
                hidden = first * expand(project(hidden)) + hidden
        for dense in self.top:
            hidden = dense(hidden)
        return self.head(hidden)


def build_model(config: RunConfig, spec: FeatureSpec) -> keras.Model:
    """The model of a configuration, its variables not yet made.

    Raises:
      InputError: shapes that do not fit together.
    """
    layer_widths(config, spec)
    model = WideDeep if config.model.model == "wide_deep" else DLRM
    return model(spec, config.model, table_dims(config, spec))


def make_variables(model: keras.Model, spec: FeatureSpec) -> None:
    """Makes a model's variables, by calling it on two rows of nothing."""
    batch = {
        "ids": np.full((2, spec.total_hotness), -1, np.int32),
        "numerical": np.zeros((2, len(spec.numerical)), np.float32),
    }
    model(keras.tree.map_structure(keras.ops.convert_to_tensor, model_inputs(spec, batch)))


def pooled_rows(tables: Mapping[str, keras.layers.Embedding], ids: Mapping, spec: FeatureSpec, combiner: str) -> list:
    """The sum or mean of each feature's embeddings, (rows, dim), in the order of the specification."""
    pooled = []
    for name in spec.categorical:
        rows = tables[name](ids[name])
        if name not in spec.multihot:
            pooled.append(keras.ops.squeeze(rows, axis=1))
            continue
        present = keras.ops.cast(ids[name] > 0, rows.dtype)[:, :, None]
        total = keras.ops.sum(rows * present, axis=1)
        if combiner == "mean":
            total = total / keras.ops.maximum(keras.ops.sum(present, axis=1), 1)
        pooled.append(total)
    return pooled


def dot_products(vectors: list, self_interaction: bool):
    """Dot products of all pairs of vectors (rows, dim): (rows, pairs), row by row below the diagonal."""
    count = len(vectors)
    above, left = np.tril_indices(count, 0 if self_interaction else -1)
    stacked = keras.ops.stack(vectors, axis=1)
    products = keras.ops.matmul(stacked, keras.ops.transpose(stacked, (0, 2, 1)))
    return keras.ops.take(keras.ops.reshape(products, (-1, count * count)), above * count + left, axis=1)


def _embedding(spec: FeatureSpec, name: str, dim: int, initial, **kwargs) -> keras.layers.Embedding:
    rows = spec.features[name].cardinality + ABSENT_ROWS
    return keras.layers.Embedding(rows, dim, embeddings_initializer=initial, **kwargs)


def _uniform_by_rows(spec: FeatureSpec, name: str) -> keras.initializers.Initializer:
    limit = spec.features[name].cardinality ** -0.5
    return keras.initializers.RandomUniform(-limit, limit)


def _dense(units: int, activation: str | None = "relu", **kwargs) -> keras.layers.Dense:
    bias = keras.initializers.RandomNormal(stddev=units**-0.5)
    return keras.layers.Dense(
        units, activation=activation, kernel_initializer="glorot_normal", bias_initializer=bias, **kwargs
    )
