"""A command in a process group of its own, which ends with all that it has started."""

import contextlib
import dataclasses
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence

import psutil

GRACE_S = 10.0
"""Launchers give their ranks 5 seconds before they kill them."""

_MOST_LETTERS = 400


@dataclasses.dataclass(frozen=True)
class Ended:
    """How a command ended: its code, negative for a signal; None where it ran past its time and was ended."""

    code: int | None
    seconds: float


def run(
    command: Sequence[str], *, log: str, timeout_s: float, cwd: str, environ: Mapping[str, str] | None = None
) -> Ended:
    """Runs a command to its end; all that it prints goes to `log`.

    It is ended, with all that it has started, when its time is up, and when this call is left by an exception.

    Args:
      command: program and arguments.
      log: a file, written over.
      timeout_s: seconds that it may take.
      cwd: its working directory.
      environ: its environment; that of this process by default.
    """
    started = time.monotonic()
    with open(log, "wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=cwd,
            env=None if environ is None else dict(environ),
            start_new_session=True,
        )
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            end(process)
    return Ended(code, time.monotonic() - started)


def end(process: subprocess.Popen, grace_s: float = GRACE_S) -> None:
    """Ends a process that leads a group, and its descendants in whatever group they are; nothing is left of them."""
    family: list[psutil.Process] = []
    with contextlib.suppress(psutil.Error):
        family = psutil.Process(process.pid).children(recursive=True)
    _signal_group(process.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(grace_s)
    # Children in groups of their own are left to their parent, as long as it is there.
    _, alive = psutil.wait_procs(family, timeout=min(1.0, grace_s))
    for member in alive:
        with contextlib.suppress(psutil.Error):
            member.kill()
    psutil.wait_procs(alive, timeout=grace_s)
    _signal_group(process.pid, signal.SIGKILL)  # what has lost its parent is still in the group
    process.wait()


def last_words(log: str) -> str:
    """Why a command failed, in one line: what the program said of it, or else the last lines that it printed."""
    try:
        with open(log, encoding="utf-8", errors="replace") as file:
            lines = [line.strip() for line in file if line.strip()]
    except OSError as error:
        return f"no output: {error.strerror}"
    said = [line for line in lines if re.search(r"(^|[>:] ?)(main\.py|[\w.]*(Error|Exception)): ", line)]
    # The program's own line comes before what launchers make of it, and of a trace, which the program announces by a
    # line that ends in a colon, the last line says it.
    chosen = [line for line in said if "main.py: " in line and not line.endswith(":")][:1] or said[-1:] or lines[-3:]
    text = " | ".join(chosen) or "no output"
    return text if len(text) <= _MOST_LETTERS else "..." + text[-_MOST_LETTERS:]


Launch = Callable[..., Ended]
"""`run`, or what stands in for it."""


def _signal_group(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
