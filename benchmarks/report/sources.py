"""Results from what a command line names: folders and files of the suite's records, or of FAMBench's logs."""

import dataclasses
import glob
import os
from collections.abc import Iterable, Sequence

from benchmarks.report import fambench_logs
from benchmarks.suite import results as suite_results
from benchmarks.suite.results import RECORDS_FILE, Result
from data.errors import InputError


@dataclasses.dataclass(frozen=True)
class Loaded:
    """What was found.

    Attributes:
      results: good ones, in the order in which they were written.
      problems: a line for each line or file that is bad: where, and why.
    """

    results: Sequence[Result]
    problems: Sequence[str]


def load(paths: Iterable[str]) -> Loaded:
    """Results of all of these folders and files together.

    A folder is read by its records.jsonl or, if it has none, by the *.log files in it. A file is a log if its name ends
    in .log, and records otherwise. Of a file without a single result the first problem stands for all of its lines.

    Raises:
      InputError: a path is not there, cannot be read, or is a folder with neither; or there is no result in any.
    """
    results: list[Result] = []
    problems: list[str] = []
    for path in paths:
        for file in _files(path):
            try:
                found, bad = _log(file) if file.endswith(".log") else _records(file)
            except OSError as error:
                raise InputError(f"{file}: cannot be read: {error.strerror}; name results that can") from error
            results += found
            problems += bad
    if not results:
        more = f", and {len(problems) - 1} more without a result" if len(problems) > 1 else ""
        raise InputError(f"{problems[0]}{more}; name a folder or file of results that the suite has written")
    return Loaded(results, problems)


def _files(path: str) -> list[str]:
    if not os.path.isdir(path):
        return [path]
    records = os.path.join(path, RECORDS_FILE)
    if os.path.exists(records):
        return [records]
    logs = sorted(glob.glob(os.path.join(glob.escape(path), "*.log")))
    if not logs:
        raise InputError(f"{path}: a folder with neither {RECORDS_FILE} nor *.log; name one that the suite wrote to")
    return logs


def _records(path: str) -> tuple[list[Result], list[str]]:
    found, bad = suite_results.read(path)
    if found:
        return found, bad
    if len(bad) > 1:
        return [], [f"{bad[0]}, nor is any other line a result"]
    return [], bad or [f"{path}: empty"]


def _log(path: str) -> tuple[list[Result], list[str]]:
    try:
        return [fambench_logs.read(path)], []
    except ValueError as error:
        return [], [f"{path}: {error}"]
