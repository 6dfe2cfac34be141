"""A launch: a process group that works off several runs of a study, watched until it ends."""

import dataclasses
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence

from benchmarks.study import cells, worker
from benchmarks.study.cells import FAILED, Cell, Run
from benchmarks.study.worker import Job
from benchmarks.suite import commands, processes
from data.errors import InputError

OUTPUT = "output.log"
"""In a launch's folder: all that its processes print."""


@dataclasses.dataclass(frozen=True)
class Task:
    """A run that is to be made: arguments are main.py's, without folders."""

    cell: Cell
    seed: int
    arguments: tuple[str, ...]
    fold: int | None = None

    @property
    def key(self) -> tuple[Cell, int, int | None]:
        """As that of the run that comes of it."""
        return self.cell, self.seed, self.fold


def command(ranks: int, job: str, devices: Mapping[str, str]) -> list[str]:
    """The command of a worker on so many ranks, on the CPUs of a device set if it names some.

    Raises:
      InputError: several ranks and no horovodrun, or CPUs to choose and no taskset.
    """
    found = commands.on_ranks([commands.python(), "-m", "benchmarks.study.worker", job], ranks)
    if "cpus" not in devices:
        return found
    taskset = shutil.which("taskset")
    if taskset is None:
        raise InputError("device_sets: cpus need the command taskset, which is not there: install util-linux")
    return [taskset, "-c", devices["cpus"], *found]


def environment(devices: Mapping[str, str]) -> dict[str, str]:
    """The environment of a worker. float32 means float32: no TF32 on GPUs that have it (not run on hardware by us)."""
    found = commands.environment("fp32")
    if "gpus" in devices:
        found["CUDA_VISIBLE_DEVICES"] = devices["gpus"]
    return found


class Launch:
    """A worker that is running.

    Args:
      tasks: what it does, all of the same number of ranks.
      folder: for its logs; is made.
      scratch: for checkpoints and the like, seen by all ranks; is made, and removed with the launch.
      runs_file: of the study.
      devices: the device set that it works on; empty for all that there is.
      timeout_s: of a run, and of the start.
      held: file descriptors that all of its processes keep open, such as that of a lock.
      start: starts a command; see `start_process`.
      clock: seconds, monotonic.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        *,
        folder: str,
        scratch: str,
        runs_file: str,
        devices: Mapping[str, str],
        timeout_s: float,
        held: Sequence[int] = (),
        start: Callable[..., subprocess.Popen] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.tasks = tuple(tasks)
        self.devices = devices
        self._folder, self._scratch, self._runs_file = folder, scratch, runs_file
        self._timeout_s, self._clock = timeout_s, clock
        os.makedirs(folder)
        os.makedirs(scratch)
        runs = tuple((*task.key, task.arguments) for task in tasks)
        job = worker.write_job(Job(os.path.abspath(folder), os.path.abspath(scratch), os.path.abspath(runs_file), runs))
        self._process = (start or start_process)(
            command(tasks[0].cell.world_size, os.path.abspath(job), devices),
            log=os.path.join(folder, OUTPUT),
            environ=environment(devices),
            held=held,
        )
        self._seen, self._read_size, self._done = 0, -1, []
        self._moved = clock()
        self._is_late = False

    def poll(self) -> list[Run] | None:
        """None while it works; once it has ended, the run that broke it, if one did.

        That is the run that had begun last. Where none had begun, all of them failed: another start would end like this
        one. Tasks that are neither returned nor in the study's runs are left to do; at least one is not.
        """
        if self._process.poll() is None:
            begun = len(worker.begun(self._folder)) + len(self.done())
            if begun != self._seen:
                self._seen, self._moved = begun, self._clock()
            if self._clock() - self._moved <= self._timeout_s:
                return None
            self._is_late = True
        return self._failed()

    def done(self) -> list[Run]:
        """Runs of this launch that have ended, with a record or with a reason."""
        size = os.path.getsize(self._runs_file) if os.path.exists(self._runs_file) else 0
        if size != self._read_size:  # it is asked for often, and must not take time from what is measured
            mine = {task.key for task in self.tasks}
            found = cells.read(self._runs_file) if size else []
            self._done, self._read_size = [run for run in found if run.key in mine], size
        return self._done

    def close(self) -> None:
        """Ends what still runs, and removes all but the logs."""
        processes.end(self._process)
        shutil.rmtree(self._scratch, ignore_errors=True)

    def _failed(self) -> list[Run]:
        code = self._process.poll()
        processes.end(self._process)
        words = processes.last_words(os.path.join(self._folder, OUTPUT))
        how = f"ran past its time of {self._timeout_s:,.0f} s and was ended" if self._is_late else f"code {code}"
        ended = {run.key for run in self.done()}
        begun = worker.begun(self._folder)
        left = [task for task in self.tasks if task.key not in ended]
        if not left:
            return []
        if not begun:
            return [self._run(task, f"its process did not begin ({how}): {words}") for task in left]
        last = self.tasks[begun[-1]]
        # Otherwise it ended between two runs: the one that had begun last is done, and the others can go on.
        return [self._run(last, f"its process ended ({how}): {words}")] if last in left else []

    @staticmethod
    def _run(task: Task, reason: str) -> Run:
        return Run(task.cell, task.seed, FAILED, " ".join(reason.split()), fold=task.fold)


def start_process(
    arguments: Sequence[str], *, log: str, environ: Mapping[str, str], held: Sequence[int] = ()
) -> subprocess.Popen:
    """Starts a command in a process group of its own; all that it prints goes to `log`."""
    with open(log, "wb") as output:
        return subprocess.Popen(
            list(arguments),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=str(commands.ROOT),
            env=dict(environ),
            pass_fds=tuple(held),
            start_new_session=True,
        )
