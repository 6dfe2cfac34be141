"""A folder of results and the run of the suite that fills it: what is there, what is left, and what came out."""

import dataclasses
import json
import os
import shutil
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.suite import fingerprint, plan, results
from benchmarks.suite.plan import Planned
from benchmarks.suite.results import FAILED, OK, SKIPPED, Cell, Result
from benchmarks.suite.runner import Runner
from data import whole_files
from data.errors import InputError

PLAN_FILE = "plan.json"
LOGS = "logs"


@dataclasses.dataclass(frozen=True)
class Found:
    """What a folder of results holds of a plan.

    Attributes:
      finished: results that need not be made again.
      failed: how many runs failed.
      problems: lines of the records that are no results.
    """

    finished: tuple[Result, ...] = ()
    failed: int = 0
    problems: tuple[str, ...] = ()


def look(folder: str, planned: Sequence[Planned], facts: Mapping[str, Any], *, fresh: bool) -> Found:
    """What the folder holds of the plan. Changes nothing.

    Args:
      folder: of results; need not exist.
      planned: what is going to be run.
      facts: the fingerprint of this machine.
      fresh: whether what it holds is going to be removed.

    Raises:
      InputError: it holds records of another plan or another machine, or cannot be read.
    """
    path = os.path.join(folder, results.RECORDS_FILE)
    if fresh or not os.path.exists(path):
        return Found()
    try:
        found, problems = results.read(path)
        with open(os.path.join(folder, PLAN_FILE), encoding="utf-8") as file:
            before = json.load(file)
    except (OSError, ValueError) as error:
        raise InputError(f"{folder}: its records cannot be read: {error}; --fresh removes them") from error
    if not isinstance(before, dict) or before.get("key") != plan.key(planned):
        raise InputError(
            f"{folder}: holds {len(found)} results of another plan: name another --results_dir, or remove them with "
            "--fresh"
        )
    for result in found:
        differing = fingerprint.differences(result.fingerprint, facts)
        if differing:
            raise InputError(
                f"{folder}: holds results of another machine or installation ({', '.join(differing)} differ): name "
                "another --results_dir, or remove them with --fresh"
            )
    kept = {}
    for result in found:
        if result.status not in (FAILED, SKIPPED):
            kept[result.cell, result.repeat] = result
    failed = {(result.cell, result.repeat) for result in found if result.status == FAILED} - set(kept)
    return Found(tuple(kept.values()), len(failed), tuple(problems))


def prepare(folder: str, planned: Sequence[Planned], found: Found, *, fresh: bool) -> None:
    """Makes the folder ready: what is finished stays, what failed is taken out, for it is run again.

    Raises:
      InputError: it cannot be written.
    """
    path = os.path.join(folder, results.RECORDS_FILE)
    try:
        os.makedirs(os.path.join(folder, LOGS), exist_ok=True)
        if fresh:
            shutil.rmtree(os.path.join(folder, LOGS))
            os.makedirs(os.path.join(folder, LOGS))
            for name in (results.RECORDS_FILE, PLAN_FILE):
                if os.path.exists(os.path.join(folder, name)):
                    os.remove(os.path.join(folder, name))
        whole_files.write(path, "".join(result.to_line() for result in found.finished))
        stated = {"key": plan.key(planned), "runs": sum(not one.skipped for one in planned)}
        whole_files.write(os.path.join(folder, PLAN_FILE), json.dumps(stated) + "\n")
    except OSError as error:
        problem = error.strerror or error
        raise InputError(f"{folder}: cannot be written: {problem}; name another --results_dir") from error


def run(
    folder: str,
    planned: Sequence[Planned],
    finished: Sequence[Result],
    runner: Runner,
    *,
    say: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
) -> list[Result]:
    """Runs what is not finished; each result is in the records as soon as it is there.

    Returns:
      The results of the plan, finished ones included.
    """
    done = {(result.cell, result.repeat) for result in finished}
    skipped = [runner.skipped(one) for one in planned if one.skipped]
    results.append(skipped, folder)
    for result in skipped:
        say(f"skipped: {result.cell.benchmark}, {result.cell.batch_size:,}: {result.reason}")
    left = [one for one in planned if not one.skipped and (one.cell, one.repeat) not in done]
    found = [*finished, *skipped]
    seconds: dict[Cell, list[float]] = {}
    for number, one in enumerate(left, start=1):
        say(f"[{number}/{len(left)}] {plan.describe(one)}, repeat {one.repeat}")
        began = clock()
        result = runner.run(one)
        results.append([result], folder)
        found.append(result)
        seconds.setdefault(one.cell, []).append(clock() - began)
        say(f"    {outcome(result)} in {clock() - began:,.0f} s; {remaining(left[number:], seconds)}")
    return found


def remaining(left: Sequence[Planned], seconds: Mapping[Cell, Sequence[float]]) -> str:
    """How long the rest is going to take, by what the same cells took, and others as the median of all."""
    if not left:
        return "that was the last one"
    every = statistics.median(value for values in seconds.values() for value in values)
    total = sum(statistics.median(seconds[one.cell]) if one.cell in seconds else every for one in left)
    return f"about {total / 60:.0f} min left" if total >= 90 else f"about {total:.0f} s left"


def outcome(result: Result) -> str:
    """What came out, for people."""
    if result.status == OK:
        return f"{result.score:,.4g} {result.units}" if result.score < 1000 else f"{result.score:,.1f} {result.units}"
    return f"{result.status.upper()}: {result.reason}"
