"""Tables on different ranks train as tables in one process do: same losses, same tables, whatever they are cut into."""

import numpy as np
import pytest
from cases_sharded import BATCH, COMBINATIONS, ON_MANY, OVERFLOW_STEP, STEPS

from trainer.state import INITIAL_LOSS_SCALE


def whole_tables(ranks: list[dict]) -> dict[tuple[str, str], np.ndarray]:
    """(table, array) -> values, put together from all ranks' rectangles; fails where they overlap or leave gaps."""
    tables, covered = {}, {}
    for rank in ranks:
        for name, ((first_row, stop_row, first_column, stop_column), shape, arrays) in rank["pieces"].items():
            rectangle = (slice(first_row, stop_row), slice(first_column, stop_column))
            covered.setdefault(name, np.zeros(shape, int))[rectangle] += 1
            for array, values in arrays.items():
                whole = tables.setdefault((name, array), np.zeros(shape[: values.ndim], values.dtype))
                whole[rectangle[: values.ndim]] = values
    assert all((count == 1).all() for count in covered.values())
    return tables


def disagreements(reference: dict, ranks: list[dict]) -> set[str]:
    """In what the ranks differ from one process; empty where all is well."""
    found = set()
    for rank in ranks:
        if not np.allclose(rank["loss"], reference["loss"][-len(rank["loss"]) :], rtol=0, atol=1e-4):
            found.add("losses")
    tables, expected = whole_tables(ranks), whole_tables([reference])
    if tables.keys() != expected.keys():
        found.add("names")
    elif not all(np.allclose(tables[key], expected[key], rtol=0, atol=1e-5) for key in expected):
        found.add("tables")
    if not all(
        np.allclose(a, b, rtol=0, atol=1e-5)
        for rank in ranks
        for a, b in zip(rank["dense"], reference["dense"], strict=True)
    ):
        found.add("dense weights")
    return found


@pytest.fixture(scope="module")
def reference(two_ranks) -> dict:
    return two_ranks.results("sharded_reference")[0]


def of(ranks: list[dict], *key) -> list[dict]:
    return [rank[key] for rank in ranks]


def test_the_references_learn(reference):
    """Otherwise the comparisons below would compare nothing."""
    for training, result in reference.items():
        assert len(result["loss"]) == STEPS
        assert result["loss"][:3].mean() - result["loss"][-3:].mean() > 0.02, training


@pytest.mark.parametrize(("training", "cut"), COMBINATIONS)
def test_two_ranks_train_as_one_process(two_ranks, reference, training, cut):
    ranks = two_ranks.results("sharded")
    assert disagreements(reference[training], of(ranks, training, cut)) == set()
    for name in ("auc", "map_at_12", "log_loss"):
        (figure,) = {rank["record"][name] for rank in of(ranks, training, cut)}
        assert figure == pytest.approx(reference[training]["record"][name], abs=1e-4)


@pytest.mark.parametrize("job", ["three_ranks", "four_ranks"])
def test_three_and_four_ranks_train_as_one_process(request, reference, job):
    ranks = request.getfixturevalue(job).results("sharded")
    assert ranks[0].keys() == ON_MANY
    for training, cut in ranks[0]:
        assert disagreements(reference[training], of(ranks, training, cut)) == set(), (training, cut)


def test_the_plans_are_what_they_are_called(two_ranks):
    """Whole tables on different ranks, slices by rows, slices by columns, and small tables on every rank."""
    ranks = two_ranks.results("sharded")

    def rectangles(training, cut):
        """Table -> (rank, rows, columns) of each piece; tables that all ranks have are left out."""
        placement = ranks[0][training, cut]["placement"]
        assert all(rank[training, cut]["placement"] == placement for rank in ranks)
        found = {}
        for piece in placement.pieces:
            found.setdefault(piece.table, []).append(
                (piece.rank, (piece.first_row, piece.stop_row), (piece.first_column, piece.stop_column))
            )
        return found

    whole = rectangles("sgd", "whole")
    assert whole.keys() == {"main/ad", "main/site", "main/place", "main/topics"}
    assert all(len(pieces) == 1 for pieces in whole.values())
    assert {pieces[0][0] for pieces in whole.values()} == {0, 1}
    by_rows = rectangles("sgd", "by rows")
    assert [piece[1:] for piece in by_rows["main/site"]] == [((0, 1000), (0, 8)), ((1000, 2000), (0, 8))]
    assert {piece[0] for piece in by_rows["main/site"]} == {0, 1}
    assert len(by_rows["main/place"]) == 2 and len(by_rows["main/ad"]) == 1
    by_columns = rectangles("sgd", "by columns")
    assert {columns for _, _, columns in by_columns["main/site"]} == {(0, 4), (4, 8)}
    assert {rank for rank, _, _ in by_columns["main/site"]} == {0, 1}
    both = rectangles("sgd", "both, small ones everywhere")
    assert "main/ad" not in both and "main/ad" in ranks[0]["sgd", "both, small ones everywhere"]["placement"].replicated
    assert {rows for _, rows, _ in both["main/site"]} == {(0, 1000), (1000, 2000)}
    assert {columns for _, _, columns in both["main/place"]} == {(0, 4), (4, 8)}
    pair = rectangles("wide_deep", "whole")
    assert {name.split("/")[0] for name in pair} == {"wide", "deep"}


def test_small_tables_stay_everywhere_by_default(two_ranks, reference):
    ranks = two_ranks.results("sharded_by_default")
    assert ranks[0]["placement"].replicated and ranks[0]["placement"].pieces
    assert disagreements(reference["sgd"], ranks) == set()


def test_the_compiled_step_is_the_same_step(two_ranks, reference):
    assert disagreements(reference["sgd"], two_ranks.results("sharded_and_compiled")) == set()


def test_one_alltoall_a_direction_for_all_tables(two_ranks):
    for rank in two_ranks.results("alltoalls"):
        assert sorted(rank["names"]) == sorted(["ids", "vectors", "vector_gradients", "ids", "vectors"])


def test_bytes_are_counted_at_the_collective_and_as_predicted(two_ranks):
    size = int(BATCH.split("=")[1])
    for number, rank in enumerate(two_ranks.results("sharded_benchmark")):
        (sent,) = set(rank["alltoall_bytes"])
        local = [size // 2, size - size // 2]
        found = rank["placement"].wire_bytes(number, local, training=True)
        assert sent == found > 0
        assert (rank["wire_bytes"] > rank["alltoall_bytes"]).all()
        assert rank["record"]["alltoall_bytes"] > 0
        if number == 0:
            assert rank["record"]["alltoall_bytes"] == rank["record"]["predicted_alltoall_bytes"] == sent


def test_half_precision_on_the_wire(two_ranks, reference):
    full, half = two_ranks.results("sharded_benchmark"), two_ranks.results("sharded_with_half_on_the_wire")
    for number, (a, b) in enumerate(zip(full, half, strict=True)):
        sizes = [32, 33]
        assert set(b["alltoall_bytes"]) == {a["placement"].wire_bytes(number, sizes, value_bytes=2, training=True)}
        difference = np.abs(b["loss"] - reference["sgd"]["loss"])
        assert 0 < difference.max() < 0.02


def test_returned_vectors_in_another_order_are_found_out(two_ranks, reference):
    found = disagreements(reference["sgd"], two_ranks.results("returned_vectors_permuted"))
    assert {"losses", "tables"} <= found


def test_an_overflow_on_one_rank_skips_the_step_on_all(two_ranks):
    ranks = two_ranks.results("sharded_overflow_on_one_rank")
    skipped = np.arange(12) == OVERFLOW_STEP
    for rank in ranks:
        assert rank["skipped"].tolist() == skipped.astype(float).tolist()
        assert rank["moved"].tolist() == (~skipped).tolist()  # tables of its own included
        assert rank["applied_steps"] == 11
        assert rank["loss_scale"] == INITIAL_LOSS_SCALE / 2


@pytest.mark.parametrize("way", ["as it was", "cut otherwise", "data-parallel", "in one process"])
def test_two_ranks_checkpoint_is_restored_however_tables_lie(two_ranks, reference, way):
    ranks = [rank[way] for rank in two_ranks.results("sharded_checkpoint") if way in rank]
    assert len(ranks) == (1 if way == "in one process" else 2)
    assert all(len(rank["loss"]) == STEPS // 2 for rank in ranks)
    assert disagreements(reference["rmsprop"], ranks) == set()


@pytest.mark.parametrize("job", ["three_ranks", "four_ranks"])
def test_two_ranks_checkpoint_is_restored_by_more_ranks(request, reference, job):
    ranks = request.getfixturevalue(job).results("sharded_checkpoint_of_two_ranks")
    assert all(len(rank["loss"]) == STEPS // 2 for rank in ranks)
    assert disagreements(reference["rmsprop"], ranks) == set()


def test_a_sharded_checkpoint_is_evaluated_as_it_was_when_trained(two_ranks):
    for found in two_ranks.results("sharded_checkpoint"):
        for name in ("log_loss", "auc", "map_at_12", "displays", "calibration"):
            assert found["evaluated"][name] == pytest.approx(found["as it was"]["record"][name], abs=1e-6)
