"""Training on several ranks is training on one: the same losses, the same weights, and no rank drifts away."""

import numpy as np
import pytest

from trainer.state import INITIAL_LOSS_SCALE
from trainer.wire_costs import choose_method

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


def test_the_compiled_step_is_the_same_step(two_ranks, one_rank):
    ranks = two_ranks.results("compiled")
    assert len({rank["digest"] for rank in ranks}) == 1
    assert ranks[0]["loss"] == pytest.approx(one_rank[EVEN]["loss"][:10], abs=1e-4)


def test_a_benchmark_trains_as_training_does(two_ranks):
    for measured, training in zip(two_ranks.results("benchmark"), two_ranks.results("gather"), strict=True):
        assert measured["loss"].tolist() == training["loss"].tolist()
        assert measured["digest"] == training["digest"]
        record = measured["record"]
        assert (record["measured_steps"], record["warmup_steps"]) == (30, 10)
        assert len(record["rank_step_ms"]) == 2
        assert record["distinct_rows"] == 40 * EVEN


def test_one_slow_rank_slows_the_step_time_of_all(two_ranks):
    (plain, _), (slow, _) = two_ranks.results("benchmark"), two_ranks.results("benchmark_with_a_slow_rank")
    # A sleep of 50 ms is never shorter. How much shorter than it the undisturbed steps are depends on the machine.
    assert min(slow["record"]["rank_step_ms"]) >= 50 and slow["record"]["step_ms"]["p50"] >= 50
    assert slow["record"]["step_ms"]["p50"] > plain["record"]["step_ms"]["p50"] + 25


def test_a_checkpoint_is_evaluated_as_it_was_when_trained(two_ranks):
    for found in two_ranks.results("evaluation_of_a_checkpoint"):
        for name in ("log_loss", "auc", "map_at_12", "displays", "calibration"):
            assert found["evaluation"][name] == found["benchmark"][name] == found["training"][name]
        assert found["benchmark"]["measured_steps"] == 4


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


def test_each_table_goes_the_way_that_moves_fewer_bytes(two_ranks):
    """By default; `allreduce` only where a batch can touch all of a table."""
    for result in two_ranks.results("uneven_batches"):
        chosen = [
            choose_method(ids_per_rank=34 * ids, table_rows=rows, dim=dim, world_size=2)
            for rows, dim, ids in result["tables"]
        ]
        assert result["methods"] == chosen
        assert set(chosen) == {"gather", "allreduce"}
        dense, _ = sizes(result)
        reduced = sum(
            4 * (rows + 1) * dim
            for (rows, dim, _), method in zip(result["tables"], chosen, strict=True)
            if method == "allreduce"
        )
        gathered = result["wire_bytes"] - 4 * dense - EXTRAS_BYTES - reduced
        at_most = sum(
            4 * min(33 * ids, rows + 1) * (dim + 1)
            for (rows, dim, ids), method in zip(result["tables"], chosen, strict=True)
            if method == "gather"
        )
        assert (gathered > 0.3 * at_most).all() and (gathered <= at_most).all()


# Loss scaling.


def test_an_overflow_on_one_rank_skips_the_step_on_all(two_ranks):
    ranks = two_ranks.results("overflow_on_one_rank")
    for rank in ranks:
        skipped = np.arange(12) == OVERFLOW_STEP
        assert rank["skipped"].tolist() == skipped.astype(float).tolist()
        assert rank["moved"].tolist() == (~skipped).tolist()
        assert rank["applied_steps"] == 11
        assert rank["loss_scale"] == INITIAL_LOSS_SCALE / 2
        assert any("1 step" in note and "skipped" in note for note in rank["record"]["notes"])
    assert len({rank["digest"] for rank in ranks}) == 1


def test_ranks_agree_on_the_steps_of_so_many_seconds(two_ranks):
    ranks = two_ranks.results("timed_seconds")
    for mode in ("training", "inference"):
        first, second = (rank[mode] for rank in ranks)
        assert first["measured_steps"] == second["measured_steps"] >= 5
        assert first["requested_steps"] == first["measured_steps"] + 1 < 900
        assert len(first["step_times_ms"]) == first["measured_steps"]
        # The clock that is read beside the steps shows what their times add up to.
        assert 1000 * first["measured_seconds"] == pytest.approx(sum(first["step_times_ms"]), rel=0.2, abs=20)
    # The slow rank decides: it needs at least 20 ms a step, and the other one would need far more steps.
    assert ranks[0]["inference"]["measured_steps"] <= 10
    assert min(ranks[0]["inference"]["step_times_ms"]) >= 20
