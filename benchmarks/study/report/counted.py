"""What the folder of a study holds, as its report sees it: the runs that count, and why the others do not."""

import dataclasses
import math
import os
from collections.abc import Iterable, Mapping
from typing import Any

from benchmarks.study import cells, folds, proofs
from benchmarks.study.cells import PLAN_FILE, RUNS_FILE, Cell, Run
from benchmarks.study.plan import Plan
from data.errors import InputError

MAP = "map_at_12"

Record = Mapping[str, Any]

Key = int | tuple[int, int]
"""Of a run among those of its cell: its seed, or (seed, fold) in a study of folds. Runs of the same key are paired."""


@dataclasses.dataclass(frozen=True)
class Uncounted:
    """A run that does not count."""

    cell: Cell
    seed: int
    reason: str
    fold: int | None = None


@dataclasses.dataclass(frozen=True)
class Study:
    """A study.

    Attributes:
      counted: cell of the plan -> key -> record as JSON has it, keys in order. Each cell is there.
      uncounted: runs that failed, or whose record does not prove their settings.
      missing: cells of the plan -> keys that have no run at all; those that lack some alone.
      damaged: lines about lines that could not be read.
      folds: number of a fold -> what `benchmarks.study.folds` noted of it; empty without folds.
    """

    plan: Plan
    counted: Mapping[Cell, Mapping[Key, Record]]
    uncounted: tuple[Uncounted, ...]
    missing: Mapping[Cell, tuple[Key, ...]]
    damaged: tuple[str, ...] = ()
    folds: Mapping[int, Mapping[str, Any]] = dataclasses.field(default_factory=dict)

    @property
    def settings(self) -> tuple[Cell, ...]:
        """Cells of the plan without its controls, in its order."""
        return tuple(cell for cell in self.counted if not cell.label)

    @property
    def records(self) -> tuple[Record, ...]:
        """Of all runs that count."""
        return tuple(record for runs in self.counted.values() for record in runs.values())

    def runs(self, of: Iterable[Cell]) -> int:
        """How many runs of some cells count."""
        return sum(len(self.counted.get(cell, {})) for cell in of)

    def figures(self, cell: Cell, name: str) -> dict[Key, float]:
        """key -> a figure of the record, of the runs that count and have it."""
        found = {key: finite(record.get(name)) for key, record in self.counted.get(cell, {}).items()}
        return {key: value for key, value in found.items() if value is not None}


def load(folder: str) -> Study:
    """Reads the folder of a study.

    Raises:
      InputError: it has no plan or no runs, or they cannot be read.
    """
    plan_path, runs_path = os.path.join(folder, PLAN_FILE), os.path.join(folder, RUNS_FILE)
    for path in (plan_path, runs_path):
        if not os.path.exists(path):
            raise InputError(
                f"{folder}: no study: it has no {os.path.basename(path)}; name the --results_dir of a study's run"
            )
    plan = Plan.load(plan_path)
    wanted = plan.cells()
    facts = {} if plan.folds is None else folds.read(folder)
    counted: dict[Cell, dict[Key, Record]] = {cell: {} for cell in wanted}
    uncounted, seen = [], set()
    runs, damage = cells.read(runs_path), cells.damage(runs_path)
    if damage and not runs:
        raise InputError(f"{damage[0]}, nor is any other line; name the --results_dir of a study's run")
    for run in sorted(runs, key=lambda run: _order(wanted, run)):
        seen.add(run.key)
        is_planned = run.cell in counted and (run.seed, run.fold) in plan.trials
        reason = (proofs.why_not(run) or _other_fold(run, facts)) if is_planned else "the plan does not have it"
        if reason is None and run.record is not None:
            counted[run.cell][_key(run.seed, run.fold)] = run.record
        else:
            uncounted.append(Uncounted(run.cell, run.seed, " ".join(str(reason).split()), run.fold))
    absent = {cell: tuple(_key(*trial) for trial in plan.trials if (cell, *trial) not in seen) for cell in wanted}
    return Study(
        plan,
        counted,
        tuple(uncounted),
        {cell: keys for cell, keys in absent.items() if keys},
        tuple(damage),
        facts,
    )


def curve(record: Record, name: str = MAP) -> dict[int, float]:
    """step -> figure of each evaluation of a run that has it."""
    found = ((one.get("step"), finite(one.get(name))) for one in record.get("evaluations") or ())
    return {step: value for step, value in found if step is not None and value is not None}


def to_target(record: Record, target: float) -> tuple[int, float] | None:
    """(steps, seconds in training steps) until the first evaluation that reached MAP@12 `target`; None if none did."""
    for one in record.get("evaluations") or ():
        reached, seconds = finite(one.get(MAP)), finite(one.get("train_seconds"))
        if reached is not None and reached >= target and seconds is not None:
            return one["step"], seconds
    return None


def finite(value: Any) -> float | None:
    """A number that is finite; None of anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def _key(seed: int, fold: int | None) -> Key:
    return seed if fold is None else (seed, fold)


def _order(wanted: tuple[Cell, ...], run: Run) -> tuple:
    place = wanted.index(run.cell) if run.cell in wanted else len(wanted)
    return place, run.cell, run.seed, run.fold or 0


def _other_fold(run: Run, facts: Mapping[int, Mapping[str, Any]]) -> str | None:
    """Why a run is not of the fold that it is said to be of, by what was evaluated; None if it is, or has no fold."""
    if run.fold is None:
        return None
    if run.fold not in facts:
        return f"{folds.FACTS_FILE} does not have fold {run.fold}"
    held_out, evaluated = facts[run.fold][folds.DISPLAYS], run.record.get("displays")
    return None if evaluated == held_out else f"fold {run.fold} has {held_out} displays, and {evaluated} were evaluated"
