"""Bytes that a rank receives when the gradients of a table are summed over ranks, by each of two methods."""


def gathered_bytes(*, ids_per_rank: int, dim: int, world_size: int, value_bytes: int = 4) -> float:
    """Of gathering: (n - 1) lists of at most `ids_per_rank` distinct rows with their 4-byte ids."""
    return (world_size - 1) * ids_per_rank * (dim * value_bytes + 4)


def allreduced_bytes(*, table_rows: int, dim: int, world_size: int, value_bytes: int = 4) -> float:
    """Of a ring allreduce: 2 (n - 1) / n times the table."""
    return 2 * (world_size - 1) / world_size * table_rows * dim * value_bytes


def choose_method(*, ids_per_rank: int, table_rows: int, dim: int, world_size: int, value_bytes: int = 4) -> str:
    """Whether to "gather" the touched rows of every rank or to "allreduce" the table, by the bytes a rank receives.

    Args:
      ids_per_rank: looked-up ids in a rank's batch; repeated ids, of which we know nothing before, are not deducted.
      table_rows, dim: shape of the table.
      world_size: n.
      value_bytes: bytes of one value on the wire.
    """
    gathered = gathered_bytes(ids_per_rank=ids_per_rank, dim=dim, world_size=world_size, value_bytes=value_bytes)
    reduced = allreduced_bytes(table_rows=table_rows, dim=dim, world_size=world_size, value_bytes=value_bytes)
    return "gather" if gathered <= reduced else "allreduce"
