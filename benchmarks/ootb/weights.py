"""Weights of our own models in those of plain Keras, to compare what they compute."""

from collections.abc import Mapping, Sequence

import numpy as np

from benchmarks.ootb.models import DLRM, WideDeep
from data.feature_spec import FeatureSpec

Weights = Mapping[str, np.ndarray | Sequence[np.ndarray]]


def load(model: WideDeep | DLRM, weights: Weights, spec: FeatureSpec) -> None:
    """Overwrites the weights of a model whose variables are made.

    Args:
      model: takes them.
      weights: as benchmarks.our_steps.weights has them: "GROUP/FEATURE" -> table (rows, dim), and GROUP -> its dense
        variables in order.
      spec: the features.
    """
    if isinstance(model, WideDeep):
        _set_tables(model.wide_tables, weights, "wide")
        _set_tables(model.deep_tables, weights, "deep")
        bias, numerical = weights["wide"]
        model.wide_numerical.set_weights([numerical[:, None], bias.reshape(1)])
        kernel, *rest = weights["deep"]
        dims = {name: table.output_dim for name, table in model.deep_tables.items()}
        _set_dense([*model.hidden, model.head], [_numericals_first(kernel, spec, dims), *rest])
        return
    _set_tables(model.tables, weights, "main")
    crosses = [layer for pair in model.crosses for layer in pair]
    _set_dense([*model.bottom, *crosses, *model.top, model.head], weights["main"])


def _set_tables(tables: Mapping, weights: Weights, group: str) -> None:
    for name, table in tables.items():
        rows = weights[f"{group}/{name}"]
        absent = np.zeros((1, rows.shape[1]), rows.dtype)
        table.set_weights([np.concatenate([absent, rows])])


def _set_dense(layers: Sequence, arrays: Sequence[np.ndarray]) -> None:
    remaining = list(arrays)
    for layer in layers:
        count = 2 if layer.use_bias else 1
        layer.set_weights(remaining[:count])
        del remaining[:count]
    if remaining:
        raise ValueError(f"{len(remaining)} arrays are left over: the models differ")


def _numericals_first(kernel: np.ndarray, spec: FeatureSpec, dims: Mapping[str, int]) -> np.ndarray:
    """The first kernel's rows as Keras has its inputs: numericals, then features in the specification's order.

    Ours are features by falling dimension, then numericals.
    """
    ours = sorted(spec.categorical, key=lambda name: -dims[name])  # stable: equal ones keep their order
    *tables, numericals = np.split(kernel, np.cumsum([dims[name] for name in ours]))
    by_name = dict(zip(ours, tables, strict=True))
    return np.concatenate([numericals, *(by_name[name] for name in spec.categorical)])
