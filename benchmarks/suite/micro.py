"""What the suite asks of the microbenchmarks before it starts one: their settings, their memory, their units."""

import dataclasses
from typing import Any

from benchmarks.microbenchmarks import catalogue
from benchmarks.suite.definitions import Definition
from benchmarks.suite.results import Cell


def resolved(definition: Definition, *, batch_size: int, precision: str) -> dict[str, Any]:
    """Everything that a run is told, defaults included, as plain data.

    Raises:
      InputError: the definition says what cannot be.
    """
    stated = {"params": definition.flags, "batch": batch_size, "precision": precision}
    return dataclasses.asdict(catalogue.settings(definition.model, definition.mode, **stated))


def predicted_bytes(definition: Definition, cell: Cell) -> int:
    """Bytes that a rank takes.

    Raises:
      InputError: the definition says what cannot be.
    """
    stated = {"params": definition.flags, "batch": cell.batch_size, "precision": cell.precision}
    given = catalogue.settings(definition.model, definition.mode, **stated)
    return catalogue.predicted_bytes(given, cell.world_size)


def units(definition: Definition) -> str:
    """Of its score."""
    return catalogue.find(definition.model).units
