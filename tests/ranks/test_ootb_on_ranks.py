"""Plain Keras on two ranks trains as on one: the loop of several ranks has the losses of `fit`."""

import numpy as np
import pytest

EVEN, ODD = 64, 65


@pytest.fixture(scope="module")
def one_rank(two_ranks) -> dict:
    return two_ranks.results("ootb_one_rank")[0]


def disagreements(alone: dict, ranks: list[dict]) -> set[str]:
    """In what ranks differ from one rank that is alone, or from each other."""
    found = set()
    for rank in ranks:
        if not np.allclose(rank["losses"], alone["losses"], rtol=0, atol=1e-4):
            found.add("losses")
    if any(not np.array_equal(*pair) for pair in zip(*(rank["weights"] for rank in ranks), strict=True)):
        found.add("ranks")
    return found


def test_one_rank_alone_learns(one_rank):
    """Otherwise the comparisons below would compare nothing."""
    losses = one_rank[EVEN]["losses"]
    assert len(losses) == 12 and losses[:3].mean() - losses[-3:].mean() > 0.02


@pytest.mark.parametrize("size", [EVEN, ODD])
def test_two_ranks_train_as_one(two_ranks, one_rank, size):
    """65 rows do not divide by two ranks."""
    ranks = [found[size] for found in two_ranks.results("ootb_two_ranks")]
    assert disagreements(one_rank[size], ranks) == set()
    for rank in ranks:
        record = rank["record"]
        assert record.world_size == 2 and record.identity.implementation == "ootb"
        assert (record.warmup_steps, record.measured_steps) == (2, 10) and len(record.step_times_ms) == 10
        assert len(record.rank_step_ms) == len(record.peak_memory_bytes) == 2
        assert record.loss == pytest.approx(one_rank[size]["record"].loss, abs=1e-4)


def test_whole_gradients_are_sent(two_ranks):
    """Every weight, tables included, and loss and two signals, of 4 bytes each; the seeds of dropout are not."""
    for found in two_ranks.results("ootb_two_ranks"):
        assert found[EVEN]["record"].wire_bytes == 4 * sum(w.size for w in found[EVEN]["weights"]) + 12


def test_ranks_stay_the_same_with_dropout(two_ranks):
    first, second = two_ranks.results("ootb_with_dropout")
    assert all(np.array_equal(*pair) for pair in zip(first["weights"], second["weights"], strict=True))
    # By the seeds that they began with ranks drop different units.
    assert first["seeds"] and not any(map(np.array_equal, first["seeds"], second["seeds"]))


def test_each_row_is_scored_once(two_ranks):
    first, second = (found["record"] for found in two_ranks.results("ootb_inference"))
    assert first == second and first.global_batch_size == 500
    # Nearly 800 rows in two steps of 500, twelve steps in all: six passes.
    assert 700 < first.distinct_rows < 800 and first.passes == pytest.approx(6)


def test_ranks_agree_on_how_many_steps_take_so_long(two_ranks):
    for found in two_ranks.results("ootb_seconds"):
        assert found["record"].measured_steps == 5 and len(found["losses"]) == 7


def test_gradients_that_are_not_reduced_are_found_out(two_ranks, one_rank):
    assert disagreements(one_rank[EVEN], two_ranks.results("ootb_not_reduced")) == {"losses", "ranks"}
