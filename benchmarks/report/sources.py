"""Results from what a command line names: folders and files of the suite's records, or of FAMBench's logs."""

import dataclasses
import glob
import json
import math
import numbers
import os
from collections.abc import Iterable, Mapping, Sequence

from benchmarks.report import fambench_logs
from benchmarks.suite import results as suite_results
from benchmarks.suite.results import RECORDS_FILE, Cell, Result
from data.errors import InputError

_TEXTS = ("model", "implementation", "mode", "config", "version", "precision", "scaling")


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
    in .log, and records otherwise.

    Raises:
      InputError: a path is not there, cannot be read, or is a folder with neither.
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


def _log(path: str) -> tuple[list[Result], list[str]]:
    try:
        return [fambench_logs.read(path)], []
    except ValueError as error:
        return [], [f"{path}: {error}"]


def _records(path: str) -> tuple[list[Result], list[str]]:
    found, problems = [], []
    with open(path, encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, start=1):
            try:
                result = suite_results.from_object(json.loads(line.rstrip("\n")))
                check(result)
                found.append(result)
            except ValueError as error:
                problems.append(f"{path}:{number}: {error}")
            except RecursionError:
                problems.append(f"{path}:{number}: nested too deeply")
    return found, problems


def check(result: Result) -> None:
    """That a result which was read has values of the types and ranges that everything made from it relies on.

    Raises:
      ValueError: a field has another; the message names it and its value.
    """
    _check_cell(result.cell)
    for name in ("reason", "safeguard", "start_time"):
        _require(isinstance(getattr(result, name), str), name, getattr(result, name), "text")
    _require(_whole(result.repeat) and result.repeat >= 1, "repeat", result.repeat, "a whole number above 0")
    if result.score is not None:
        _require(_finite(result.score) and result.score > 0, "score", result.score, "a finite number above 0")
    if result.latency_limit_ms is not None:
        _require(_finite(result.latency_limit_ms), "latency_limit_ms", result.latency_limit_ms, "a finite number")
    for name in ("step_ms", "rank_step_ms", "peak_memory_bytes", "peak_device_memory_bytes"):
        values = getattr(result, name)
        _require(
            isinstance(values, list | tuple) and all(_finite(value) and value >= 0 for value in values),
            name, values, "a list of finite numbers, none below 0",
        )  # fmt: skip
    for name in ("figures", "fingerprint", "record"):
        _require(isinstance(getattr(result, name), Mapping), name, getattr(result, name), "an object")


def _check_cell(cell: Cell) -> None:
    for name in _TEXTS:
        _require(isinstance(getattr(cell, name), str), f"cell.{name}", getattr(cell, name), "text")
    _require(_whole(cell.batch_size) and cell.batch_size >= 0, "cell.batch_size", cell.batch_size, "a whole number")
    _require(_whole(cell.world_size) and cell.world_size >= 1, "cell.world_size", cell.world_size, "at least 1")


def _require(holds: bool, name: str, value: object, wanted: str) -> None:
    if not holds:
        raise ValueError(f"{name} must be {wanted}, got {str(value)[:60]!r}")


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _finite(value: object) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)
