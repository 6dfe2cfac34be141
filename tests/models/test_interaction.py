import numpy as np
import pytest
import tensorflow as tf

from models.interaction import LowRankCross, dot_interaction, num_interactions

SELF = pytest.mark.parametrize("self_interaction", [False, True])


def random_vectors(rows=5, count=4, dim=3, seed=0):
    return np.random.default_rng(seed).standard_normal((rows, count, dim))


def products(vectors, self_interaction):
    """The definition, pair by pair, in float64."""
    count = vectors.shape[1]
    pairs = [(i, j) for i in range(count) for j in range(i + 1 if self_interaction else i)]
    return np.stack([np.sum(vectors[:, i] * vectors[:, j], axis=1) for i, j in pairs], axis=1)


def test_a_case_by_hand():
    vectors = tf.constant([[[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]])
    assert dot_interaction(vectors).numpy().tolist() == [[11, 17, 39]]
    assert dot_interaction(vectors, self_interaction=True).numpy().tolist() == [[5, 11, 25, 17, 39, 61]]


@SELF
@pytest.mark.parametrize("count", [2, 3, 9, 27])
def test_products_equal_the_definition(count, self_interaction):
    vectors = random_vectors(count=count)
    found = dot_interaction(tf.constant(vectors), self_interaction=self_interaction).numpy()
    assert found.shape == (5, num_interactions(count, self_interaction=self_interaction))
    np.testing.assert_allclose(found, products(vectors, self_interaction), rtol=1e-12, atol=1e-12)


@SELF
def test_gradient_equals_differences(self_interaction):
    vectors = random_vectors()
    weights = np.random.default_rng(1).standard_normal((5, num_interactions(4, self_interaction=self_interaction)))
    x = tf.constant(vectors)
    with tf.GradientTape() as tape:
        tape.watch(x)
        total = tf.reduce_sum(dot_interaction(x, self_interaction=self_interaction) * weights)
    differences = np.zeros_like(vectors)
    for place in np.ndindex(vectors.shape):
        # Products are quadratic in each element, so a central difference of any size is the derivative.
        values = []
        for step in (1.0, -1.0):
            moved = vectors.copy()
            moved[place] += step
            values.append(np.sum(products(moved, self_interaction) * weights))
        differences[place] = (values[0] - values[1]) / 2
    np.testing.assert_allclose(tape.gradient(total, x).numpy(), differences, rtol=0, atol=1e-12)


@SELF
def test_xla_equals_eager(self_interaction):
    def run(x, upstream):
        with tf.GradientTape() as tape:
            tape.watch(x)
            found = dot_interaction(x, self_interaction=self_interaction)
        return found, tape.gradient(found, x, output_gradients=upstream)

    x = tf.constant(random_vectors(), tf.float32)
    upstream = tf.random.stateless_normal((5, num_interactions(4, self_interaction=self_interaction)), (0, 0))
    compiled = tf.function(run, jit_compile=True, autograph=False)
    for ours, eager in zip(compiled(x, upstream), run(x, upstream), strict=True):
        np.testing.assert_allclose(ours, eager, rtol=0, atol=1e-5)


@pytest.mark.parametrize("shape", [(5, 1, 3), (0, 4, 3), (0, 1, 3)])
@pytest.mark.parametrize("xla", [False, True])
def test_no_pair_and_no_row(shape, xla):
    def run(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            found = dot_interaction(x)
        return found, tape.gradient(found, x)

    found, gradient = tf.function(run, jit_compile=xla, autograph=False)(tf.ones(shape))
    assert found.shape == (shape[0], num_interactions(shape[1], self_interaction=False))
    assert gradient.shape == shape and not gradient.numpy().any()


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16])
def test_the_type_stays(dtype):
    x = tf.cast(random_vectors(), dtype)
    with tf.GradientTape() as tape:
        tape.watch(x)
        found = dot_interaction(x, self_interaction=True)
    assert found.dtype == dtype and tape.gradient(found, x).dtype == dtype
    wanted = products(tf.cast(x, tf.float64).numpy(), True)
    np.testing.assert_allclose(tf.cast(found, tf.float64), wanted, rtol=0.02, atol=0.02)


def test_a_cross_layer_equals_its_formula():
    cross = LowRankCross(4, 2, seed=0)
    down, up, bias = cross.trainable_variables
    rng = np.random.default_rng(0)
    for variable in cross.trainable_variables:
        variable.assign(rng.standard_normal(variable.shape))
    first, inputs = rng.standard_normal((2, 5, 4)).astype("f4")
    wanted = first * (inputs @ down.numpy() @ up.numpy() + bias.numpy()) + inputs
    np.testing.assert_allclose(cross(first, inputs), wanted, rtol=0, atol=1e-5)
    assert [v.shape for v in (down, up, bias)] == [(4, 2), (2, 4), (4,)]


def test_a_cross_layer_starts_as_glorot_said():
    width, rank = 300, 100
    down, up, bias = (v.numpy() for v in LowRankCross(width, rank, seed=5).trainable_variables)
    limit = np.sqrt(6 / (width + rank))
    for kernel in (down, up):
        assert 0.99 * limit < np.abs(kernel).max() <= limit
        assert abs(kernel.std() / (limit / np.sqrt(3)) - 1) < 0.02
    assert not bias.any()
    assert np.abs(np.corrcoef(down.ravel(), up.ravel())[0, 1]) < 0.03


def test_precision_of_a_cross_layer(half_precision):
    cross = LowRankCross(4, 2, seed=0)
    assert cross(tf.ones((2, 4)), tf.ones((2, 4))).dtype == half_precision.removeprefix("mixed_")
    assert {v.dtype for v in cross.trainable_variables} == {"float32"}
