"""What a user is told of a placement: the table printed at the start, and the refusal of what does not fit."""

from collections.abc import Sequence

from data.errors import InputError
from trainer.placed_tables import VALUE_BYTES, Piece, Placement, TableShape, local_sizes


def render(
    placement: Placement,
    batch: int | Sequence[int],
    *,
    training: bool,
    id_bytes: int = VALUE_BYTES,
    value_bytes: int = VALUE_BYTES,
) -> str:
    """Lines of text: the tables and where each is, then the ranks with what each holds and hands to alltoall in a step.

    MiB are of weights with optimizer slots: a table's of one copy, or of all its pieces; a rank's of all that it holds.

    Args:
      placement: the tables.
      batch, training, id_bytes, value_bytes: as for Placement.wire_bytes.
    """
    pieces: dict[str, list[Piece]] = {table.name: [] for table in placement.tables}
    for piece in placement.pieces:
        pieces[piece.table].append(piece)
    tables = [
        (
            table.name,
            f"{table.rows:,}",
            str(table.dim),
            _mib(_bytes(table, pieces[table.name])),
            _ranks(table, pieces[table.name]),
        )
        for table in placement.tables
    ]
    lines = _columns([("table", "rows", "dimension", "MiB", "ranks"), *tables], "<>>><")
    ranks = [
        (
            str(rank),
            _mib(placement.table_bytes(rank)),
            f"{placement.wire_bytes(rank, batch, id_bytes=id_bytes, value_bytes=value_bytes, training=training):,}",
        )
        for rank in range(placement.world_size)
    ]
    return "\n".join(lines + _columns([("rank", "MiB of tables", "alltoall bytes a step"), *ranks], ">>>"))


def check_memory(
    placement: Placement,
    *,
    ranks: Sequence[int],
    batch_size: int,
    available_bytes: int | None,
    source: str,
    training: bool = True,
    id_bytes: int = VALUE_BYTES,
) -> None:
    """Refuses tables or batches that a machine cannot hold, before any of it is allocated.

    Counts tables with their slots, and a batch's ids and pooled vectors (Placement.batch_bytes), of all ranks of the
    machine: what passes may still not fit, what is refused cannot.

    Args:
      placement: the tables.
      ranks: those of this machine.
      batch_size: rows of the global batch.
      available_bytes: what the machine has left for them; None where it is not known, and then nothing is refused.
      source: where the sizes of the tables come from, for the message.
      training, id_bytes: as for Placement.batch_bytes.

    Raises:
      InputError: the message has both amounts and names the table with the largest share.
    """
    if available_bytes is None:
        return
    needed = sum(
        placement.table_bytes(rank) + placement.batch_bytes(rank, batch_size, training=training, id_bytes=id_bytes)
        for rank in ranks
    )
    if needed <= available_bytes:
        return
    held = {table.name: 0 for table in placement.tables}
    for rank in ranks:
        for name, size in placement.table_bytes_by_table(rank).items():
            held[name] += size
    rows = sum(local_sizes(batch_size, placement.world_size)[rank] for rank in ranks)
    # Ids and vectors of these ranks' own rows alone: enough to tell which table is to blame.
    largest = max(
        placement.tables, key=lambda table: held[table.name] + VALUE_BYTES * rows * (table.hotness + table.dim)
    )
    here = f"the {len(ranks)} ranks" if len(ranks) > 1 else "the rank"
    raise InputError(
        f"{source}: tables and batches need at least {_gib(needed)} GiB on {here} of this machine, where "
        f"{_gib(available_bytes)} GiB are available; the largest share is that of table '{largest.name}' of feature "
        f"'{largest.feature}' (cardinality {largest.rows}, dimension {largest.dim}, max_hotness {largest.hotness}; "
        f"{_gib(held[largest.name])} GiB here with optimizer state): lower one of these or the batch size, "
        + _remedy(placement, ranks, largest)
    )


def _remedy(placement: Placement, ranks: Sequence[int], largest: TableShape) -> str:
    """What else helps, by flags: tables on every rank take less room on fewer ranks, others on more machines."""
    if placement.is_replicated and len(ranks) > 1:
        return "start fewer ranks on this machine, or hold each table once with --embedding_parallelism=model"
    if placement.is_replicated:
        return "or spread the tables over ranks of more machines with --embedding_parallelism=model"
    more = "or spread the tables over ranks of more machines"
    if any(piece.rows < largest.rows for piece in placement.pieces if piece.table == largest.name):
        return more
    # Any threshold below its size makes every rank hold a part.
    return f"{more}, with --row_slice_threshold below {largest.weights} to cut this one"


def _bytes(table: TableShape, pieces: Sequence[Piece]) -> int:
    if not pieces:
        return table.held_bytes(table.rows, table.dim)
    return sum(table.held_bytes(piece.rows, piece.columns) for piece in pieces)


def _ranks(table: TableShape, pieces: Sequence[Piece]) -> str:
    """Such as "all", "3", "0-3 by rows" or "0,2 by columns"."""
    if not pieces:
        return "all"
    runs: list[list[int]] = []
    for rank in sorted(piece.rank for piece in pieces):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    text = ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
    if len(pieces) == 1:
        return text
    return f"{text} by rows" if pieces[0].rows < table.rows else f"{text} by columns"


def _columns(rows: Sequence[tuple[str, ...]], alignment: str) -> list[str]:
    """The cells below each other, each column as wide as its widest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(row, alignment, widths, strict=True)).rstrip()
        for row in rows
    ]


def _mib(size: int) -> str:
    return f"{size / 2**20:,.1f}"


def _gib(size: int) -> str:
    return f"{size / 2**30:,.1f}"
