"""Plans: small ones worked by hand, and what must hold for any."""

import copy

import placement_cases as cases
import pytest

from trainer.placed_tables import Piece
from trainer.placement import plan, step_bytes

SEEDS = range(150)


def model_plan(tables, *, world_size, **other):
    arguments = {"global_batch_size": 1, "data_parallel_threshold": 0, **other}
    return plan(tables, world_size=world_size, parallelism="model", **arguments)


def ranks(placement):
    """Table -> ranks of its pieces, in the order of the pieces."""
    found = {}
    for piece in placement.pieces:
        found.setdefault(piece.table, []).append(piece.rank)
    return found


def rectangles(placement, name):
    return [
        (piece.first_row, piece.stop_row, piece.first_column, piece.stop_column)
        for piece in placement.pieces
        if piece.table == name
    ]


# By hand.


@pytest.mark.parametrize(("world_size", "parallelism"), [(1, "model"), (1, "auto"), (1, "data"), (3, "data")])
def test_every_rank_has_every_table(world_size, parallelism):
    tables = cases.wide_and_deep([1000, 5], [8, 8], [1, 2])
    thresholds = {"row_slice_threshold": 1, "column_slice_threshold": 1, "data_parallel_threshold": 0}
    placement = plan(tables, world_size=world_size, parallelism=parallelism, global_batch_size=4, **thresholds)
    assert placement.is_replicated and placement.pieces == ()
    assert placement.replicated == {table.name for table in tables} and placement.tables == tuple(tables)


def test_the_largest_goes_first_and_each_to_the_least_loaded():
    sizes = {"a": 10, "b": 60, "c": 30, "d": 30, "e": 40}
    placement = model_plan([cases.table(name, rows=rows) for name, rows in sizes.items()], world_size=2)
    # Lookups are alike, so a table's load is rows / 170 + 1 / 5, or in hundredths: 26, 55, 38, 38, 44.
    # b to 0; e to 1 (44); c to 1 (82); d to 0 (93); a to 1.
    assert ranks(placement) == {"a": [1], "b": [0], "c": [1], "d": [0], "e": [1]}
    assert not placement.is_replicated and placement.replicated == frozenset()


def test_lookups_count_as_much_as_memory():
    by_memory = [cases.table(name, rows=rows, hotness=1) for name, rows in (("a", 30), ("b", 30), ("c", 30), ("d", 30))]
    assert ranks(model_plan(by_memory, world_size=2)) == {"a": [0], "b": [1], "c": [0], "d": [1]}
    # a's 47 x 4 of 212 values a row and a quarter of the memory are more than what the rest has together.
    busy = [cases.table("a", rows=30, hotness=46), *by_memory[1:]]
    assert ranks(model_plan(busy, world_size=2)) == {"a": [0], "b": [1], "c": [1], "d": [1]}


def test_writing_the_vector_counts_as_a_read():
    # a: 6 of 12 and a quarter of the memory; the others 2 of 12 and a quarter: 75, 42, 42, 42 in hundredths.
    tables = [cases.table(name, rows=30, hotness=hotness) for name, hotness in (("a", 5), ("b", 1), ("c", 1), ("d", 1))]
    assert ranks(model_plan(tables, world_size=2)) == {"a": [0], "b": [1], "c": [1], "d": [0]}
    # Reads alone would give a 5 of 8, 88, and the others 38: d would go to rank 1.


def test_optimizer_slots_count_as_memory():
    tables = [cases.table("a", rows=30), cases.table("b", rows=30), cases.table("c", rows=30, slots_per_weight=9)]
    assert ranks(model_plan(tables, world_size=2)) == {"a": [1], "b": [1], "c": [0]}


def test_tables_of_a_feature_stay_together():
    placement = model_plan(cases.wide_and_deep([100, 90, 80], [4, 4, 4], [1, 1, 1]), world_size=3)
    assert ranks(placement) == {f"{part}/f{index}": [index] for part in ("deep", "wide") for index in range(3)}


def test_fewer_tables_than_ranks_leave_ranks_without():
    placement = model_plan([cases.table("a"), cases.table("b")], world_size=4)
    assert [len(placement.of_rank(rank)) for rank in range(4)] == [1, 1, 0, 0]


def test_a_large_table_is_cut_by_rows_one_range_a_rank():
    tables = [cases.table("a", rows=11, dim=4), cases.table("b", rows=10, dim=4)]
    placement = model_plan(tables, world_size=4, row_slice_threshold=40)
    assert rectangles(placement, "a") == [(0, 2, 0, 4), (2, 5, 0, 4), (5, 8, 0, 4), (8, 11, 0, 4)]
    assert sorted(ranks(placement)["a"]) == [0, 1, 2, 3]
    assert rectangles(placement, "b") == [(0, 10, 0, 4)]  # Not more than the threshold.


def test_a_table_of_few_rows_has_as_many_ranges():
    placement = model_plan([cases.table("a", rows=2, dim=64)], world_size=4, row_slice_threshold=100)
    assert rectangles(placement, "a") == [(0, 1, 0, 64), (1, 2, 0, 64)]
    placement = model_plan([cases.table("a", rows=1, dim=64)], world_size=4, row_slice_threshold=10)
    assert rectangles(placement, "a") == [(0, 1, 0, 64)]


@pytest.mark.parametrize(
    ("threshold", "columns"),
    [
        (70, [(0, 7)]),
        (69, [(0, 3), (3, 7)]),
        (40, [(0, 3), (3, 7)]),
        (39, [(0, 2), (2, 4), (4, 7)]),
        (29, [(0, 1), (1, 3), (3, 5), (5, 7)]),
        (1, [(0, 1), (1, 3), (3, 5), (5, 7)]),  # No more than ranks, whatever the threshold.
    ],
)
def test_a_large_table_is_cut_into_the_fewest_columns(threshold, columns):
    placement = model_plan([cases.table("a", rows=10, dim=7)], world_size=4, column_slice_threshold=threshold)
    assert rectangles(placement, "a") == [(0, 10, *bounds) for bounds in columns]
    assert len(set(ranks(placement)["a"])) == len(columns)


def test_no_more_slices_than_columns():
    placement = model_plan([cases.table("a", rows=10, dim=2)], world_size=4, column_slice_threshold=0)
    assert rectangles(placement, "a") == [(0, 10, 0, 1), (0, 10, 1, 2)]


def test_rows_before_columns():
    placement = model_plan(
        [cases.table("a", rows=20), cases.table("b", rows=10)],
        world_size=2,
        row_slice_threshold=40,
        column_slice_threshold=30,
    )
    assert rectangles(placement, "a") == [(0, 10, 0, 4), (10, 20, 0, 4)]
    assert rectangles(placement, "b") == [(0, 10, 0, 2), (0, 10, 2, 4)]


@pytest.mark.parametrize("whole", [{"couples_columns": True}, {"summed": True}])
def test_what_needs_whole_rows_is_not_cut_by_columns(whole):
    placement = model_plan([cases.table("a", **whole)], world_size=2, column_slice_threshold=1)
    assert rectangles(placement, "a") == [(0, 10, 0, 4)]
    placement = model_plan([cases.table("a", **whole)], world_size=2, row_slice_threshold=1, column_slice_threshold=1)
    assert rectangles(placement, "a") == [(0, 5, 0, 4), (5, 10, 0, 4)]


def test_a_cut_table_does_not_move_the_feature_s_other_tables():
    tables = cases.wide_and_deep([100, 30], [8, 8], [1, 1])
    placement = model_plan(tables, world_size=2, row_slice_threshold=700, data_parallel_threshold=100)
    assert len(ranks(placement)["deep/f0"]) == 2
    assert "wide/f0" in placement.replicated  # 100 weights of itself
    assert ranks(placement)["deep/f1"] == ranks(placement)["wide/f1"]  # 270 together
    smaller = model_plan(tables, world_size=2, row_slice_threshold=700, data_parallel_threshold=99)
    assert len(ranks(smaller)["wide/f0"]) == 1


def test_small_features_are_replicated_by_what_their_tables_have_together():
    tables = cases.wide_and_deep([10, 11], [4, 4], [1, 1])
    assert model_plan(tables, world_size=2, data_parallel_threshold=50).replicated == {"deep/f0", "wide/f0"}
    assert model_plan(tables, world_size=2, data_parallel_threshold=49).replicated == frozenset()


def test_small_is_where_an_allreduce_sends_no_more_than_an_exchange():
    # 3 ranks, 8 x 4 weights of 4 bytes: an allreduce sends 2 x 2/3 x 128 bytes. For a row, 2 ids of 4 bytes, a vector
    # and a gradient of 16 each: 40 bytes, which 2/3 of the rows of a rank (a third of the batch) send.
    allreduced = 2 * 2 / 3 * 128
    equal = allreduced / (2 / 3 * 40) * 3
    assert equal == pytest.approx(19.2)
    tables = [cases.table("a", rows=8, hotness=2)]
    assert model_plan(tables, world_size=3, global_batch_size=20, data_parallel_threshold=None).is_replicated
    assert not model_plan(tables, world_size=3, global_batch_size=19, data_parallel_threshold=None).is_replicated
    # The same in half precision, 24 bytes a row against half of the above, and with long ids, 48 bytes.
    half = {"data_parallel_threshold": None, "value_bytes": 2}
    assert model_plan(tables, world_size=3, global_batch_size=16, **half).is_replicated
    assert not model_plan(tables, world_size=3, global_batch_size=15, **half).is_replicated
    long = {"data_parallel_threshold": None, "id_bytes": 8}
    assert model_plan(tables, world_size=3, global_batch_size=16, **long).is_replicated
    assert not model_plan(tables, world_size=3, global_batch_size=15, **long).is_replicated


def test_summed_vectors_are_not_charged_to_each_table():
    # 9 weights on 2 ranks: 36 bytes. For a row, an id and the deep table's vector and gradient: 12 bytes. So 12 rows.
    tables = [
        cases.table("deep", rows=3, dim=1, feature="f"),
        cases.table("wide", rows=6, dim=1, feature="f", group="wide", summed=True),
    ]
    assert model_plan(tables, world_size=2, global_batch_size=12, data_parallel_threshold=None).is_replicated
    assert not model_plan(tables, world_size=2, global_batch_size=11, data_parallel_threshold=None).is_replicated


def test_pieces_are_by_table_in_the_order_of_the_model_then_by_row_and_column():
    tables = [cases.table("z", rows=9), cases.table("a", rows=90), cases.table("m", rows=30)]
    placement = model_plan(tables, world_size=3, row_slice_threshold=200, column_slice_threshold=100)
    assert [piece.table for piece in placement.pieces] == ["z", "a", "a", "a", "m", "m"]
    for rank in range(3):
        held = placement.of_rank(rank)
        assert held == tuple(piece for piece in placement.pieces if piece.rank == rank)


# Auto.


def test_auto_takes_what_moves_fewer_bytes():
    tables = [cases.table("a", rows=1000), cases.table("b", rows=1000)]
    arguments = {"world_size": 2, "data_parallel_threshold": 0}
    model = plan(tables, parallelism="model", global_batch_size=100, **arguments)
    data = plan(tables, parallelism="data", global_batch_size=100, **arguments)
    # Each rank: 50 ids out and 50 vectors back and 50 gradients out, against 2 x 50 gathered rows with their ids.
    assert step_bytes(model, global_batch_size=100) == 50 * (4 + 16 + 16)
    assert step_bytes(data, global_batch_size=100) == 2 * 50 * (16 + 4)
    assert plan(tables, parallelism="auto", global_batch_size=100, **arguments) == model
    # With a large batch, allreducing 2000 rows is cheaper than both.
    large = plan(tables, parallelism="auto", global_batch_size=100_000, **arguments)
    assert step_bytes(data, global_batch_size=100_000) == 2000 * 16
    assert large.is_replicated
    # Equal bytes, 75 rows of 12 for the exchange and 225 weights of 4 for an allreduce: as "data".
    tie = [cases.table("a", rows=112, dim=1), cases.table("b", rows=113, dim=1)]
    batch = {"global_batch_size": 150}
    assert step_bytes(plan(tie, parallelism="model", **arguments, **batch), **batch) == 75 * 12 == 225 * 4
    assert plan(tie, parallelism="auto", **arguments, **batch).is_replicated


def test_auto_is_model_where_data_does_not_fit():
    tables = [cases.table("a", rows=1000), cases.table("b", rows=1000)]
    arguments = {"world_size": 2, "parallelism": "auto", "global_batch_size": 100_000, "data_parallel_threshold": 0}
    # Both tables, and of 50,000 rows two ids, two vectors and their gradients.
    needed = 2 * 1000 * 16 + 50_000 * (2 * 4 + 2 * 2 * 16)
    assert plan(tables, memory_bytes_per_rank=needed, **arguments).is_replicated
    assert not plan(tables, memory_bytes_per_rank=needed - 1, **arguments).is_replicated


def test_the_cost_of_replicated_tables_is_by_group():
    tables = [cases.table("a", rows=10), cases.table("b", rows=1000), cases.table("c", rows=1, dim=2)]
    data = plan(tables, world_size=2, parallelism="data", global_batch_size=100)
    # One method for a and b, the cheaper one for the 1010 rows of both; c has a group of its own.
    assert step_bytes(data, global_batch_size=100) == 2 * 50 * (16 + 4) + 1 * 2 * 4
    assert step_bytes(data, global_batch_size=100, value_bytes=2) == 2 * 50 * (8 + 4) + 1 * 2 * 2


# Of any plan.


@pytest.mark.parametrize("seed", SEEDS)
def test_pieces_cover_each_table_once_on_different_ranks(seed):
    tables, arguments = cases.random_case(seed)
    placement = plan(tables, **arguments)
    covered = {table.name: [0] * table.weights for table in tables}
    for piece in placement.pieces:
        table = placement.table(piece.table)
        assert 0 <= piece.rank < arguments["world_size"]
        for row in range(piece.first_row, piece.stop_row):
            for column in range(piece.first_column, piece.stop_column):
                covered[piece.table][row * table.dim + column] += 1
    for table in tables:
        expected = 0 if table.name in placement.replicated else 1
        assert covered[table.name] == [expected] * table.weights
    for held in ranks(placement).values():
        assert len(set(held)) == len(held)


@pytest.mark.parametrize("seed", SEEDS)
def test_thresholds_are_kept(seed):
    tables, arguments = cases.random_case(seed)
    placement = plan(tables, **arguments)
    size = arguments["world_size"]
    for table in tables:
        held = rectangles(placement, table.name)
        by_rows = arguments["row_slice_threshold"]
        by_columns = arguments["column_slice_threshold"]
        if by_rows is not None and table.weights > by_rows and table.rows > 1:
            assert len(held) == min(size, table.rows)
            assert all((first, stop) == (0, table.dim) for _, _, first, stop in held)
        elif by_columns is not None and table.weights > by_columns and not (table.couples_columns or table.dim == 1):
            largest = max(stop - first for _, _, first, stop in held) * table.rows
            assert largest <= by_columns or len(held) == min(size, table.dim)
        else:
            assert held in ([], [(0, table.rows, 0, table.dim)])


def loads_of(tables, placement):
    """Load of each rank, and the largest of what was placed at once, each the sum of two shares."""
    by_name = {table.name: table for table in tables}
    units = {}
    for piece in placement.pieces:
        table = by_name[piece.table]
        rows, columns = piece.stop_row - piece.first_row, piece.stop_column - piece.first_column
        memory = rows * columns * (1 + table.slots_per_weight) + rows * table.slots_per_row
        whole = rows * columns == table.rows * table.dim
        key = (piece.rank, table.feature) if whole else piece
        before = units.get(key, (piece.rank, 0, 0))
        units[key] = (piece.rank, before[1] + memory, before[2] + columns * (table.hotness + 1))
    all_memory = sum(memory for _, memory, _ in units.values())
    all_lookups = sum(lookups for _, _, lookups in units.values())
    loads = [0.0] * placement.world_size
    for rank, memory, lookups in units.values():
        loads[rank] += memory / all_memory + lookups / all_lookups
    return loads, max((m / all_memory + lookups / all_lookups for _, m, lookups in units.values()), default=0.0)


@pytest.mark.parametrize("seed", SEEDS)
def test_loads_are_balanced_to_the_largest_unit(seed):
    tables, arguments = cases.random_case(seed)
    loads, largest = loads_of(tables, plan(tables, **arguments))
    assert max(loads) - min(loads) <= largest + 1e-9
    assert max(loads) <= sum(loads) / len(loads) + largest + 1e-9


def test_a_plan_depends_on_its_arguments_alone():
    for seed in SEEDS:
        tables, arguments = cases.random_case(seed)
        before = copy.deepcopy(tables)
        first = plan(tables, **arguments)
        assert plan(iter(copy.deepcopy(tables)), **arguments) == first and tables == before


def test_random_cases_are_of_all_kinds():
    kinds = set()
    for seed in SEEDS:
        tables, arguments = cases.random_case(seed)
        placement = plan(tables, **arguments)
        kinds.add(
            "all replicated" if placement.is_replicated else "some replicated" if placement.replicated else "none"
        )
        for piece in placement.pieces:
            table = placement.table(piece.table)
            kinds.add("rows" if piece.rows < table.rows else "columns" if piece.columns < table.dim else "whole")
    assert kinds == {"all replicated", "some replicated", "none", "rows", "columns", "whole"}


def test_shapes_too_large_for_memory_are_planned_all_the_same():
    placement = model_plan([cases.table("a", rows=2**64), cases.table("b", rows=2**64 - 1)], world_size=2)
    assert placement.pieces == (Piece("a", 0, 0, 2**64, 0, 4), Piece("b", 1, 0, 2**64 - 1, 0, 4))


def test_ties_of_loads_that_floats_would_round_away_are_none():
    # In floats the two are the same, and the first of the model would be placed first.
    tables = [cases.table("a", rows=2**64), cases.table("b", rows=2**64 + 1), cases.table("c", rows=2**64)]
    assert ranks(model_plan(tables, world_size=3)) == {"a": [1], "b": [0], "c": [2]}


def test_nonsense_is_refused():
    with pytest.raises(ValueError, match="'row'"):
        plan([cases.table()], world_size=2, parallelism="row", global_batch_size=1)
    with pytest.raises(ValueError, match="repeat"):
        model_plan([cases.table("a"), cases.table("a")], world_size=2)
