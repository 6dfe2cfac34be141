import keras
import numpy as np
import pytest
import tensorflow as tf
from ootb_cases import make_keras, make_pair, make_workload, random_like

from benchmarks.ootb import weights
from benchmarks.ootb.inputs import model_inputs
from benchmarks.our_steps import as_tensors
from benchmarks.our_steps import weights as our_weights


def both_logits(workload):
    """Logits of ours and of plain Keras, all weights random ones, the same in both."""
    ours, model = make_pair(workload, training=False)
    for number, table in enumerate(ours.model.tables):
        values = random_like(table.variable.numpy(), number)
        values[-1] = 0  # the row of absent ids
        table.variable.assign(values)
    for group, variables in ours.model.dense_variables().items():
        for number, variable in enumerate(variables):
            variable.assign(0.5 * random_like(variable.numpy(), 100 * len(group) + number))
    weights.load(model, our_weights(ours.model), workload.spec)
    (batch,) = workload.batches(1)
    expected = ours.eval_step(as_tensors([batch])[0]).numpy()
    return expected, model(model_inputs(workload.spec, batch), training=False).numpy()[:, 0]


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("wide_deep", {}),
        ("wide_deep", {"combiner": "mean"}),
        ("dlrm", {}),
        ("dlrm", {"self_interaction": True, "combiner": "mean"}),
        ("dlrm", {"interaction": "concat", "embedding_dim": (3, 5, 2)}),
        ("dlrm", {"numericals": 0}),
        ("dcnv2", {}),
        ("dcnv2", {"numericals": 0, "combiner": "mean"}),
    ],
)
def test_logits_are_those_of_our_model(name, changes):
    expected, logits = both_logits(make_workload(name, **changes))
    assert expected.std() > 0.1
    np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-5)


def test_batches_have_rows_with_and_without_ids():
    """Or the comparison above would not show what absent ids do."""
    (batch,) = make_workload("dlrm").batches(1)
    lengths = (batch["ids"][:, 2:] >= 0).sum(axis=1)
    assert set(lengths) == {0, 1, 2, 3}


def test_an_absent_single_id_has_a_row_of_its_own():
    workload = make_workload("dlrm")
    model = make_keras(workload)
    inputs = model_inputs(workload.spec, {"ids": np.array([[-1, 2, -1, -1, -1]]), "numerical": np.ones((1, 2), "f4")})

    def logit():
        return model(inputs).numpy().item()

    before = logit()
    for name, changes in (("topics", False), ("ad", True)):
        rows = model.tables[name].get_weights()[0]
        rows[0] += 1
        model.tables[name].set_weights([rows])
        assert (logit() != before) == changes


@pytest.mark.parametrize("name", ["wide_deep", "dcnv2"])
def test_half_precision_computes_in_half_and_answers_in_full(name):
    policy = keras.mixed_precision.dtype_policy()
    keras.mixed_precision.set_dtype_policy("mixed_bfloat16")
    try:
        workload = make_workload(name)
        model = make_keras(workload)
    finally:
        keras.mixed_precision.set_dtype_policy(policy)
    layer = model.hidden[0] if name == "wide_deep" else model.top[0]
    assert layer.compute_dtype == "bfloat16" and layer.kernel.dtype == "float32"
    (batch,) = workload.batches(1)
    assert model(model_inputs(workload.spec, batch)).dtype == tf.float32


def test_dropout_is_there_in_training_alone():
    workload = make_workload("wide_deep", deep_dropout=0.5)
    model = make_keras(workload)
    inputs = model_inputs(workload.spec, workload.batches(1)[0])
    still = [model(inputs, training=False).numpy() for _ in range(2)]
    dropped = [model(inputs, training=True).numpy() for _ in range(2)]
    assert np.array_equal(*still) and not np.array_equal(*dropped)
