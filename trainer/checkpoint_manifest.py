"""The manifest: what a checkpoint is and holds, and whether a model can take it."""

import dataclasses
import itertools
import json
import os
import pathlib
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

from data.errors import InputError
from trainer.checkpoint_arrays import ArraySpecs, DataFile, array_specs, reading

FORMAT_VERSION = 2
"""Version 1, which is still read, had pieces of whole rows."""
MANIFEST = "manifest.json"
OPTIMIZER_PREFIX = "optimizer/"
"""Dense arrays whose name begins so are optimizer state, which a partial restore may leave unread."""


@dataclasses.dataclass(frozen=True)
class Rectangle:
    """Rows first_row..stop_row, columns first_column..stop_column of a table; the stops are not part of it."""

    first_row: int
    stop_row: int
    first_column: int
    stop_column: int

    @property
    def area(self) -> int:
        return max(0, self.stop_row - self.first_row) * max(0, self.stop_column - self.first_column)

    def overlap(self, other: "Rectangle") -> "Rectangle":
        """What both cover; its area is 0 where there is nothing."""
        return Rectangle(
            max(self.first_row, other.first_row),
            min(self.stop_row, other.stop_row),
            max(self.first_column, other.first_column),
            min(self.stop_column, other.stop_column),
        )

    def shape(self, row_shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape that this part of an array has whose rows have `row_shape` in the whole table."""
        return (self.stop_row - self.first_row, *((self.stop_column - self.first_column,) if row_shape else ()))

    def __str__(self) -> str:
        return f"rows {self.first_row}..{self.stop_row}, columns {self.first_column}..{self.stop_column}"


@dataclasses.dataclass(frozen=True)
class Piece(Rectangle):
    """A rectangle of a table, in one file.

    Arrays that have a value a column are cut to its columns. Those that have one value a row stand in every piece, so
    pieces that lie side by side hold copies.
    """

    file: DataFile


@dataclasses.dataclass(frozen=True)
class TableRecord:
    """A table as saved. `arrays` maps an array's name to (shape of one row of the whole table, dtype)."""

    rows: int
    arrays: ArraySpecs
    pieces: tuple[Piece, ...]


def table_columns(arrays: ArraySpecs) -> int:
    """The number of columns of a table.

    Args:
      arrays: array name -> (shape of one row, dtype).

    Raises:
      ValueError: rows are not of shape (columns,), with one number of at least 1 for all arrays, or () besides.
    """
    shapes = {shape for shape, _ in array_specs(arrays).values()}
    matrices = shapes - {()}
    if len(matrices) != 1 or len(columns := next(iter(matrices))) != 1 or columns[0] < 1:
        raise ValueError(f"the rows of a table's arrays have the shapes {sorted(shapes)}, not (columns,) or ()")
    return columns[0]


def flaw_of_cover(rectangles: Iterable[Rectangle], rows: int, columns: int) -> str | None:
    """Why rectangles do not cover a table exactly once, in words; None if they do."""
    rectangles = list(rectangles)
    for rectangle in rectangles:
        if not (
            0 <= rectangle.first_row <= rectangle.stop_row <= rows
            and 0 <= rectangle.first_column <= rectangle.stop_column <= columns
        ):
            return f"{rectangle} is no part of it"
    for one, other in itertools.combinations(rectangles, 2):
        if one.overlap(other).area:
            return f"{one} and {other} overlap"
    area = sum(rectangle.area for rectangle in rectangles)
    # Inside, without overlap and of the whole's area: there is no gap.
    return None if area == rows * columns else f"{area} of {rows * columns} values are there"


@dataclasses.dataclass(frozen=True)
class Manifest:
    """A complete checkpoint, without its arrays.

    Attributes:
      path: the folder.
      step: the training step after which it was made.
      created: nanoseconds since the epoch, larger than that of every checkpoint that was there before.
      run_id: the run that made it.
      spec_digest: `FeatureSpec.digest()` of its model.
      scalars: what the trainer gave, such as what the position in the data depends on.
      tables: embedding tables by name.
      dense: name -> (shape, dtype) of everything that is not a table, all of it in `dense_file`.
    """

    path: pathlib.Path
    step: int
    created: int
    run_id: str
    spec_digest: str
    scalars: Mapping[str, Any]
    tables: Mapping[str, TableRecord]
    dense: ArraySpecs
    dense_file: DataFile

    def write(self, path: pathlib.Path) -> None:
        """Writes the manifest to the file `path` and to the disk beneath it."""
        body = {
            "format_version": FORMAT_VERSION,
            "step": self.step,
            "created": self.created,
            "run_id": self.run_id,
            "spec_digest": self.spec_digest,
            "scalars": dict(self.scalars),
            "tables": {
                name: {
                    "rows": table.rows,
                    "arrays": _specs_to_json(table.arrays),
                    "pieces": [dataclasses.asdict(piece) for piece in table.pieces],
                }
                for name, table in self.tables.items()
            },
            "dense": {"arrays": _specs_to_json(self.dense), "file": dataclasses.asdict(self.dense_file)},
        }
        body = json.loads(json.dumps(body))  # keys become text, as the reader's checksum sees them
        with open(path, "x", encoding="utf-8") as file:
            json.dump({**body, "crc32": _checksum(body)}, file, indent=1)
            file.flush()
            os.fsync(file.fileno())

    @classmethod
    def read(cls, folder: str | os.PathLike) -> "Manifest":
        """Reads the manifest of the checkpoint in `folder`.

        Raises:
          InputError: there is none, it is damaged, or another version of the program wrote it.
        """
        folder = pathlib.Path(folder)
        path = folder / MANIFEST
        with reading(path):
            if not path.is_file():
                raise InputError(f"{folder}: no complete checkpoint here, {MANIFEST} is missing: name another folder")
            body = json.loads(path.read_text(encoding="utf-8"))
            version, checksum = body["format_version"], body.pop("crc32", None)
        if version not in (1, FORMAT_VERSION):
            raise InputError(
                f"{path}: checkpoint format {version!r}, and this program reads formats 1 and {FORMAT_VERSION}: "
                "use the version of the program that wrote it"
            )
        with reading(path):
            if checksum != _checksum(body):
                raise ValueError(f"checksum {_checksum(body)}, recorded {checksum}")
            return cls(
                path=folder,
                **{key: body[key] for key in ("step", "created", "run_id", "spec_digest", "scalars")},
                tables={name: _table_from_json(table, version) for name, table in body["tables"].items()},
                dense=_specs_from_json(body["dense"]["arrays"]),
                dense_file=DataFile(**body["dense"]["file"]),
            )

    def check(
        self, tables: Mapping[str, tuple[int, ArraySpecs]], dense: ArraySpecs, spec_digest: str, *, partial: bool
    ) -> None:
        """Checks that a model can take this checkpoint.

        Args:
          tables: table name -> (rows, array name -> (shape of one row, dtype)) of all of the model's tables, each as a
            whole.
          dense: name -> (shape, dtype) of its other variables.
          spec_digest: `FeatureSpec.digest()` of the model.
          partial: the model may lack slots of a table and dense variables of OPTIMIZER_PREFIX.

        Raises:
          InputError: it cannot; the message has both values.
        """
        self._check_names("table", self.tables, tables, "the same model and feature specification are needed")
        for name, (rows, arrays) in tables.items():
            self._check_table(name, rows, arrays, partial)
        if self.spec_digest != spec_digest:
            raise self._error(
                f"the feature specification has the digest {self.spec_digest[:12]} in the checkpoint and "
                f"{spec_digest[:12]} in the model: the same feature specification is needed"
            )
        stored = [name for name in self.dense if name in dense or not (partial and name.startswith(OPTIMIZER_PREFIX))]
        self._check_names("variable", stored, dense, "the same model and optimizer are needed")
        self._check_arrays("variable", self.dense, dense)

    def _error(self, message: str) -> InputError:
        return InputError(f"{self.path}: {message}")

    def _check_names(self, what: str, stored: Iterable[str], wanted: Iterable[str], remedy: str) -> None:
        for name in wanted:
            if name not in stored:
                raise self._error(f"{what} '{name}' of the model is not in the checkpoint: {remedy}")
        for name in stored:
            if name not in wanted:
                raise self._error(f"{what} '{name}' of the checkpoint is not in the model: {remedy}")

    def _check_table(self, name: str, rows: int, arrays: ArraySpecs, partial: bool) -> None:
        record = self.tables[name]
        if record.rows != rows:
            raise self._error(
                f"table '{name}' has {record.rows} rows in the checkpoint and {rows} in the model: the same feature "
                "specification is needed"
            )
        missing, extra = arrays.keys() - record.arrays.keys(), record.arrays.keys() - arrays.keys()
        if missing or (extra and not partial):
            raise self._error(
                f"table '{name}' has the arrays {sorted(record.arrays)} in the checkpoint and {sorted(arrays)} in the "
                "model: it was made with other optimizer slots; train with the same optimizer (evaluation needs none)"
            )
        self._check_arrays(f"one row of table '{name}', array", record.arrays, arrays)
        columns = table_columns(record.arrays)
        flaw = flaw_of_cover(record.pieces, rows, columns)
        if flaw is not None:
            raise self._error(
                f"the pieces of table '{name}' do not cover its {rows} rows of {columns} columns exactly once "
                f"({flaw}): use another checkpoint"
            )

    def _check_arrays(self, what: str, stored: ArraySpecs, wanted: ArraySpecs) -> None:
        for name, (shape, dtype) in array_specs(wanted).items():
            for quantity, found, needed in zip(("shape", "type"), stored[name], (shape, dtype), strict=True):
                if found != needed:
                    raise self._error(
                        f"{what} '{name}' has the {quantity} {found} in the checkpoint and {needed} in the model: the "
                        f"same {quantity} is needed"
                    )


def _checksum(body: Any) -> int:
    return zlib.crc32(json.dumps(body, sort_keys=True).encode())


def _specs_to_json(specs: ArraySpecs) -> dict[str, Any]:
    return {name: {"shape": shape, "dtype": dtype.str} for name, (shape, dtype) in array_specs(specs).items()}


def _specs_from_json(specs: Mapping[str, Any]) -> ArraySpecs:
    return array_specs({name: (spec["shape"], spec["dtype"]) for name, spec in specs.items()})


def _table_from_json(table: Mapping[str, Any], version: int) -> TableRecord:
    arrays = _specs_from_json(table["arrays"])
    columns = table_columns(arrays)
    if version == 1:
        pieces = [Piece(p["start"], p["stop"], 0, columns, DataFile(**p["file"])) for p in table["pieces"]]
    else:
        pieces = [Piece(**{**piece, "file": DataFile(**piece["file"])}) for piece in table["pieces"]]
    return TableRecord(table["rows"], arrays, tuple(pieces))
