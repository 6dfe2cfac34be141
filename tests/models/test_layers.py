import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf

from models import custom_ops
from models.layers import GLOROT_UNIFORM, MLP, NORMAL, SeededReluDropout, build_dense

ROWS, UNITS = 200, 501  # an odd width
SIZE = ROWS * UNITS


@pytest.fixture(autouse=True, params=["our kernels", "TensorFlow's"])
def kernels(request):
    """Every test runs with both: TensorFlow's are the reference."""
    if request.param == "TensorFlow's":
        with custom_ops.only_tensorflow():
            yield request.param
    elif custom_ops.dropout_ops() is None:
        pytest.skip("the kernels are not built: python -m models.custom_ops")
    else:
        yield request.param


@pytest.mark.parametrize("rate", [0.0, 0.3])
@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (5, 8), (129, 501), (300, 1024), (0, 4)])
@pytest.mark.parametrize("seed", [[0, 0], [5, 6], [2**31 - 1, -3]])
def test_both_kernels_do_the_same(kernels, shape, seed, rate):
    """Values and gradients bit for bit, for numbers of either sign; that of the bias but for the order of its sum."""
    inputs, bias = tf.random.stateless_normal(shape, (1, 2)), tf.random.stateless_normal(shape[1:], (5, 6))
    upstream = tf.random.stateless_normal(shape, (3, 4))
    found = []
    for only_tensorflow in (False, True):
        with custom_ops.only_tensorflow() if only_tensorflow else contextlib.nullcontext():
            with tf.GradientTape() as tape:
                tape.watch([inputs, bias])
                outputs = SeededReluDropout(rate)(inputs, seed=tf.constant(seed), training=True, bias=bias)
            gradients = tape.gradient(outputs, [inputs, bias], upstream)
            found.append((outputs.numpy(), *(gradient.numpy() for gradient in gradients)))
    ours, theirs = found
    assert ours[0].tolist() == theirs[0].tolist() and ours[1].tolist() == theirs[1].tolist()
    np.testing.assert_allclose(ours[2], theirs[2], rtol=1e-5, atol=1e-4)


def test_without_a_bias_nothing_is_added():
    inputs = tf.random.stateless_normal((20, 9), (1, 2))
    layer, seed = SeededReluDropout(0.3), tf.constant([5, 6])
    wanted = layer(inputs, seed=seed, training=True, bias=tf.zeros(9))
    assert (layer(inputs, seed=seed, training=True).numpy() == wanted.numpy()).all()


def test_what_is_no_number_is_seen():
    inputs = tf.fill((40, 10), np.float32("nan"))
    outputs = SeededReluDropout(0.5)(inputs, seed=tf.constant([0, 0]), training=True).numpy()
    assert 100 < np.isnan(outputs).sum() < 300 and (outputs[~np.isnan(outputs)] == 0).all()


def mask_of(seed, *, rate=0.3, rows=ROWS, units=UNITS):
    """True where a unit is kept."""
    dropped = SeededReluDropout(rate)(tf.ones((rows, units)), seed=tf.constant(seed), training=True).numpy()
    kept = dropped != 0
    np.testing.assert_allclose(dropped[kept], 1 / (1 - rate), rtol=1e-4)  # the rate is rounded to 16 bits
    return kept


@pytest.mark.parametrize("rate", [0.1, 0.3, 0.5, 0.9])
def test_drop_rate_and_mean(rate):
    kept = mask_of([1, 2], rate=rate)
    deviations = 5 * np.sqrt(rate * (1 - rate) / SIZE)
    assert abs(kept.mean() - (1 - rate)) < deviations
    inputs = tf.fill((ROWS, UNITS), 2.0)
    mean = SeededReluDropout(rate)(inputs, seed=tf.constant([3, 4]), training=True).numpy().mean()
    assert abs(mean - 2) < 2 * deviations / (1 - rate)


def test_units_and_rows_are_dropped_independently():
    kept = mask_of([1, 2], rate=0.5).astype("f8") - 0.5
    limit = 5 * 0.25 / np.sqrt(SIZE)
    assert abs((kept[:, :-1] * kept[:, 1:]).mean()) < limit  # both halves of a word
    assert abs((kept[:, :-2] * kept[:, 2:]).mean()) < limit
    assert abs((kept[:-1] * kept[1:]).mean()) < limit
    assert np.abs(kept.mean(axis=0)).max() < 5 * 0.5 / np.sqrt(ROWS)  # the last, odd column too
    assert np.abs(kept.mean(axis=1)).max() < 5 * 0.5 / np.sqrt(UNITS)


@pytest.mark.parametrize("units", [1, 2, 5, 8])
def test_any_width(units):
    assert abs(mask_of([0, 0], rate=0.5, rows=4000, units=units).mean() - 0.5) < 5 * 0.5 / np.sqrt(4000 * units)


def test_the_seed_alone_decides():
    again = [mask_of([5, 6]) for _ in range(2)]
    assert (again[0] == again[1]).all()
    agreement = 0.7**2 + 0.3**2  # of independent masks
    for other in ([5, 7], [6, 6], [6, 5], [5, 6 + 2**20]):
        assert abs((again[0] == mask_of(other)).mean() - agreement) < 0.01


def test_xla_draws_the_same_mask():
    layer = SeededReluDropout(0.3)

    @tf.function(jit_compile=True, autograph=False)
    def compiled(inputs, seed):
        with custom_ops.only_tensorflow():
            return layer(inputs, seed=seed, training=True)

    for seed in ([5, 6], [2**31 - 1, 7]):
        assert ((compiled(tf.ones((ROWS, UNITS)), tf.constant(seed)) != 0).numpy() == mask_of(seed)).all()


def test_nothing_is_dropped_in_evaluation():
    inputs = tf.random.stateless_uniform((9, 5), (0, 0))
    assert (SeededReluDropout(0.9)(inputs, seed=tf.constant([0, 0])).numpy() == inputs.numpy()).all()
    assert (SeededReluDropout(0.0)(inputs, seed=tf.constant([0, 0]), training=True).numpy() == inputs.numpy()).all()


def test_gradients_pass_where_units_are_kept_and_only_there():
    inputs = tf.Variable(tf.ones((9, 5)))
    with tf.GradientTape() as tape:
        outputs = SeededReluDropout(0.5)(inputs, seed=tf.constant([1, 1]), training=True)
    assert tape.gradient(outputs, inputs).numpy().tolist() == outputs.numpy().tolist()


@pytest.mark.parametrize("rate", [-0.1, 1.0, 1.5])
def test_an_impossible_rate_is_refused(rate):
    with pytest.raises(ValueError, match=f"at least 0 and below 1, got {rate}"):
        SeededReluDropout(rate)


def test_no_layer_of_any_step_shares_a_mask(monkeypatch):
    seeds = []
    call = SeededReluDropout.call

    def recording(self, inputs, seed, training=False, bias=None):
        seeds.append(tuple(seed.numpy().tolist()))
        return call(self, inputs, seed, training, bias)

    monkeypatch.setattr(SeededReluDropout, "call", recording)
    mlp = MLP(2, (3, 3, 3), dropout=0.5)
    for rank_seed in (7, 8):
        for step in range(6):
            mlp(tf.ones((1, 2)), seed=tf.constant([rank_seed, step]), training=True)
    assert len(seeds) == len(set(seeds)) == 2 * 6 * 3


def test_mlp_equals_numpy_and_drops_after_every_layer():
    mlp = MLP(4, (6, 3), dropout=0.5, seed=1)
    inputs = np.random.default_rng(0).standard_normal((50, 4)).astype("f4")
    kernels = [v.numpy().astype("f8") for v in mlp.trainable_variables]
    hidden = np.maximum(inputs @ kernels[0] + kernels[1], 0)
    wanted = np.maximum(hidden @ kernels[2] + kernels[3], 0)
    seed = tf.constant([0, 0])
    np.testing.assert_allclose(mlp(inputs, seed=seed).numpy(), wanted, atol=1e-5)
    assert mlp.output_width == 3
    trained = mlp(inputs, seed=seed, training=True).numpy()
    # Where the last layer dropped a unit that was on, there is a zero; where it did not, what the first layer's
    # dropped units brought is missing.
    on = wanted > 0.01
    assert 0.2 < (trained[on] == 0).mean() < 0.8
    kept = on & (trained != 0)
    assert np.median(np.abs(trained[kept] / (2 * wanted[kept]) - 1)) > 0.05


def test_mlp_without_layers_passes_its_input_on():
    mlp = MLP(4, ())
    inputs = tf.ones((2, 4))
    assert mlp.output_width == 4
    assert (mlp(inputs, seed=tf.constant([0, 0]), training=True).numpy() == 1).all()


def test_mlp_computes_in_the_policy_and_keeps_float32_kernels(half_precision):
    mlp = MLP(4, (6, 3), dropout=0.5)
    half = half_precision.removeprefix("mixed_")
    assert mlp(tf.ones((2, 4)), seed=tf.constant([0, 0]), training=True).dtype == half
    assert {v.dtype for v in mlp.trainable_variables} == {"float32"}


def test_mlp_starts_as_glorot_said_unless_told_otherwise():
    mlp = MLP(4, (6, 3), seed=5)
    kernels, biases = mlp.trainable_variables[::2], mlp.trainable_variables[1::2]
    for index, kernel in enumerate(kernels):
        wanted = keras.initializers.GlorotUniform(seed=5 + index)(kernel.shape)
        assert (kernel.numpy() == wanted.numpy()).all()
    assert not any(bias.numpy().any() for bias in biases)


@pytest.mark.parametrize(("initial", "highest"), [(GLOROT_UNIFORM, np.sqrt(3)), (NORMAL, 4.9)])
def test_distribution_of_initial_kernels(initial, highest):
    """highest: of the absolute values, in standard deviations; 160,000 normal ones reach 4.9 give or take 0.4."""
    values = build_dense(100, 1600, seed=1, initial=initial).kernel.numpy()
    scaled = values / np.sqrt(2 / 1700)
    assert abs(scaled.std() - 1) < 5 / np.sqrt(2 * scaled.size)
    assert abs(scaled.mean()) < 5 / np.sqrt(scaled.size)
    assert abs(np.abs(scaled).max() - highest) < 0.4


def test_distribution_of_initial_biases():
    units = 20_000
    layer = build_dense(1, units, seed=1, bias_seed=2, initial=NORMAL)
    scaled = layer.bias.numpy() * np.sqrt(units)
    assert abs(scaled.std() - 1) < 5 / np.sqrt(2 * units) and abs(scaled.mean()) < 5 / np.sqrt(units)
    kernel = layer.kernel.numpy().ravel()
    assert abs(np.corrcoef(kernel, scaled)[0, 1]) < 5 / np.sqrt(units)
    assert not build_dense(1, units, seed=1).bias.numpy().any()


def test_each_layer_of_an_mlp_draws_its_own_numbers():
    mlp = MLP(8, (8, 8, 8), seed=3, initial=NORMAL)
    drawn = [v.numpy().ravel()[:8] for v in mlp.trainable_variables]
    drawn = [values / np.abs(values).max() for values in drawn]
    for i, values in enumerate(drawn):
        assert all(np.abs(values - other).max() > 0.1 for other in drawn[:i])
    again = MLP(8, (8, 8, 8), seed=3, initial=NORMAL)
    for ours, theirs in zip(mlp.trainable_variables, again.trainable_variables, strict=True):
        assert (ours.numpy() == theirs.numpy()).all()


def test_a_dense_layer_is_keras_own(kernels):
    layer = build_dense(70, 33, seed=1, initial=NORMAL)
    x = tf.random.stateless_normal((65, 70), (1, 2))
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        ours = tf.reduce_sum(layer(x) ** 2)
        theirs = tf.reduce_sum((tf.matmul(x, layer.kernel.value) + layer.bias.value) ** 2)
    sources = [x, layer.kernel.value, layer.bias.value]
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)
    for own, other in zip(tape.gradient(ours, sources), tape.gradient(theirs, sources), strict=True):
        np.testing.assert_allclose(own, other, rtol=1e-4, atol=1e-4)


def test_a_dense_layer_of_another_precision_is_tensorflows():
    layer = build_dense(4, 3, seed=1, dtype="mixed_bfloat16")
    assert layer(tf.ones((2, 4))).dtype == tf.bfloat16
