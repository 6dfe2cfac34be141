"""Embedding tables that live on different ranks: ids go out, pooled rows come back, gradients go out again.

Each rank looks up, for the whole global batch, what it holds; so three alltoalls do a training step, whatever the
number of tables: one of ids, one of pooled rows, one of their gradients. An owner's lookups and gradients are those of
any other fused table (models.embedding), only over more rows of the batch and fewer features.

What travels for rank r is laid out by r's pieces: ids as (rows, ids of its features), vectors as (rows, width), both
flattened. Every rank knows the placement and so the layout of every other.
"""

import dataclasses
from collections.abc import Sequence

import tensorflow as tf

from models.embedding import LogicalTable
from models.table_groups import Lookup, TableGroup
from trainer.distributed import SingleProcess
from trainer.placed_tables import Piece, Placement


@dataclasses.dataclass(frozen=True)
class Wire:
    """How vectors and their gradients travel.

    Attributes:
      half: as float16.
      gradient_scale: multiplies gradients that are cast to float16 and divides what arrives; see trainer.reduction.
    """

    half: bool = False
    gradient_scale: float = 1.0

    def shrink(self, tensor: tf.Tensor, scale: float = 1.0) -> tf.Tensor:
        return tf.cast(tensor * scale, tf.float16) if self.half else tensor

    def restore(self, tensor: tf.Tensor, scale: float = 1.0) -> tf.Tensor:
        return tf.cast(tensor, tf.float32) / scale if self.half else tensor


@dataclasses.dataclass(frozen=True)
class _Block:
    """Pieces of one group and width on one rank: one fused table there, one run of columns on the wire.

    Attributes:
      group: position of the group in the model.
      tables: the pieces as their owner's fused table sees them, `column` counting in the ids that it is sent.
      dim: columns of a piece.
      width: columns of the block on the wire.
    """

    group: int
    tables: tuple[LogicalTable, ...]
    dim: int
    width: int


@dataclasses.dataclass(frozen=True)
class _Layout:
    """What one rank is sent and sends back.

    Attributes:
      id_columns: columns of the packed ids of a batch that it is sent, in this order.
      blocks: what it looks up, in the order of the wire.
    """

    id_columns: tuple[int, ...]
    blocks: tuple[_Block, ...]

    @property
    def width(self) -> int:
        return sum(block.width for block in self.blocks)


class ShardedTables:
    """The tables of a model as a placement spreads them; see models.table_groups.Tables.

    Every lookup and every gradient is a collective: all ranks must take part, whatever rows they have.
    """

    is_sharded = True

    def __init__(
        self, groups: Sequence[TableGroup], *, placement: Placement, comm: SingleProcess, wire: Wire | None = None
    ):
        """
        Args:
          groups: the tables that the model asks for.
          placement: of the same tables.
          comm: the ranks.
          wire: precision of what travels; full by default.
        """
        self.placement = placement
        self._groups = tuple(groups)
        self._comm = comm
        self._wire = wire or Wire()
        self._layouts = [_layout(self._groups, placement, rank) for rank in range(placement.world_size)]
        self._here = [
            tuple(table for table in group.tables if group.table_name(table) in placement.replicated)
            for group in self._groups
        ]
        self.replicated = tuple(group.fused(here) for group, here in zip(self._groups, self._here, strict=True) if here)
        self.sharded = tuple(
            self._groups[block.group].fused(block.tables, block.dim) for block in self._layouts[comm.rank].blocks
        )

    def lookup(self, ids: tf.Tensor) -> Lookup:
        layout = self._layouts[self._comm.rank]
        wanted = [tf.gather(ids, tf.constant(other.id_columns, tf.int32), axis=1) for other in self._layouts]
        asked = self._comm.alltoall([tf.reshape(part, (-1,)) for part in wanted], name="ids")
        if layout.blocks:
            asked_rows = [tf.reshape(part, (-1, len(layout.id_columns))) for part in asked]
            global_ids = tf.concat(asked_rows, axis=0)
            pooled = tf.concat([table(global_ids) for table in self.sharded], axis=1)
            answers = tf.split(pooled, [tf.shape(rows)[0] for rows in asked_rows])
        else:
            global_ids = ids[:0]
            answers = [tf.zeros((0, 0))] * self._comm.size
        received = self._exchange(answers, "vectors")
        found = [
            tf.split(tf.reshape(part, (tf.shape(ids)[0], other.width)), [b.width for b in other.blocks], axis=1)
            if other.blocks
            else []
            for part, other in zip(received, self._layouts, strict=True)
        ]
        local = iter([table(ids) for table in self.replicated])
        embedded = [
            self._assemble(position, next(local) if here else None, found) for position, here in enumerate(self._here)
        ]
        return Lookup(embedded, [ids] * len(self.replicated) + [global_ids] * len(self.sharded))

    def row_gradients(self, lookup: Lookup, upstream: Sequence[tf.Tensor]) -> list[tf.IndexedSlices]:
        by_feature = [self._by_feature(group, values) for group, values in zip(self._groups, upstream, strict=True)]
        outgoing = []
        for layout in self._layouts:
            parts = [self._block_gradient(block, upstream, by_feature) for block in layout.blocks]
            outgoing.append(tf.concat(parts, axis=1) if parts else tf.zeros((0, 0)))
        scale = self._wire.gradient_scale
        arrived = self._exchange(outgoing, "vector_gradients", scale)
        local = []
        for position, here in enumerate(self._here):
            if here:
                group = self._groups[position]
                whole = group.sum_features or len(here) == len(group.tables)
                local.append(
                    upstream[position]
                    if whole
                    else tf.concat([by_feature[position][table.name] for table in here], axis=1)
                )
        layout = self._layouts[self._comm.rank]
        if layout.blocks:
            gradients = tf.concat([tf.reshape(part, (-1, layout.width)) for part in arrived], axis=0)
            local += tf.split(gradients, [block.width for block in layout.blocks], axis=1)
        tables = self.replicated + self.sharded
        return [
            table.row_gradients(ids, gradient) for table, ids, gradient in zip(tables, lookup.ids, local, strict=True)
        ]

    def _exchange(self, parts: Sequence[tf.Tensor], name: str, scale: float = 1.0) -> list[tf.Tensor]:
        """Alltoall of matrices, in the precision of the wire but for the own part; what arrives is flat float32."""
        own = self._comm.rank
        flat = [tf.reshape(part, (-1,)) for part in parts]
        sent = [self._wire.shrink(part[:0] if rank == own else part, scale) for rank, part in enumerate(flat)]
        received = self._comm.alltoall(sent, name=name)
        return [flat[own] if rank == own else self._wire.restore(part, scale) for rank, part in enumerate(received)]

    def _assemble(self, position: int, local: tf.Tensor | None, found: Sequence[Sequence[tf.Tensor]]) -> tf.Tensor:
        """The tensor of a group from what this rank looked up and what the blocks of all ranks brought."""
        group, here = self._groups[position], self._here[position]
        blocks = [
            (block, values)
            for layout, parts in zip(self._layouts, found, strict=True)
            for block, values in zip(layout.blocks, parts, strict=True)
            if block.group == position
        ]
        if not blocks:
            return local
        if group.sum_features:
            return tf.add_n([values for _, values in blocks] + ([local] if here else []))
        # Feature -> first column -> what is to be added up: slices by rows bring a part of each sum.
        parts: dict[str, dict[int, list[tf.Tensor]]] = {}
        for block, values in blocks:
            pieces = tf.split(values, len(block.tables), axis=1)
            for table, piece in zip(block.tables, pieces, strict=True):
                parts.setdefault(table.name, {}).setdefault(table.first_column, []).append(piece)
        if here:
            for table, piece in zip(here, tf.split(local, len(here), axis=1), strict=True):
                parts[table.name] = {0: [piece]}
        return tf.concat(
            [tf.add_n(parts[table.name][column]) for table in group.tables for column in sorted(parts[table.name])],
            axis=1,
        )

    @staticmethod
    def _by_feature(group: TableGroup, upstream: tf.Tensor) -> dict[str, tf.Tensor]:
        """The gradient of each feature's vector, (rows, dim); none where features are summed."""
        if group.sum_features:
            return {}
        names = [table.name for table in group.tables]
        return dict(zip(names, tf.split(upstream, len(names), axis=1), strict=True))

    @staticmethod
    def _block_gradient(
        block: _Block, upstream: Sequence[tf.Tensor], by_feature: Sequence[dict[str, tf.Tensor]]
    ) -> tf.Tensor:
        if not by_feature[block.group]:
            return upstream[block.group]
        parts = []
        for table in block.tables:
            gradient = by_feature[block.group][table.name]
            cut = gradient.shape[1] != block.dim
            parts.append(gradient[:, table.first_column : table.first_column + block.dim] if cut else gradient)
        return tf.concat(parts, axis=1)


def _layout(groups: Sequence[TableGroup], placement: Placement, rank: int) -> _Layout:
    """The layout of a rank; the same wherever it is computed."""
    by_table = {piece.table: piece for piece in placement.of_rank(rank)}
    held: list[tuple[int, LogicalTable, Piece]] = [
        (position, table, by_table[name])
        for position, group in enumerate(groups)
        for table in group.tables
        if (name := group.table_name(table)) in by_table
    ]
    # Tables of one feature share its ids.
    features = {table.name: table for _, table, _ in held}
    columns, id_columns = {}, []
    for name, table in features.items():
        columns[name] = len(id_columns)
        id_columns += range(table.column, table.column + table.hotness)
    blocks: dict[tuple[int, int], list[LogicalTable]] = {}
    for position, table, piece in held:
        dim = piece.stop_column - piece.first_column
        part = dataclasses.replace(
            table,
            rows=piece.stop_row - piece.first_row,
            column=columns[table.name],
            first_row=piece.first_row,
            first_column=piece.first_column,
            whole=(table.rows, groups[position].dim),
        )
        blocks.setdefault((position, dim), []).append(part)
    return _Layout(
        tuple(id_columns),
        tuple(
            _Block(position, tuple(tables), dim, dim if groups[position].sum_features else dim * len(tables))
            for (position, dim), tables in blocks.items()
        ),
    )
