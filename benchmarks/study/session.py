"""The folder of a study and the run that fills it: what is there, what is left, and what came out."""

import contextlib
import json
import os
import shutil
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from benchmarks.study import cells, folds, proofs
from benchmarks.study.cells import FAILED, LOGS, OK, PLAN_FILE, RUNS_FILE, Cell, Run
from benchmarks.study.launcher import Launch, Task
from benchmarks.study.plan import Plan, words
from benchmarks.suite import fingerprint, folder_lock
from data.errors import InputError

MACHINE_FILE = "machine.json"
SCRATCH = "scratch"
_BETWEEN_LOOKS_S = 0.5
_BAR = 20


@contextlib.contextmanager
def opened(folder: str, plan: Plan, facts: Mapping[str, Any]) -> Iterator[int]:
    """Makes the folder ready for the plan, and nobody else uses it meanwhile.

    Runs that failed are taken out of its runs, for they are made again.

    Args:
      folder: of the study; made if it is not there.
      plan: what is going to be run.
      facts: the fingerprint of this machine.

    Returns:
      The file descriptor of the folder's lock. Processes that inherit it hold the lock, too.

    Raises:
      InputError: it holds another plan's study or another machine's, is in use, or cannot be written.
    """
    with folder_lock.held(folder, "a study") as lock:
        try:
            os.makedirs(os.path.join(folder, LOGS), exist_ok=True)
            _settle(folder, plan, facts)
        except OSError as error:
            problem = error.strerror or error
            raise InputError(f"{folder}: cannot be written: {problem}; name another --results_dir") from error
        yield lock


def finished(folder: str, plan: Plan) -> list[Run]:
    """Runs of the plan that the folder holds and that did not fail."""
    path = os.path.join(folder, RUNS_FILE)
    wanted = {(cell, *trial) for cell in plan.cells() for trial in plan.trials}
    found = cells.read(path) if os.path.exists(path) else []
    return [run for run in found if run.status == OK and run.key in wanted]


def run(
    folder: str,
    plan: Plan,
    *,
    say: Callable[[str], None],
    held: Sequence[int] = (),
    launch: Callable[..., Launch] = Launch,
    wait: Callable[[float], None] = time.sleep,
) -> list[Run]:
    """Runs what is not finished; each run is in the folder as soon as it has ended.

    Seeds come one after the other, with all cells of a seed side by side: what is there when it is stopped compares.
    Of a plan with folds, their datasets are made before the first run.

    Args:
      folder: of the study, as `opened` has made it.
      say: takes a line for each run.
      held: file descriptors for all processes.
      launch: see Launch.
      wait: lets so many seconds pass.

    Returns:
      The runs of the plan.

    Raises:
      InputError: datasets of folds cannot be made.
    """
    runs = finished(folder, plan)
    done = {one.key for one in runs}
    left = [
        Task(cell, seed, tuple(words({**plan.settings(cell, seed), **folds.settings(folder, fold)})), fold)
        for seed, fold in plan.trials
        for cell in plan.cells()
        if (cell, seed, fold) not in done
    ]
    if left and plan.folds is not None:
        folds.prepare(folder, plan)
    total = len(runs) + len(left)
    if runs:
        say(f"{folder} holds {len(runs)} of {total} runs: going on")
    sets = plan.device_sets or ({},)
    working: dict[int, Launch] = {}
    with contextlib.ExitStack() as stack:
        while left or working:
            for number, devices in enumerate(sets):
                chunk = [] if number in working else _chunk(left, devices, plan.runs_per_launch, len(sets))
                if chunk:
                    left = [task for task in left if task not in chunk]
                    working[number] = launch(
                        chunk,
                        folder=_new_folder(folder),
                        scratch=os.path.join(folder, SCRATCH, str(number)),
                        runs_file=os.path.join(folder, RUNS_FILE),
                        devices=devices,
                        timeout_s=plan.timeout_s,
                        held=held,
                    )
                    stack.callback(working[number].close)
            for number, one in list(working.items()):
                failed = one.poll()
                for each in failed or ():
                    cells.append(os.path.join(folder, RUNS_FILE), each)
                ended = {each.key for each in runs}
                for each in [*one.done(), *(failed or ())]:
                    if each.key not in ended:
                        ended.add(each.key)
                        runs.append(each)
                        undone = [task for task in _tasks(left, working) if task.key not in ended]
                        say(f"{_bar(len(runs), total)} {outcome(each)}; {remaining(undone, runs, len(sets))}")
                if failed is not None:
                    one.close()
                    del working[number]
                    again = [task for task in one.tasks if task.key not in ended]
                    left = again + left
            if working:
                wait(_BETWEEN_LOOKS_S)
    shutil.rmtree(os.path.join(folder, SCRATCH), ignore_errors=True)
    return runs


def outcome(run: Run) -> str:
    """What came of a run, for people."""
    if run.status == FAILED:
        return f"{run.name}: FAILED: {run.reason}"
    problem = proofs.why_not(run)
    if problem is not None:
        return f"{run.name}: NOT COUNTED: {problem}"
    figure = run.record.get("map_at_12")
    what = f"AUC {run.record['auc']:.5f}" if figure is None else f"MAP@12 {figure:.5f}"
    return f"{run.name}: {what}" + ("" if run.seconds is None else f" in {run.seconds:,.0f} s")


def remaining(left: Sequence[Task], runs: Sequence[Run], sets: int) -> str:
    """How long the rest is going to take: by the medians of its cells, or of all where a cell has none."""
    if not left:
        return "that was the last one"
    seconds: dict[Cell, list[float]] = {}
    for one in runs:
        if one.seconds is not None:
            seconds.setdefault(one.cell, []).append(one.seconds)
    if not seconds:
        return f"{len(left)} left"
    every = statistics.median(value for values in seconds.values() for value in values)
    total = sum(statistics.median(seconds[task.cell]) if task.cell in seconds else every for task in left) / sets
    return f"about {total / 60:.0f} min left" if total >= 90 else f"about {total:.0f} s left"


def problems(runs: Sequence[Run]) -> list[str]:
    """Why a study is not what its plan asked for: a line each."""
    found = []
    failed = [one for one in runs if one.status == FAILED]
    uncounted = [one for one in runs if one.status == OK and proofs.why_not(one) is not None]
    for these, what in ((failed, "failed: the next start makes them again"), (uncounted, "without proof: not counted")):
        if these:
            count = f"{len(these)} run" + ("s" if len(these) > 1 else "")
            names = ", ".join(f"{one.cell.name} {cells.trial_name(one.seed, one.fold)}" for one in these[:5])
            more = f" and {len(these) - 5} more" if len(these) > 5 else ""
            found.append(f"{count} {what} ({names}{more})")
    return found


def _settle(folder: str, plan: Plan, facts: Mapping[str, Any]) -> None:
    plan_path, runs_path, machine_path = (os.path.join(folder, name) for name in (PLAN_FILE, RUNS_FILE, MACHINE_FILE))
    if os.path.exists(plan_path):
        differing = Plan.load(plan_path).differences(plan)
        if differing:
            raise InputError(
                f"{folder}: holds the study of another plan ({', '.join(differing)} differ): name another --results_dir"
            )
    elif os.path.exists(runs_path):
        raise InputError(f"{folder}: holds runs and no {PLAN_FILE}: name another --results_dir")
    if os.path.exists(machine_path):
        differing = fingerprint.differences(_read_facts(machine_path), facts)
        if differing:
            raise InputError(
                f"{folder}: holds runs of another machine or installation ({', '.join(differing)} differ): name "
                "another --results_dir"
            )
    if not os.path.exists(plan_path):
        _write(machine_path, json.dumps(facts, indent=2) + "\n")
        _write(plan_path, plan.to_yaml())
    if os.path.exists(runs_path):
        _write(runs_path, "".join(one.to_line() for one in cells.read(runs_path) if one.status == OK))
    shutil.rmtree(os.path.join(folder, SCRATCH), ignore_errors=True)


def _read_facts(path: str) -> Mapping[str, Any]:
    try:
        with open(path, encoding="utf-8") as file:
            return dict(json.load(file))
    except (ValueError, TypeError) as error:
        raise InputError(f"{path}: cannot be read: {error}; name another --results_dir") from error


def _write(path: str, text: str) -> None:
    """A reader sees the old file or the whole new one."""
    partial = f"{path}.{os.getpid()}.partial"
    with open(partial, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)


def _chunk(left: Sequence[Task], devices: Mapping[str, str], most: int, sets: int) -> list[Task]:
    """The next tasks for a device set: all of the same number of ranks, as many as it can hold."""
    room = len(devices["gpus"].split(",")) if "gpus" in devices else None
    fitting = [task for task in left if room is None or task.cell.world_size <= room]
    if not fitting:
        return []
    same = [task for task in fitting if task.cell.world_size == fitting[0].cell.world_size]
    # The last ones are shared out, so that no set is idle while another has several.
    return same[: min(most, -(-len(same) // sets))]


def _tasks(left: Sequence[Task], working: Mapping[int, Launch]) -> list[Task]:
    return [*left, *(task for one in working.values() for task in one.tasks)]


def _new_folder(folder: str) -> str:
    """A folder for a launch's logs that is not there yet."""
    numbers = [int(name.rpartition("-")[2]) for name in os.listdir(os.path.join(folder, LOGS)) if "-" in name]
    return os.path.join(folder, LOGS, f"launch-{max(numbers, default=0) + 1}")


def _bar(done: int, total: int) -> str:
    filled = _BAR * done // total
    return f"[{'#' * filled}{'.' * (_BAR - filled)}] {done}/{total}"
