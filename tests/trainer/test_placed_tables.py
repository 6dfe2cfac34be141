"""What placements cost: by hand, and counted row by row."""

import placement_cases as cases
import pytest

from trainer.placed_tables import Piece, Placement, local_sizes
from trainer.placement import plan

SEEDS = range(60)


@pytest.fixture
def placement():
    """Feature a on rank 0, b cut by rows on ranks 0 and 1, c by columns on 1 and 2, d on all."""
    tables = (
        cases.table("deep/a", feature="a", rows=10, hotness=2, slots_per_weight=1, slots_per_row=1),
        cases.table("deep/b", feature="b", rows=6, slots_per_weight=1, slots_per_row=1),
        cases.table("deep/c", feature="c", rows=8, dim=6, hotness=5, slots_per_weight=1, slots_per_row=1),
        cases.table("deep/d", feature="d", rows=3, dim=2),
        cases.table("wide/a", feature="a", group="wide", rows=10, dim=1, hotness=2, summed=True, slots_per_weight=2),
        cases.table("wide/b", feature="b", group="wide", rows=6, dim=1, summed=True, slots_per_weight=2),
        cases.table("wide/c", feature="c", group="wide", rows=8, dim=1, hotness=5, summed=True, slots_per_weight=2),
    )
    pieces = (
        Piece("deep/a", 0, 0, 10, 0, 4),
        Piece("deep/b", 1, 0, 2, 0, 4),
        Piece("deep/b", 0, 2, 6, 0, 4),
        Piece("deep/c", 1, 0, 8, 0, 2),
        Piece("deep/c", 2, 0, 8, 2, 6),
        Piece("wide/a", 0, 0, 10, 0, 1),
        Piece("wide/b", 0, 0, 6, 0, 1),
        Piece("wide/c", 2, 0, 8, 0, 1),
    )
    return Placement(3, tables, frozenset({"deep/d"}), pieces)


def test_pieces_of_a_rank(placement):
    assert [piece.table for piece in placement.of_rank(0)] == ["deep/a", "deep/b", "wide/a", "wide/b"]
    assert [piece.table for piece in placement.of_rank(1)] == ["deep/b", "deep/c"]
    assert placement.of_rank(2) == (placement.pieces[4], placement.pieces[7])


def test_table_bytes(placement):
    everywhere = 3 * 2
    rank_0 = everywhere + 10 * (2 * 4 + 1) + 4 * (2 * 4 + 1) + 3 * 10 + 3 * 6
    rank_1 = everywhere + 2 * (2 * 4 + 1) + 8 * (2 * 2 + 1)
    rank_2 = everywhere + 8 * (2 * 4 + 1) + 3 * 8
    assert [placement.table_bytes(rank) for rank in range(3)] == [4 * rank_0, 4 * rank_1, 4 * rank_2]


def test_batch_bytes(placement):
    # 5 rows: 1, 2 and 2. Own rows: 2 + 1 + 5 + 1 ids, vectors of 4 + 4 + 6 + 2 and 1 for the wide part.
    ids, width = 9, 17
    # Rank 0 is sent a and b, rank 1 b and c, rank 2 c, whose wide table takes no more ids.
    asked = [3, 6, 5]
    answered = [4 + 4 + 1, 4 + 2, 4 + 1]
    for rank, own in enumerate((1, 2, 2)):
        without_gradients = own * (ids + width) + 5 * (asked[rank] + answered[rank])
        gradients = own * width + 5 * answered[rank]
        assert placement.batch_bytes(rank, 5, training=False) == 4 * without_gradients
        assert placement.batch_bytes(rank, 5) == 4 * (without_gradients + gradients)
        more_for_ids = 4 * (own * ids + 5 * asked[rank])
        assert placement.batch_bytes(rank, 5, id_bytes=8) == placement.batch_bytes(rank, 5) + more_for_ids


def test_wire_bytes(placement):
    asked, answered = [3, 6, 5], [9, 6, 5]
    sizes = (2, 0, 4)
    for rank, own in enumerate(sizes):
        ids = own * (14 - asked[rank])
        vectors = (6 - own) * answered[rank]
        gradients = own * (20 - answered[rank])
        assert placement.wire_bytes(rank, sizes, training=False) == 4 * (ids + vectors)
        assert placement.wire_bytes(rank, sizes, training=True) == 4 * (ids + vectors + gradients)
        half = placement.wire_bytes(rank, sizes, id_bytes=8, value_bytes=2, training=True)
        assert half == 8 * ids + 2 * (vectors + gradients)
    assert placement.wire_bytes(1, 5, training=True) == placement.wire_bytes(1, (1, 2, 2), training=True)
    with pytest.raises(ValueError, match="2 local batch sizes for 3 ranks"):
        placement.wire_bytes(0, (1, 2), training=True)


def counted_wire_bytes(placement, rank, sizes, id_bytes, value_bytes, training):
    """The same, one message for every row of every rank to or from every owner."""
    total = 0
    tables = {table.name: table for table in placement.tables}
    for requester, rows in enumerate(sizes):
        for owner in range(len(sizes)):
            for _ in range(rows):
                if requester == owner:
                    continue
                held = [(tables[p.table], p) for p in placement.pieces if p.rank == owner]
                ids = {(table.feature, column) for table, _ in held for column in range(table.hotness)}
                values = set()
                for table, piece in held:
                    for column in range(piece.first_column, piece.stop_column):
                        values.add((table.group if table.summed else table.name, column))
                if rank == requester:
                    total += id_bytes * len(ids) + (value_bytes * len(values) if training else 0)
                if rank == owner:
                    total += value_bytes * len(values)
    return total


@pytest.mark.parametrize("seed", SEEDS)
def test_wire_bytes_as_counted_row_by_row(seed):
    tables, arguments = cases.random_case(seed)
    placement = plan(tables, **arguments)
    sizes = [(seed + 3 * rank) % 4 for rank in range(placement.world_size)]
    for training, id_bytes, value_bytes in ((True, 4, 4), (True, 4, 2), (False, 8, 4)):
        for rank in range(placement.world_size):
            assert placement.wire_bytes(
                rank, sizes, id_bytes=id_bytes, value_bytes=value_bytes, training=training
            ) == counted_wire_bytes(placement, rank, sizes, id_bytes, value_bytes, training)


@pytest.mark.parametrize("seed", SEEDS)
def test_weights_of_all_ranks_are_those_of_the_tables(seed):
    tables, arguments = cases.random_case(seed)
    bare = [cases.table(t.name, rows=t.rows, dim=t.dim, feature=t.feature, hotness=t.hotness) for t in tables]
    placement = plan(bare, **arguments)
    once = sum(4 * t.weights for t in bare if t.name not in placement.replicated)
    everywhere = sum(4 * t.weights for t in bare if t.name in placement.replicated)
    total = sum(placement.table_bytes(rank) for rank in range(placement.world_size))
    assert total == once + placement.world_size * everywhere


def test_nothing_travels_of_what_every_rank_has():
    tables = cases.wide_and_deep([5, 6], [4, 4], [1, 2])
    placement = plan(tables, world_size=2, parallelism="data", global_batch_size=8)
    assert placement.wire_bytes(0, 8, training=True) == placement.wire_bytes(1, (4, 4), training=False) == 0
    assert placement.table_bytes(0) == placement.table_bytes(1) == 4 * 11 * (2 * 4 + 1 + 3)
    assert placement.batch_bytes(0, 9, training=False) == 4 * 4 * (1 + 2 + 4 + 4 + 1)


@pytest.mark.parametrize(("batch", "ranks", "sizes"), [(7, 3, (2, 2, 3)), (6, 3, (2, 2, 2)), (1, 4, (0, 0, 0, 1))])
def test_local_sizes(batch, ranks, sizes):
    assert local_sizes(batch, ranks) == sizes
