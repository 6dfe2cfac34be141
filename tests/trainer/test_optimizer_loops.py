"""Adagrad, RowwiseAdagrad and Adam against their formulas, written as loops in float64."""

import numpy as np
import pytest
import tensorflow as tf
from optimizer_cases import DIM, ROWS, STEPS, apply_all_rows, gradients, touched_rows

from trainer.optimizers import Adagrad, Adam, RowwiseAdagrad


def rates_of_steps():
    return [np.float32(0.02 + 0.001 * step) for step in range(STEPS)]


def with_padding(rows):
    """The rows of each step and, in most steps, that of absent ids."""
    return [np.append(r, ROWS - 2).astype("i4") if step % 3 else r for step, r in enumerate(rows)]


def table_with_padding():
    start = np.random.default_rng(2).standard_normal((ROWS, DIM)).astype("f4")
    start[ROWS - 2] = 0
    return start


def run_rows(optimizer, found_gradients):
    """(weights, slots) after all steps on the rows of a table."""
    variable = tf.Variable(table_with_padding())
    optimizer.create_slots(variable, is_table=True)
    apply_all_rows(optimizer, variable, with_padding(touched_rows()), found_gradients, rates_of_steps())
    assert variable.numpy()[ROWS - 2].tobytes() == bytes(4 * DIM)
    return variable.numpy(), {name: slot.numpy() for name, slot in optimizer.slots(variable).items()}


def test_adagrad_on_rows_equals_a_loop_in_float64():
    weights, accumulator = table_with_padding().astype("f8"), np.full((ROWS, DIM), 0.1)
    for gradient, rate in zip(gradients(), rates_of_steps(), strict=True):
        for place in zip(*np.nonzero(gradient), strict=True):
            accumulator[place] += float(gradient[place]) ** 2
            weights[place] -= float(rate) * float(gradient[place]) / (accumulator[place] + 1e-7) ** 0.5
    found, slots = run_rows(Adagrad(), gradients())
    np.testing.assert_allclose(found, weights, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(slots["accumulator"], accumulator + 1e-7, rtol=1e-6)


def test_rowwise_adagrad_equals_a_loop_in_float64():
    weights, accumulator = table_with_padding().astype("f8"), [0.1] * ROWS
    for gradient, rate in zip(gradients().astype("f8"), rates_of_steps(), strict=True):
        for row in range(ROWS):
            accumulator[row] += sum(value**2 for value in gradient[row]) / DIM
            for column in range(DIM):
                weights[row, column] -= float(rate) * gradient[row, column] / (accumulator[row] + 1e-7) ** 0.5
    found, slots = run_rows(RowwiseAdagrad(), gradients())
    np.testing.assert_allclose(found, weights, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(slots["accumulator"], np.array(accumulator) + 1e-7, rtol=1e-6)
    assert np.abs(found - run_rows(Adagrad(), gradients())[0]).max() > 0.05


def adam_loop(start, found_gradients, rates, *, lazy):
    """(weights, m, v) by a loop in float64."""
    weights, m, v = start.astype("f8"), np.zeros(start.shape), np.zeros(start.shape)
    beta_1, beta_2 = float(np.float32(0.9)), float(np.float32(0.999))
    for t, (gradient, rate) in enumerate(zip(found_gradients.astype("f8"), rates, strict=True), start=1):
        for place in np.ndindex(*start.shape):
            if lazy and gradient[place] == 0:
                continue
            m[place] = beta_1 * m[place] + (1 - beta_1) * gradient[place]
            v[place] = beta_2 * v[place] + (1 - beta_2) * gradient[place] ** 2
            unbiased = m[place] / (1 - beta_1**t), v[place] / (1 - beta_2**t)
            # Kingma and Ba's epsilon hat: beside the root of v that is not corrected.
            weights[place] -= float(rate) * unbiased[0] / (unbiased[1] ** 0.5 + 1e-7 / (1 - beta_2**t) ** 0.5)
    return weights, m, v


def gradients_with_single_zeros():
    found = gradients()
    found[::2, :, 1] = 0.0
    return found


def test_lazy_adam_equals_a_loop_in_float64_and_is_not_dense_adam():
    found_gradients = gradients_with_single_zeros()
    found, slots = run_rows(Adam(), found_gradients)
    weights, m, v = adam_loop(table_with_padding(), found_gradients, rates_of_steps(), lazy=True)
    np.testing.assert_allclose(found, weights, rtol=1e-6, atol=2e-6)
    np.testing.assert_allclose(slots["m"], m, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(slots["v"], v, rtol=1e-5, atol=1e-9)
    dense = adam_loop(table_with_padding(), found_gradients, rates_of_steps(), lazy=False)[0]
    assert np.abs(found - dense).max() > 0.1


def test_lazy_adam_is_dense_adam_where_every_row_is_touched():
    all_gradients = np.random.default_rng(5).standard_normal((20, ROWS, DIM)).astype("f4")
    rates = rates_of_steps()[:20]
    lazy, dense = Adam(), Adam()
    table, variable = tf.Variable(table_with_padding()), tf.Variable(table_with_padding())
    lazy.create_slots(table, is_table=True)
    dense.create_slots(variable, is_table=False)
    apply_all_rows(lazy, table, [np.arange(ROWS, dtype="i4")] * 20, all_gradients, rates)
    for step, (gradient, rate) in enumerate(zip(all_gradients, rates, strict=True)):
        dense.apply_dense(variable, tf.constant(gradient), tf.constant(rate), tf.constant(step))
    np.testing.assert_allclose(table.numpy(), variable.numpy(), rtol=1e-6, atol=1e-6)
    weights = adam_loop(table_with_padding(), all_gradients, rates, lazy=False)[0]
    np.testing.assert_allclose(variable.numpy(), weights, rtol=1e-6, atol=2e-6)
    for name in ("m", "v"):
        np.testing.assert_allclose(lazy.slots(table)[name], dense.slots(variable)[name], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("is_table", [False, True])
@pytest.mark.parametrize("applied_steps", [0, 1, 2, 3, 10, 100, 10**6])
def test_bias_correction_of_a_first_gradient(is_table, applied_steps):
    optimizer = Adam()
    variable = tf.Variable([[0.0, 0.0]])
    optimizer.create_slots(variable, is_table=is_table)
    gradient, rate, step = tf.constant([[100.0, -3000.0]]), tf.constant(0.5), tf.constant(applied_steps)
    if is_table:
        optimizer.apply_rows(variable, tf.constant([0]), gradient, rate, step)
    else:
        optimizer.apply_dense(variable, gradient, rate, step)
    # m = (1 - beta_1) g and sqrt(v) = sqrt(1 - beta_2) |g|: the size of the gradient falls out.
    beta_1, beta_2, t = float(np.float32(0.9)), float(np.float32(0.999)), applied_steps + 1
    moved = (1 - beta_1) / (1 - beta_1**t) / ((1 - beta_2) / (1 - beta_2**t)) ** 0.5
    assert t > 1 or moved == 1
    np.testing.assert_allclose(variable.numpy(), [[-0.5 * moved, 0.5 * moved]], rtol=5e-7)


@pytest.mark.parametrize("make", [Adagrad, RowwiseAdagrad])
@pytest.mark.parametrize("bad", [(-0.1, 1e-7), (0.1, -1e-7), (0.0, 0.0), (float("nan"), 1e-7), (float("inf"), 1e-7)])
def test_adagrad_refuses_what_divides_by_zero(make, bad):
    with pytest.raises(ValueError, match=f"not both 0, got {bad[0]} and {bad[1]}"):
        make(*bad)


@pytest.mark.parametrize("bad", [(1.0, 0.999, 1e-7), (0.0, 0.999, 1e-7), (0.9, 1.0, 1e-7), (0.9, 0.999, 0.0)])
def test_adam_refuses_impossible_decays(bad):
    with pytest.raises(ValueError, match=f"got {bad[0]}, {bad[1]}, {bad[2]}"):
        Adam(*bad)
