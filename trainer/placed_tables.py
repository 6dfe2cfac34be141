"""What is where: rectangles of embedding tables on ranks, and what they cost in memory and on the wire."""

import dataclasses
import functools
from collections.abc import Iterable, Sequence
from itertools import pairwise

VALUE_BYTES = 4  # of a float32 weight, of a slot's value and of an int32 id in memory


@dataclasses.dataclass(frozen=True)
class TableShape:
    """What placing a table depends on.

    Attributes:
      name: unique in the model, as "deep/ad_id".
      feature: whose ids it is looked up by; tables of one feature share them on the wire.
      group: name of the model's table group; all tables of a group have one dimension.
      rows, dim: of the whole table.
      hotness: ids of the feature in a row of the batch, absent ones included.
      summed: the vectors of all tables of the group are added up, so a rank sends one for all that it holds of it.
      slots_per_weight, slots_per_row: 4-byte values of optimizer state; 0 and 0 in evaluation.
      couples_columns: updating a row needs all its columns in one place.
    """

    name: str
    feature: str
    group: str
    rows: int
    dim: int
    hotness: int
    summed: bool
    slots_per_weight: int
    slots_per_row: int
    couples_columns: bool = False

    @property
    def weights(self) -> int:
        return self.rows * self.dim

    def held_bytes(self, rows: int, columns: int) -> int:
        """Weights and slots of a rectangle. Slices by columns have the slots of their rows each."""
        return VALUE_BYTES * rows * (columns * (1 + self.slots_per_weight) + self.slots_per_row)

    def lookup_values(self, columns: int) -> int:
        """Values read and written when a row of the batch is looked up in some columns."""
        return (self.hotness + 1) * columns


@dataclasses.dataclass(frozen=True)
class Piece:
    """A rectangle of a table on one rank: rows `first_row` .. `stop_row` - 1, and columns likewise."""

    table: str
    rank: int
    first_row: int
    stop_row: int
    first_column: int
    stop_column: int

    @property
    def rows(self) -> int:
        return self.stop_row - self.first_row

    @property
    def columns(self) -> int:
        return self.stop_column - self.first_column


@dataclasses.dataclass(frozen=True)
class Placement:
    """Where every table is.

    Attributes:
      world_size: ranks.
      tables: in the order of the model.
      replicated: names of the tables that every rank has.
      pieces: all the others cover, each value once and no table twice on a rank; by table, row, column.
    """

    world_size: int
    tables: tuple[TableShape, ...]
    replicated: frozenset[str]
    pieces: tuple[Piece, ...]

    @property
    def is_replicated(self) -> bool:
        """Whether every rank has every table."""
        return not self.pieces

    def table(self, name: str) -> TableShape:
        return self._by_name[name]

    def of_rank(self, rank: int) -> tuple[Piece, ...]:
        """What one rank alone has, by table in the order of the model, then by row and column."""
        return self._by_rank[rank]

    def table_bytes(self, rank: int) -> int:
        """Weights and optimizer slots that a rank holds, replicated ones included."""
        return sum(self.table_bytes_by_table(rank).values())

    def table_bytes_by_table(self, rank: int) -> dict[str, int]:
        """`table_bytes` by table; tables of which the rank has nothing are left out."""
        found = {t.name: t.held_bytes(t.rows, t.dim) for t in self.tables if t.name in self.replicated}
        for piece in self.of_rank(rank):
            found[piece.table] = self.table(piece.table).held_bytes(piece.rows, piece.columns)
        return found

    def batch_bytes(self, rank: int, batch_size: int, *, training: bool = True, id_bytes: int = VALUE_BYTES) -> int:
        """Memory that the ids and pooled vectors of a batch take on a rank, in float32.

        Counted are those of its own rows, for all tables; for what the rank alone has, those of the global batch; and
        in training the gradients of all these vectors. Not counted are looked-up rows before they are pooled, which
        need not all exist at one time.

        Args:
          rank: of the ranks.
          batch_size: rows of the global batch.
          training: whether gradients of the vectors exist.
          id_bytes: bytes of an id.
        """
        own_rows = local_sizes(batch_size, self.world_size)[rank]
        hotness = {table.feature: table.hotness for table in self.tables}
        width = _width((table, table.dim) for table in self.tables)
        ids = own_rows * sum(hotness.values()) + batch_size * self._ids[rank]
        vectors = own_rows * width + batch_size * self._widths[rank]
        return id_bytes * ids + VALUE_BYTES * vectors * (2 if training else 1)

    def wire_bytes(
        self,
        rank: int,
        batch: int | Sequence[int],
        *,
        id_bytes: int = VALUE_BYTES,
        value_bytes: int = VALUE_BYTES,
        training: bool,
    ) -> int:
        """Bytes that a rank hands to alltoall in a step, without the part to itself.

        They are the ids of its own rows to the owners, the vectors of the others' rows to them and, in training, the
        gradients of the vectors it got to the owners.

        Args:
          rank: of the ranks.
          batch: rows of each rank, or of the global batch, divided as evenly as goes.
          id_bytes, value_bytes: bytes of an id and of a value of a vector on the wire.
          training: whether gradients travel.
        """
        sizes = local_sizes(batch, self.world_size) if isinstance(batch, int) else tuple(batch)
        if len(sizes) != self.world_size:
            raise ValueError(f"{len(sizes)} local batch sizes for {self.world_size} ranks: {sizes}")
        own_rows, other_rows = sizes[rank], sum(sizes) - sizes[rank]
        ids = own_rows * (sum(self._ids) - self._ids[rank])
        vectors = other_rows * self._widths[rank]
        gradients = own_rows * (sum(self._widths) - self._widths[rank]) if training else 0
        return id_bytes * ids + value_bytes * (vectors + gradients)

    @functools.cached_property
    def _by_name(self) -> dict[str, TableShape]:
        return {table.name: table for table in self.tables}

    @functools.cached_property
    def _by_rank(self) -> list[tuple[Piece, ...]]:
        pieces: list[list[Piece]] = [[] for _ in range(self.world_size)]
        for piece in self.pieces:
            pieces[piece.rank].append(piece)
        return [tuple(those) for those in pieces]

    @functools.cached_property
    def _ids(self) -> list[int]:
        """For each rank the ids that it is sent for a row of the batch: once for a feature, whatever it has of it."""
        return [
            sum({(t := self.table(piece.table)).feature: t.hotness for piece in pieces}.values())
            for pieces in self._by_rank
        ]

    @functools.cached_property
    def _widths(self) -> list[int]:
        """For each rank the values that it sends back for a row of the batch."""
        return [_width((self.table(piece.table), piece.columns) for piece in pieces) for pieces in self._by_rank]


def local_sizes(batch_size: int, world_size: int) -> tuple[int, ...]:
    """Rows of a global batch on each rank, as evenly as goes."""
    return tuple(stop - start for start, stop in even_ranges(batch_size, world_size))


def even_ranges(total: int, parts: int) -> list[tuple[int, int]]:
    """(start, stop) of adjacent parts of 0 .. total - 1 whose sizes differ by one at most."""
    bounds = [part * total // parts for part in range(parts + 1)]
    return list(pairwise(bounds))


def _width(parts: Iterable[tuple[TableShape, int]]) -> int:
    """Values of the pooled vectors of some columns of tables; a summed group has one vector."""
    width, summed = 0, {}
    for table, columns in parts:
        if table.summed:
            summed[table.group] = columns
        else:
            width += columns
    return width + sum(summed.values())
