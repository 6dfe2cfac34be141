"""Runs the benchmark suite, or some of its benchmarks, and prints the table.

    python -m benchmarks.run                      the default selection, three repeats of each cell
    python -m benchmarks.run --quick              a few cells, once
    python -m benchmarks.run dlrm 'gemm-*'        names, models or patterns
    python -m benchmarks.run --list               what there is
    python -m benchmarks.run NAME --search        the batch size with the best throughput

Each repeat is a process of its own, and its result is in DIR/records.jsonl when the next one begins; logs are in
DIR/logs. The exit code is 0 if everything that was run has a score; 1 if a run failed, a safeguard did not hold, or a
row that must have a score here has none; 2 for bad input; 130 or 143 where it was stopped. It goes on with --resume.
"""

import argparse
import os
import re
import socket
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.microbenchmarks.shapes import PRECISIONS
from benchmarks.suite import fingerprint as fingerprints
from benchmarks.suite import folder_lock, meanings, memory, must_score, plan, safeguards, search, session
from benchmarks.suite.correctness import Correctness
from benchmarks.suite.definitions import (
    DEFAULT,
    MICRO,
    OOTB,
    OPTIMIZED,
    QUICK,
    SELECTIONS,
    Definition,
    load,
    select,
)
from benchmarks.suite.plan import Machine, Planned, Selection
from benchmarks.suite.results import FAILED, UNSOUND, Result
from benchmarks.suite.runner import Runner
from data import command_line
from data.errors import InputError
from trainer import machine, nvml

DEFAULT_DIR = os.path.join("results", "suite")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code."""
    failed: list[str] = []

    def work(options: argparse.Namespace) -> str:
        definitions = load()
        _check_options(options)
        if options.record_meanings:
            return meanings.record(definitions)
        if options.list:
            return list_of(select(definitions, options.names) if options.names else definitions)
        text, problems = measure(definitions, options)
        failed.extend(problems)
        return text

    code = command_line.run(
        _parser(), work, arguments, stopped="what is finished is kept, and --resume goes on from there"
    )
    for line in failed:
        _say(line)
    return 1 if code == 0 and failed else code


def measure(definitions: Sequence[Definition], options: argparse.Namespace) -> tuple[str, list[str]]:
    """Plans and runs; returns the table, and why the suite did not do all that it was asked for.

    Raises:
      InputError: the options cannot be, or the folder holds something else.
    """
    if not options.results_dir:
        raise InputError("--results_dir is empty: name a folder")
    if options.hosts:
        _resolve(options.hosts)
    chosen, selection = _chosen(definitions, options)
    wrong = meanings.problems(chosen, meanings.recorded())
    if wrong:
        raise InputError(wrong[0])
    facts = fingerprints.fingerprint()
    here = _machine(facts, options.hosts)
    planned = plan.plan(chosen, selection, lambda one, cell: plan.why_not(one, cell, here, memory.predicted_bytes))
    if not planned:
        raise InputError("nothing is left of the selection: look at --list, and give other sizes or implementations")
    if options.hosts and all(one.cell.world_size == 1 for one in planned):
        raise InputError(
            f"--hosts={options.hosts} does nothing: all of the selection runs on one rank, which is here; give "
            "--world_sizes, or drop --hosts"
        )
    with folder_lock.held(options.results_dir, "a suite"):
        return _measured(chosen, planned, facts, here, options)


def _measured(
    chosen: Sequence[Definition],
    planned: Sequence[Planned],
    facts: dict[str, Any],
    here: Machine,
    options: argparse.Namespace,
) -> tuple[str, list[str]]:
    folder = options.results_dir
    found = session.look(folder, planned, facts, fresh=options.fresh)
    _agree_to_go_on(folder, found, planned, options)
    session.prepare(folder, planned, found, fresh=options.fresh)
    for line in found.problems:
        _say(f"left out: {line}")
    logs = os.path.join(folder, session.LOGS)
    cpus, flags = facts["allowed_cpus"], fingerprints.cpu_flags()
    peaks = {precision: safeguards.peak_flops(cpus, flags, precision=precision) for precision in PRECISIONS}
    runner = Runner(
        logs,
        fingerprint=facts,
        correctness=Correctness(logs, say=_say, timeout_s=options.timeout),
        peak_flops={} if here.gpus or options.hosts else peaks,  # what others can do is not known here
        hosts=options.hosts,
        timeout_s=options.timeout,
    )
    results = session.run(folder, planned, found.finished, runner, say=_say)
    table = report(folder)
    if options.search:
        table += "\n\n" + search.summary(chosen, results)
    return table, problems(planned, results, facts)


def report(folder: str) -> str:
    """Writes the tables and plots of a folder; returns the table for the terminal."""
    from benchmarks.report import write_all  # brings what draws plots, which planning and running do without

    return write_all(folder)


def problems(planned: Sequence[Planned], results: Sequence[Result], facts: dict[str, Any]) -> list[str]:
    """Why the suite did not do all that it was asked for: a line each."""
    found = []
    if all(one.skipped for one in planned):
        found.append("nothing was run: every cell of the selection was skipped")
    for status in (FAILED, UNSOUND):
        count = sum(result.status == status for result in results)
        if count:
            runs = "run" if count == 1 else "runs"
            found.append(f"{count} {runs} {'failed' if status == FAILED else 'had no score: a safeguard did not hold'}")
    stated, rows = must_score.rows()
    if must_score.applies(stated, facts):
        for row in must_score.without_score(rows, [one.cell for one in planned], results):
            found.append(f"must have a score on a machine of this size and has none: {row}")
    return found


def list_of(definitions: Sequence[Definition]) -> str:
    """What there is, for people."""
    lines = []
    for one in definitions:
        where = [f"{name}: {_stated(one.stated(name))}" for name in SELECTIONS if one.stated(name)]
        sizes = ", ".join(map(str, one.batch_sizes))
        lines.append(
            f"{one.name} {one.version} ({', '.join(one.implementations)}; batch {sizes}; ranks "
            f"{', '.join(map(str, one.world_sizes))}; {'; '.join(where) or 'by name alone'})\n    {one.stands_for}"
        )
    return "\n".join(lines)


def _stated(sizes: Mapping[str, Sequence[int]]) -> str:
    return ", ".join(f"{who} {' '.join(map(str, batches))}" for who, batches in sizes.items())


def _chosen(definitions: Sequence[Definition], options: argparse.Namespace) -> tuple[list[Definition], Selection]:
    stated = None if options.names else QUICK if options.quick else DEFAULT
    if stated is None:
        chosen = select(definitions, options.names)
    else:
        chosen = [one for one in definitions if one.stated(stated)]
    batch_sizes = options.batch_sizes
    if options.search:
        if batch_sizes or not options.names:
            raise InputError(
                "--search takes names of benchmarks, --least_batch and --largest_batch, and no --batch_sizes"
            )
        chosen = [one for one in chosen if not one.is_micro]
        if not chosen:
            raise InputError("--search looks for the batch size of models, and only microbenchmarks are named")
        least, largest = options.least_batch or search.LEAST_BATCH, options.largest_batch or search.LARGEST_BATCH
        batch_sizes = search.powers_of_two(least, largest)
        if not batch_sizes:
            raise InputError(f"--least_batch={least} and --largest_batch={largest} have no power of two between them")
    repeats = options.repeats or (plan.QUICK_REPEATS if options.quick else plan.DEFAULT_REPEATS)
    selection = Selection(
        stated=stated,
        quick=options.quick,
        batch_sizes=batch_sizes,
        world_sizes=options.world_sizes,
        precisions=options.precisions,
        implementations=options.implementations,
        repeats=repeats,
        pair=options.pair,
    )
    return chosen, selection


def _machine(facts: dict[str, Any], hosts: str | None) -> Machine:
    gpus = tuple(facts["gpus"])
    return Machine(
        cpus=facts["allowed_cpus"],
        memory_bytes=machine.read_available_memory_bytes(),
        gpus=gpus,
        gpu_memory_bytes=nvml.free_memory_bytes(os.environ) if gpus else None,
        machines=len(hosts.split(",")) if hosts else 1,
        slots=sum(int(host.rpartition(":")[2]) for host in hosts.split(",")) if hosts else None,
        precisions=plan.machine_precisions(fingerprints.cpu_flags(), gpus),
        has_horovod=facts["versions"]["horovod"] != machine.ABSENT,
    )


def _check_options(options: argparse.Namespace) -> None:
    """Refuses options that would do nothing."""
    command_line.refuse_alone(options, "search", ("least_batch", "largest_batch"))
    others = (
        *("quick", "repeats", "batch_sizes", "world_sizes", "precisions", "implementations", "pair", "search"),
        *("hosts", "resume", "fresh"),
    )
    command_line.refuse_together(options, "list", others)
    command_line.refuse_together(options, "record_meanings", ("list", *others))
    if options.record_meanings and options.names:
        raise InputError(f"--record_meanings is of all benchmarks: drop {' '.join(options.names)}")


def _resolve(hosts: str) -> None:
    """Refuses names that this machine cannot turn into addresses, before anything is measured."""
    for host in hosts.split(","):
        name = host.partition(":")[0]
        try:
            socket.getaddrinfo(name, None)
        except (OSError, UnicodeError) as error:  # the latter of names that cannot be in the DNS
            reason = getattr(error, "strerror", None) or error
            raise InputError(
                f"--hosts={hosts}: {name} cannot be resolved: {reason}; give names that this machine knows"
            ) from error


def _agree_to_go_on(folder: str, found: session.Found, planned: Sequence[Planned], options: argparse.Namespace) -> None:
    """Says what a folder holds, and asks where nobody has said what to do with it."""
    if not found.finished and not found.failed:
        if options.resume:
            _say(f"{folder} holds nothing to go on from: starting")
        return
    runs = sum(not one.skipped for one in planned)
    holds = f"{folder} holds {len(found.finished)} of the {runs} runs of this plan"
    if found.failed:
        holds += f", and {found.failed} failed ones"
    if options.resume:
        _say(f"{holds}: going on")
        return
    if sys.stdin.isatty():
        if input(f"{holds}. Go on from there? [Y/n] ").strip().lower() in ("", "y", "yes"):
            return
        raise InputError(f"{holds}: left as it is; --fresh removes them")
    raise InputError(f"{holds}: say --resume to go on from there, or --fresh to remove them and start again")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(_count(word) for word in text.split(","))


def _hosts(text: str) -> str:
    if not re.fullmatch(r"[^\s:,]+:[1-9]\d*(,[^\s:,]+:[1-9]\d*)*", text):
        raise argparse.ArgumentTypeError(f"give each machine with the ranks it takes, as A:8,B:8, not {text!r}")
    return text


def _words(allowed: Sequence[str]):
    def words(text: str) -> tuple[str, ...]:
        found = tuple(text.split(","))
        if not set(found) <= set(allowed):
            raise argparse.ArgumentTypeError(f"give some of {','.join(allowed)}, not {text!r}")
        return found

    return words


def _parser() -> command_line.Parser:
    parser = command_line.Parser(
        prog="python -m benchmarks.run", description=__doc__.splitlines()[0], epilog=__doc__.rpartition("\n\n")[2]
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="benchmarks, models or patterns; see --list")
    parser.add_argument("--list", action="store_true", help="say what there is, and end")
    parser.add_argument("--quick", action="store_true", help="a few cells, once")
    parser.add_argument("--repeats", type=_count, metavar="N", help="processes for each cell (3; 1 with --quick)")
    parser.add_argument("--results_dir", default=DEFAULT_DIR, metavar="DIR", help="default: %(default)s")
    parser.add_argument("--batch_sizes", type=_numbers, metavar="N,...", help="in place of the benchmarks' own")
    parser.add_argument("--world_sizes", type=_numbers, metavar="N,...", help="in place of the benchmarks' own")
    parser.add_argument("--precisions", type=_words(PRECISIONS), metavar="P,...", help=f"of {','.join(PRECISIONS)}")
    parser.add_argument(
        "--implementations",
        type=_words((OOTB, OPTIMIZED, MICRO)),
        metavar="I,...",
        help=f"of {OOTB},{OPTIMIZED},{MICRO}",
    )
    parser.add_argument("--pair", action="store_true", help="all repeats of a cell's implementations in turns")
    parser.add_argument("--search", action="store_true", help="sweep batch sizes and name the best")
    parser.add_argument("--least_batch", type=_count, metavar="N", help=f"of --search ({search.LEAST_BATCH})")
    parser.add_argument("--largest_batch", type=_count, metavar="N", help=f"of --search ({search.LARGEST_BATCH})")
    parser.add_argument("--timeout", type=_count, default=900, metavar="S", help="seconds for a run (%(default)s)")
    parser.add_argument("--hosts", type=_hosts, metavar="A:8,B:8", help="several machines, as horovodrun takes them")
    again = parser.add_mutually_exclusive_group()
    again.add_argument("--resume", action="store_true", help="go on in a folder that holds results of this plan")
    again.add_argument("--fresh", action="store_true", help="remove the results that the folder holds")
    parser.add_argument("--record_meanings", action="store_true", help="note what new versions mean, and end")
    return parser


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) < 2**63:
        raise argparse.ArgumentTypeError(f"give whole numbers of at least 1, not {text!r}")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
