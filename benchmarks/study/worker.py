"""Several runs one after another in one process, or in one process for each rank: what a launch of a study starts.

    python -m benchmarks.study.worker JOB

JOB is what `write_job` wrote. Rank 0 notes each run that begins in the job's file `begun`, and adds each that has ended
to the study's runs.
"""

import dataclasses
import json
import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import main as trainer_main
from benchmarks.study import cells
from benchmarks.study.cells import FAILED, OK, Cell, Run
from data.errors import InputError
from trainer import flags
from trainer.launch import BAD_INPUT, launched_rank, run_several_as_rank
from trainer.records import Record, jsonable

JOB_FILE, BEGUN_FILE = "job.json", "begun.jsonl"
RANK_LOG = "rank-{rank}.log"


@dataclasses.dataclass(frozen=True)
class Job:
    """What a launch runs.

    Attributes:
      folder: of the launch; keeps the job, the notes of what has begun and the ranks' logs.
      scratch: folder for what runs leave beside their records, which is removed.
      runs_file: runs that have ended are added to it.
      runs: (cell, seed, fold, arguments of main.py without folders) of each.
    """

    folder: str
    scratch: str
    runs_file: str
    runs: tuple[tuple[Cell, int, int | None, tuple[str, ...]], ...]


def write_job(job: Job) -> str:
    """Writes the job into its folder, which exists; returns the path for the worker."""
    path = os.path.join(job.folder, JOB_FILE)
    with open(path, "w", encoding="utf-8") as file:
        json.dump(dataclasses.asdict(job), file, indent=1)
        file.write("\n")
    return path


def read_job(path: str) -> Job:
    """The job that `write_job` wrote.

    Raises:
      InputError: it cannot be read or is no job.
    """
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
        runs = tuple((Cell(**cell), seed, fold, tuple(words)) for cell, seed, fold, words in found.pop("runs"))
        return Job(**found, runs=runs)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise InputError(f"{path}: is no job of a study: {error}; start it by python -m benchmarks.study") from error


def begun(folder: str) -> list[int]:
    """Numbers of the runs of a launch that have begun, in order."""
    try:
        with open(os.path.join(folder, BEGUN_FILE), encoding="utf-8") as file:
            return [int(line) for line in file if line.endswith("\n")]
    except FileNotFoundError:
        return []


class Notes:
    """What rank 0 writes down as runs begin and end.

    Args:
      job: what is run.
      clock: seconds, monotonic.
    """

    def __init__(self, job: Job, clock=time.monotonic):
        self._job = job
        self._clock = clock
        self._began = 0.0

    def started(self, index: int) -> None:
        """A run begins."""
        self._began = self._clock()
        with open(os.path.join(self._job.folder, BEGUN_FILE), "a", encoding="utf-8") as file:
            file.write(f"{index}\n")

    def ended(self, index: int, record: Record | None, reason: str | None) -> None:
        """A run has ended, with a record or with a reason why it has none."""
        cell, seed, fold, _ = self._job.runs[index]
        seconds = round(self._clock() - self._began, 3)
        found: Mapping[str, Any] | None = None if record is None else jsonable(record)
        if found is not None and found.get("ended_by") == "signal":
            found, reason = None, "a signal ended its training early"
        status = FAILED if found is None else OK
        cells.append(self._job.runs_file, Run(cell, seed, status, reason, found, seconds, fold))
        shutil.rmtree(run_folder(self._job, index), ignore_errors=True)


def run_folder(job: Job, index: int) -> str:
    """Folder for results and checkpoints of one run, which all ranks see."""
    return os.path.join(job.scratch, f"run-{index}")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    try:
        if len(given) != 1:
            raise InputError(f"give one job and nothing else, got {len(given)} arguments")
        job = read_job(given[0])
        configs = [flags.parse([*words, *_folders(job, index)]) for index, (*_, words) in enumerate(job.runs)]
    except InputError as error:
        print(f"main.py: rank {launched_rank(os.environ)}: {error}", file=sys.stderr)
        return BAD_INPUT
    notes = Notes(job)
    return run_several_as_rank(
        configs,
        trainer_main.run,
        log_path=os.path.join(job.folder, RANK_LOG),
        started=notes.started,
        ended=notes.ended,
    )


def _folders(job: Job, index: int) -> list[str]:
    folder = run_folder(job, index)
    return [f"--results_dir={folder}", f"--model_dir={os.path.join(folder, 'checkpoints')}"]


if __name__ == "__main__":
    sys.exit(main())
