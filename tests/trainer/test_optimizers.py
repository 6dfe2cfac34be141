import keras
import numpy as np
import pytest
import tensorflow as tf
from optimizer_cases import DIM, ROWS, STEPS, apply_all_rows, gradients, touched_rows

from trainer.ftrl import Ftrl
from trainer.optimizers import SGD, Adagrad, Adam, RMSprop, RowwiseAdagrad, all_finite
from trainer.schedules import warmup_then_steps_down


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
    "Adagrad": (Adagrad, keras.optimizers.Adagrad, schedule, {"accumulator": "accumulator"}),
    "Adagrad, large epsilon": (
        lambda: Adagrad(initial_accumulator=0.0, epsilon=0.5),
        lambda: keras.optimizers.Adagrad(initial_accumulator_value=0.0, epsilon=0.5),
        schedule,
        {"accumulator": "accumulator"},
    ),
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

# Those whose rows in a table are updated otherwise than a dense variable is.
DENSE_CASES = CASES | {
    "RowwiseAdagrad": (RowwiseAdagrad, keras.optimizers.Adagrad, schedule, {"accumulator": "accumulator"}),
    "Adam": (Adam, keras.optimizers.Adam, schedule, {"m": "momentum", "v": "velocity"}),
    "Adam, other decays": (
        lambda: Adam(beta_1=0.5, beta_2=0.75, epsilon=0.1),
        lambda: keras.optimizers.Adam(beta_1=0.5, beta_2=0.75, epsilon=0.1),
        schedule,
        {"m": "momentum", "v": "velocity"},
    ),
}


def assert_slots_equal(optimizer, variable, wanted):
    """Slots, by their names, equal those of Keras."""
    # Ours hold n + epsilon.
    offset = optimizer.epsilon if isinstance(optimizer, Adagrad) else 0.0
    slots = {name: slot.numpy() - offset for name, slot in optimizer.slots(variable).items() if name != "last_step"}
    assert slots.keys() == wanted.keys()
    # 1 - 0.999 is 1.3e-5 smaller in float32, and Keras computes it in float64.
    rtol = 2e-5 if isinstance(optimizer, Adam) else 1e-6
    for name, slot in slots.items():
        np.testing.assert_allclose(slot, wanted[name], rtol=rtol, atol=1e-6)


@pytest.mark.parametrize("case", list(CASES))
def test_row_updates_equal_dense_updates_by_keras(case):
    make, make_keras, rate_at, slot_names = CASES[case]
    optimizer = make()
    start = initial_weights(optimizer)
    variable = tf.Variable(start)
    optimizer.create_slots(variable, is_table=True)
    rates = [np.float32(rate_at(step)) for step in range(STEPS)]
    apply_all_rows(optimizer, variable, touched_rows(), gradients(), rates)
    optimizer.bring_up_to_date(variable, STEPS)

    wanted, wanted_slots = run_keras(make_keras(), start, rates)
    assert np.abs(wanted - start).max() > 0.05
    np.testing.assert_allclose(variable.numpy(), wanted, rtol=1e-6, atol=1e-6)
    assert_slots_equal(optimizer, variable, {name: wanted_slots[keras_name] for name, keras_name in slot_names.items()})
    if "last_step" in optimizer.slots(variable):
        assert (optimizer.slots(variable)["last_step"].numpy() == STEPS).all()


@pytest.mark.parametrize("case", list(DENSE_CASES))
def test_dense_updates_equal_those_of_keras(case):
    make, make_keras, rate_at, slot_names = DENSE_CASES[case]
    optimizer = make()
    start = initial_weights(optimizer)
    variable = tf.Variable(start)
    optimizer.create_slots(variable, is_table=False)
    rates = [np.float32(rate_at(step)) for step in range(STEPS)]
    apply = tf.function(optimizer.apply_dense, autograph=False)
    for step, (gradient, rate) in enumerate(zip(gradients(), rates, strict=True)):
        apply(variable, tf.constant(gradient), tf.constant(rate), tf.constant(step))
    wanted, wanted_slots = run_keras(make_keras(), start, rates)
    assert np.abs(wanted - start).max() > 0.05
    # Float32 errors of Adam: ours in 1 - beta_2, Keras's in its powers of beta_2.
    np.testing.assert_allclose(variable.numpy(), wanted, rtol=1e-6, atol=2e-5 if optimizer.lazy else 1e-6)
    assert_slots_equal(optimizer, variable, {name: wanted_slots[keras_name] for name, keras_name in slot_names.items()})


ALL = {name: case[0] for name, case in DENSE_CASES.items()}


@pytest.mark.parametrize("name", list(ALL))
def test_only_touched_rows_are_written(name):
    optimizer = ALL[name]()
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


@pytest.mark.parametrize("name", list(ALL))
def test_a_row_of_zero_weights_and_gradients_stays_zero(name):
    optimizer = ALL[name]()
    variable = tf.Variable(tf.zeros((3, DIM)))
    optimizer.create_slots(variable, is_table=True)
    for step in range(3):
        optimizer.apply_rows(
            variable, tf.constant([2, 0]), tf.constant([[0.0] * DIM, [1.0] * DIM]), tf.constant(0.05), tf.constant(step)
        )
    assert variable.numpy()[2].tobytes() == bytes(4 * DIM)
    assert variable.numpy()[0].all()


@pytest.mark.parametrize("name", list(ALL))
def test_a_gradient_of_zero_is_the_same_as_a_row_that_is_missing(name):
    """Reductions that add whole tables leave such rows out, others do not."""

    def run(rows_of_last_step):
        optimizer = ALL[name]()
        variable = tf.Variable(initial_weights(optimizer))
        optimizer.create_slots(variable, is_table=True)
        values = {1: [1.0, -2.0, 0.5], 4: [0.5, 0.25, 3.0]}
        for step, rows in enumerate([[1, 4], rows_of_last_step]):
            gradient = tf.constant([values[row] if row == 1 or step == 0 else [0.0] * DIM for row in rows])
            optimizer.apply_rows(variable, tf.constant(rows), gradient, tf.constant(0.05), tf.constant(step))
        optimizer.bring_up_to_date(variable, 2)
        return [variable.numpy(), *(slot.numpy() for slot in optimizer.slots(variable).values())]

    for with_zero, without in zip(run([4, 1]), run([1]), strict=True):
        np.testing.assert_array_equal(with_zero, without)


@pytest.mark.parametrize("name", list(ALL))
@pytest.mark.parametrize("is_table", [False, True])
def test_what_is_not_finite_is_not_hidden(name, is_table):
    optimizer = ALL[name]()
    variable = tf.Variable(tf.zeros((2, 2)))
    optimizer.create_slots(variable, is_table=is_table)
    gradient, rate, step = tf.constant([[1.0, np.nan], [1.0, 1.0]]), tf.constant(0.05), tf.constant(0)
    if is_table:
        optimizer.apply_rows(variable, tf.constant([0, 1]), gradient, rate, step)
    else:
        optimizer.apply_dense(variable, gradient, rate, step)
    # TensorFlow's dense FTRL takes a weight of zero where its slots are NaN.
    assert any(np.isnan(v.numpy()[0]).any() for v in [variable, *optimizer.slots(variable).values()])
    assert np.isfinite(variable.numpy()[1]).all()


@pytest.mark.parametrize("name", list(ALL))
def test_row_updates_never_read_a_whole_table(name):
    """Once updated by rows, a variable is copied whenever it is read as a whole: as operand or to slice it."""
    optimizer = ALL[name]()
    variable = tf.Variable(tf.zeros((ROWS, DIM)))
    optimizer.create_slots(variable, is_table=True)

    @tf.function(autograph=False)
    def update(rows, gradient, rate, step):
        optimizer.apply_rows(variable, rows, gradient, rate, step)
        optimizer.bring_up_to_date(variable, 3)

    shapes = [
        tf.TensorSpec((None,), tf.int32),
        tf.TensorSpec((None, DIM)),
        tf.TensorSpec(()),
        tf.TensorSpec((), tf.int32),
    ]
    operations = {operation.type for operation in update.get_concrete_function(*shapes).graph.get_operations()}
    assert any(name.startswith(("Resource", "Recsys")) for name in operations)
    assert "ReadVariableOp" not in operations


@pytest.mark.parametrize("name", list(ALL))
def test_declared_slot_sizes_are_those_of_a_table(name):
    optimizer = ALL[name]()
    variable = tf.Variable(tf.zeros((7, 5)))
    optimizer.create_slots(variable, is_table=True)
    slots = list(optimizer.slots(variable).values())
    assert [slot.dtype.size for slot in slots] == [4] * len(slots)
    shapes = sorted(tuple(slot.shape) for slot in slots)
    assert shapes == [(7,)] * optimizer.slots_per_row + [(7, 5)] * optimizer.slots_per_weight


def test_which_optimizers_are_lazy_and_which_need_whole_rows():
    made = [make() for make in ALL.values()]
    assert {type(optimizer) for optimizer in made if optimizer.lazy} == {Adam}
    assert {type(optimizer) for optimizer in made if optimizer.couples_columns} == {RowwiseAdagrad}


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
