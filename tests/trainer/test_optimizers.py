import keras
import numpy as np
import pytest
import tensorflow as tf

from trainer.optimizers import SGD, Ftrl, RMSprop, all_finite, default_decay_step, warmup_then_steps_down

ROWS, DIM, STEPS = 40, 3, 50


def touched_rows(seed=0):
    """Per step distinct rows by a power law: row 0 nearly always, some rows after many steps, some never."""
    rng = np.random.default_rng(seed)
    steps = [np.unique(((ROWS - 3) * rng.random(6) ** 3).astype("i4")) for _ in range(STEPS)]
    steps[7] = steps[7][:0]  # a step without any row
    steps[STEPS - 1] = np.append(steps[STEPS - 1], ROWS - 1).astype("i4")  # missed all steps but the last
    counts = np.bincount(np.concatenate(steps), minlength=ROWS)
    assert counts[0] > 30 and counts[ROWS - 1] == 1 and not counts[ROWS - 3 : ROWS - 1].any()
    return steps


def gradients(seed=1):
    """(steps, rows, dim) gradients of sizes between 1e-4 and 10, zero where a row is not touched."""
    rng = np.random.default_rng(seed)
    found = np.zeros((STEPS, ROWS, DIM), "f4")
    for step, rows in enumerate(touched_rows()):
        found[step, rows] = rng.standard_normal((len(rows), DIM)) * 10.0 ** rng.uniform(-4, 1, (len(rows), 1))
    return found


def initial_weights(optimizer):
    return np.zeros((ROWS, DIM), "f4") if isinstance(optimizer, Ftrl) else np.random.default_rng(2).standard_normal(
        (ROWS, DIM)
    ).astype("f4")  # fmt: skip


def run_keras(optimizer, start, rates):
    """Weights and slots of Keras's optimizer after dense updates with all gradients."""
    variable = keras.Variable(start, name="weights")
    optimizer.build([variable])
    for gradient, rate in zip(gradients(), rates, strict=True):
        optimizer.learning_rate.assign(rate)
        optimizer.apply([tf.constant(gradient)])
    slots = {v.name.removeprefix("weights_"): v.numpy() for v in optimizer.variables[2:]}
    return variable.numpy(), slots


def constant_rate(step):
    return 0.05


def schedule(step):
    return float(warmup_then_steps_down(0.05, warmup_steps=20, decay_step=35, step=tf.constant(step)))


# (ours, Keras's, rate at a step, our slots -> Keras's)
CASES = {
    "RMSprop": (
        lambda: RMSprop(rho=0.5),
        lambda: keras.optimizers.RMSprop(rho=0.5),
        schedule,
        {"rms": "velocity"},
    ),
    "RMSprop, rho 0.9": (
        lambda: RMSprop(rho=0.9, epsilon=1e-3),
        lambda: keras.optimizers.RMSprop(rho=0.9, epsilon=1e-3),
        schedule,
        {"rms": "velocity"},
    ),
    "FTRL": (
        lambda: Ftrl(0.05),
        lambda: keras.optimizers.Ftrl(0.05),
        constant_rate,
        {"accumulator": "accumulator", "linear": "linear"},
    ),
    "FTRL with penalties": (
        lambda: Ftrl(0.05, initial_accumulator=0.3, l1=0.5, l2=0.25),
        lambda: keras.optimizers.Ftrl(
            0.05, initial_accumulator_value=0.3, l1_regularization_strength=0.5, l2_regularization_strength=0.25
        ),
        constant_rate,
        {"accumulator": "accumulator", "linear": "linear"},
    ),
    "SGD": (SGD, keras.optimizers.SGD, schedule, {}),
}


@pytest.mark.parametrize("case", list(CASES))
def test_row_updates_equal_dense_updates_by_keras(case):
    make, make_keras, rate_at, slot_names = CASES[case]
    optimizer = make()
    start = initial_weights(optimizer)
    variable = tf.Variable(start)
    optimizer.create_slots(variable, is_table=True)
    rates = [np.float32(rate_at(step)) for step in range(STEPS)]
    apply = tf.function(optimizer.apply_rows, reduce_retracing=True, autograph=False)
    for step, (rows, gradient) in enumerate(zip(touched_rows(), gradients(), strict=True)):
        order = np.random.default_rng(step).permutation(rows)  # rows come in the order of a batch, not sorted
        apply(variable, tf.constant(order), tf.constant(gradient[order]), tf.constant(rates[step]), tf.constant(step))
    optimizer.bring_up_to_date(variable, STEPS)

    wanted, wanted_slots = run_keras(make_keras(), start, rates)
    assert np.abs(wanted - start).max() > 0.1
    np.testing.assert_allclose(variable.numpy(), wanted, rtol=1e-6, atol=1e-6)
    slots = {name: slot for name, slot in optimizer.slots(variable).items() if name != "last_step"}
    assert slots.keys() == slot_names.keys()
    for name, slot in slots.items():
        np.testing.assert_allclose(slot.numpy(), wanted_slots[slot_names[name]], rtol=1e-6, atol=1e-6)
    if "last_step" in optimizer.slots(variable):
        assert (optimizer.slots(variable)["last_step"].numpy() == STEPS).all()


@pytest.mark.parametrize("case", list(CASES))
def test_dense_updates_equal_those_of_keras(case):
    make, make_keras, rate_at, slot_names = CASES[case]
    optimizer = make()
    start = initial_weights(optimizer)
    variable = tf.Variable(start)
    optimizer.create_slots(variable, is_table=False)
    rates = [np.float32(rate_at(step)) for step in range(STEPS)]
    for gradient, rate in zip(gradients(), rates, strict=True):
        optimizer.apply_dense(variable, tf.constant(gradient), tf.constant(rate))
    wanted, wanted_slots = run_keras(make_keras(), start, rates)
    np.testing.assert_allclose(variable.numpy(), wanted, rtol=1e-6, atol=1e-6)
    assert optimizer.slots(variable).keys() == slot_names.keys()
    for name, slot in optimizer.slots(variable).items():
        np.testing.assert_allclose(slot.numpy(), wanted_slots[slot_names[name]], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("case", list(CASES))
def test_only_touched_rows_are_written(case):
    optimizer = CASES[case][0]()
    variable = tf.Variable(initial_weights(optimizer))
    optimizer.create_slots(variable, is_table=True)
    everything = [variable, *optimizer.slots(variable).values()]
    for step in range(2):  # the second step finds values in the slots
        before = [v.numpy() for v in everything]
        rows = np.array([5 + step, 0], "i4")
        optimizer.apply_rows(variable, tf.constant(rows), tf.ones((2, DIM)), tf.constant(0.05), tf.constant(step))
        others = np.delete(np.arange(ROWS), rows)
        for old, new in zip(before, everything, strict=True):
            assert new.numpy()[others].tobytes() == old[others].tobytes()
            assert (new.numpy()[rows] != old[rows]).all()


@pytest.mark.parametrize("case", list(CASES))
def test_a_row_of_zero_weights_and_gradients_stays_zero(case):
    optimizer = CASES[case][0]()
    variable = tf.Variable(tf.zeros((3, DIM)))
    optimizer.create_slots(variable, is_table=True)
    for step in range(3):
        optimizer.apply_rows(
            variable, tf.constant([2, 0]), tf.constant([[0.0] * DIM, [1.0] * DIM]), tf.constant(0.05), tf.constant(step)
        )
    assert variable.numpy()[2].tobytes() == bytes(4 * DIM)
    assert variable.numpy()[0].all()


def test_missed_steps_decay_when_a_row_is_touched_again():
    optimizer = RMSprop(rho=0.5, epsilon=0.0)
    variable = tf.Variable([[0.0], [0.0]])
    optimizer.create_slots(variable, is_table=True)
    row, rate = tf.constant([1]), tf.constant(1.0)
    optimizer.apply_rows(variable, row, tf.constant([[4.0]]), rate, tf.constant(2))
    rms, last_step = optimizer.slots(variable)["rms"], optimizer.slots(variable)["last_step"]
    assert rms.numpy().tolist() == [[0], [8]] and last_step.numpy().tolist() == [0, 3]  # 16 / 2
    np.testing.assert_allclose(variable.numpy()[1], -4 / np.sqrt(8), rtol=1e-6)
    optimizer.apply_rows(variable, row, tf.constant([[2.0]]), rate, tf.constant(5))
    # Steps 3 and 4 missed: 8 / 4; then 2 / 2 + 4 / 2.
    assert rms.numpy().tolist() == [[0], [3]] and last_step.numpy().tolist() == [0, 6]
    optimizer.bring_up_to_date(variable, 8)
    assert rms.numpy().tolist() == [[0], [0.75]] and last_step.numpy().tolist() == [8, 8]
    optimizer.bring_up_to_date(variable, 8)
    assert rms.numpy().tolist() == [[0], [0.75]]


def test_large_tables_are_brought_up_to_date_in_blocks():
    optimizer = RMSprop(rho=0.5)
    variable = tf.Variable(tf.zeros((5, 1 << 21)))  # blocks of 2 rows
    optimizer.create_slots(variable, is_table=True)
    optimizer.slots(variable)["rms"].assign(tf.ones(variable.shape))
    optimizer.slots(variable)["last_step"].assign([0, 1, 2, 3, 1])
    optimizer.bring_up_to_date(variable, 3)
    rms = optimizer.slots(variable)["rms"].numpy()
    assert (rms == np.array([1 / 8, 1 / 4, 1 / 2, 1, 1 / 4])[:, np.newaxis]).all()


def test_ftrl_refuses_initial_weights():
    for is_table in (False, True):
        with pytest.raises(ValueError, match=r"exact only for initial weights of zero; 'page.*' holds others"):
            Ftrl(0.1).create_slots(tf.Variable([[0.0], [1e-30]], name="page"), is_table=is_table)


@pytest.mark.parametrize(
    "rate", [lambda step: 0.1, keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5), tf.constant(0.1), "0.1", 0.0]
)
def test_ftrl_refuses_a_rate_that_is_not_constant(rate):
    with pytest.raises(ValueError, match="constant learning rate above 0, got"):
        Ftrl(rate)


@pytest.mark.parametrize("rate", [-0.1, float("nan"), float("inf")])
def test_ftrl_refuses_an_impossible_rate(rate):
    with pytest.raises(ValueError, match=f"constant learning rate above 0, got {rate}"):
        Ftrl(rate)


@pytest.mark.parametrize("bad", [{"l1": -0.1}, {"l2": -0.1}, {"initial_accumulator": 0.0}, {"l1": float("nan")}])
def test_ftrl_refuses_impossible_penalties(bad):
    with pytest.raises(ValueError, match="needs l1, l2 >= 0 and an initial accumulator > 0"):
        Ftrl(0.1, **bad)


@pytest.mark.parametrize(
    ("step", "rate"),
    # base 0.8, 4 steps of warm-up, decay at step 10
    [(0, 0.0), (1, 0.2), (2, 0.4), (3, 0.6), (4, 0.2), (5, 0.2), (9, 0.2), (10, 0.1), (11, 0.1), (10**6, 0.1)],
)
def test_learning_rate_by_hand(step, rate):
    found = warmup_then_steps_down(0.8, warmup_steps=4, decay_step=10, step=tf.constant(step))
    assert found.dtype == tf.float32 and found.shape == ()
    np.testing.assert_allclose(found, rate, rtol=1e-6)


def test_learning_rate_without_a_warm_up_and_with_a_decay_within_it():
    def rates(**options):
        return [float(warmup_then_steps_down(0.8, step=tf.constant(step), **options)) for step in range(5)]

    np.testing.assert_allclose(rates(warmup_steps=0, decay_step=2), [0.2, 0.2, 0.1, 0.1, 0.1], rtol=1e-6)
    np.testing.assert_allclose(rates(warmup_steps=0, decay_step=0), [0.1] * 5, rtol=1e-6)
    np.testing.assert_allclose(rates(warmup_steps=4, decay_step=1), [0, 0.2, 0.4, 0.6, 0.1], rtol=1e-6)


@pytest.mark.parametrize(
    ("warmup", "total", "decay"),
    # 6 and 20 epochs of 100 steps: half of the remaining 14 epochs is done after 13
    [(600, 2000, 1300), (0, 10, 5), (0, 11, 5), (3, 10, 6), (10, 10, 10), (20, 10, 20)],
)
def test_default_decay_step(warmup, total, decay):
    assert default_decay_step(warmup, total) == decay


@pytest.mark.parametrize(
    ("values", "finite"),
    [
        ([1.0, -2.0], True),
        ([1e30, 1e30], True),
        ([], True),
        ([1.0, np.inf], False),
        ([1.0, -np.inf], False),
        ([np.inf, -np.inf], False),
        ([np.nan, 1.0], False),
        # The sum overflows. Counted as not finite: the square of such a gradient would overflow all the same.
        ([3e38, 3e38], False),
    ],
)
def test_all_finite(values, finite):
    tensor = tf.constant(values, tf.float32)
    assert bool(all_finite([tensor])) == finite
    assert bool(all_finite([tf.ones((2, 3)), tensor[:, tf.newaxis]])) == finite
    assert bool(all_finite([tensor, tf.zeros((0, 3))])) == finite
    assert bool(all_finite([]))
