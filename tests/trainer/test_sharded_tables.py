"""Tables on different ranks against the same tables on one: lookups, gradients, initial values, and what travels."""

import functools

import numpy as np
import pytest
import tensorflow as tf
from thread_ranks import on_ranks

from models.embedding import LogicalTable, glorot_normal, uniform_by_rows
from models.table_groups import ReplicatedTables, TableGroup
from trainer.placed_tables import Piece, Placement, TableShape
from trainer.sharded_tables import ShardedTables, Wire

# Hotness 1, 3, 1, 2; columns in another order than the features, column 3 of no feature.
FEATURES = (
    LogicalTable("page", 23, 0, 1),
    LogicalTable("topics", 9, 4, 3),
    LogicalTable("ad", 14, 1, 1),
    LogicalTable("words", 5, 7, 2),
)
HOTNESS = 9


def make_groups(combiner="sum"):
    page, topics, ad, words = FEATURES
    return [
        TableGroup("wide", FEATURES, 1, combiner, "wide", sum_features=True, draw=glorot_normal, seed=3),
        TableGroup("deep_6", (page, topics, words), 6, combiner, "deep", draw=glorot_normal, seed=5),
        TableGroup("deep_4", (ad,), 4, combiner, "deep", draw=uniform_by_rows, seed=5),
    ]


def placed(world_size, cuts):
    """cuts: table name -> [(rank, rows, columns)], where None means all; tables that are not named are replicated."""
    groups = make_groups()
    shapes = [
        TableShape(
            name=group.table_name(table),
            feature=table.name,
            group=group.name,
            rows=table.rows,
            dim=group.dim,
            hotness=table.hotness,
            summed=group.sum_features,
            slots_per_weight=0,
            slots_per_row=0,
        )
        for group in groups
        for table in group.tables
    ]
    pieces = []
    for shape in shapes:
        for rank, rows, columns in cuts.get(shape.name, ()):
            pieces.append(Piece(shape.name, rank, *(rows or (0, shape.rows)), *(columns or (0, shape.dim))))
    return Placement(
        world_size=world_size,
        tables=tuple(shapes),
        replicated=frozenset(shape.name for shape in shapes if shape.name not in cuts),
        pieces=tuple(pieces),
    )


WHOLE = [(0, None, None)]
PLACEMENTS = {
    "whole tables": placed(
        2,
        {
            "deep/page": [(1, None, None)],
            "deep/topics": WHOLE,
            "deep/ad": WHOLE,
            "deep/words": [(1, None, None)],
            "wide/page": [(1, None, None)],
            "wide/topics": WHOLE,
            "wide/ad": WHOLE,
            "wide/words": [(1, None, None)],
        },
    ),
    "by rows": placed(
        3,
        {
            "deep/page": [(0, (0, 7), None), (1, (7, 15), None), (2, (15, 23), None)],
            "deep/topics": [(0, (0, 3), None), (1, (3, 6), None), (2, (6, 9), None)],
            "wide/topics": [(0, (0, 3), None), (1, (3, 6), None), (2, (6, 9), None)],
            "deep/ad": [(2, None, None)],
        },
    ),
    "by columns": placed(
        3,
        {
            "deep/page": [(2, None, (0, 2)), (0, None, (2, 6))],
            "deep/topics": [(0, None, (0, 2)), (1, None, (2, 4)), (2, None, (4, 6))],
            "deep/ad": [(1, None, (0, 3)), (0, None, (3, 4))],
        },
    ),
    "ranks with nothing": placed(4, {"deep/topics": [(2, None, None)], "wide/page": [(2, None, None)]}),
    "grid, and one table beside it": placed(
        2, {"deep/page": [(0, (0, 20), (0, 6)), (1, (20, 23), (0, 6))], "deep/words": WHOLE, "wide/ad": WHOLE}
    ),
}
ROWS = (5, 4, 0, 3)  # of each rank's batch: they may differ, and be none


def make_ids(rank, dtype="i4"):
    rng = np.random.default_rng(rank)
    ids = np.full((ROWS[rank], HOTNESS), 77, dtype)
    for table in FEATURES:
        columns = slice(table.column, table.column + table.hotness)
        ids[:, columns] = rng.integers(0, table.rows, (ROWS[rank], table.hotness))
        ids[:, columns][rng.random((ROWS[rank], table.hotness)) < 0.3] = -1
    return tf.constant(ids)


def make_upstream(rank):
    rng = np.random.default_rng(100 + rank)
    return [tf.constant(rng.standard_normal((ROWS[rank], group.width)).astype("f4")) for group in make_groups()]


def dense_gradients(tables, gradients):
    """(optimizer group, feature) -> gradient of the whole table, zero where another rank has it."""
    found = {}
    for fused, slices in zip(tables, gradients, strict=True):
        held = np.zeros(fused.variable.shape)
        np.add.at(held, slices.indices.numpy(), slices.values.numpy().astype("f8"))
        assert not held[fused.padding_row].any()
        for table in fused.tables:
            rows, dim = table.whole or (table.rows, fused.dim)
            whole = np.zeros((rows, dim))
            start = fused.row_offsets[table.name]
            rectangle = (
                slice(table.first_row, table.first_row + table.rows),
                slice(table.first_column, table.first_column + fused.dim),
            )
            whole[rectangle] = held[start : start + table.rows]
            found[fused.group, table.name] = found.get((fused.group, table.name), 0.0) + whole
    return found


def exchange(placement, combiner="sum", dtype="i4", wire=None, change=None):
    """Of each rank: (embedded, gradients of whole tables from its own and from replicated tables, calls)."""

    def run(comm):
        if change is not None:
            change(comm)
        tables = ShardedTables(make_groups(combiner), placement=placement, comm=comm, wire=wire)
        lookup = tables.lookup(make_ids(comm.rank, dtype))
        gradients = tables.row_gradients(lookup, make_upstream(comm.rank))
        count = len(tables.replicated)
        return (
            [values.numpy() for values in lookup.embedded],
            dense_gradients(tables.sharded, gradients[count:]),
            dense_gradients(tables.replicated, gradients[:count]),
            comm.calls,
        )

    return on_ranks(placement.world_size, run)


def alone(size, combiner="sum", dtype="i4"):
    """The same without ranks: embedded by rank, and the gradients of whole tables, summed over the ranks' batches."""
    tables = ReplicatedTables(make_groups(combiner))
    embedded, total = [], {}
    for rank in range(size):
        lookup = tables.lookup(make_ids(rank, dtype))
        embedded.append([values.numpy() for values in lookup.embedded])
        gradients = dense_gradients(tables.replicated, tables.row_gradients(lookup, make_upstream(rank)))
        for name, gradient in gradients.items():
            total[name] = total.get(name, 0.0) + gradient
    return embedded, total


def close(found, expected, tolerance=1e-5):
    return len(found) == len(expected) and all(
        a.shape == b.shape and np.allclose(a, b, rtol=0, atol=tolerance) for a, b in zip(found, expected, strict=True)
    )


def lookups_agree(placement, ranks, **options):
    expected, _ = alone(placement.world_size, **options)
    return all(close(rank[0], own) for rank, own in zip(ranks, expected, strict=True))


def gradients_agree(placement, ranks, tolerance=1e-5, **options):
    """Each table's gradient, from whoever has it, is that of the whole global batch."""
    _, expected = alone(placement.world_size, **options)
    total = {}
    for _, own, replicated, _ in ranks:
        for name, gradient in [*own.items(), *replicated.items()]:
            total[name] = total.get(name, 0.0) + gradient
    return total.keys() == expected.keys() and all(
        np.allclose(total[name], expected[name], rtol=0, atol=tolerance) for name in expected
    )


@pytest.mark.parametrize("name", PLACEMENTS)
@pytest.mark.parametrize(("combiner", "dtype"), [("sum", "i4"), ("mean", "i8")])
def test_sharded_tables_are_the_same_tables(name, combiner, dtype):
    """Initial values too, for nothing else is looked up."""
    ranks = exchange(PLACEMENTS[name], combiner, dtype)
    assert lookups_agree(PLACEMENTS[name], ranks, combiner=combiner, dtype=dtype)
    assert gradients_agree(PLACEMENTS[name], ranks, combiner=combiner, dtype=dtype)


@pytest.mark.parametrize("name", PLACEMENTS)
def test_three_alltoalls_whatever_the_number_of_tables(name):
    for *_, calls in exchange(PLACEMENTS[name]):
        assert [call for call, _, _ in calls] == ["ids", "vectors", "vector_gradients"]


@pytest.mark.parametrize("name", PLACEMENTS)
@pytest.mark.parametrize("half", [False, True])
def test_what_travels_is_what_the_placement_predicts(name, half):
    placement = PLACEMENTS[name]
    for dtype, id_bytes in (("i4", 4), ("i8", 8)):
        for rank, (*_, calls) in enumerate(exchange(placement, dtype=dtype, wire=Wire(half=half))):
            sent = [values * kind.size for _, values, kind in calls]
            for training, expected in ((True, sum(sent)), (False, sum(sent[:2]))):
                assert expected == placement.wire_bytes(
                    rank,
                    ROWS[: placement.world_size],
                    id_bytes=id_bytes,
                    value_bytes=2 if half else 4,
                    training=training,
                )


def test_half_precision_on_the_wire_is_nearly_the_same():
    for name, placement in PLACEMENTS.items():
        ranks = exchange(placement, wire=Wire(half=True, gradient_scale=8.0))
        assert not lookups_agree(placement, ranks), name  # or it did not travel as float16
        expected, _ = alone(placement.world_size)
        assert all(close(rank[0], own, 4e-3) for rank, own in zip(ranks, expected, strict=True))
        assert gradients_agree(placement, ranks, 2e-2)


def test_a_scale_keeps_small_gradients_from_vanishing():
    """1e-9 is nothing in float16, and 1024 times it is something."""
    placement = placed(2, {"deep/page": [(0, None, None)]})

    def total(comm, wire):
        tables = ShardedTables(make_groups(), placement=placement, comm=comm, wire=wire)
        lookup = tables.lookup(make_ids(comm.rank))
        upstream = [tf.zeros_like(values) + 1e-9 for values in make_upstream(comm.rank)]
        gradients = dense_gradients(tables.sharded, tables.row_gradients(lookup, upstream)[len(tables.replicated) :])
        return sum(gradient.sum() for gradient in gradients.values())

    present = [int((make_ids(rank).numpy()[:, 0] >= 0).sum()) for rank in range(2)]
    for wire, rows in ((Wire(True, 1024.0), sum(present)), (Wire(True, 1.0), present[0])):
        owner, _ = on_ranks(2, functools.partial(total, wire=wire))
        assert owner == pytest.approx(rows * 6 * 1e-9, rel=0.05)
    assert present[1] > 0


@pytest.mark.parametrize("message", ["ids", "vectors", "vector_gradients"])
def test_rows_that_come_back_in_another_order_are_found_out(message):
    """The same payload with the rows of rank 1 the other way round."""

    def change(comm):
        alltoall = comm.alltoall

        def permuted(parts, *, name):
            received = alltoall(parts, name=name)
            if name == message and comm.rank == 0:
                rows = ROWS[1] if message != "vectors" else ROWS[0]
                received[1] = tf.reshape(tf.reverse(tf.reshape(received[1], (rows, -1)), [0]), (-1,))
            return received

        comm.alltoall = permuted

    placement = PLACEMENTS["whole tables"]
    ranks = exchange(placement, change=change)
    seen = {
        "ids": not gradients_agree(placement, ranks),
        "vectors": not lookups_agree(placement, ranks),
        "vector_gradients": not gradients_agree(placement, ranks),
    }
    assert seen[message]


def test_a_rank_holds_its_pieces_and_no_more():
    placement = PLACEMENTS["by columns"]

    def held(comm):
        tables = ShardedTables(make_groups(), placement=placement, comm=comm)
        return sum(t.variable.shape[0] * t.variable.shape[1] for t in tables.sharded)

    for rank, values in enumerate(on_ranks(3, held)):
        pieces = [piece for piece in placement.pieces if piece.rank == rank]
        exact = sum((p.stop_row - p.first_row) * (p.stop_column - p.first_column) for p in pieces)
        padding = sum({p.stop_column - p.first_column for p in pieces})
        assert exact < values <= exact + 2 * padding
