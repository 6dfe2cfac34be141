"""Embedding tables to and from the files of a checkpoint: each owner writes the rectangle that it holds into a file of
its own, and reads the one that it wants from whichever files overlap it. Only blocks of rows are ever in memory."""

import pathlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np

from trainer.checkpoint_arrays import (
    ArraySpecs,
    array_specs,
    check_npz,
    read_blocks,
    rows_per_block,
    safe_name,
    write_npz,
)
from trainer.checkpoint_manifest import Manifest, Piece, Rectangle, table_columns


class Table(Protocol):
    """A logical embedding table with its optimizer slots, or the rectangle of it that is held here.

    Rows and columns are always counted in the whole table, of which the owner of all has the rectangle
    (0, rows, 0, columns).

    Attributes:
      name: any text; of a model's tables, those of one name are rectangles of the same one.
      rows: number of rows of the whole table.
      arrays: array name ("weights", "rms", "last_step", ...) -> (shape of one row of the whole table, dtype). A row is
        of shape (columns,), the same in all arrays, or (): owners of the same rows then have equal values.
      first_row, stop_row, first_column, stop_column: the rectangle; the stops are not part of it.
    """

    name: str
    rows: int
    arrays: Mapping[str, tuple[tuple[int, ...], np.dtype]]
    first_row: int
    stop_row: int
    first_column: int
    stop_column: int

    def read(self, array: str, start: int, stop: int) -> np.ndarray:
        """Rows start..stop, which are held here, of shape (stop - start, columns held here) or (stop - start,)."""

    def write(self, array: str, start: int, stop: int, values: np.ndarray, first_column: int) -> None:
        """Replaces what is held here, in whole or in part.

        Args:
          array: name of the array.
          start, stop: the rows.
          values: (stop - start, any number of columns) or, of an array of row shape (), (stop - start,).
          first_column: the column of values[:, 0]; without meaning for row shape ().
        """


def rectangle(table: Table) -> Rectangle:
    """What is held here of a table."""
    return Rectangle(table.first_row, table.stop_row, table.first_column, table.stop_column)


def write_pieces(
    folder: pathlib.Path, tables: Iterable[Table], row_block: int | None = None
) -> list[tuple[str, Piece]]:
    """Writes each table's rectangle to a file of its own in `folder`; returns (table name, piece) of each.

    Any number of owners may write to one folder. An empty rectangle needs no file and is no piece.

    Raises:
      OSError: the disk is full, or the like.
    """
    return [(table.name, _write_piece(folder, table, row_block)) for table in tables if rectangle(table).area]


def check_pieces(manifest: Manifest, tables: Iterable[Table]) -> None:
    """Checks all but the values of the files that `read_pieces` will read.

    Raises:
      InputError: a file is missing or damaged.
    """
    for table in tables:
        for piece in _overlapping(manifest, table):
            check_npz(manifest.path, piece.file, _stored(table, piece))


def read_pieces(manifest: Manifest, tables: Iterable[Table], row_block: int | None = None) -> None:
    """Fills each table's rectangle from the pieces that overlap it, by `Table.write`.

    The manifest and the files are to be checked before (Manifest.check, check_pieces).

    Raises:
      InputError: a file is damaged; what was written into the tables is to be discarded.
    """
    for table in tables:
        for piece in _overlapping(manifest, table):
            _read_piece(manifest.path, table, piece, row_block)


def _write_piece(folder: pathlib.Path, table: Table, row_block: int | None) -> Piece:
    held = rectangle(table)
    name = safe_name(table.name)
    if held != Rectangle(0, table.rows, 0, table_columns(table.arrays)):
        # No safe name has a "+", so that no other table's file is called the same.
        name += f"+r{held.first_row}-{held.stop_row}.c{held.first_column}-{held.stop_column}"

    def blocks(array: str, block: int) -> Iterator[np.ndarray]:
        for first in range(held.first_row, held.stop_row, block):
            yield table.read(array, first, min(first + block, held.stop_row))

    contents = (
        (array, shape, dtype, blocks(array, row_block or rows_per_block(shape[1:], dtype)))
        for array, (shape, dtype) in _stored(table, held).items()
    )
    return Piece(**vars(held), file=write_npz(folder / f"table.{name}.npz", contents))


def _read_piece(folder: pathlib.Path, table: Table, piece: Piece, row_block: int | None) -> None:
    wanted = rectangle(table).overlap(piece)
    columns = slice(wanted.first_column - piece.first_column, wanted.stop_column - piece.first_column)
    for array, (shape, dtype) in _stored(table, piece).items():
        if len(shape) == 1 and wanted.first_column != table.first_column:
            continue  # the piece to the left has it as well
        blocks = read_blocks(
            folder,
            piece.file,
            array,
            shape,
            dtype,
            row_block or rows_per_block(shape[1:], dtype),
            start=wanted.first_row - piece.first_row,
            stop=wanted.stop_row - piece.first_row,
        )
        for first, rows in blocks:
            start = piece.first_row + first
            values = rows if rows.ndim == 1 else rows[:, columns]
            table.write(array, start, start + len(rows), values, wanted.first_column)


def _overlapping(manifest: Manifest, table: Table) -> Sequence[Piece]:
    held = rectangle(table)
    return [piece for piece in manifest.tables[table.name].pieces if held.overlap(piece).area]


def _stored(table: Table, part: Rectangle) -> ArraySpecs:
    """Name -> (shape, dtype), in the file that has `part`, of the arrays that `table` has."""
    return {array: (part.shape(shape), dtype) for array, (shape, dtype) in array_specs(table.arrays).items()}
