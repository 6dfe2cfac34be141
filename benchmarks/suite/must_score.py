"""The rows that must have a score on a machine of a stated size, so that skipping is no way out."""

import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks.suite.definitions import CONFIGS, MUST_SCORE
from benchmarks.suite.results import OK, Cell, Result
from data import strict_yaml
from data.errors import InputError

FILE = CONFIGS / MUST_SCORE

_KEYS = {"benchmark", "implementation", "batch_size", "world_size", "scaling"}


def rows(path: pathlib.Path = FILE) -> tuple[Mapping[str, Any], list[Mapping[str, Any]]]:
    """The machine that the list is for (`cpus`, `memory_gib`: at least), and its rows.

    Raises:
      InputError: the file is not such a list.
    """
    try:
        found = strict_yaml.load(path.read_bytes(), path)
        machine, listed = found["machine"], found["rows"]
        if any(set(row) != _KEYS for row in listed) or set(machine) != {"cpus", "memory_gib"}:
            raise ValueError(f"rows must have {', '.join(sorted(_KEYS))}")
    except InputError:
        raise  # it is not YAML
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}: not a list of rows that must score: {error}") from error
    return machine, listed


def applies(machine: Mapping[str, Any], facts: Mapping[str, Any]) -> bool:
    """Whether a machine with this fingerprint is as large as the list's."""
    return facts.get("allowed_cpus", 0) >= machine["cpus"] and (facts.get("memory_gib") or 0) >= machine["memory_gib"]


def without_score(listed: Sequence[Mapping[str, Any]], cells: Iterable[Cell], found: Iterable[Result]) -> list[str]:
    """Rows of the list that were to be run and of which no repeat has a score, as texts.

    Args:
      listed: the rows.
      cells: those of the plan, skipped ones included.
      found: results.
    """
    scored = {result.cell for result in found if result.status == OK}
    missing = []
    for cell in dict.fromkeys(cells):
        row = {
            "benchmark": f"{cell.model}-{cell.mode}-{cell.config}",
            "implementation": cell.implementation,
            "batch_size": cell.batch_size,
            "world_size": cell.world_size,
            "scaling": cell.scaling,
        }
        if row in listed and cell.precision == "fp32" and cell not in scored:
            ranks = f", {cell.world_size} ranks ({cell.scaling})" if cell.world_size > 1 else ""
            missing.append(f"{row['benchmark']} {cell.implementation}, {cell.batch_size:,}{ranks}")
    return missing
