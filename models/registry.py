"""Models by name, and the rule for embedding dimensions that nobody stated."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from data.errors import InputError
from data.feature_spec import FeatureSpec

if TYPE_CHECKING:
    from models.wide_deep import WideDeep

MODELS = ("wide_deep",)


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


def build_model(
    name: str,
    spec: FeatureSpec,
    *,
    dims: Mapping[str, int],
    hidden_units: Sequence[int],
    dropout: float,
    combiner: str,
    seed: int,
) -> "WideDeep":
    """Builds a model under the Keras precision policy in force. `name` is one of MODELS."""
    if name != "wide_deep":
        raise InputError(f"model '{name}' is not known; choose one of {', '.join(MODELS)}")
    # TensorFlow is imported with the model, after the environment is set (trainer.runtime).
    from models.wide_deep import WideDeep

    return WideDeep(spec, dims, hidden_units=hidden_units, dropout=dropout, combiner=combiner, seed=seed)


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
