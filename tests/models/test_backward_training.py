"""Layers that are trained with their gradient, against the gradient and the update one after the other."""

import contextlib

import numpy as np
import pytest
import tensorflow as tf

from models import custom_ops
from models.backward_training import BackwardTrainer
from models.layers import MLP, build_dense

RATE = 0.25
NO_SEED = tf.zeros((2,), tf.int32)


@pytest.fixture(autouse=True)
def _kernels():
    if custom_ops.mlp_ops() is None:
        pytest.skip("the kernels are not built: python -m models.custom_ops")


def variables_of(mlp):
    return [variable.value for variable in mlp.trainable_variables]


def traced(mlp, offered=None):
    """Gradients of the inputs and of the variables, traced as steps are; the variables offered to a trainer, if any."""

    @tf.function(autograph=False)
    def step(inputs, upstream, rate):
        trainer = contextlib.nullcontext() if offered is None else BackwardTrainer(offered, rate).entered()
        with trainer:
            with tf.GradientTape() as tape:
                tape.watch([inputs, *variables_of(mlp)])
                outputs = mlp(inputs, NO_SEED)
            return tape.gradient(outputs, [inputs, *variables_of(mlp)], output_gradients=upstream)

    return lambda inputs, upstream: step(inputs, upstream, tf.constant(RATE))


def drawn(rows, width, units, seed=0):
    rng = np.random.default_rng(seed)
    return [tf.constant(rng.standard_normal((rows, n)).astype(np.float32)) for n in (width, units)]


# Tiles and panels that are full, and none that is; more rows of a kernel than a piece of work has; one layer.
@pytest.mark.parametrize(
    ("rows", "width", "units"), [(64, 96, [48, 32]), (33, 13, [17, 300, 7]), (9, 600, [65]), (128, 300, [130, 1])]
)
@pytest.mark.parametrize("reads_data", [False, True])
def test_training_with_the_gradient_is_the_gradient_and_then_the_update(rows, width, units, reads_data):
    plain, trained = (MLP(width, units, seed=3, reads_data=reads_data) for _ in range(2))
    inputs, upstream = drawn(rows, width, units[-1])
    gradients_of, train = traced(plain), traced(trained, variables_of(trained))
    for _ in range(3):
        wanted, *gradients = gradients_of(inputs, upstream)
        for variable, gradient in zip(variables_of(plain), gradients, strict=True):
            variable.assign_sub(RATE * gradient)
        found, *none = train(inputs, upstream)
        assert none == [None] * (2 * len(units))
        if reads_data:
            assert found is wanted is None
        else:
            np.testing.assert_allclose(found, wanted, atol=1e-4)
    assert all(np.abs(gradient).max() > 0.1 for gradient in gradients)
    for ours, theirs in zip(variables_of(trained), variables_of(plain), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5, rtol=1e-5)


def test_weights_stay_where_they_are_and_readers_keep_what_they_have_read():
    mlp = MLP(20, [30], seed=3)
    inputs, upstream = drawn(16, 20, 30)
    kernel, train = mlp.trainable_variables[0].value, traced(mlp, variables_of(mlp))
    train(inputs, upstream)  # tracing may hold the initial values

    def where():
        return kernel.read_value().numpy().__array_interface__["data"]

    before = where()
    train(inputs, upstream)
    assert where() == before
    reader = kernel.read_value()
    copied = reader.numpy().copy()
    train(inputs, upstream)
    np.testing.assert_array_equal(reader, copied)
    assert np.abs(kernel - copied).max() > 0.1


def test_who_is_not_offered_is_not_trained():
    mlp = MLP(8, [6, 4], seed=3)
    inputs, upstream = drawn(16, 8, 4)
    before = [variable.numpy() for variable in variables_of(mlp)]
    _, *gradients = traced(mlp, variables_of(mlp)[1:])(inputs, upstream)
    assert all(gradient is not None for gradient in gradients)
    for variable, old in zip(variables_of(mlp), before, strict=True):
        np.testing.assert_array_equal(variable, old)


def test_a_layer_that_is_called_twice_is_refused():
    mlp = MLP(8, [8], seed=3)
    with BackwardTrainer(variables_of(mlp), tf.constant(RATE)).entered():
        mlp(tf.zeros((16, 8)), NO_SEED)
        with pytest.raises(ValueError, match="called twice"):
            mlp(tf.zeros((16, 8)), NO_SEED)


def test_a_gradient_that_is_asked_for_too_late_is_refused():
    mlp = MLP(8, [8], seed=3)
    with tf.GradientTape() as tape, BackwardTrainer(variables_of(mlp), tf.constant(RATE)).entered():
        tape.watch(variables_of(mlp))
        outputs = mlp(tf.zeros((16, 8)), NO_SEED)
    with pytest.raises(RuntimeError, match="where nobody trains"):
        tape.gradient(outputs, variables_of(mlp))


def test_a_head_is_trained_with_the_layers_before_it():
    inputs, upstream = drawn(16, 8, 1)
    found = []
    for in_backward in (False, True):
        mlp, head = MLP(8, [6], seed=3), build_dense(6, 1, seed=5)
        variables = [*variables_of(mlp), head.kernel.value, head.bias.value]

        @tf.function(autograph=False)
        def step(rate, mlp=mlp, head=head, variables=variables, offered=variables if in_backward else ()):
            with BackwardTrainer(offered, rate).entered():
                with tf.GradientTape() as tape:
                    tape.watch(variables)
                    outputs = mlp(inputs, NO_SEED, head=head)
                return tape.gradient(outputs, variables, output_gradients=upstream)

        for variable, gradient in zip(variables, step(tf.constant(RATE)), strict=True):
            assert (gradient is None) == in_backward
            if gradient is not None:
                variable.assign_sub(RATE * gradient)
        found.append([variable.numpy() for variable in variables])
    for ours, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_other_layers_have_their_gradients():
    """Dropout, and more rows than the kernel is for."""
    for rows, dropout in ((64, 0.5), (500, 0.0)):
        mlp = MLP(8, [6, 4], dropout=dropout, seed=3)
        trainer = BackwardTrainer(variables_of(mlp), tf.constant(RATE))
        with trainer.entered(), tf.GradientTape() as tape:
            outputs = mlp(tf.ones((rows, 8)), NO_SEED, training=True)
        assert not any(map(trainer.trains, variables_of(mlp)))
        assert None not in tape.gradient(outputs, variables_of(mlp))
