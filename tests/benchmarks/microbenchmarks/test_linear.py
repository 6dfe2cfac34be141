import pytest
import tensorflow as tf
from micro_cases import after_the_checks, outcome_of, work_of

from benchmarks.microbenchmarks import linear
from benchmarks.microbenchmarks.linear import BENCHMARK, FORWARD, FORWARD_BACKWARD

SIZES = {"shapes": "20,32,24,8;8,12", "batch": 40}
WEIGHTS = 20 * 32 + 32 * 24 + 24 * 8 + 8 * 12


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize(("mode", "factor"), [(FORWARD, 2), (FORWARD_BACKWARD, 6)])
def test_stacks_are_right_and_scored_by_their_operations(mode, factor, precision):
    found = outcome_of(BENCHMARK, mode, precision=precision, **SIZES)
    assert found.sound, found.reason
    assert found.score == pytest.approx(factor * 40 * WEIGHTS / 1e-3 / 1e12)
    assert found.figures["gflop_per_step"] == factor * 40 * WEIGHTS / 1e9 and found.figures["layers"] == 4
    assert ("gradients of 3 layers 20 to 8, 40 of 40 rows" in found.safeguard) == (mode == FORWARD_BACKWARD)


def test_fambenchs_size_has_18_layers():
    (stack,) = BENCHMARK.presets["small"]
    assert len(stack) - 1 == 18
    assert linear.operations([stack], 128, FORWARD_BACKWARD) == 6 * 128 * 18 * 1024 * 1024
    assert linear.operations([stack], 256, FORWARD) == 2 * 256 * 18 * 1024 * 1024


def test_bytes_that_must_move():
    """One layer 3 to 5, batch 2: W, b, x and y; then W, dW, b, db (twice each), x, dx and dy."""
    assert linear.moved_bytes([(3, 5)], 2, "fp32", FORWARD) == 4 * (15 + 5 + 6 + 10)
    assert linear.moved_bytes([(3, 5)], 2, "bf16", FORWARD_BACKWARD) == 2 * (15 + 5 + 6 + 10 + 2 * 20 + 2 * 6 + 10)


def test_of_large_batches_some_rows_are_checked(monkeypatch):
    monkeypatch.setattr(linear, "_CHECKED_ROWS", 9)
    found = outcome_of(BENCHMARK, FORWARD_BACKWARD, **SIZES)
    assert found.sound, found.reason
    assert "gradients of 3 layers 20 to 8, 9 of 40 rows" in found.safeguard


def with_gradients(monkeypatch, change):
    """Gradients of every tape go through `change`: a list of them, of x, W, b, W, b, ..."""
    gradient = tf.GradientTape.gradient
    monkeypatch.setattr(tf.GradientTape, "gradient", lambda *args, **named: change(gradient(*args, **named)))


@pytest.mark.parametrize(
    "change",
    [
        lambda gradients: [tf.zeros_like(one) for one in gradients],
        lambda gradients: [tf.zeros_like(gradients[0]), *gradients[1:]],  # of the input alone
        lambda gradients: [*gradients[:-1], tf.zeros_like(gradients[-1])],  # of the last bias alone
        lambda gradients: [*gradients[:3], gradients[3] * 1.001, *gradients[4:]] if len(gradients) > 4 else gradients,
    ],
)
@pytest.mark.parametrize("rows", [9, 64])
def test_wrong_gradients_have_no_score(monkeypatch, change, rows):
    monkeypatch.setattr(linear, "_CHECKED_ROWS", rows)
    with_gradients(monkeypatch, change)
    found = outcome_of(BENCHMARK, FORWARD_BACKWARD, **SIZES)
    assert found.score is None and found.reason.startswith("gradients of") and not found.step_ms


def test_wrong_outputs_have_no_score(monkeypatch):
    outputs = linear._outputs
    monkeypatch.setattr(linear, "_outputs", lambda tf, x, layers: [one * 0.99 for one in outputs(tf, x, layers)])
    for mode in BENCHMARK.modes:
        found = outcome_of(BENCHMARK, mode, **SIZES)
        assert found.score is None and found.reason.startswith("output of 3 layers 20 to 8")


def test_a_loop_that_does_something_else_has_no_score():
    def without_last_gradient(result):
        changed = [one | {"gradients": [*one["gradients"][:-1], 0 * one["gradients"][-1]]} for one in result[0]]
        return changed, result[1]

    found = outcome_of(
        BENCHMARK, FORWARD_BACKWARD, change=lambda work: after_the_checks(work, 3, without_last_gradient), **SIZES
    )
    assert found.score is None and found.reason.startswith("after, all results of the whole batch")


def test_waiting_needs_every_gradient():
    _, work = work_of(BENCHMARK, FORWARD_BACKWARD, shapes="4,6,5", batch=3)
    results, last = work.step()
    (one,) = results
    gradients = one["gradients"]
    assert [tuple(gradient.shape) for gradient in gradients] == [(3, 4), (4, 6), (6,), (6, 5), (5,)]
    ends = [one["outputs"][-1], gradients[0], gradients[1], gradients[3]]
    assert float(last) == pytest.approx(sum(values.numpy()[-1, -1] for values in ends), rel=1e-5)
    assert [len(sums) for sums in work.read((results, last))] == [2, 5]
