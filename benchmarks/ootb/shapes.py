"""What is known of a model before it is made: the sizes of its tables and layers. Without TensorFlow."""

import os

from data.errors import InputError
from data.feature_spec import FeatureSpec
from models.registry import embedding_dims, embedding_dims_from
from trainer.config import RunConfig

_PROJECT_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

ABSENT_ROWS = 1
"""Rows that a table has beside its cardinality: row 0 stands for an absent id."""


def table_dims(config: RunConfig, spec: FeatureSpec) -> dict[str, int]:
    """Embedding dimension of each categorical feature; the same that our own model gives it.

    Raises:
      InputError: the embedding sizes cannot be used.
    """
    if config.model.model != "wide_deep":
        return embedding_dims_from(spec, config.model.embedding_dim)
    path = config.model.embedding_sizes_file
    ours = os.path.join(_PROJECT_ROOT, path)
    return embedding_dims(spec, ours if os.path.exists(ours) and not os.path.exists(path) else path)


def table_sizes(config: RunConfig, spec: FeatureSpec) -> list[int]:
    """Weights of every table: of the features' embeddings and, for Wide & Deep, of the wide part's tables."""
    dims = table_dims(config, spec)
    rows = {name: spec.features[name].cardinality + ABSENT_ROWS for name in dims}
    wide = list(rows.values()) if config.model.model == "wide_deep" else []
    return [rows[name] * dims[name] for name in dims] + wide


def layer_widths(config: RunConfig, spec: FeatureSpec) -> list[list[int]]:
    """Widths of each stack of Dense layers, that of its input first; a cross layer counts as two.

    Raises:
      InputError: the shapes do not fit together.
    """
    dims, shape = list(table_dims(config, spec).values()), config.model
    numericals, where = len(spec.numerical), f"{spec.path}: " if spec.path else ""
    if shape.model == "wide_deep":
        if not numericals:
            raise InputError(
                f"{where}the out-of-the-box wide_deep needs a numerical feature, and the specification has none: "
                "add one, or use another --model"
            )
        return [[sum(dims) + numericals, *shape.deep_hidden_units, 1], [numericals, 1]]
    bottom = [numericals, *shape.bottom_mlp_dims] if numericals else []
    vectors = ([bottom[-1]] if bottom else []) + dims
    if shape.model == "dcnv2" or shape.interaction == "concat":
        width = sum(vectors)
    else:
        if len(set(vectors)) > 1:
            raise InputError(
                f"{where}the dot interaction needs vectors of one width, got {', '.join(map(str, vectors))} from "
                "the bottom MLP and the embeddings: make --embedding_dim and the last of --bottom_mlp_dims equal or "
                "use --interaction=concat"
            )
        pairs = len(vectors) * (len(vectors) + (1 if shape.self_interaction else -1)) // 2
        width = (bottom[-1] if bottom else 0) + pairs
        if not width:
            raise InputError(
                f"{where}one categorical feature and no numerical one leave the dot interaction no pair: add "
                "--self_interaction or use --interaction=concat"
            )
    crosses = shape.num_cross_layers if shape.model == "dcnv2" else 0
    cross = [width, shape.cross_layer_projection_dim, width]
    return [*([bottom] if bottom else []), *[cross] * crosses, [width, *shape.top_mlp_dims]]
