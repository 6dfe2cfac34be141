import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from dlrm_cases import (
    CASES,
    ROWS,
    SEVERAL,
    dense_weights,
    make_batch,
    make_model,
    numpy_logits,
    numpy_pooled,
    randomize,
    table_rows,
)

from models import custom_ops

EVERY_CASE = pytest.mark.parametrize("case", list(CASES))
SEED = tf.constant([0, 0])


def differences(function, arrays, step=1e-5):
    """The gradient of a function of no arguments with respect to arrays that it reads, by central differences."""
    gradients = []
    for array in arrays:
        gradient = np.zeros_like(array)
        for place in np.ndindex(array.shape):
            before = array[place]
            array[place] = before + step
            above = function()
            array[place] = before - step
            gradient[place] = (above - function()) / (2 * step)
            array[place] = before
        gradients.append(gradient)
    return gradients


@pytest.fixture
def float64():
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("float64")
    yield
    keras.config.set_dtype_policy(before)


@EVERY_CASE
def test_forward_pass_equals_numpy(case):
    spec, _, _ = CASES[case]
    for combiner in ("sum", "mean"):
        model = make_model(case, combiner=combiner)
        randomize(model)
        batch = make_batch(spec, rows=20)
        logits = model(batch)
        pooled = numpy_pooled(spec, table_rows(model), batch["ids"], combiner)
        wanted = numpy_logits(case, dense_weights(model), pooled, batch["numerical"])
        assert logits.shape == (20,) and logits.dtype == tf.float32
        assert np.ptp(wanted) > 0.1
        np.testing.assert_allclose(logits.numpy(), wanted, rtol=1e-5, atol=1e-5)


@EVERY_CASE
def test_logits_and_gradients_in_float64(case, float64):
    spec, dims, _ = CASES[case]
    model = make_model(case)
    randomize(model)
    rng = np.random.default_rng(3)
    pooled = {name: rng.standard_normal((ROWS, dims[name])) for name in spec.categorical}
    numerical = rng.standard_normal((ROWS, len(spec.numerical)))
    # One tensor for each dimension, wider ones first.
    groups = [
        [name for name in spec.categorical if dims[name] == dim]
        for dim in sorted({dims[name] for name in spec.categorical}, reverse=True)
    ]
    embedded = [tf.constant(np.concatenate([pooled[name] for name in names], axis=1)) for names in groups]
    variables = model.dense_variables()["main"]
    upstream = rng.standard_normal(ROWS)
    with tf.GradientTape() as tape:
        tape.watch(embedded)
        logits = model.dense_logits(embedded, tf.constant(numerical), seed=SEED, training=True)
    found = tape.gradient(logits, [*variables, *embedded], output_gradients=tf.constant(upstream))
    assert {tensor.dtype for tensor in (logits, *found)} == {tf.float64}

    weights = dense_weights(model)
    wanted = numpy_logits(case, weights, pooled, numerical)
    np.testing.assert_allclose(logits.numpy(), wanted, rtol=1e-10, atol=1e-10)

    gradients = differences(
        lambda: np.sum(upstream * numpy_logits(case, weights, pooled, numerical)), [*weights, *pooled.values()]
    )
    by_feature = dict(zip(pooled, gradients[len(weights) :], strict=True))
    expected = gradients[: len(weights)]
    expected += [np.concatenate([by_feature[name] for name in names], axis=1) for names in groups]
    for ours, theirs in zip(found, expected, strict=True):
        assert np.abs(theirs).max() > 1e-3
        np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("combiner", ["sum", "mean"])
@pytest.mark.parametrize("case", ["dot", "concat"])
def test_table_gradients_equal_differences(case, combiner):
    spec, _, _ = CASES[case]
    model = make_model(case, combiner=combiner)
    randomize(model)
    batch = make_batch(spec)
    upstream = np.random.default_rng(4).standard_normal(ROWS).astype("f4")
    lookup = model.embeddings.lookup(tf.constant(batch["ids"]))
    with tf.GradientTape() as tape:
        tape.watch(lookup.embedded)
        logits = model.dense_logits(lookup.embedded, tf.constant(batch["numerical"]), seed=SEED, training=True)
    gradients = tape.gradient(logits, lookup.embedded, output_gradients=tf.constant(upstream))
    slices = model.embeddings.row_gradients(lookup, gradients)

    weights, tables = dense_weights(model), table_rows(model)

    def total():
        pooled = numpy_pooled(spec, tables, batch["ids"], combiner)
        return np.sum(upstream * numpy_logits(case, weights, pooled, batch["numerical"]))

    wanted = dict(zip(tables, differences(total, tables.values()), strict=True))
    for fused, found in zip(model.tables, slices, strict=True):
        gradient = tf.convert_to_tensor(found).numpy()
        for table in fused.tables:
            start = fused.row_offsets[table.name]
            assert np.abs(wanted[table.name]).max() > 0.01
            np.testing.assert_allclose(
                gradient[start : start + table.rows], wanted[table.name], rtol=1e-4, atol=1e-4, err_msg=table.name
            )
        assert not gradient[fused.padding_row].any()


def test_the_order_of_vectors_and_of_products_is_the_documented_one():
    """Any other order gives other logits, so the comparisons above hold the order."""
    for case in ("dot", "concat", "cross", "dot, self-interaction"):
        spec, dims, options = CASES[case]
        model = make_model(case)
        randomize(model)
        batch = make_batch(spec, rows=20)
        pooled = numpy_pooled(spec, table_rows(model), batch["ids"], "sum")
        by_dimension = sorted(spec.categorical, key=lambda name: -dims[name])
        orders = [spec.categorical[::-1], by_dimension] if dims is SEVERAL else [spec.categorical[::-1]]
        others = [{"order": order} for order in orders]
        if options.get("interaction", "dot") == "dot":
            least = 0 if "self_interaction" in options else 1
            upper = [(i, j) for i in range(5) for j in range(i + least, 5)]  # column by column
            others.append({"pairs": upper})
        for other in others:
            wrong = numpy_logits(case, dense_weights(model), pooled, batch["numerical"], **other)
            assert np.abs(model(batch).numpy() - wrong).max() > 0.1, (case, other)


def logits_and_gradients(model, embedded, numerical):
    """Logits and the gradients of their sum, of the dense variables and then of the embeddings."""
    with tf.GradientTape() as tape:
        tape.watch(embedded)
        logits = model.dense_logits(embedded, numerical, seed=SEED, training=True)
    return logits, *tape.gradient(logits, [*model.dense_variables()["main"], *embedded])


@pytest.mark.parametrize("case", ["dot", "dot, self-interaction"])
def test_the_dot_interaction_of_our_kernel_and_of_tensorflow_is_one(case, monkeypatch):
    if custom_ops.interaction_ops() is None:
        pytest.skip("the kernels are not built: python -m models.custom_ops")
    spec, _, _ = CASES[case]
    model = make_model(case)
    randomize(model)
    batch = make_batch(spec)
    embedded = model.embed(tf.constant(batch["ids"]))
    run = functools.partial(logits_and_gradients, model)

    def traced_and_run():
        traced = tf.function(run, autograph=False).get_concrete_function(embedded, tf.constant(batch["numerical"]))
        types = {operation.type for operation in traced.graph.get_operations()}
        return traced(embedded, tf.constant(batch["numerical"])), types & {"RecsysDotInteraction", "BatchMatMulV2"}

    ours, kernels = traced_and_run()
    assert kernels == {"RecsysDotInteraction"}
    monkeypatch.setattr(custom_ops, "interaction_ops", lambda: None)
    plain, kernels = traced_and_run()
    assert kernels == {"BatchMatMulV2"}
    for found, wanted in zip(ours, plain, strict=True):
        assert np.abs(wanted).max() > 1e-3
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", ["dot, self-interaction", "cross"])
def test_xla_equals_eager(case):
    spec, _, _ = CASES[case]
    model = make_model(case)
    randomize(model)
    batch = make_batch(spec)
    embedded = model.embed(tf.constant(batch["ids"]))

    def run(embedded, numerical):
        with custom_ops.only_tensorflow():
            return logits_and_gradients(model, embedded, numerical)

    numerical = tf.constant(batch["numerical"])
    compiled = tf.function(run, jit_compile=True, autograph=False)(embedded, numerical)
    for ours, eager in zip(compiled, run(embedded, numerical), strict=True):
        np.testing.assert_allclose(ours, eager, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", ["dot", "concat", "cross"])
def test_precision_of_each_part(case, half_precision):
    spec, _, _ = CASES[case]
    model = make_model(case)
    assert {v.dtype for v in model.variables} == {"float32"}
    batch = make_batch(spec, rows=50)
    call = tf.function(lambda batch: model(batch, training=True), autograph=False)
    logits = call(batch)
    assert logits.dtype == tf.float32
    half = tf.as_dtype(half_precision.removeprefix("mixed_"))
    products = [
        operation.outputs[0].dtype
        for operation in call.get_concrete_function(batch).graph.get_operations()
        if operation.type in ("MatMul", "BatchMatMulV2", "RecsysDense")
    ]
    between = {"dot": 1, "concat": 0, "cross": 4}[case]
    # Two layers below, two above; the logit is float32. Found in the order of the layers.
    assert products == [half] * (2 + between + 2) + [tf.float32]
    pooled = numpy_pooled(spec, table_rows(model), batch["ids"], "sum")
    wanted = numpy_logits(case, dense_weights(model), pooled, batch["numerical"])
    error = np.abs(logits.numpy() - wanted).max() / np.abs(wanted).max()
    assert error < (0.03 if half == tf.bfloat16 else 0.004)
