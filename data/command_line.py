"""What the command lines that make datasets have in common: one line on stderr and exit code 2 for bad input."""

import argparse
import sys
from collections.abc import Callable, Sequence

from data.errors import InputError


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that raises InputError instead of printing its usage and ending the program."""

    def error(self, message: str):
        raise InputError(f"{self.prog}: {message}; --help lists the options")


def run(parser: Parser, work: Callable[[argparse.Namespace], str], arguments: Sequence[str] | None) -> int:
    """Parses `arguments` (None: those of the process), prints what `work` returns; returns the exit code.

    It is 0, or 2 for an InputError of the parser or of `work`; other errors are bugs and pass through.
    """
    try:
        report = work(parser.parse_args(arguments))
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    print(report)
    return 0
