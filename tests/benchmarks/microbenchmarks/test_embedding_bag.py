import numpy as np
import pytest
import tensorflow as tf
from micro_cases import after_the_checks, outcome_of, work_of

from benchmarks.microbenchmarks import embedding_bag
from benchmarks.microbenchmarks.embedding_bag import BENCHMARK, FORWARD, UPDATE
from models.embedding import FusedTable
from trainer.distributed import SingleProcess
from trainer.optimizers import SGD

SIZES = {"shapes": "3000,8,5;400,8,3;90,4,1", "batch": 60}  # two tables of one dimension, and another
FORWARD_BYTES = 60 * (5 * 8 + 3 * 8 + 1 * 4) * 4
LAWS = ("uniform", "power_law")


def of(mode, ids="uniform", **more):
    return outcome_of(BENCHMARK, mode, params={"ids": ids}, **SIZES, **more)


@pytest.mark.parametrize("ids", LAWS)
@pytest.mark.parametrize(("mode", "factor"), [(FORWARD, 1), (UPDATE, 3)])
def test_bags_are_right_and_scored_by_their_bytes(mode, factor, ids):
    found = of(mode, ids)
    assert found.sound, found.reason
    assert found.score == pytest.approx(factor * FORWARD_BYTES / 1e-3 / 1e9) and found.units == "GB/s"
    assert found.figures == {"bytes_per_step": factor * FORWARD_BYTES, "lookups_per_step": 60 * 9}
    assert found.safeguard.count("ids of a table") == 2 * 3
    assert (found.safeguard.count("rows that were looked up have changed") == 2 * 2) == (mode == UPDATE)


def test_fambenchs_size():
    assert embedding_bag.step_bytes(BENCHMARK.presets["small"], 2048, FORWARD) == 2048 * 34 * 56 * 4
    assert embedding_bag.step_bytes(BENCHMARK.presets["small"], 2048, UPDATE) == 3 * 2048 * 34 * 56 * 4


def test_ranks_have_ids_of_their_own():
    first, second = (
        work_of(BENCHMARK, FORWARD, SingleProcess(rank=rank), **SIZES)[1].step()[0][1].numpy() for rank in (0, 1)
    )
    assert not np.allclose(first, second)


def test_steps_go_through_different_ids():
    _, work = work_of(BENCHMARK, FORWARD, **SIZES)
    results = [work.step()[0] for _ in range(embedding_bag.BATCHES + 1)]
    assert [number for number, _, _ in results] == [*range(embedding_bag.BATCHES), 0]
    sums = [pooled.numpy().sum() for _, pooled, _ in results]
    assert len(set(sums)) == embedding_bag.BATCHES and sums[0] == sums[-1]


DRAW = embedding_bag.draw_ids


@pytest.mark.parametrize("ids", LAWS)
@pytest.mark.parametrize("mode", BENCHMARK.modes)
@pytest.mark.parametrize(
    "fault",
    [
        lambda rng, rows, shape, exponent: np.full(shape, 3),
        lambda rng, rows, shape, exponent: DRAW(
            np.random.default_rng(0), rows, shape, exponent
        ),  # every batch the same
        lambda rng, rows, shape, exponent: DRAW(rng, rows, shape, 1.1 - exponent),  # the other law
        lambda rng, rows, shape, exponent: DRAW(rng, rows, shape, exponent) // 2,
    ],
)
def test_ids_that_are_not_as_stated_have_no_score(monkeypatch, mode, ids, fault):
    monkeypatch.setattr(embedding_bag, "draw_ids", fault)
    found = of(mode, ids)
    assert found.score is None and "ids of a table of" in found.reason and not found.step_ms


ROW_GRADIENTS, APPLY_ROWS, CALL = FusedTable.row_gradients, SGD.apply_rows, FusedTable.call


def scaled_gradients(factor):
    def row_gradients(self, ids, upstream):
        slices = ROW_GRADIENTS(self, ids, upstream)
        return tf.IndexedSlices(slices.values * factor, slices.indices, slices.dense_shape)

    return row_gradients


@pytest.mark.parametrize("factor", [0.0, 1.001, -1.0])
def test_wrong_gradients_have_no_score(monkeypatch, factor):
    monkeypatch.setattr(FusedTable, "row_gradients", scaled_gradients(factor))
    found = of(UPDATE)
    assert found.score is None and not found.step_ms
    assert found.reason.startswith("before, in one step, the gradient by which")
    assert of(FORWARD).sound


def test_an_update_that_leaves_rows_out_has_no_score(monkeypatch):
    def apply_rows(self, variable, rows, gradients, *rest):
        APPLY_ROWS(self, variable, rows[::2], gradients[::2], *rest)

    monkeypatch.setattr(SGD, "apply_rows", apply_rows)
    assert of(UPDATE).reason.startswith("before, in one step, the gradient by which")


def test_an_update_that_touches_other_rows_has_no_score(monkeypatch):
    def apply_rows(self, variable, rows, gradients, *rest):
        APPLY_ROWS(self, variable, rows, gradients, *rest)
        variable.assign(variable * (1 + 2**-20))

    monkeypatch.setattr(SGD, "apply_rows", apply_rows)
    found = of(UPDATE)
    assert found.score is None and "rows that were not looked up" in found.reason


@pytest.mark.parametrize("mode", BENCHMARK.modes)
def test_wrong_sums_have_no_score(monkeypatch, mode):
    monkeypatch.setattr(FusedTable, "call", lambda self, ids: CALL(self, tf.roll(ids, 1, axis=0)))
    found = of(mode)
    assert found.score is None and found.reason.startswith("before, pooled rows of 60 of 60 samples")


def test_a_loop_that_looks_nothing_up_has_no_score():
    def change(work):
        return after_the_checks(work, 3, lambda bags: [(number, 0 * pooled, done) for number, pooled, done in bags])

    found = of(FORWARD, change=change)
    assert found.score is None and found.reason.startswith("after, pooled rows")


def test_a_loop_that_stops_updating_has_no_score(monkeypatch):
    rate = tf.Variable(1.0)

    def apply_rows(self, variable, rows, gradients, learning_rate, applied_steps):
        APPLY_ROWS(self, variable, rows, gradients, learning_rate * rate, applied_steps)

    monkeypatch.setattr(SGD, "apply_rows", apply_rows)

    def stop(bags):
        rate.assign(0.0)
        return bags

    found = of(UPDATE, change=lambda work: after_the_checks(work, 3, stop))
    assert found.score is None and found.reason.startswith("after, in 10 steps, the gradient by which")


def test_large_tables_are_checked_in_part(monkeypatch):
    monkeypatch.setattr(embedding_bag, "_CHECKED_ROWS", 20)
    monkeypatch.setattr(embedding_bag, "_CHECKED_SAMPLES", 10)
    found = of(UPDATE, "power_law")
    assert found.sound, found.reason
    assert "pooled rows of 10 of 60 samples" in found.safeguard
