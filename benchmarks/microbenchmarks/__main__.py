"""One microbenchmark: an operation is checked against numpy, timed, and checked again.

    python -m benchmarks.microbenchmarks NAME MODE [--shapes SHAPES] [--params JSON] [--batch N] [--precision P]
        [--seconds 3] [--steps 30] [--result FILE] [--cpu]
    horovodrun -np 2 sh hvd_wrapper.sh python -m benchmarks.microbenchmarks allreduce exchange
    python -m benchmarks.microbenchmarks --list

Rank 0 prints one line, and writes FILE: a JSON object, see benchmarks.microbenchmarks.timed.Outcome. What failed a
check has no score, and says why; the exit code is 0 all the same, for the run did what it is there for. It is 2 for bad
input.
"""

import argparse
import json
import math
import os
import sys
from collections.abc import Sequence

from benchmarks.microbenchmarks import catalogue, ranks
from benchmarks.microbenchmarks.shapes import PRECISIONS, Benchmark, Settings
from benchmarks.microbenchmarks.timed import MOST_SECONDS, MOST_STEPS, Outcome
from data import command_line, whole_files
from data.errors import InputError
from trainer.setting_checks import LEAST_TIMED_STEPS


def listing() -> str:
    """All microbenchmarks with their modes, presets and parameters, for people."""
    return "\n".join(_described(benchmark) for benchmark in catalogue.BENCHMARKS.values())


def line(settings: Settings, outcome: Outcome, world_size: int) -> str:
    """What came out, for people."""
    who = f"{settings}, {world_size} rank{'s' if world_size > 1 else ''}"
    if not outcome.sound:
        return f"{who}: NO SCORE: {outcome.reason}"
    figures = ", ".join(f"{name} {_number(value)}" for name, value in outcome.figures.items())
    times = f"median of {len(outcome.step_ms)} steps {_number(max(outcome.rank_step_ms))} ms"
    return f"{who}: {_number(outcome.score)} {outcome.units}, {times}, {figures}"


def write(outcome: Outcome, path: str) -> None:
    """Writes the outcome as a JSON object, so that a reader sees all of it or nothing.

    Raises:
      InputError: the file cannot be written.
    """
    from trainer.records import jsonable  # nothing here needs TensorFlow

    whole_files.write(path, json.dumps(jsonable(outcome), indent=2, allow_nan=False) + "\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line of a rank; returns the exit code."""
    parser = command_line.Parser(prog="python -m benchmarks.microbenchmarks", description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("name", nargs="?", metavar="NAME", help=f"one of {', '.join(catalogue.BENCHMARKS)}")
    add("mode", nargs="?", metavar="MODE", help="what is timed; --list has the modes")
    add(
        "--shapes",
        metavar="SHAPES",
        help='a preset, or sizes such as "256,1024,1024;64,64,64": a step does all of them',
    )
    add("--params", metavar="JSON", help="the parameters of a microbenchmark, an object; --list has them")
    add("--batch", type=int, metavar="N", help="rows of a batch; of a collective the bytes that a rank hands over")
    add("--precision", default="fp32", metavar="P", help=f"{', '.join(PRECISIONS)} (default: %(default)s)")
    add("--seconds", type=float, default=MOST_SECONDS, metavar="S", help="to measure, at most (default: %(default)s)")
    add("--steps", type=int, default=MOST_STEPS, metavar="N", help="to measure, at most (default: %(default)s)")
    add("--result", metavar="FILE", help="where rank 0 writes what came out, as JSON")
    add("--cpu", action="store_true", help="stay off GPUs")
    add("--list", action="store_true", help="says which microbenchmarks there are")

    def work(given: argparse.Namespace) -> str:
        if given.list:
            return listing()
        if given.name is None or given.mode is None:
            raise InputError(f"{parser.prog}: give NAME and MODE; --list says which there are")
        if not (math.isfinite(given.seconds) and given.seconds > 0) or given.steps < LEAST_TIMED_STEPS:
            raise InputError(
                f"--seconds={given.seconds} --steps={given.steps}: give more than 0 seconds and at least "
                f"{LEAST_TIMED_STEPS} steps"
            )
        settings = catalogue.settings(
            given.name,
            given.mode,
            shapes=given.shapes,
            params=given.params,
            batch=given.batch,
            precision=given.precision,
            cpu=given.cpu,
        )
        comm = ranks.connect(settings)
        return ranks.as_rank(comm, lambda: _run(settings, comm, given))

    try:
        said = work(parser.parse_args(arguments))
    except SystemExit:  # --help has printed and ends the program
        command_line.say("", end="")
        raise
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    return command_line.say(said) if said else 0  # other ranks than the first have nothing to say


def _run(settings: Settings, comm, given: argparse.Namespace) -> str:
    from trainer.agreement import agree

    chief = comm.rank == 0
    agree(comm, lambda: _check_writable(given.result) if chief and given.result else None)
    outcome = ranks.run(settings, comm, seconds=given.seconds, most_steps=given.steps)
    agree(comm, lambda: write(outcome, given.result) if chief and given.result else None)
    return line(settings, outcome, comm.size) if chief else ""


def _check_writable(path: str) -> None:
    folder = os.path.dirname(os.path.abspath(path))
    if os.path.isdir(path) or not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(f"--result={path}: cannot be written; name a file in a folder that is there")


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _described(benchmark: Benchmark) -> str:
    parts = [f"{benchmark.name} {'|'.join(benchmark.modes)}", benchmark.units, ", ".join(benchmark.precisions)]
    if benchmark.numbers:
        parts.append(f"--shapes {','.join(benchmark.numbers)}, or {', '.join(benchmark.presets)}")
    parts += [f"{name} ({one.help}; default {one.default})" for name, one in benchmark.parameters.items()]
    if benchmark.least_ranks > 1:
        parts.append(f"at least {benchmark.least_ranks} ranks")
    return "; ".join(parts)


if __name__ == "__main__":
    sys.exit(main())
