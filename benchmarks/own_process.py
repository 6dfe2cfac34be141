"""A function in a process of its own: it begins with the threads it is to have and leaves its memory when it ends."""

import contextlib
import multiprocessing
import signal
import sys
from collections.abc import Callable
from typing import Any


def call(function: Callable[..., Any], *arguments: Any) -> Any:
    """Returns what `function(*arguments)` returns in a new process; it, its arguments and its result are pickled.

    Raises:
      RuntimeError: it raised, or the process ended before; the message has the reason.
    """
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(sender, function, arguments), daemon=True)
    process.start()
    sender.close()
    try:
        result, problem = receiver.recv()
    except EOFError:
        process.join()
        result, problem = None, f"its process ended with code {process.exitcode}"
    except BaseException:
        process.terminate()
        raise
    finally:
        process.join()
        receiver.close()
    if problem:
        raise RuntimeError(problem)
    return result


def _child(sender: Any, function: Callable[..., Any], arguments: tuple) -> None:
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this one
    with contextlib.closing(sender):
        try:
            sender.send((function(*arguments), ""))
        except Exception as error:
            sender.send((None, f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"))
