"""The command lines of runs: main.py, the out-of-the-box implementation, microbenchmarks; alone or on several ranks."""

import json
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.suite.definitions import MICRO, OOTB, Definition
from benchmarks.suite.results import Cell
from benchmarks.suite.settings import arguments, settings
from data.errors import InputError

ROOT = Path(__file__).resolve().parents[2]

RECORD, MICRO_RESULT = "result.json", "micro.json"
"""What a run leaves in its folder."""


def of_cell(definition: Definition, cell: Cell, folder: str, hosts: str | None = None) -> list[str]:
    """The command that runs a cell once and leaves its record in `folder`.

    Args:
      definition, cell: what to run.
      folder: exists.
      hosts: as horovodrun's -H takes them; None for this machine.

    Raises:
      InputError: several ranks and no horovodrun.
    """
    if cell.implementation == MICRO:
        program = [
            *("-m", "benchmarks.microbenchmarks", definition.model, definition.mode),
            *("--params", json.dumps(definition.flags, sort_keys=True)),
            *("--batch", str(cell.batch_size), "--precision", cell.precision),
            *("--result", os.path.join(folder, MICRO_RESULT)),
        ]
    else:
        given = settings(definition, batch_size=cell.batch_size, precision=cell.precision)
        program = of_settings(given, cell.implementation, folder)
    return on_ranks([python(), *program], cell.world_size, hosts)


def python() -> str:
    """The Python that runs are started with: that of the suite."""
    return sys.executable


def of_settings(given: Mapping[str, Any], implementation: str, folder: str) -> list[str]:
    """Arguments of Python that run an implementation with settings of main.py and leave `RECORD` in `folder`."""
    program = ["-m", "benchmarks.ootb"] if implementation == OOTB else ["main.py"]
    checkpoints = os.path.join(folder, "checkpoints")
    return [*program, *arguments(given), f"--results_dir={folder}", f"--model_dir={checkpoints}"]


def environment(precision: str, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment of a run.

    float32 products become TF32 ones on GPUs that have it unless they are told not to (not run on hardware by us).
    """
    folder = os.path.dirname(sys.executable)
    path = environ.get("PATH", "")
    found = {**environ, "PATH": f"{folder}{os.pathsep}{path}" if path else folder}
    if precision == "fp32":
        found["NVIDIA_TF32_OVERRIDE"] = "0"
    else:
        found.pop("NVIDIA_TF32_OVERRIDE", None)
    return found


def on_ranks(command: list[str], ranks: int, hosts: str | None = None) -> list[str]:
    """A command on so many ranks: itself for one, else under horovodrun.

    Raises:
      InputError: several ranks and no horovodrun.
    """
    if ranks == 1:
        return command
    beside = Path(sys.executable).parent / "horovodrun"
    horovodrun = str(beside) if beside.exists() else shutil.which("horovodrun")
    if horovodrun is None:
        raise InputError(f"{ranks} ranks need horovodrun, which is not there: run 'make setup' (without HOROVOD=0)")
    where = ["-H", hosts] if hosts else []
    return [horovodrun, "-np", str(ranks), *where, "sh", str(ROOT / "hvd_wrapper.sh"), *command]
