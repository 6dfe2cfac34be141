"""Tables that a model looks up together, and where they may live: on every rank, or wherever a factory puts them."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import tensorflow as tf

from data.feature_spec import FeatureSpec
from models.embedding import Draw, FusedTable, LogicalTable


@dataclasses.dataclass(frozen=True)
class TableGroup:
    """Tables of one dimension whose pooled rows reach the model as one tensor.

    Attributes:
      name: unique in the model.
      tables: whole tables, in output order.
      dim: columns of every table.
      combiner: "sum" or "mean" over the present ids of a multi-hot feature.
      optimizer_group: the optimizer that updates them.
      sum_features: the tensor is the sum over features, (rows, dim), and not their concatenation.
      draw: initial values; None for zeros.
      seed: of the initial values.
    """

    name: str
    tables: tuple[LogicalTable, ...]
    dim: int
    combiner: str
    optimizer_group: str
    sum_features: bool = False
    draw: Draw | None = None
    seed: int = 0

    @property
    def width(self) -> int:
        """Columns of the tensor that the model gets."""
        return self.dim if self.sum_features else self.dim * len(self.tables)

    def table_name(self, table: LogicalTable) -> str:
        """The name of one of the tables among all of the model's: in placements and in checkpoints."""
        return f"{self.optimizer_group}/{table.name}"

    def fused(self, tables: Sequence[LogicalTable] | None = None, dim: int | None = None) -> FusedTable:
        """The tables, or the given parts of them of `dim` columns each, as one variable with initial values."""
        dim = dim or self.dim
        fused = FusedTable(
            self.tables if tables is None else tables,
            dim,
            combiner=self.combiner,
            group=self.optimizer_group,
            sum_features=self.sum_features,
            name=self.name if dim == self.dim else f"{self.name}_{dim}",
        )
        if self.draw is not None:
            fused.initialize_rows(self.seed, self.draw)
        return fused


class Lookup(NamedTuple):
    """What a lookup found.

    embedded: pooled rows of the local batch, one float32 tensor (rows, group.width) for each group.
    ids: of each local fused table the ids it was asked for, which its gradients need again.
    """

    embedded: list[tf.Tensor]
    ids: list[tf.Tensor]


class Tables(Protocol):
    """Where the tables of a model are kept.

    Attributes:
      replicated: fused tables that every rank has, equal on all.
      sharded: fused tables that this rank alone has.
      is_sharded: whether any rank has such tables; then lookups and gradients are collectives.
    """

    replicated: tuple[FusedTable, ...]
    sharded: tuple[FusedTable, ...]
    is_sharded: bool

    def lookup(self, ids: tf.Tensor) -> Lookup:
        """Pooled rows for the packed ids (rows, total hotness) of the local batch."""

    def row_gradients(self, lookup: Lookup, upstream: Sequence[tf.Tensor]) -> list[tf.IndexedSlices]:
        """Gradients of `replicated`, of the local batch, then of `sharded`, of the global batch.

        Args:
          lookup: the result of `lookup`.
          upstream: gradient with respect to each of `lookup.embedded`.
        """


class ReplicatedTables:
    """Every table on every rank, one fused table for each group."""

    is_sharded = False

    def __init__(self, groups: Sequence[TableGroup]):
        self.replicated = tuple(group.fused() for group in groups)
        self.sharded: tuple[FusedTable, ...] = ()

    def lookup(self, ids: tf.Tensor) -> Lookup:
        return Lookup([table(ids) for table in self.replicated], [ids] * len(self.replicated))

    def row_gradients(self, lookup: Lookup, upstream: Sequence[tf.Tensor]) -> list[tf.IndexedSlices]:
        return [
            table.row_gradients(ids, gradient)
            for table, ids, gradient in zip(self.replicated, lookup.ids, upstream, strict=True)
        ]


TablesFactory = Callable[[Sequence[TableGroup]], Tables]


def logical_tables(spec: FeatureSpec) -> tuple[LogicalTable, ...]:
    """Every categorical feature's table and its columns in the packed ids, in the order of the specification."""
    tables, column = [], 0
    for name in spec.categorical:
        feature = spec.features[name]
        tables.append(LogicalTable(name, feature.cardinality, column, feature.max_hotness))
        column += feature.max_hotness
    return tuple(tables)
