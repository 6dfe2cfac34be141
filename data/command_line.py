"""What the command lines that make datasets have in common: one line on stderr and exit code 2 for bad input."""

import argparse
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence

from data.errors import InputError


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that raises InputError instead of printing its usage and ending the program."""

    def error(self, message: str):
        if message.endswith("expected one argument"):
            option = message.partition(":")[0].split()[-1].rpartition("/")[2]
            message += f" (one that begins with - is given as in {option}=-1)"
        raise InputError(f"{self.prog}: {message}; --help lists the options")


def refuse_alone(parsed: argparse.Namespace, flag: str, others: Sequence[str]) -> None:
    """That options which only say more of another one are not given without it, where they would do nothing.

    Args:
      parsed: has None, False or nothing in a list for options that were not given.
      flag: the other one, by its name in `parsed`.
      others: names of those that need it.

    Raises:
      InputError: one of them was given, and the other was not.
    """
    if _is_given(parsed, flag):
        return
    for name in others:
        if _is_given(parsed, name):
            raise InputError(f"--{name} does nothing without --{flag}: add that, or drop --{name}")


def refuse_together(parsed: argparse.Namespace, flag: str, others: Sequence[str]) -> None:
    """That options which another one leaves unused are not given with it; see `refuse_alone`.

    Raises:
      InputError: one of them was given, and the other, too.
    """
    if not _is_given(parsed, flag):
        return
    for name in others:
        if _is_given(parsed, name):
            raise InputError(f"--{name} does nothing with --{flag}: drop one of them")


def _is_given(parsed: argparse.Namespace, name: str) -> bool:
    value = getattr(parsed, name)
    return value is not None and value is not False and value != []  # a zero or an empty text was given


class _Stopped(BaseException):
    """A signal asks the program to end; raised so that half-written output is removed on the way out."""

    def __init__(self, number: int):
        super().__init__(number)
        self.number = number


def run(
    parser: Parser,
    work: Callable[[argparse.Namespace], str],
    arguments: Sequence[str] | None,
    *,
    stopped: str = "nothing was written",
) -> int:
    """Parses `arguments` (None: those of the process), prints what `work` returns; returns the exit code.

    It is 0; 2 for an InputError of the parser or of `work`; 128 + the signal's number where SIGINT, SIGTERM or SIGHUP
    ends `work`, which is then left by an exception; of an output that nobody reads see `say`. Other errors are bugs and
    pass through. `stopped` is what the line about such a signal says of the output.
    """
    try:
        with _signals_raise():
            report = work(parser.parse_args(arguments))
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    except _Stopped as stop:
        print(f"{parser.prog}: stopped by {signal.Signals(stop.number).name}; {stopped}", file=sys.stderr)
        return 128 + stop.number
    except SystemExit:  # --help has printed and ends the program
        say("", end="")
        raise
    return say(report)


def say(text: str, end: str = "\n") -> int:
    """Prints and flushes; returns the exit code: 0, 128 + SIGPIPE if the reader is gone (`head`), 2 if it fails."""
    try:
        print(text, end=end, flush=True)
    except BrokenPipeError:
        # What is left in the buffer goes nowhere, or the interpreter would complain of it at its end.
        _discard_output()
        return 128 + signal.SIGPIPE
    except OSError as error:
        print(f"standard output: cannot be written: {error.strerror}; give it a place with room", file=sys.stderr)
        _discard_output()
        return 2
    return 0


def _discard_output() -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


@contextlib.contextmanager
def _signals_raise() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # Python delivers signals to the main thread alone
        return

    def stop(number: int, frame: object) -> None:
        # Once: a second signal must not cut the cleaning up short.
        for other in before:
            signal.signal(other, signal.SIG_IGN)
        raise _Stopped(number)

    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    # Signals that are ignored stay so (nohup asks for that), and so do handlers that are not Python's.
    before = {number: handler for number, handler in handlers.items() if handler not in (signal.SIG_IGN, None)}
    for number in before:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
