"""What --deterministic costs: the same training steps with it and without, in turns.

    python -m benchmarks.study.determinism_cost [--model M] [--runs N] [--steps S] [--threads T] [--json FILE]

Each turn has a process of its own, because a process cannot take the setting back. All turns train on the same batches
from the same weights; the first steps of a turn, in which TensorFlow traces, are not timed. On a CPU.
"""

import argparse
import dataclasses
import functools
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence

from benchmarks import own_process, workloads
from benchmarks.comparison import Row, measure, render, write_json
from data import command_line
from data.errors import InputError

WITH, WITHOUT = "with --deterministic", "without"
_UNTIMED_STEPS = 3

_WORKLOADS: dict[str, Callable[..., workloads.Workload]] = {
    "wide_deep": workloads.wide_deep,
    "dlrm": functools.partial(workloads.dlrm_tiny, "distinct"),
}


@dataclasses.dataclass(frozen=True)
class Turn:
    """What a process measured: rows of its timed steps, their seconds, and the losses of all its steps."""

    rows: int
    seconds: float
    losses: tuple[float, ...]


def train(model: str, *, deterministic: bool, steps: int, threads: int, shrink: int = 1) -> Turn:
    """One turn, in a process that has done nothing with TensorFlow yet."""
    from trainer import runtime
    from trainer.config import DeviceConfig

    device = DeviceConfig(cpu=True, deterministic=deterministic)
    runtime.import_tensorflow(device)
    runtime.configure(device, threads=threads)
    return measured(_WORKLOADS[model](shrink=shrink), steps)


def measured(workload: workloads.Workload, steps: int) -> Turn:
    """Trains under the settings in force."""
    from benchmarks.our_steps import OurSteps, as_tensors

    ours = OurSteps(workload)
    batches = as_tensors(workload.batches(_UNTIMED_STEPS + steps))
    untimed = ours.losses(batches[:_UNTIMED_STEPS])
    began = time.perf_counter()
    timed = [float(ours.train(batch)["loss"]) for batch in batches[_UNTIMED_STEPS:]]
    seconds = time.perf_counter() - began
    return Turn(rows=steps * workload.batch_size, seconds=seconds, losses=(*untimed, *timed))


def compare(turn: Callable[[bool], Turn], runs: int, say: Callable[[str], None]) -> list[Row]:
    """Medians of both, and what is to be known of their losses.

    Args:
      turn: one turn, deterministic or not.
      runs: measured turns of each.
      say: takes a line for each turn.
    """
    losses: dict[str, set[tuple[float, ...]]] = {WITH: set(), WITHOUT: set()}

    def contender(name: str) -> tuple[float, float]:
        found = turn(name == WITH)
        losses[name].add(found.losses)
        return found.rows, found.seconds

    # The first pass would only fill caches of the process, and each turn has one of its own.
    speeds = measure(
        {name: functools.partial(contender, name) for name in (WITHOUT, WITH)}, runs, say, "samples/s", left_out=0
    )
    medians = {name: statistics.median(found) for name, found in speeds.items()}
    same = len(losses[WITH] | losses[WITHOUT]) == 1
    notes = {
        name: f"{_losses(len(found))} in {runs} turns" + (", the same in both" if same else "")
        for name, found in losses.items()
    }
    return [
        Row(
            name,
            medians[name],
            "samples/s",
            min(speeds[name]),
            max(speeds[name]),
            ratio=medians[name] / medians[WITHOUT] if name == WITH else None,
            ratio_is="of the speed without" if name == WITH else "",
            note=notes[name],
        )
        for name in (WITHOUT, WITH)
    ]


def _losses(kinds: int) -> str:
    return "the same losses" if kinds == 1 else f"{kinds} sequences of losses"


def _work(arguments: argparse.Namespace) -> str:
    for name in ("runs", "steps", "threads", "shrink"):
        if getattr(arguments, name) < 1:
            raise InputError(f"--{name} must be at least 1, got {getattr(arguments, name)}")

    def turn(deterministic: bool) -> Turn:
        function = functools.partial(
            train,
            arguments.model,
            deterministic=deterministic,
            steps=arguments.steps,
            threads=arguments.threads,
            shrink=arguments.shrink,
        )
        return own_process.call(function)

    rows = compare(turn, arguments.runs, lambda line: print(line, file=sys.stderr, flush=True))
    if arguments.json:
        write_json(rows, arguments.json)
    return render(rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    parser = command_line.Parser(prog="benchmarks.study.determinism_cost", description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=tuple(_WORKLOADS), default="wide_deep", help="whose steps")
    parser.add_argument("--runs", type=int, default=5, help="measured turns of each")
    parser.add_argument("--steps", type=int, default=20, help="timed steps of a turn")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="of one operation")
    parser.add_argument("--shrink", type=int, default=1, help="everything is that many times smaller, for tests")
    parser.add_argument("--json", help="file for the result")
    return command_line.run(parser, _work, arguments)


if __name__ == "__main__":
    sys.exit(main())
