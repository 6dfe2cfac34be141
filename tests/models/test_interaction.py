import contextlib

import numpy as np
import pytest
import tensorflow as tf

from models import custom_ops
from models.interaction import LowRankCross, dot_interaction, first_and_products, num_interactions

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


@pytest.fixture(params=["our kernel", "TensorFlow's"])
def kernel(request):
    """Both do the same: TensorFlow's is the reference."""
    if request.param == "our kernel" and custom_ops.interaction_ops() is None:
        pytest.skip("the kernels are not built: python -m models.custom_ops")
    with custom_ops.only_tensorflow() if request.param == "TensorFlow's" else contextlib.nullcontext():
        yield request.param


def in_tensors(vectors, numbers, dtype="f4"):
    """Tensors (rows, number * dim) with so many vectors each, of all of them."""
    rows, _, dim = vectors.shape
    cuts = np.split(vectors.astype(dtype), np.cumsum(numbers)[:-1], axis=1)
    return [tf.constant(cut.reshape(rows, number * dim)) for cut, number in zip(cuts, numbers, strict=True)]


def run(tensors, dim, with_first, self_interaction, upstream):
    """Values and gradients, of tensors that the graph made itself, so that a gradient may take their place."""

    @tf.function(autograph=False)
    def work(tensors, two):
        tensors = [tensor * two for tensor in tensors]
        first, *others = tensors if with_first else [None, *tensors]
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            found = first_and_products(first, others, dim, self_interaction=self_interaction)
        return found, tape.gradient(found, tensors, output_gradients=upstream)

    return work([tensor / 2 for tensor in tensors], tf.constant(2, tensors[0].dtype))


@SELF
@pytest.mark.parametrize("with_first", [False, True])
@pytest.mark.parametrize(
    "rows, dim, numbers",
    [
        # Vectors as wide as registers of one machine or of another, narrower, wider and with a rest; counts that are
        # a whole number of tiles and ones that are not.
        (1, 1, (1, 1)),
        (5, 3, (1, 2)),
        (1, 8, (1, 3)),
        (7, 16, (1, 2, 2)),
        (3, 17, (1, 5)),
        (2, 31, (1, 4, 3)),
        (3, 64, (1, 1, 7)),
        (4, 128, (1, 26)),
        (300, 36, (1, 12)),
    ],
)
def test_the_first_and_products_and_their_gradients_are_numpys(
    kernel, rows, dim, numbers, with_first, self_interaction
):
    count = sum(numbers)
    vectors = random_vectors(rows, count, dim, seed=dim)
    width = num_interactions(count, self_interaction=self_interaction) + (dim if with_first else 0)
    upstream = np.random.default_rng(2).standard_normal((rows, width))
    found, gradients = run(
        in_tensors(vectors, numbers), dim, with_first, self_interaction, tf.constant(upstream, tf.float32)
    )

    wanted = products(vectors, self_interaction)
    of_products = upstream
    expected = np.zeros_like(vectors)
    if with_first:
        wanted = np.concatenate([vectors[:, 0], wanted], axis=1)
        expected[:, 0], of_products = upstream[:, :dim], upstream[:, dim:]
    pairs = [(i, j) for i in range(count) for j in range(i + 1 if self_interaction else i)]
    for (i, j), gradient in zip(pairs, of_products.T, strict=True):
        expected[:, i] += gradient[:, None] * vectors[:, j]
        expected[:, j] += gradient[:, None] * vectors[:, i]
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5 * dim**0.5)
    np.testing.assert_allclose(
        np.concatenate(gradients, axis=1), expected.reshape(rows, -1), rtol=1e-5, atol=1e-5 * count**0.5
    )
    assert [gradient.shape[1] for gradient in gradients] == [number * dim for number in numbers]


def test_who_reads_the_vectors_after_their_gradient_finds_them_whole(kernel):
    @tf.function(autograph=False)
    def work(x):
        x = tf.abs(x)
        with tf.GradientTape() as tape:
            tape.watch(x)
            found = first_and_products(None, [x], 3)
        gradient = tape.gradient(found, x)
        with tf.control_dependencies([gradient]):
            return gradient, x * 2

    gradient, doubled = work(-tf.ones((4, 9)))
    assert (gradient.numpy() == 2).all() and (doubled.numpy() == 2).all()


@pytest.mark.parametrize("rows, count", [(0, 4), (3, 1), (0, 1)])
@pytest.mark.parametrize("with_first", [False, True])
def test_no_pair_or_no_row_behind_a_first_vector(kernel, rows, count, with_first):
    tensors = in_tensors(np.ones((rows, count, 5)), (1,) * count)
    width = num_interactions(count, self_interaction=False) + (5 if with_first else 0)
    found, gradients = run(tensors, 5, with_first, False, tf.ones((rows, width)))
    assert found.shape == (rows, width)
    # Nothing but the first vector itself depends on the vectors.
    assert [gradient.numpy().tolist() for gradient in gradients] == [
        np.full((rows, 5), float(with_first and i == 0)).tolist() for i in range(count)
    ]


@pytest.mark.parametrize("dtype, tolerance", [("float16", 0.02), ("float64", 1e-12)])
def test_other_types_go_by_tensorflow(kernel, dtype, tolerance):
    tensors = in_tensors(random_vectors(), (1, 3), dtype)
    exact = random_vectors().astype(dtype).astype("f8")
    upstream = tf.ones((5, 9), dtype)
    found, gradients = run(tensors, 3, True, False, upstream)
    assert {found.dtype, *(gradient.dtype for gradient in gradients)} == {tf.as_dtype(dtype)}
    wanted = np.concatenate([exact[:, 0], products(exact, False)], axis=1)
    np.testing.assert_allclose(found.numpy().astype("f8"), wanted, rtol=tolerance, atol=tolerance)


def test_where_there_is_no_number_the_products_and_gradients_show_it(kernel):
    vectors = random_vectors(3, 5, 12)
    vectors[1, 2, 7] = np.nan
    found, gradients = run(in_tensors(vectors, (1, 4)), 12, True, False, tf.ones((3, 22)))
    pairs = [(i, j) for i in range(5) for j in range(i)]
    assert np.isnan(found.numpy()).tolist() == [
        [False] * 22,
        [False] * 12 + [2 in pair for pair in pairs],
        [False] * 22,
    ]
    lost = np.isnan(np.concatenate(gradients, axis=1).reshape(3, 5, 12))
    assert lost[1, [0, 1, 3, 4], 7].all() and not lost[[0, 2]].any()


def test_shapes_are_known_when_traced(kernel):
    known = tf.function(lambda a, b: first_and_products(a, [b], 3), autograph=False).get_concrete_function(
        tf.TensorSpec((None, 3)), tf.TensorSpec((None, 6))
    )
    assert known.output_shapes.as_list() == [None, 6]


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
