"""Gradients of some rows of a table, step by step, for the tests of optimizers."""

import numpy as np
import tensorflow as tf

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


def apply_all_rows(optimizer, variable, steps_of_rows, gradients, rates):
    """Updates a table step by step, in a graph, with rows in the order of a batch and not sorted."""
    apply = tf.function(optimizer.apply_rows, reduce_retracing=True, autograph=False)
    for step, (rows, gradient, rate) in enumerate(zip(steps_of_rows, gradients, rates, strict=True)):
        order = np.random.default_rng(step).permutation(rows)
        apply(variable, tf.constant(order), tf.constant(gradient[order]), tf.constant(rate), tf.constant(step))
