"""Training on several ranks is training on one: the same losses, the same weights, and no rank drifts away."""

import numpy as np
import pytest

from trainer.reduction import choose_method
from trainer.state import INITIAL_LOSS_SCALE

EVEN, ODD = 64, 65
OVERFLOW_STEP = 6


def disagreements(reference: dict, ranks: list[dict]) -> set[str]:
    """In what the ranks differ from one rank that is alone, or from each other; empty where all is well."""
    found = set()
    for rank in ranks:
        if not np.allclose(rank["loss"], reference["loss"], rtol=0, atol=1e-4):
            found.add("losses")
        if any(
            not np.allclose(own, alone, rtol=0, atol=1e-5)
            for own, alone in zip(rank["weights"], reference["weights"], strict=True)
        ):
            found.add("weights")
    if len({rank["digest"] for rank in ranks}) > 1:
        found.add("ranks")
    return found


@pytest.fixture(scope="module")
def one_rank(two_ranks) -> dict:
    return two_ranks.results("one_rank")[0]


def test_one_rank_alone_learns(one_rank):
    """Otherwise the comparisons below would compare nothing."""
    losses = one_rank[EVEN]["loss"]
    assert len(losses) == 40
    assert losses[:5].mean() - losses[-5:].mean() > 0.05
    assert one_rank[EVEN]["record"]["auc"] > 0.6


@pytest.mark.parametrize("method", ["gather", "allreduce"])
@pytest.mark.parametrize("job", ["two_ranks", "three_ranks"])
def test_ranks_train_as_one(request, one_rank, job, method):
    ranks = request.getfixturevalue(job).results(method)
    assert disagreements(one_rank[EVEN], ranks) == set()
    for name in ("auc", "map_at_12", "log_loss"):
        (figure,) = {rank["record"][name] for rank in ranks}
        assert figure == pytest.approx(one_rank[EVEN]["record"][name], abs=1e-4)


def test_a_batch_that_ranks_cannot_share_evenly(two_ranks, one_rank):
    assert disagreements(one_rank[ODD], two_ranks.results("uneven_batches")) == set()


def test_ranks_stay_the_same_with_dropout(two_ranks):
    ranks = two_ranks.results("dropout")
    assert len({rank["digest"] for rank in ranks}) == 1


def test_the_broadcast_makes_initial_weights_the_same(two_ranks, one_rank):
    assert disagreements(one_rank[EVEN], two_ranks.results("different_initial_weights")) == set()


@pytest.mark.parametrize(
    ("fault", "seen"),
    [
        ("gradients_not_reduced", {"losses", "weights", "ranks"}),
        ("tables_not_reduced", {"losses", "weights", "ranks"}),
        ("not_broadcast", {"losses", "weights", "ranks"}),
        ("same_rows_on_both_ranks", {"losses", "weights"}),
    ],
)
def test_faults_are_found_out(two_ranks, one_rank, fault, seen):
    assert disagreements(one_rank[EVEN], two_ranks.results(fault)) == seen


# Bytes on the wire.


def sizes(result: dict) -> tuple[int, int]:
    """Numbers of dense weights and of table weights."""
    number_of_tables = len(result["tables"])
    dense, tables = result["weights"][:-number_of_tables], result["weights"][-number_of_tables:]
    return sum(w.size for w in dense), sum(w.size for w in tables)


EXTRAS_BYTES = 3 * 4  # loss and two signals


def test_allreduce_sends_every_weight_once(two_ranks):
    for result in two_ranks.results("allreduce"):
        assert set(result["wire_bytes"]) == {4 * sum(sizes(result)) + EXTRAS_BYTES}


def test_fp16_compression_halves_what_is_sent(two_ranks):
    for result in two_ranks.results("half_on_the_wire"):
        assert set(result["wire_bytes"]) == {2 * sum(sizes(result)) + EXTRAS_BYTES}


def test_fp16_compression_does_not_hurt_the_loss(two_ranks, one_rank):
    ranks = two_ranks.results("half_on_the_wire")
    assert len({rank["digest"] for rank in ranks}) == 1
    difference = np.abs(ranks[0]["loss"] - one_rank[EVEN]["loss"])
    assert 0 < difference.max() < 0.02


def test_gather_sends_touched_rows_and_their_ids(two_ranks):
    """In full precision 4 bytes a value and an id, in half 2 bytes a value; solved for the touched rows."""
    for full, half in zip(two_ranks.results("gather"), two_ranks.results("half_gathered"), strict=True):
        dense, _ = sizes(full)
        most_ids = [min(32 * ids, rows + 1) for rows, _, ids in full["tables"]]
        at_most = sum(n * 4 * (dim + 1) for n, (_, dim, _) in zip(most_ids, full["tables"], strict=True))
        full_bytes = full["wire_bytes"][:5] - 4 * dense - EXTRAS_BYTES
        half_bytes = half["wire_bytes"] - 2 * dense - EXTRAS_BYTES
        assert (full_bytes > 0.3 * at_most).all() and (full_bytes <= at_most).all()
        # Values are by far the most: the shares of ids, 1 / (dim + 1), are small but for the wide table.
        assert (half_bytes > full_bytes / 2).all() and (half_bytes < full_bytes * 0.6).all()


def test_the_cheaper_method_is_chosen(two_ranks):
    """Two ranks receive as many bytes as they send, so that what they send must bear out `choose_method`."""
    gathered, reduced = two_ranks.results("gather")[0], two_ranks.results("allreduce")[0]
    chosen = [
        choose_method(ids_per_rank=33 * ids, table_rows=rows, dim=dim, world_size=2)
        for rows, dim, ids in gathered["tables"]
    ]
    assert set(chosen) == {"gather", "allreduce"} or gathered["wire_bytes"].max() < reduced["wire_bytes"].min()


# Loss scaling.


def test_an_overflow_on_one_rank_skips_the_step_on_all(two_ranks):
    ranks = two_ranks.results("overflow_on_one_rank")
    for rank in ranks:
        skipped = np.arange(12) == OVERFLOW_STEP
        assert rank["skipped"].tolist() == skipped.astype(float).tolist()
        assert rank["moved"].tolist() == (~skipped).tolist()
        assert rank["applied_steps"] == 11
        assert rank["loss_scale"] == INITIAL_LOSS_SCALE / 2
        assert "1 steps were skipped because a gradient was not finite." in rank["record"]["notes"]
    assert len({rank["digest"] for rank in ranks}) == 1
