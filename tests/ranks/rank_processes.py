"""Starts commands under horovodrun, or alone, and sees to it that nothing of them is left behind."""

import contextlib
import dataclasses
import os
import pathlib
import re
import subprocess
import sys
import time

import psutil

FOLDER = pathlib.Path(__file__).parent
ROOT = FOLDER.parents[1]
BIN = pathlib.Path(sys.executable).parent

# What a launcher tells its processes; a test that is itself run by one must not hand it on.
_LAUNCHER_VARIABLES = re.compile(r"HOROVOD_|OMPI_|PMI_|PMIX_|SLURM_")


@dataclasses.dataclass(frozen=True)
class Finished:
    """How a command ended: its exit code, what it wrote, and the ranks' own exit codes where they were recorded.

    ended_at is when the command had ended and its output was closed, in seconds since the epoch.
    """

    code: int
    stdout: str
    stderr: str
    folder: pathlib.Path
    ended_at: float

    @property
    def text(self) -> str:
        return f"exit code {self.code}\n--- stdout\n{self.stdout}\n--- stderr\n{self.stderr}"

    def lines(self, rank: int, stream: str) -> list[str]:
        """What a rank wrote to "stdout" or "stderr", by the launcher's prefix."""
        prefix = f"[{rank}]<{stream}>:"
        return [line.removeprefix(prefix) for line in getattr(self, stream).splitlines() if line.startswith(prefix)]

    def rank_code(self, rank: int) -> int | None:
        """The exit code of a rank started through record_rank.sh; None if nothing was recorded."""
        path = self.folder / f"code-{rank}"
        return int(path.read_text()) if path.exists() else None


def run_alone(command: list, *, folder: pathlib.Path, timeout_s: float, **environment: str) -> Finished:
    """Runs a command in `folder`; what has not ended after `timeout_s` is ended, and TimeoutError raised."""
    folder.mkdir(parents=True, exist_ok=True)
    environ = {name: value for name, value in os.environ.items() if not _LAUNCHER_VARIABLES.match(name)}
    environ |= {"PATH": f"{BIN}{os.pathsep}{environ.get('PATH', os.defpath)}", "TF_CPP_MIN_LOG_LEVEL": "2"}
    process = subprocess.Popen(
        [str(part) for part in command],
        cwd=folder,
        env=environ | environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        stdout, stderr = process.communicate(timeout=timeout_s)
    except BaseException as error:
        _end_tree(process.pid)
        stdout, stderr = process.communicate()
        if isinstance(error, subprocess.TimeoutExpired):
            ended = Finished(process.returncode, stdout, stderr, folder, time.time())
            raise TimeoutError(f"{command} was ended after {timeout_s} s; {ended.text}") from None
        raise
    return Finished(process.returncode, stdout, stderr, folder, time.time())


def run_ranks(
    ranks: int, command: list, *, folder: pathlib.Path, timeout_s: float = 120, asked: bool = False
) -> Finished:
    """Runs a command on several ranks, their exit codes recorded.

    Args:
      asked: start horovodrun itself instead of the quicker horovodrun_unasked.py.
    """
    launcher = [BIN / "horovodrun"] if asked else [sys.executable, FOLDER / "horovodrun_unasked.py"]
    recorded = ["sh", FOLDER / "record_rank.sh", folder, *command]
    return run_alone([*launcher, "-np", ranks, *recorded], folder=folder, timeout_s=timeout_s)


def _end_tree(pid: int) -> None:
    """Kills a process and its descendants, by id: horovodrun puts its ranks into sessions of their own."""
    with contextlib.suppress(psutil.NoSuchProcess):
        top = psutil.Process(pid)
        for process in [top, *top.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
