"""Our steps beside plain Keras, PyTorch and the bare matrix products: which targets are met on this machine.

    python -m benchmarks.compare_peers [--rows NAME,...] [--runs N] [--threads T] [--xla] [--json FILE]
    python -m benchmarks.compare_peers --profile FIRST:LAST [--rows NAME] [--profile_dir DIR] [--profile_rank R]

Contenders of a row work in turns in one process, on the same ids in memory, in float32, with as many threads each; the
first turn is left out, and figures are medians over the others. Each row has a process of its own. What differs from
ours beside the library stands in brackets. PyTorch is optional (requirements-peers.txt); before it is timed, 20 losses
from the same weights must agree with ours.
"""

import argparse
import dataclasses
import os
import re
import sys
from collections.abc import Callable, Sequence

from benchmarks import own_process, peer_rows, system_rows, torch_peer
from benchmarks.comparison import Row, render, write_json
from benchmarks.peer_rows import Settings
from data import command_line
from data.errors import InputError

ROWS: dict[str, Callable[[Settings], list[Row]]] = {
    function.__name__: function
    for function in (
        peer_rows.wide_deep_training,
        peer_rows.wide_deep_evaluation,
        peer_rows.dlrm_training,
        peer_rows.dlrm_data_in_loop,
        peer_rows.dlrm_inference,
        peer_rows.criteo_training,
        peer_rows.table_size,
        system_rows.parquet_input,
        system_rows.ranks,
        system_rows.metrics,
    )
}


_LAST_STEP, _MOST_TRACED = 1000, 100
"""Of --profile: training goes to the last step that is asked for, and the trace is held in memory until then."""

_RUNS = 5


def run(names: Sequence[str], settings: Settings) -> list[Row]:
    """Measures the rows of these names one after the other; a row that fails says so in its note.

    Raises:
      InputError: there is no row of a name, or a number is out of range.
    """
    unknown = [name for name in names if name not in ROWS]
    if unknown:
        raise InputError(f"--rows has '{unknown[0]}'; there are {', '.join(ROWS)}")
    _check_numbers(settings)
    rows = []
    for name in names:
        try:
            rows += own_process.call(measured, name, dataclasses.replace(settings, say=_say))
        except RuntimeError as error:
            rows.append(Row(name, None, "", note=f"failed: {error}"))
    return rows


def measured(name: str, settings: Settings) -> list[Row]:
    """The rows of a name, in a process that has done nothing yet: threads are set first."""
    if name not in ("ranks", "metrics"):  # they have no TensorFlow here
        _prepare(settings.threads)
    return ROWS[name](settings)


def profile(name: str, steps: str, settings: Settings, *, rank: int, folder: str) -> str:
    """Takes one of our training steps apart; see benchmarks.step_profile.

    Args:
      name: of the row that has the step.
      steps: "FIRST:LAST", the steps to trace, counted from 1.
      settings: threads, xla and shrink.
      rank: which rank of several is traced.
      folder: of the trace.

    Raises:
      InputError: there is no such step, rank, or range.
    """
    _check_numbers(settings)
    first, last = _steps(steps)
    if name not in peer_rows.TRAINED:
        raise InputError(f"--profile with --rows={name}: name one of {', '.join(peer_rows.TRAINED)}")
    _prepare(settings.threads)
    from benchmarks import step_profile
    from trainer import distributed

    comm = distributed.connect()
    if not 0 <= rank < comm.size:
        raise InputError(f"--profile_rank={rank}: there are ranks 0 to {comm.size - 1}")
    workload = peer_rows.TRAINED[name](settings)
    text = step_profile.profile(workload, comm, first=first, last=last, rank=rank, folder=folder)
    comm.shutdown()
    return text


def versions() -> str:
    """What was compared and where, for people."""
    from trainer import machine

    facts = machine.environment()
    packages = facts["versions"] | {"torch": torch_peer.version()}
    named = ", ".join(f"{name} {version}" for name, version in packages.items())
    return f"{facts['cpu_model']}, {facts['allowed_cpus']} CPUs; Python {facts['python']}, {named}"


def _check_numbers(settings: Settings) -> None:
    if min(settings.runs, settings.threads, settings.shrink) < 1:
        raise InputError(
            f"--runs={settings.runs} --threads={settings.threads} --shrink={settings.shrink}: give at least 1 each"
        )


def _steps(text: str) -> tuple[int, int]:
    """The first and the last step of a range that can be traced."""
    found = re.fullmatch(r"(\d{1,9}):(\d{1,9})", text, re.ASCII)
    first, last = map(int, found.groups()) if found else (0, 0)
    if not 1 <= first <= last:
        raise InputError(f"--profile={text}: give the first and the last step to trace, from 1 on, as in 5:8")
    if last > _LAST_STEP or last - first >= _MOST_TRACED:
        raise InputError(
            f"--profile={text}: a run has {_LAST_STEP:,} steps, and a trace of more than {_MOST_TRACED} is too large "
            "to be looked at: give a few steps, as in 5:8"
        )
    return first, last


def _prepare(threads: int) -> None:
    from trainer import runtime
    from trainer.config import DeviceConfig

    device = DeviceConfig(cpu=True)
    runtime.import_tensorflow(device)
    runtime.configure(device, threads=threads)
    torch_peer.use_threads(threads)


def _check_places(given: argparse.Namespace) -> None:
    """Refuses, before anything is measured, what could not be written after it."""
    for name, value in (("json", given.json), ("profile_dir", given.profile_dir)):
        if value == "":
            raise InputError(f"--{name} is empty: name a place, or drop it")
    if given.json:
        folder = os.path.dirname(os.path.abspath(given.json))
        if os.path.isdir(given.json) or not os.access(folder, os.W_OK | os.X_OK):
            raise InputError(f"--json={given.json}: cannot be written: name a file in a folder that is there")
    folder = given.profile_dir
    if folder is not None and os.path.exists(folder) and not os.path.isdir(folder):
        raise InputError(f"--profile_dir={folder}: is a file: name a folder")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code, 0 also where a target is missed or a peer is not installed."""
    parser = command_line.Parser(prog="python -m benchmarks.compare_peers", description=__doc__.splitlines()[0])
    add = parser.add_argument
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    add("--rows", default=",".join(ROWS), metavar="NAME,...", help="which rows (default: all: %(default)s)")
    add("--runs", type=int, metavar="N", help=f"measured turns (default: {_RUNS})")
    add("--threads", type=int, default=cpus, metavar="T", help="threads of an operation (default: %(default)s)")
    add("--xla", action="store_true", help="our steps compile their dense part, as main.py's --xla")
    add("--shrink", type=int, default=1, metavar="N", help="everything N times smaller; figures then mean nothing")
    add("--json", metavar="FILE", help="writes the result there: a list of rows")
    add("--profile", metavar="FIRST:LAST", help="traces these steps of --rows (one name) and takes a step apart")
    add("--profile_dir", metavar="DIR", help="folder of the trace (default: profile)")
    add("--profile_rank", type=int, metavar="R", help="rank to trace, of several (default: 0)")

    def work(given: argparse.Namespace) -> str:
        command_line.refuse_alone(given, "profile", ("profile_dir", "profile_rank"))
        command_line.refuse_together(given, "profile", ("runs", "json"))
        settings = Settings(_RUNS if given.runs is None else given.runs, given.threads, given.xla, given.shrink)
        _check_places(given)
        if given.profile is not None:
            folder = "profile" if given.profile_dir is None else given.profile_dir
            return profile(
                given.rows, given.profile, settings, rank=given.profile_rank or 0, folder=os.path.abspath(folder)
            )
        rows = run(given.rows.split(","), settings)
        if given.json:
            write_json(rows, given.json)
        return f"{render(rows)}\n{versions()}"

    return command_line.run(parser, work, arguments)


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    sys.exit(main())
