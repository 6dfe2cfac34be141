import argparse
import os
import signal
import subprocess
import sys

import pytest

from data import command_line
from data.command_line import Parser, run
from data.errors import InputError


@pytest.fixture
def parser():
    made = Parser(prog="program")
    made.add_argument("--rows", type=int, required=True)
    return made


def test_what_the_work_returns_is_printed(parser, capsys):
    assert run(parser, lambda options: f"{options.rows} rows", ["--rows", "3"]) == 0
    assert capsys.readouterr() == ("3 rows\n", "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required: --rows"),
        (["--rows", "many"], "argument --rows: invalid int value: 'many'"),
        (["--rows", "3", "--colour"], "unrecognized arguments: --colour"),
    ],
)
def test_bad_arguments_are_one_line_and_code_2(parser, capsys, arguments, message):
    assert run(parser, lambda options: pytest.fail("called"), arguments) == 2
    assert capsys.readouterr() == ("", f"program: {message}; --help lists the options\n")


def test_bad_input_is_one_line_and_code_2_and_a_bug_passes_through(parser, capsys):
    def fail(error):
        def work(options):
            raise error

        return work

    assert run(parser, fail(InputError("rows=3: too few; ask for more")), ["--rows", "3"]) == 2
    assert capsys.readouterr() == ("", "rows=3: too few; ask for more\n")
    with pytest.raises(ValueError, match="a bug"):
        run(parser, fail(ValueError("a bug")), ["--rows", "3"])


def test_help_ends_with_code_0(parser, capsys):
    with pytest.raises(SystemExit, match=r"^0$"):
        run(parser, lambda options: pytest.fail("called"), ["--help"])
    assert "--rows" in capsys.readouterr().out


STOPPED = """
import signal, sys
# What started the tests may have had some of them ignored, as nohup does.
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_DFL)
from data import command_line
from data.command_line import Parser, run
from data.staging import staged_folder

def work(options):
    with staged_folder(sys.argv[1], marker="spec"):
        print("working", flush=True)
        sys.stdin.read()

sys.exit(run(Parser(prog="program"), work, []))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_work_and_leaves_nothing(tmp_path, number):
    command = [sys.executable, "-c", STOPPED, str(tmp_path / "out")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as process:
        assert process.stdout.readline() == "working\n"
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert errors == f"program: stopped by {number.name}; nothing was written\n"
    assert list(tmp_path.iterdir()) == []


PRINTING = """
import sys
from data import command_line
from data.command_line import Parser, run

parser = Parser(prog="program")
parser.add_argument("--rows", help="many " * 10)
sys.stdin.read()  # until the reader is gone
sys.exit(run(parser, lambda options: "a line\\n" * 100_000, sys.argv[1:]))
"""


@pytest.mark.parametrize(("arguments", "code"), [([], 128 + signal.SIGPIPE), (["--help"], 0)], ids=["report", "help"])
def test_a_reader_that_is_gone_is_no_trace(arguments, code):
    command = [sys.executable, "-c", PRINTING, *arguments]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as process:
        process.stdout.close()
        process.stdin.close()
        errors = process.stderr.read()
    assert (process.returncode, errors) == (code, "")


def test_handlers_are_as_before_afterwards(parser):
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    run(parser, lambda options: "done", ["--rows", "3"])
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == before


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no device that is always full")
def test_an_output_without_room_is_one_line_and_code_2():
    script = "import sys; from data import command_line; sys.exit(command_line.say('much'))"
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-c", script], stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert done.stderr.startswith("standard output: cannot be written: No space left")


def test_a_value_that_begins_with_a_dash_is_explained(parser, capsys):
    assert run(parser, lambda options: pytest.fail("called"), ["--rows", "-1:2"]) == 2
    said = "argument --rows: expected one argument (one that begins with - is given as in --rows=-1)"
    assert capsys.readouterr().err == f"program: {said}; --help lists the options\n"


@pytest.mark.parametrize("value", [0, "", True, ["a"]])
def test_options_that_would_do_nothing_are_refused(value):
    given = argparse.Namespace(search=value, least=0, largest=None, names=[], on=False)
    command_line.refuse_alone(given, "search", ("least", "largest"))
    command_line.refuse_together(given, "search", ("largest", "names", "on"))
    with pytest.raises(InputError, match=r"^--least does nothing with --search: drop one of them$"):
        command_line.refuse_together(given, "search", ("largest", "least"))
    for nothing in (None, False, []):
        given.search = nothing
        command_line.refuse_alone(given, "search", ("largest", "names", "on"))
        command_line.refuse_together(given, "search", ("least",))
        with pytest.raises(InputError, match=r"^--least does nothing without --search: add that, or drop --least$"):
            command_line.refuse_alone(given, "search", ("largest", "least"))
