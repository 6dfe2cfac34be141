"""Keeps what a rank's process writes in a file, besides where it goes anyway.

Everything on file descriptors 1 and 2 is kept, TensorFlow's C++ messages and the interpreter's own tracebacks included,
so Python's sys.stdout is too high a place to listen. Both descriptors become pipes, and a small process of its own
copies what comes out of them to the file and to the old descriptors. A thread in this process could do so too, but
would die with it, on a kill or a crash in native code, with the lines in the pipe that tell why. The copier only ends
when all writers have ended. It has a session of its own, so that an interrupt or a launcher's signal to the group ends
the rank and lets the copier copy the rank's last words.
"""

import atexit
import contextlib
import faulthandler
import os
import subprocess
import sys
from pathlib import Path
from typing import TextIO

from data.errors import InputError

_CLOSE_TIMEOUT_S = 5.0
_COPIER = Path(__file__).with_name("stream_copier.py")


class RankLog:
    """An open rank log, made by `rank_log`. A context manager; otherwise it closes at the interpreter's exit.

    terminal: the stream that standard error was before: for what should not be in the file, such as a progress bar.
    """

    def __init__(self, copier: subprocess.Popen, saved: tuple[int, int], terminal: TextIO):
        self.terminal = terminal
        self._copier = copier
        self._saved = saved
        self._owner = os.getpid()
        self._open = True

    def close(self) -> None:
        """Gives the descriptors back and waits until everything is copied, but never long.

        If a child of this process still holds the pipes after 5 seconds, the copier goes on without being waited for.
        """
        if not self._open or os.getpid() != self._owner:  # A forked child must not close its parent's log.
            return
        self._open = False
        _flush()
        for target, saved in zip((1, 2), self._saved, strict=True):
            os.dup2(saved, target)
            os.close(saved)
        with contextlib.suppress(OSError, ValueError):
            self.terminal.close()
        # Children that outlive us are the only thing that can keep it; they are not ours to wait for.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._copier.wait(_CLOSE_TIMEOUT_S)

    def __enter__(self) -> "RankLog":
        return self

    def __exit__(self, *_) -> None:
        self.close()


def rank_log(path: str | os.PathLike) -> RankLog:
    """From now on, everything that this process and its children write to descriptors 1 and 2 is in `path` as well.

    The file is emptied first, and its folder made. Lines of sys.stdout are flushed as they end, and a fatal signal in
    native code leaves Python's traceback. What was written before is not in the file. Raises InputError if the file
    cannot be written, OSError if there is no process to be had for copying.
    """
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o666)
    except OSError as error:
        raise InputError(f"cannot write the log {path}: {error.strerror}; give a writable results_dir") from error
    saved = (os.dup(1), os.dup(2))
    out_read, out_write = os.pipe()
    err_read, err_write = os.pipe()
    try:
        copier = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_COPIER), *map(str, (out_read, err_read, log))],
            stdin=subprocess.DEVNULL,
            stdout=saved[0],
            stderr=saved[1],
            pass_fds=(out_read, err_read, log),
            start_new_session=True,
        )
        _flush()
        os.dup2(out_write, 1)
        os.dup2(err_write, 2)
    except BaseException:
        for descriptor in saved:
            os.close(descriptor)
        raise
    finally:
        for descriptor in (log, out_read, out_write, err_read, err_write):
            os.close(descriptor)
    # Into a pipe Python would keep lines back until its buffer is full, and lose them if the process is killed.
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(line_buffering=True)
    if not faulthandler.is_enabled():
        with contextlib.suppress(OSError, ValueError, AttributeError, RuntimeError):
            faulthandler.enable()
    opened = RankLog(copier, saved, os.fdopen(os.dup(saved[1]), "w", buffering=1, errors="replace"))
    atexit.register(opened.close)
    return opened


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
