"""Shows, compares and packs what the suite has kept.

    python -m benchmarks.report show DIR_OR_FILE... [--format text|markdown|csv|json|html] [--output FILE]
    python -m benchmarks.report compare A B [--threshold R] [--format text|markdown|csv|json] [--output FILE]
    python -m benchmarks.report compare DIR --implementations ootb,optimized [...]
    python -m benchmarks.report agreement DIR DIR... [--format text|markdown] [--output FILE]
    python -m benchmarks.report bundle DIR --output FILE.tar.gz
    python -m benchmarks.report bundle --verify FILE.tar.gz

DIR has the suite's records.jsonl, or FAMBench's *.log files. Lines and files that are bad are named on stderr and the
good ones shown; the exit code is 1 then. It is also 1 where compare finds a cell slower than --threshold, without an
interval to hold against it, or with a score in A and none in B; where agreement finds runs of the suite further apart
than the spread that they state, or a score that only some of them have; where --verify finds a file that differs. It is
2 for bad input, such as a file without a single result, 141 where nobody reads the output to its end, and 0 otherwise.
"""

import argparse
import math
import sys
from collections.abc import Sequence

from benchmarks.report import agreement, bundle, compare_tables, html_page, tables
from benchmarks.report.compare import compare, compare_implementations
from benchmarks.report.rows import Summary, describe, summarise
from benchmarks.report.sources import load
from data import command_line
from data.errors import InputError
from data.whole_files import write

_SHOWN = {
    "text": tables.text,
    "markdown": tables.markdown,
    "csv": lambda summary, problems: tables.csv_text(summary),
    "json": tables.json_text,
    "html": html_page.page,
}
_COMPARED = {
    "text": compare_tables.text,
    "markdown": compare_tables.markdown,
    "csv": compare_tables.csv_text,
    "json": compare_tables.json_text,
}
_CODES = __doc__.rpartition("\n\n")[2]
_AGREED = {"text": agreement.text, "markdown": agreement.markdown}


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code."""
    findings: list[str] = []

    def work(parsed: argparse.Namespace) -> str:
        report, found = parsed.work(parsed)
        findings.extend(found)
        return report.rstrip("\n")

    code = command_line.run(_parser(), work, arguments)
    for finding in findings:
        print(finding, file=sys.stderr)
    return code or int(bool(findings))


def _parser() -> command_line.Parser:
    parser = command_line.Parser(
        prog="python -m benchmarks.report",
        description=__doc__.partition("\n")[0],
        epilog=_CODES,
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="show|compare|agreement|bundle")
    settings = {"epilog": _CODES, "allow_abbrev": False}
    show = commands.add_parser("show", help="the table of one machine", **settings)
    show.add_argument("paths", nargs="+", metavar="DIR_OR_FILE", help="folders or files of results")
    show.add_argument("--format", choices=_SHOWN, default="text")
    show.set_defaults(work=_show)
    both = commands.add_parser("compare", help="one system or implementation over another", **settings)
    both.add_argument("paths", nargs="+", metavar="DIR_OR_FILE", help="A and B, or one with --implementations")
    both.add_argument("--implementations", metavar="A,B", help="compares these two within one table")
    both.add_argument(
        "--threshold",
        type=float,
        metavar="R",
        help="exit code 1 if a row has the whole interval of B / A below R, or no interval, or B lacks it",
    )
    both.add_argument("--format", choices=_COMPARED, default="text")
    both.set_defaults(work=_compare)
    runs = commands.add_parser("agreement", help="runs of the suite on one machine", **settings)
    runs.add_argument("paths", nargs="+", metavar="DIR_OR_FILE", help="each a run, two or more")
    runs.add_argument("--format", choices=_AGREED, default="text")
    runs.set_defaults(work=_agreement)
    for command in (show, both, runs):
        command.add_argument("--output", metavar="FILE", help="file to write (default: standard output)")
    packed = commands.add_parser("bundle", help="records, logs, configurations and hashes", **settings)
    packed.add_argument("path", nargs="?", metavar="DIR", help="folder of results to pack")
    packed.add_argument("--output", metavar="FILE.tar.gz", help="the archive")
    packed.add_argument("--verify", metavar="FILE.tar.gz", help="checks the hashes of an archive instead")
    packed.set_defaults(work=_bundle)
    return parser


def _show(parsed: argparse.Namespace) -> tuple[str, list[str]]:
    loaded = load(parsed.paths)
    summary = summarise(loaded.results, ", ".join(parsed.paths))
    # What is bad stands on stderr; a page that goes elsewhere has it, too.
    problems = loaded.problems if parsed.output else ()
    return _given(_SHOWN[parsed.format](summary, problems), parsed.output), list(loaded.problems)


def _compare(parsed: argparse.Namespace) -> tuple[str, list[str]]:
    threshold = parsed.threshold
    if threshold is not None and not (math.isfinite(threshold) and threshold > 0):
        raise InputError(f"--threshold={threshold:g}: give a ratio above 0, such as 0.95")
    if parsed.implementations is not None:
        names = parsed.implementations.split(",")
        if len(names) != 2 or len(parsed.paths) != 1:
            raise InputError(
                f"--implementations={parsed.implementations} with {len(parsed.paths)} folders: give two names, A,B, "
                "and one folder or file"
            )
        summary, problems = _read(parsed.paths[0])
        comparison = compare_implementations(summary, *names)
    else:
        if len(parsed.paths) != 2:
            raise InputError(
                f"compare takes two folders or files, or one with --implementations; got {len(parsed.paths)}"
            )
        (a, problems), (b, further) = (_read(path) for path in parsed.paths)
        problems += further
        comparison = compare(a, b, *parsed.paths)
    if threshold is not None:
        problems += [
            f"slower than {threshold:g}: {describe(row.b.cell)}: {row.ratio.ratio:.3f} "
            f"({row.ratio.low:.3f} to {row.ratio.high:.3f})"
            for row in comparison.slower_than(threshold)
        ]
        problems += [f"nothing to hold against {threshold:g}: {line}" for line in comparison.lost]
        problems += [
            f"no interval to hold against {threshold:g}: {describe(row.b.cell)}: {row.ratio.ratio:.3f}; both need "
            "two repeats or more"
            for row in comparison.without_interval()
        ]
    return _given(_COMPARED[parsed.format](comparison), parsed.output), problems


def _agreement(parsed: argparse.Namespace) -> tuple[str, list[str]]:
    summaries, problems = [], []
    for path in parsed.paths:
        summary, bad = _read(path)
        summaries.append(summary)
        problems += bad
    found = agreement.agreement(summaries, parsed.paths)
    return _given(_AGREED[parsed.format](found), parsed.output), problems + found.findings


def _bundle(parsed: argparse.Namespace) -> tuple[str, list[str]]:
    if parsed.verify is not None:
        if parsed.path is not None or parsed.output is not None:
            raise InputError("bundle --verify takes an archive and nothing else")
        return bundle.verify(parsed.verify)
    if parsed.path is None or parsed.output is None:
        raise InputError("bundle needs the folder of results and --output FILE.tar.gz, or --verify FILE.tar.gz")
    return bundle.pack(parsed.path, parsed.output), []


def _read(path: str) -> tuple[Summary, list[str]]:
    loaded = load([path])
    return summarise(loaded.results, path), list(loaded.problems)


def _given(report: str, output: str | None) -> str:
    """What is printed: the report, or where it was written."""
    if output is None:
        return report
    write(output, report)
    return f"{output}: written"


if __name__ == "__main__":
    sys.exit(main())
