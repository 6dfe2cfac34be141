"""Cells of a study, and the file of its runs: a JSON object a line, on disk before the next run begins."""

import dataclasses
import fcntl
import json
import os
from collections.abc import Mapping
from typing import Any

from data.errors import InputError

RUNS_FILE, PLAN_FILE, LOGS = "runs.jsonl", "plan.yaml", "logs"
"""What the folder of a study holds."""

PRECISIONS = ("float32", "mixed_float16", "mixed_bfloat16")
OK, FAILED = "ok", "failed"


@dataclasses.dataclass(frozen=True, order=True)
class Cell:
    """A setting whose runs differ in their seed alone. Cells are ordered by their fields.

    Attributes:
      precision: one of PRECISIONS.
      global_batch_size: rows over all ranks.
      learning_rate_factor: multiplies the learning rates of the plan.
      label: what sets the cell apart beside these settings, such as "degraded" for a control; "" for none.
    """

    model: str
    precision: str
    xla: bool
    world_size: int
    global_batch_size: int
    learning_rate_factor: float = 1.0
    label: str = ""

    @property
    def name(self) -> str:
        """For people and file names, such as "wide_deep-float32-xla-1x4096" (ranks x rows of a rank's batch).

        Ranks whose shares of a batch differ by a row have the share rounded down.
        """
        parts = [self.model, self.precision]
        if self.xla:
            parts.append("xla")
        parts.append(f"{self.world_size}x{self.global_batch_size // self.world_size}")
        if self.learning_rate_factor != 1.0:
            parts.append(f"rate*{self.learning_rate_factor:g}")
        if self.label:
            parts.append(self.label)
        return "-".join(parts)


@dataclasses.dataclass(frozen=True)
class Run:
    """One run of a cell.

    Attributes:
      status: OK or FAILED.
      reason: why it failed, in one line; None of a run that did not.
      record: the trainer's record as JSON has it; None of a run that failed.
      seconds: that it took, data, compilation and evaluations included; None where nobody measured it.
      fold: number, from 1 on, of the fold that was held out; None of a study without folds.
    """

    cell: Cell
    seed: int
    status: str
    reason: str | None = None
    record: Mapping[str, Any] | None = None
    seconds: float | None = None
    fold: int | None = None

    @property
    def key(self) -> tuple[Cell, int, int | None]:
        """What there is one run of."""
        return self.cell, self.seed, self.fold

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.cell.name}, {trial_name(self.seed, self.fold)}"

    def to_line(self) -> str:
        """The run as a line of JSON, with its end."""
        return json.dumps(dataclasses.asdict(self), allow_nan=False) + "\n"


def trial_name(seed: int, fold: int | None) -> str:
    """A run of a cell, for people."""
    return f"seed {seed}" if fold is None else f"seed {seed} fold {fold}"


def append(path: str, run: Run) -> None:
    """Adds a run to the file; it is on disk when this returns. Several processes may add at the same time.

    Raises:
      InputError: the file cannot be written.
    """
    try:
        with open(path, "a+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            # What a killed process has left unfinished must not swallow this line, too.
            if file.tell() and not _ends_line(file):
                file.write(b"\n")
            file.write(run.to_line().encode())
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise InputError(
            f"{path}: cannot be written: {error.strerror or error}; free or name another folder"
        ) from error


def read(path: str) -> list[Run]:
    """The runs of a file, the last of each cell, seed and fold, in the order of the file.

    Damaged lines, as a process leaves one that is killed while it writes, are left out: `damage` names them.

    Raises:
      InputError: the file cannot be read.
    """
    return list(_read(path)[0].values())


def damage(path: str) -> list[str]:
    """What is wrong with lines that `read` leaves out, a line of text each.

    Raises:
      InputError: the file cannot be read.
    """
    return _read(path)[1]


def _ends_line(file) -> bool:
    file.seek(-1, os.SEEK_END)
    return file.read(1) == b"\n"


def _read(path: str) -> tuple[dict[tuple[Cell, int, int | None], Run], list[str]]:
    try:
        with open(path, "rb") as file:
            lines = file.read().split(b"\n")
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}; name the folder of a study") from error
    found: dict[tuple[Cell, int, int | None], Run] = {}
    damaged = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            run = _run(json.loads(line))
        except (ValueError, TypeError, KeyError) as error:
            damaged.append(f"{path}, line {number}: left out, it is no run: {' '.join(str(error).split())}")
            continue
        found.pop(run.key, None)
        found[run.key] = run
    return found, damaged


_KINDS = {"model": str, "precision": str, "xla": bool, "world_size": int, "global_batch_size": int, "label": str}


def _run(found: Any) -> Run:
    """A run as JSON has it; ValueError, TypeError or KeyError if it is none."""
    if not isinstance(found, dict) or not isinstance(found.get("cell"), dict):
        raise ValueError("no object with a cell")
    cell = Cell(**found["cell"])
    wrong = [name for name, kind in _KINDS.items() if type(getattr(cell, name)) is not kind]
    if wrong:
        raise ValueError(f"its cell's {wrong[0]} is {getattr(cell, wrong[0])!r}")
    status, record, fold = found["status"], found.get("record"), found.get("fold")
    if status not in (OK, FAILED) or type(found["seed"]) is not int or type(fold) not in (int, type(None)):
        raise ValueError(f"status {status!r}, seed {found['seed']!r}, fold {fold!r}")
    if (record is None) != (status == FAILED) or not isinstance(record, dict | None):
        raise ValueError(f"status {status!r} and a record that is {type(record).__name__}")
    return Run(cell, found["seed"], status, found.get("reason"), record, found.get("seconds"), fold)
