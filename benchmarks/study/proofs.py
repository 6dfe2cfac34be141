"""Whether a run counts: only where its record proves that the cell's settings were in force. Pure functions."""

import math
from collections.abc import Mapping
from typing import Any

from benchmarks.study import folds
from benchmarks.study.cells import FAILED, Run
from benchmarks.study.plan import rate_flags

# Data type of the dense layers' products, by precision.
_COMPUTE_DTYPE = {"float32": "float32", "mixed_float16": "float16", "mixed_bfloat16": "bfloat16"}
_FIGURES = ("loss", "log_loss", "auc")


def why_not(run: Run) -> str | None:
    """Why a run does not count, in one line; None if it does.

    What was asked for proves nothing. Counted is what `settings_in_force` read from the model that ran, from the
    functions that were compiled and from the ranks that answered, and what the training left.
    """
    if run.status == FAILED or run.record is None:
        return f"failed: {run.reason}"
    for problem in (_settings(run), _same_run(run), _training(run.record)):
        if problem is not None:
            return problem
    return None


def _settings(run: Run) -> str | None:
    cell, proof = run.cell, run.record.get("settings_in_force")
    if not isinstance(proof, Mapping):
        return "its record does not say which settings were in force"
    compute, variables = proof.get("compute_dtype"), proof.get("variable_dtype")
    if compute != _COMPUTE_DTYPE[cell.precision]:
        return f"{cell.precision} was asked for, and its dense layers computed in {compute}"
    if variables != "float32":
        return f"its variables are {variables} and not float32"
    compiled = proof.get("jit_compiled")
    if not isinstance(compiled, list | tuple):
        return "its record does not say which functions XLA compiled"
    if cell.xla and not compiled:
        return "XLA was asked for, and no compiled function ran"
    if not cell.xla and compiled:
        return f"XLA was not asked for, and compiled {', '.join(map(str, compiled))}"
    for where, found in (("ranks that answered", proof.get("world_size")), ("ranks", run.record.get("world_size"))):
        if found != cell.world_size:
            return f"{cell.world_size} ranks were asked for, and its record has {found} {where}"
    return None


def _same_run(run: Run) -> str | None:
    """Whether the record is of this cell and seed at all."""
    cell, record = run.cell, run.record
    identity, config = record.get("identity") or {}, record.get("config") or {}
    found = (identity.get("model"), record.get("global_batch_size"), config.get("seed"))
    if found != (cell.model, cell.global_batch_size, run.seed):
        return (
            f"its record is of model {found[0]}, global batch {found[1]} and seed {found[2]}, not of {cell.model}, "
            f"{cell.global_batch_size} and {run.seed}"
        )
    dataset = config.get("dataset_path")
    if run.fold is not None and not folds.is_dataset(dataset, run.fold):
        return f"its record is of the dataset {dataset}, not of fold {run.fold}"
    missing = [flag for flag in rate_flags(cell.model) if not _is_finite(config.get(flag))]
    return f"its record has no {missing[0]}" if missing else None


def _training(record: Mapping[str, Any]) -> str | None:
    if record.get("trained") is not True:
        return "its weights are those that it began with"
    if record.get("ended_by") == "signal":
        return "a signal ended its training early"
    for name in _FIGURES:
        if not _is_finite(record.get(name)):
            return f"its {name} is {record.get(name)}: not finite"
    if not record.get("evaluations"):
        return "it was not evaluated"
    # Without displays there is no MAP@12 anywhere; with them it must be a number.
    if record.get("displays") and not _is_finite(record.get("map_at_12")):
        return f"its map_at_12 is {record.get('map_at_12')}: not finite"
    return None


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
