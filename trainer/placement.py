"""Which rank is to hold which rectangle of which embedding table.

Everything here is a pure function of its arguments, and loads are compared as integers: each rank plans by itself, and
all get the same.
"""

import functools
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from trainer.placed_tables import VALUE_BYTES, Piece, Placement, TableShape, even_ranges
from trainer.wire_costs import allreduced_bytes, gathered_bytes

_Rectangle = tuple[int, int, int, int]  # first row, stop row, first column, stop column
_Part = list[tuple[TableShape, _Rectangle]]  # what goes to one rank together


def plan(
    tables: Iterable[TableShape],
    *,
    world_size: int,
    parallelism: str,
    global_batch_size: int,
    column_slice_threshold: int | None = None,
    row_slice_threshold: int | None = None,
    data_parallel_threshold: int | None = None,
    id_bytes: int = VALUE_BYTES,
    value_bytes: int = VALUE_BYTES,
    memory_bytes_per_rank: int | None = None,
) -> Placement:
    """Places tables on ranks.

    With parallelism "data", and on one rank, every rank has every table. With "model", in this order:

    1. A table of more than `row_slice_threshold` weights is cut by rows into as many ranges as there are ranks, or rows
       if those are fewer.
    2. One of more than `column_slice_threshold` weights is cut by columns into the fewest slices that are not larger
       than the threshold, at most one for a rank or column; never where updates need whole rows, or in a summed group.
    3. The other tables of a feature stay together. Every rank has them if they are small: of at most
       `data_parallel_threshold` weights in all; or, without that, if an allreduce of their gradients sends no more
       bytes than an exchange does. With n ranks, a global batch of B rows, W weights, hotness h and vectors of d values
       in all, an average rank sends 2 (n - 1) / n W v for the one, and for the other, (n - 1) / n of the time another
       rank being the owner, (n - 1) / n B / n (h i + 2 d v) for ids of i bytes, vectors and gradients of v bytes a
       value. Vectors of summed groups are left out: an owner sends one for all tables together.
    4. What is not on every rank is put on ranks by longest processing time first (Graham, 1969): the largest first,
       each on the least loaded rank, the slices of a table on different ones. A load is the sum of the shares of memory
       (weights and slots) and of lookups (values read and written for a row of the batch). Ties go by the order of the
       model and the number of the rank. No rank's load exceeds the average by more than the largest thing placed.

    With "auto": as "data" unless that, a batch included, takes more than `memory_bytes_per_rank`, or "model" moves
    fewer bytes (see `step_bytes`).

    Args:
      tables: in the order of the model, names distinct.
      world_size: ranks; some may get nothing.
      parallelism: "data", "model" or "auto".
      global_batch_size: rows of a step over all ranks.
      column_slice_threshold, row_slice_threshold, data_parallel_threshold: weights (rows x dimension), see above.
      id_bytes, value_bytes: bytes of an id and of a value of a vector or gradient on the wire.
      memory_bytes_per_rank: what a rank can hold of tables and a batch; None where it is not known.

    Raises:
      ValueError: `parallelism` is none of the three, or two tables have one name.
    """
    tables = tuple(tables)
    if parallelism not in ("data", "model", "auto"):
        raise ValueError(f"parallelism {parallelism!r} is none of data, model, auto")
    if len({table.name for table in tables}) < len(tables):
        raise ValueError(f"names of tables repeat: {[table.name for table in tables]}")
    everywhere = Placement(world_size, tables, frozenset(table.name for table in tables), ())
    if world_size == 1 or parallelism == "data":
        return everywhere
    sizes = {"global_batch_size": global_batch_size, "id_bytes": id_bytes, "value_bytes": value_bytes}
    units, replicated = _units(
        tables,
        {table.name: _cut(table, world_size, row_slice_threshold, column_slice_threshold) for table in tables},
        functools.partial(_is_small, world_size=world_size, threshold=data_parallel_threshold, **sizes),
    )
    position = {table.name: index for index, table in enumerate(tables)}
    pieces = sorted(
        _spread(units, world_size), key=lambda piece: (position[piece.table], piece.first_row, piece.first_column)
    )
    spread = Placement(world_size, tables, frozenset(replicated), tuple(pieces))
    if parallelism == "model":
        return spread
    largest_rank = world_size - 1  # of an uneven batch it has a row more
    needed = everywhere.table_bytes(largest_rank) + everywhere.batch_bytes(
        largest_rank, global_batch_size, id_bytes=id_bytes
    )
    if memory_bytes_per_rank is not None and needed > memory_bytes_per_rank:
        return spread
    return spread if step_bytes(spread, **sizes) < step_bytes(everywhere, **sizes) else everywhere


def step_bytes(
    placement: Placement, *, global_batch_size: int, id_bytes: int = VALUE_BYTES, value_bytes: int = VALUE_BYTES
) -> float:
    """Bytes that an average rank receives in a training step for the tables.

    For those that every rank has: what summing their gradients takes, a group at once as trainer.reduction does it, by
    the cheaper of its two methods. For the others: the exchange of ids, vectors and gradients.
    """
    size = placement.world_size
    total = sum(
        placement.wire_bytes(rank, global_batch_size, id_bytes=id_bytes, value_bytes=value_bytes, training=True)
        for rank in range(size)
    )
    groups: dict[str, list[TableShape]] = defaultdict(list)
    for table in placement.tables:
        if table.name in placement.replicated:
            groups[table.group].append(table)
    reduced = 0.0
    for group in groups.values():
        wire = {"dim": group[0].dim, "world_size": size, "value_bytes": value_bytes}
        ids = -(-global_batch_size // size) * sum(table.hotness for table in group)
        reduced += min(
            gathered_bytes(ids_per_rank=ids, **wire),
            allreduced_bytes(table_rows=sum(table.rows for table in group), **wire),
        )
    return total / size + reduced


def _cut(
    table: TableShape, world_size: int, row_threshold: int | None, column_threshold: int | None
) -> list[_Rectangle]:
    """The rectangles of a table, one if it stays whole."""
    if row_threshold is not None and table.weights > row_threshold and min(world_size, table.rows) > 1:
        return [(start, stop, 0, table.dim) for start, stop in even_ranges(table.rows, min(world_size, table.rows))]
    count = 1
    if column_threshold is not None and not table.couples_columns and not table.summed:
        most = min(world_size, table.dim)
        fitting = (k for k in range(1, most + 1) if table.rows * -(-table.dim // k) <= column_threshold)
        count = next(fitting, most)
    return [(0, table.rows, start, stop) for start, stop in even_ranges(table.dim, count)]


def _is_small(
    together: Sequence[TableShape],
    *,
    world_size: int,
    threshold: int | None,
    global_batch_size: int,
    id_bytes: int,
    value_bytes: int,
) -> bool:
    """Whether every rank should have these tables of a feature. The formula is that of `plan`, times n^2 / (n - 1)."""
    weights = sum(table.weights for table in together)
    if threshold is not None:
        return weights <= threshold
    vectors = sum(table.dim for table in together if not table.summed)
    row_bytes = together[0].hotness * id_bytes + 2 * vectors * value_bytes
    return 2 * world_size * weights * value_bytes <= global_batch_size * row_bytes


def _units(
    tables: Sequence[TableShape],
    cuts: Mapping[str, Sequence[_Rectangle]],
    is_small: Callable[[Sequence[TableShape]], bool],
) -> tuple[list[list[_Part]], set[str]]:
    """What is to be spread, in the order of the model, and the names of the tables that every rank has.

    A unit is parts that go to different ranks: the slices of a table, or the one part that is a feature's other tables.
    """
    units, replicated, seen = [], set(), set()
    for table in tables:
        if len(cuts[table.name]) > 1:
            units.append([[(table, rectangle)] for rectangle in cuts[table.name]])
        elif table.feature not in seen:
            seen.add(table.feature)
            together = [other for other in tables if other.feature == table.feature and len(cuts[other.name]) == 1]
            if is_small(together):
                replicated.update(other.name for other in together)
            else:
                units.append([[(other, cuts[other.name][0]) for other in together]])
    return units, replicated


def _spread(units: Sequence[Sequence[_Part]], world_size: int) -> list[Piece]:
    """Puts the parts of every unit on different ranks, by longest processing time first."""

    def memory(part: _Part) -> int:
        return sum(table.held_bytes(r[1] - r[0], r[3] - r[2]) for table, r in part)

    def lookups(part: _Part) -> int:
        return sum(table.lookup_values(r[3] - r[2]) for table, r in part)

    all_memory = sum(memory(part) for unit in units for part in unit)
    all_lookups = sum(lookups(part) for unit in units for part in unit)

    def load(part: _Part) -> int:
        # The sum of both shares, brought to one denominator: ranks must not differ by rounding.
        return memory(part) * all_lookups + lookups(part) * all_memory

    loads = [0] * world_size
    pieces = []
    for unit in sorted(units, key=lambda unit: -max(map(load, unit))):
        ranks = sorted(range(world_size), key=lambda rank: (loads[rank], rank))
        for part, rank in zip(sorted(unit, key=lambda part: -load(part)), ranks, strict=False):
            loads[rank] += load(part)
            pieces += [Piece(table.name, rank, *rectangle) for table, rectangle in part]
    return pieces
