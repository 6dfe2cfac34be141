"""Bytes of the two ways to sum gradients of tables, by hand."""

from trainer.wire_costs import allreduced_bytes, choose_method, gathered_bytes


def test_bytes():
    assert gathered_bytes(ids_per_rank=10, dim=3, world_size=4) == 3 * 10 * (3 * 4 + 4)
    assert gathered_bytes(ids_per_rank=10, dim=3, world_size=4, value_bytes=2) == 3 * 10 * (3 * 2 + 4)
    assert allreduced_bytes(table_rows=10, dim=3, world_size=4) == 2 * 90
    assert allreduced_bytes(table_rows=10, dim=3, world_size=4, value_bytes=2) == 90


def test_the_cheaper_is_chosen_and_gathering_where_they_are_equal():
    # Two ranks: 10 ids with rows of 3 values are 160 bytes, a table of r rows 12 r.
    assert choose_method(ids_per_rank=10, table_rows=14, dim=3, world_size=2) == "gather"
    assert choose_method(ids_per_rank=10, table_rows=13, dim=3, world_size=2) == "allreduce"
    assert choose_method(ids_per_rank=3, table_rows=4, dim=3, world_size=2) == "gather"
