import json
import pathlib

import keras
import numpy as np
import pytest
import tensorflow as tf

from data.feature_spec import Feature, FeatureSpec
from data.outbrain.schema import outbrain_feature_spec
from models.embedding import FusedTable
from models.registry import embedding_dims
from models.wide_deep import WideDeep

ONEHOT = {"page": 7, "platform": 1, "ad": 5}
MULTIHOT = {"topics": (4, 3), "words": (6, 2)}
NUMERICAL = ("ctr", "age")
DIMS = {"page": 3, "platform": 2, "ad": 2, "topics": 3, "words": 2}


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


SPECS = {
    "all": make_spec(),
    "no one-hot": make_spec(onehot={}),
    "no multi-hot": make_spec(multihot={}),
    "no numerical": make_spec(numerical=()),
    "no categorical": make_spec(onehot={}, multihot={}),
    "one feature": make_spec(onehot={}, multihot={"topics": (4, 3)}, numerical=()),
}


def make_batch(spec, rows=20, seed=0):
    rng = np.random.default_rng(seed)
    columns = []
    for name in spec.categorical:
        feature = spec.features[name]
        ids = rng.integers(0, feature.cardinality, (rows, feature.max_hotness)).astype("i4")
        ids[rng.random(ids.shape) < 0.3] = -1
        columns.append(ids)
    ids = np.concatenate([np.zeros((rows, 0), "i4"), *columns], axis=1)
    return {"ids": ids, "numerical": rng.standard_normal((rows, len(spec.numerical))).astype("f4")}


def make_model(spec, **options):
    return WideDeep(spec, DIMS, **{"hidden_units": (6, 4), "dropout": 0.0, "seed": 1, **options})


def randomize(model, seed=0):
    """Gives every weight a random value, the padding rows apart, so that no term of the sum can hide."""
    rng = np.random.default_rng(seed)
    for variable in model.trainable_variables:
        variable.assign(rng.standard_normal(variable.shape).astype("f4"))
    for table in model.tables:
        table.variable[table.padding_row :].assign(np.zeros((1, table.dim), "f4"))


def table_rows(model, group):
    """Feature name -> its rows, float64."""
    found = {}
    for fused in model.tables:
        if fused.group == group:
            for table in fused.tables:
                start = fused.row_offsets[table.name]
                found[table.name] = fused.variable.numpy()[start : start + table.rows].astype("f8")
    return found


def numpy_logits(model, spec, batch, combiner="sum", *, wide=True, deep=True):
    """The model written from its description, a row at a time, in float64."""
    weights = {"wide": table_rows(model, "wide"), "deep": table_rows(model, "deep")}
    hidden = [v.numpy().astype("f8") for v in model.mlp.trainable_variables]
    head_kernel, head_bias = (v.numpy().astype("f8") for v in model.head.trainable_variables)
    logits = []
    for ids, numerical in zip(batch["ids"], batch["numerical"].astype("f8"), strict=True):
        pooled = {"wide": {}, "deep": {}}
        column = 0
        for name in spec.categorical:
            hotness = spec.features[name].max_hotness
            present = [i for i in ids[column : column + hotness] if i >= 0]
            column += hotness
            for group in pooled:
                total = sum((weights[group][name][i] for i in present), np.zeros(weights[group][name].shape[1]))
                pooled[group][name] = total / max(len(present), 1) if combiner == "mean" else total
        logit = 0.0
        if wide:
            logit += float(model.wide_bias.numpy()) + sum(float(value[0]) for value in pooled["wide"].values())
            if spec.numerical:
                logit += float(model.wide_numerical.numpy().astype("f8") @ numerical)
        if deep:
            # Wider embeddings first, then the order of the specification.
            order = sorted(spec.categorical, key=lambda name: -DIMS[name])
            values = np.concatenate([*(pooled["deep"][name] for name in order), numerical])
            for kernel, bias in zip(hidden[::2], hidden[1::2], strict=True):
                values = np.maximum(values @ kernel + bias, 0)
            logit += (values @ head_kernel + head_bias).item()
        logits.append(logit)
    return np.array(logits)


@pytest.mark.parametrize("name", list(SPECS))
def test_forward_pass_equals_numpy(name):
    spec = SPECS[name]
    for combiner in ("sum", "mean"):
        model = make_model(spec, combiner=combiner)
        randomize(model)
        batch = make_batch(spec)
        logits = model(batch)
        wanted = numpy_logits(model, spec, batch, combiner)
        assert logits.shape == (20,) and logits.dtype == tf.float32
        assert np.ptp(wanted) > 0.1
        np.testing.assert_allclose(logits.numpy(), wanted, rtol=1e-5, atol=1e-5)


def test_the_wide_part_starts_at_zero():
    spec = SPECS["all"]
    model = make_model(spec)
    batch = make_batch(spec)
    assert not any(values.any() for values in table_rows(model, "wide").values())
    assert not any(variable.numpy().any() for variable in model.dense_variables()["wide"])
    assert np.ptp(model(batch)) > 0.01
    np.testing.assert_allclose(model(batch), numpy_logits(model, spec, batch, wide=False), rtol=0, atol=1e-6)


def test_logits_have_no_bounds():
    spec = SPECS["all"]
    model = make_model(spec)
    for bias in (-50.0, 50.0):
        model.wide_bias.assign(bias)
        assert np.abs(model(make_batch(spec)).numpy() - bias).max() < 5


def test_tables_of_equal_dimension_share_a_variable():
    model = make_model(SPECS["all"])
    assert [(t.group, t.dim, [f.name for f in t.tables], t.variable.shape.as_list()) for t in model.tables] == [
        ("wide", 1, ["page", "platform", "ad", "topics", "words"], [24, 1]),
        ("deep", 3, ["page", "topics"], [12, 3]),
        ("deep", 2, ["platform", "ad", "words"], [13, 2]),
    ]


def test_every_variable_is_in_a_table_or_in_a_group():
    model = make_model(SPECS["all"])
    groups = model.dense_variables()
    named = [id(v) for v in (*groups["wide"], *groups["deep"], *(table.variable for table in model.tables))]
    assert sorted(named) == sorted(id(v.value) for v in model.variables)
    assert [v.shape.as_list() for v in groups["wide"]] == [[], [2]]
    assert [v.shape.as_list() for v in groups["deep"]] == [[14, 6], [6], [6, 4], [4], [4, 1], [1]]


def test_initial_weights_depend_on_the_seed_alone():
    def weights(seed):
        return [v.numpy() for v in make_model(SPECS["all"], seed=seed).variables]

    first = weights(1)
    keras.utils.set_random_seed(1234)
    assert all((a == b).all() for a, b in zip(first, weights(1), strict=True))
    other = weights(2)
    changed = [not (a == b).all() for a, b in zip(first, other, strict=True)]
    assert [c for c, v in zip(changed, first, strict=True) if v.any()] == [True] * 5  # 2 embeddings, 3 kernels


def test_layers_of_one_shape_start_differently():
    model = make_model(SPECS["all"], hidden_units=(5, 5, 5))
    kernels = [v.numpy() for v in model.mlp.trainable_variables if v.shape == (5, 5)]
    assert len(kernels) == 2 and np.abs(kernels[0] - kernels[1]).max() > 0.1


def test_dropout_acts_in_training_by_the_seed():
    spec = SPECS["all"]
    model = make_model(spec, dropout=0.5, hidden_units=(64, 64))
    batch = make_batch(spec)

    def logits(step, training=True):
        return model(batch, training=training, seed=tf.constant([0, step])).numpy()

    assert (logits(1) == logits(1)).all()
    assert (logits(1) != logits(2)).mean() > 0.9
    assert (logits(1, training=False) == logits(2, training=False)).all()
    assert (logits(1) != logits(1, training=False)).mean() > 0.9


def test_the_outbrain_model_has_its_published_size(monkeypatch):
    # 90 million draws that nobody reads.
    monkeypatch.setattr(FusedTable, "initialize_rows", lambda self, seed, draw: None)
    spec = outbrain_feature_spec()
    sizes = pathlib.Path(__file__).parents[2] / "data" / "outbrain" / "embedding_sizes.json"
    dims = embedding_dims(spec, str(sizes))
    assert set(json.loads(sizes.read_text())) == set(spec.categorical)
    model = WideDeep(spec, dims)
    assert sum(dims.values()) == 1235
    assert model.mlp.trainable_variables[0].shape == (1235 + 13, 1024)
    assert [v.shape[1] for v in model.mlp.trainable_variables[::2]] == [1024] * 5
    assert sum(v.shape.num_elements() for v in model.dense_variables()["wide"]) == 14
    assert [table.dim for table in model.tables] == [1, 128, 64, 19]
    assert 91.5e6 < model.count_params() < 92.5e6


def test_precision_of_each_part(half_precision):
    spec = SPECS["all"]
    model = make_model(spec, dropout=0.5)
    batch = make_batch(spec)
    half = {"mixed_float16": tf.float16, "mixed_bfloat16": tf.bfloat16}[half_precision]
    assert {v.dtype for v in model.variables} == {"float32"}
    call = tf.function(lambda batch: model(batch, training=True, seed=tf.constant([0, 0])), autograph=False)
    logits = call(batch)
    assert logits.dtype == tf.float32
    graph = call.get_concrete_function(batch).graph
    products = [operation.outputs[0].dtype for operation in graph.get_operations() if operation.type == "MatMul"]
    assert products == [half, half, tf.float32, tf.float32]  # two hidden layers, the head, the wide numericals
    lookups = ("ResourceGather", "RecsysPooledLookup")
    gathers = [op.outputs[0].dtype for op in graph.get_operations() if op.type in lookups]
    assert gathers and set(gathers) == {tf.float32}
    shapes = {tuple(table.variable.shape) for table in model.tables}
    cast = [op for op in graph.get_operations() if op.type == "Cast" and tuple(op.inputs[0].shape.as_list()) in shapes]
    assert not cast  # no table is cast as a whole
    # Half a precision away from float32, no more, the head included.
    model_32 = make_model(spec, dropout=0.0)
    model_16 = make_model(spec, dropout=0.0)
    np.testing.assert_allclose(
        model_16(batch), numpy_logits(model_32, spec, batch, wide=False), atol=0.03 if half == tf.bfloat16 else 0.004
    )
