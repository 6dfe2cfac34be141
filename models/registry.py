"""Models by name, and the embedding dimensions of their features."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from data.errors import InputError
from data.feature_spec import FeatureSpec

if TYPE_CHECKING:
    from models.click_model import ClickModel
    from models.table_groups import TableGroup, TablesFactory

MODELS = ("wide_deep", "dlrm", "dcnv2")


def default_embedding_dim(cardinality: int) -> int:
    """Dimension of a table that no file states: 6 times the fourth root, rounded up to a multiple of 8, at most 128.

    The fourth root is the rule of thumb of TensorFlow's feature columns; multiples of 8 let tables share one fused
    variable and suit the matrix units of GPUs.
    """
    return min(128, 8 * math.ceil(6 * cardinality**0.25 / 8))


def embedding_dims(spec: FeatureSpec, sizes_file: str | None) -> dict[str, int]:
    """Embedding dimension of each categorical feature: from the JSON file (name -> dimension), else by the rule.

    Raises:
      InputError: the file cannot be read or holds something else.
    """
    stated = {} if sizes_file is None else _read_sizes(sizes_file)
    return {
        name: stated[name] if name in stated else default_embedding_dim(spec.features[name].cardinality)
        for name in spec.categorical
    }


def embedding_dims_from(spec: FeatureSpec, sizes: Sequence[int]) -> dict[str, int]:
    """Embedding dimension of each categorical feature from a list: one for all, or one for each in order.

    Raises:
      InputError: the list has another length.
    """
    features = spec.categorical
    if len(sizes) == 1:
        return dict.fromkeys(features, sizes[0])
    if len(sizes) != len(features):
        where = f"{spec.path}: " if spec.path else ""
        raise InputError(
            f"{where}--embedding_dim has {len(sizes)} numbers for {len(features)} categorical features: give one for "
            "all, or one for each in the order of channel_spec, one-hot ones first"
        )
    return dict(zip(features, sizes, strict=True))


def build_model(
    name: str,
    spec: FeatureSpec,
    *,
    dims: Mapping[str, int],
    combiner: str,
    seed: int,
    embeddings: "TablesFactory | None" = None,
    **settings: Any,
) -> "ClickModel":
    """Builds a model under the Keras precision policy in force.

    Args:
      name: one of MODELS.
      spec: the features.
      dims: dimension of each categorical feature's embedding.
      combiner: "sum" or "mean" over the ids of a multi-hot feature.
      seed: initial values depend on it alone.
      embeddings: makes the tables from their groups; every rank has all of them unless given.
      **settings: further arguments of the model's class. For "wide_deep": hidden_units, dropout; for "dlrm":
        bottom_mlp_dims, top_mlp_dims, interaction, self_interaction; for "dcnv2": bottom_mlp_dims, top_mlp_dims,
        num_cross_layers, cross_layer_projection_dim.

    Raises:
      InputError: the model is not known, or its shapes do not fit together.
    """
    model = _model_class(name)
    if embeddings is not None:
        settings["embeddings"] = embeddings
    if name == "dcnv2":
        return model(spec, dims, interaction="cross", combiner=combiner, seed=seed, name=name, **settings)
    return model(spec, dims, combiner=combiner, seed=seed, **settings)


def table_groups(
    name: str, spec: FeatureSpec, *, dims: Mapping[str, int], combiner: str, seed: int
) -> "list[TableGroup]":
    """The tables that `build_model` would give a model, described and not made.

    Raises:
      InputError: the model is not known.
    """
    return _model_class(name).table_groups(spec, dims, combiner=combiner, seed=seed)


def _model_class(name: str) -> type:
    if name not in MODELS:
        raise InputError(f"model '{name}' is not known; choose one of {', '.join(MODELS)}")
    # TensorFlow is imported with the model, after the environment is set (trainer.runtime).
    if name == "wide_deep":
        from models.wide_deep import WideDeep

        return WideDeep
    from models.dlrm import DLRM

    return DLRM


def _read_sizes(path: str) -> dict[str, int]:
    try:
        with open(path, encoding="utf-8") as file:
            sizes = json.load(file)
    except OSError as error:
        raise InputError(f"{path}: cannot read the embedding sizes: {error.strerror}") from error
    except ValueError as error:
        raise InputError(f"{path}: the embedding sizes are not JSON: {error}") from error
    if not isinstance(sizes, dict):
        raise InputError(f"{path}: embedding sizes must map feature names to dimensions, got {type(sizes).__name__}")
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise InputError(f"{path}: embedding size of '{name}' must be a positive integer, got {size!r}")
    return sizes
