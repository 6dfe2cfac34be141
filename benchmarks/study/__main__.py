"""Runs an accuracy study, and reports on it.

    python -m benchmarks.study run PLAN --results_dir DIR     PLAN: a file, or one of the presets in benchmarks/studies
    python -m benchmarks.study plan PLAN                      what it would run
    python -m benchmarks.study report DIR

A second `run` with the same folder goes on where the first one ended, and repeats what failed. The exit code is 0 if
all runs are there and count; 1 if one failed or does not count; 2 for bad input; 130 or 143 where it was stopped. That
of `report` is 1 where its verdicts must not be relied on: a baseline is too weak, or no control was found out.
"""

import argparse
import os
import sys
from collections.abc import Sequence

from benchmarks.study import readiness, session
from benchmarks.study.plan import Plan
from benchmarks.suite import fingerprint
from data import command_line

DEFAULT_DIR = os.path.join("results", "study")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code."""
    failed: list[str] = []

    def work(options: argparse.Namespace) -> str:
        text, problems = options.work(options)
        failed.extend(problems)
        return text

    code = command_line.run(
        _parser(), work, arguments, stopped="what is finished is kept, and the same command goes on from there"
    )
    for line in failed:
        _say(line)
    return 1 if code == 0 and failed else code


def run(options: argparse.Namespace) -> tuple[str, list[str]]:
    """Runs a plan; returns a line for people, and why it is not all that was asked for.

    Raises:
      InputError: the plan or the folder cannot be used.
    """
    plan = Plan.load(options.plan)
    folder = options.results_dir
    facts = fingerprint.fingerprint()
    readiness.check(folder, plan, facts)
    with session.opened(folder, plan, facts) as lock:
        runs = session.run(folder, plan, say=_say, held=(lock,))
    return f"{folder}: {len(runs)} runs of {len(plan.cells())} cells", session.problems(runs)


def describe(options: argparse.Namespace) -> tuple[str, list[str]]:
    """What a plan would run, for people."""
    plan = Plan.load(options.plan)
    cells = plan.cells()
    times = f"{len(plan.seeds)} seeds" + ("" if plan.folds is None else f" x {plan.folds} folds")
    lines = [f"{plan.name}: {len(cells)} cells x {times} = {len(cells) * len(plan.trials)} runs"]
    return "\n".join([*lines, *(f"  {cell.name}" for cell in cells)]), []


def report(options: argparse.Namespace) -> tuple[str, list[str]]:
    """Writes the report of a folder; returns the paths and the verdicts, a line each, and why not to rely on them.

    Raises:
      InputError: it is no folder of a study, or cannot be written.
    """
    from benchmarks.study.report import write_report  # brings what draws plots, which running does without

    written = write_report(options.folder)
    return "\n".join([*map(str, written.paths), *written.verdicts]), list(written.problems)


def _parser() -> command_line.Parser:
    codes = __doc__.rpartition("\n\n")[2]
    parser = command_line.Parser(prog="python -m benchmarks.study", description=__doc__.splitlines()[0], epilog=codes)
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    running = verbs.add_parser("run", help="run what a plan asks for and its folder does not hold yet", epilog=codes)
    running.add_argument("plan", metavar="PLAN", help="a YAML file, or a preset: paper, laptop, clicks")
    running.add_argument("--results_dir", default=DEFAULT_DIR, metavar="DIR", help="default: %(default)s")
    running.set_defaults(work=run)
    planning = verbs.add_parser("plan", help="say what a plan would run", epilog=codes)
    planning.add_argument("plan", metavar="PLAN", help="as above")
    planning.set_defaults(work=describe)
    reporting = verbs.add_parser("report", help="write tables, figures and tests of a folder", epilog=codes)
    reporting.add_argument("folder", metavar="DIR", help="the --results_dir of a run")
    reporting.set_defaults(work=report)
    return parser


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
