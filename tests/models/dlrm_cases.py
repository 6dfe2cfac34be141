"""DLRM and DCNv2 in every shape, small, and what they compute, written in numpy."""

import numpy as np

from data.feature_spec import Feature, FeatureSpec
from models.dlrm import DLRM

ONEHOT = {"page": 7, "platform": 3}
MULTIHOT = {"topics": (4, 3), "words": (6, 2)}
NUMERICAL = ("ctr", "age")
EQUAL = {"page": 3, "platform": 3, "topics": 3, "words": 3}
# By falling dimension the order is platform, words, topics, page.
SEVERAL = {"page": 2, "platform": 4, "topics": 3, "words": 4}
ROWS = 6


def make_spec(onehot=ONEHOT, multihot=MULTIHOT, numerical=NUMERICAL):
    features = [Feature(name, cardinality=rows) for name, rows in onehot.items()]
    features += [Feature(name, cardinality=rows, max_hotness=hot) for name, (rows, hot) in multihot.items()]
    features += [Feature(name) for name in (*numerical, "clicked")]
    return FeatureSpec(
        features={feature.name: feature for feature in features},
        onehot=tuple(onehot),
        multihot=tuple(multihot),
        numerical=tuple(numerical),
        label="clicked",
    )


ALL = make_spec()
NO_NUMERICAL = make_spec(numerical=())
NO_CATEGORICAL = make_spec(onehot={}, multihot={})
ONE_TABLE = make_spec(onehot={}, multihot={"topics": (4, 3)}, numerical=())
CROSS = {"interaction": "cross", "num_cross_layers": 2, "cross_layer_projection_dim": 3}
CASES = {
    "dot": (ALL, EQUAL, {}),
    "dot, self-interaction": (ALL, EQUAL, {"self_interaction": True}),
    "dot, no numerical": (NO_NUMERICAL, EQUAL, {}),
    "dot, no categorical": (NO_CATEGORICAL, {}, {}),
    "dot, self-interaction, no categorical": (NO_CATEGORICAL, {}, {"self_interaction": True}),
    "dot, self-interaction, one table": (ONE_TABLE, EQUAL, {"self_interaction": True}),
    "concat": (ALL, SEVERAL, {"interaction": "concat"}),
    "concat, no numerical": (NO_NUMERICAL, SEVERAL, {"interaction": "concat"}),
    "concat, no categorical": (NO_CATEGORICAL, {}, {"interaction": "concat"}),
    "cross": (ALL, SEVERAL, CROSS),
    "cross, no numerical": (NO_NUMERICAL, SEVERAL, CROSS),
    "one layer below and above": (ALL, EQUAL, {"bottom_mlp_dims": (3,), "top_mlp_dims": (1,)}),
}


def make_model(case, **options):
    spec, dims, more = CASES[case]
    return DLRM(spec, dims, **{"bottom_mlp_dims": (5, 3), "top_mlp_dims": (6, 4, 1), "seed": 1, **more, **options})


def randomize(model, seed=0):
    """Gives every weight a random value, the padding rows apart, so that no term can hide."""
    rng = np.random.default_rng(seed)
    for variable in model.trainable_variables:
        variable.assign(0.7 * rng.standard_normal(variable.shape))
    for table in model.tables:
        table.variable[table.padding_row :].assign(np.zeros((1, table.dim), "f4"))


def make_batch(spec, rows=ROWS, seed=0):
    rng = np.random.default_rng(seed)
    columns = [np.zeros((rows, 0), "i4")]
    for name in spec.categorical:
        feature = spec.features[name]
        ids = rng.integers(0, feature.cardinality, (rows, feature.max_hotness)).astype("i4")
        ids[rng.random(ids.shape) < 0.2] = -1
        columns.append(ids)
    return {
        "ids": np.concatenate(columns, axis=1),
        "numerical": rng.standard_normal((rows, len(spec.numerical))).astype("f4"),
    }


def table_rows(model):
    """Feature name -> its rows, float64."""
    found = {}
    for fused in model.tables:
        for table in fused.tables:
            start = fused.row_offsets[table.name]
            found[table.name] = fused.variable.numpy()[start : start + table.rows].astype("f8")
    return found


def numpy_pooled(spec, tables, ids, combiner):
    """Feature name -> pooled rows, id by id, in the order of the specification."""
    pooled, column = {}, 0
    for name in spec.categorical:
        values = np.zeros((len(ids), tables[name].shape[1]))
        for row in range(len(ids)):
            present = [i for i in ids[row, column : column + spec.features[name].max_hotness] if i >= 0]
            for i in present:
                values[row] += tables[name][i] / (len(present) if combiner == "mean" else 1)
        pooled[name] = values
        column += spec.features[name].max_hotness
    return pooled


def numpy_logits(case, weights, pooled, numerical, *, order=None, pairs=None):
    """The model from its description, in float64.

    weights: those of dense_variables, in that order. order, pairs: of the embeddings and of the vectors whose products
    are taken; as documented unless given.
    """
    spec, _, options = CASES[case]
    weights = list(weights)

    def layers(values, count, relu_after_last):
        for layer in range(count):
            kernel, bias = weights.pop(0), weights.pop(0)
            values = values @ kernel + bias
            if layer < count - 1 or relu_after_last:
                values = np.maximum(values, 0)
        return values

    vectors = [pooled[name] for name in order or spec.categorical]
    if spec.numerical:
        vectors.insert(0, layers(numerical.astype("f8"), len(options.get("bottom_mlp_dims", (5, 3))), True))
    if options.get("interaction", "dot") == "dot":
        self_interaction = options.get("self_interaction", False)
        pairs = pairs or [(i, j) for i in range(len(vectors)) for j in range(i + 1 if self_interaction else i)]
        values = [np.sum(vectors[i] * vectors[j], axis=1, keepdims=True) for i, j in pairs]
        values = np.concatenate([*vectors[: len(spec.numerical[:1])], *values], axis=1)
    else:
        values = np.concatenate(vectors, axis=1)
    first = values
    for _ in range(options.get("num_cross_layers", 0)):
        down, up, bias = weights.pop(0), weights.pop(0), weights.pop(0)
        values = first * (values @ down @ up + bias) + values
    logits = layers(values, len(options.get("top_mlp_dims", (6, 4, 1))), False)[:, 0]
    assert not weights
    return logits


def dense_weights(model):
    return [variable.numpy().astype("f8") for variable in model.dense_variables()["main"]]
