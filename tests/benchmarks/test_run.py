"""The command of the suite: what it takes, how it ends, and that everything it starts ends with it."""

import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import suite_cases

from benchmarks import run as suite
from benchmarks.microbenchmarks.checks import Check
from benchmarks.suite import correctness, meanings, must_score, plan, results, runner
from benchmarks.suite.processes import Ended

ROOT = Path(__file__).resolve().parents[2]
OUTCOME = {"score": 2.0, "units": "TF/s", "step_ms": [1.0] * 6, "sound": True, "safeguard": "fine"}


class Children:
    """Stands in for processes: a good record for each, but for what is planned otherwise by number."""

    def __init__(self):
        self.commands = []
        self.failing = set()

    def __call__(self, command, *, log, timeout_s, cwd, environ):
        self.commands.append(list(command))
        if len(self.commands) in self.failing:
            Path(log).write_text("main.py: broken\n")
            return Ended(1, 1.0)
        launches = suite_cases.Launches(lambda _: (0, "", OUTCOME if "--result" in command else suite_cases.record()))
        return launches(command, log=log, timeout_s=timeout_s, cwd=cwd, environ=environ)


def table_of(folder):
    found, _ = results.read(os.path.join(folder, results.RECORDS_FILE))
    return f"table of {len(found)} results"


@pytest.fixture
def children(monkeypatch):
    """The suite with two benchmarks of its own whose runs are stood in for."""
    ones = [suite_cases.definition(), suite_cases.micro()]
    made = Children()
    monkeypatch.setattr(suite, "load", lambda: ones)
    known = {one.name: {one.version: meanings.digest(one)} for one in ones}
    monkeypatch.setattr(meanings, "recorded", lambda: known)
    monkeypatch.setattr(runner.processes, "run", made)
    for kind in (runner.Runner, correctness.Correctness):
        monkeypatch.setitem(kind.__init__.__kwdefaults__, "launch", made)
    monkeypatch.setattr(correctness.Correctness, "of", lambda *_: [Check("fine", True)])
    monkeypatch.setattr(suite, "report", table_of)
    monkeypatch.setattr(must_score, "rows", lambda: ({"cpus": 1, "memory_gib": 0}, []))
    monkeypatch.setattr(suite.memory, "predicted_bytes", lambda *_: 1)
    return made


@pytest.fixture
def start(children, tmp_path, capsys):
    """start(*arguments): exit code, standard output and standard error."""

    def start(*arguments):
        code = suite.main([f"--results_dir={tmp_path / 'suite'}", *arguments])
        return code, *capsys.readouterr()

    return start


def recorded(tmp_path):
    found, problems = results.read(str(tmp_path / "suite" / results.RECORDS_FILE))
    assert problems == []
    return found


def test_the_default_selection_is_run_three_times_and_ends_with_the_table(start, children, tmp_path):
    code, out, err = start()
    # Two batch sizes of two implementations, and a product.
    assert (code, out) == (0, "table of 15 results\n") and len(children.commands) == 15
    assert [result.status for result in recorded(tmp_path)] == ["ok"] * 15
    assert err.splitlines()[0].startswith("[1/15] wide_deep-training-small ootb, batch 32, fp32, repeat 1")


def test_quick_runs_little_once(start, children):
    code, out, _ = start("--quick")
    assert (code, out) == (0, "table of 2 results\n")


def test_names_and_sizes_choose(start, children):
    code, *_ = start("wide_deep", "--repeats=1", "--batch_sizes=8,16", "--implementations=optimized")
    assert code == 0 and len(children.commands) == 2
    assert [next(w for w in c if "global_batch" in w) for c in children.commands] == [
        "--global_batch_size=8",
        "--global_batch_size=16",
    ]


def test_a_run_that_fails_is_a_row_and_the_suite_goes_on(start, children, tmp_path):
    children.failing = {2}
    code, out, err = start("--quick")
    assert code == 1 and out == "table of 2 results\n"
    assert [(one.status, one.reason) for one in recorded(tmp_path)] == [
        ("ok", ""),
        ("failed", "ended with code 1: main.py: broken"),
    ]
    assert err.splitlines()[-1] == "1 run failed"


def test_a_run_without_a_score_is_no_success(start, monkeypatch):
    monkeypatch.setattr(correctness.Correctness, "of", lambda *_: [Check("ids are constant", False)])
    code, _, err = start("--quick")
    assert code == 1 and "2 runs had no score: a safeguard did not hold" in err and "ids are constant" in err


def test_a_row_that_must_score_and_is_skipped_is_named(start, monkeypatch):
    row = {"benchmark": "wide_deep-training-small", "implementation": "ootb", "batch_size": 32, "world_size": 1}
    monkeypatch.setattr(must_score, "rows", lambda: ({"cpus": 1, "memory_gib": 0}, [row | {"scaling": "single"}]))
    monkeypatch.setattr(suite.memory, "predicted_bytes", lambda *_: 2**60)
    code, _, err = start("--quick")
    assert code == 1
    assert err.splitlines()[-1].endswith("and has none: wide_deep-training-small ootb, 32")
    assert "skipped: wide_deep-ootb-training-small, 32: needs about 1,073,741,824.0 GiB of memory" in err


def test_a_second_start_says_what_is_there_and_asks_for_a_word(start, children, tmp_path):
    children.failing = {2}
    start("--quick")
    before = (tmp_path / "suite" / results.RECORDS_FILE).read_bytes()
    code, out, err = start("--quick")
    assert (code, out) == (2, "") and err.count("\n") == 1
    assert "holds 1 of the 2 runs of this plan, and 1 failed ones: say --resume" in err and "--fresh" in err
    assert (tmp_path / "suite" / results.RECORDS_FILE).read_bytes() == before
    code, _, err = start("--quick", "--resume")
    assert code == 0 and "going on" in err and len(children.commands) == 3
    code, *_ = start("--quick", "--fresh")
    assert code == 0 and len(children.commands) == 5


@pytest.mark.parametrize(("answer", "code", "runs"), [("", 0, 3), ("n", 2, 2)])
def test_on_a_terminal_it_asks(start, children, monkeypatch, answer, code, runs):
    children.failing = {2}
    start("--quick")
    monkeypatch.setattr(suite.sys.stdin, "isatty", lambda: True)
    asked = []
    monkeypatch.setattr("builtins.input", lambda text: asked.append(text) or answer)
    assert start("--quick")[0] == code and len(children.commands) == runs
    assert asked[0].endswith("Go on from there? [Y/n] ")


def test_a_search_sweeps_and_names_the_best(start, children):
    code, out, _ = start("wide_deep", "--search", "--least_batch=8", "--largest_batch=32", "--repeats=1")
    assert code == 0 and len(children.commands) == 6
    assert "wide_deep-training-small ootb, fp32: best of 3 batch sizes is" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["bert"], "benchmark 'bert' is not known"),
        (["--repeats=0"], "--repeats"),
        (["--batch_sizes=8,x"], "--batch_sizes"),
        (["--precisions=fp8"], "give some of fp32,tf32,bf16,fp16, not 'fp8'"),
        (["--resume", "--fresh"], "not allowed with"),
        (["--search"], "--search takes names of benchmarks"),
        (["wide_deep", "--search", "--batch_sizes=8"], "no --batch_sizes"),
        (["wide_deep", "--search", "--least_batch=9", "--largest_batch=10"], "have no power of two"),
        (["gemm", "--implementations=ootb"], "nothing is left of the selection"),
        (["--least_batch=8"], "--least_batch does nothing without --search: add that, or drop --least_batch"),
        (["gemm", "--largest_batch=8"], "--largest_batch does nothing without --search"),
        (["--list", "--quick"], "--quick does nothing with --list: drop one of them"),
        (["--list", "--record_meanings"], "--list does nothing with --record_meanings"),
        (["--record_meanings", "bert"], "--record_meanings is of all benchmarks: drop bert"),
    ],
)
def test_bad_options_are_one_line_and_code_2(start, children, arguments, said, tmp_path):
    code, out, err = start(*arguments)
    assert (code, out) == (2, "") and said in err and err.count("\n") == 1
    assert children.commands == [] and not (tmp_path / "suite").exists()


def test_a_meaning_that_changed_is_not_measured(start, children, monkeypatch):
    monkeypatch.setattr(suite, "load", lambda: [suite_cases.definition(batch_sizes=[7])])
    code, _, err = start()
    assert code == 2 and "meant something else: give a new version" in err and children.commands == []


def test_the_list_has_every_benchmark(start):
    code, out, _ = start("--list")
    assert (
        code == 0
        and "wide_deep-training-small 1.0 (ootb, optimized; batch 32, 64; ranks 1; quick: ootb 32, optimized 32; "
        in out
    )
    assert "default: ootb 32 64, optimized 32 64)\n    Small things." in out and "default: micro 256)" in out
    assert "gemm-forward-small 1.0 (micro;" in out and "    Small things." in out


# As users start it.

# The first run ends at once with a good outcome; the second says that it is there and waits for ever.
DRIVER = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # tests that a shell starts in the background ignore it
import suite_cases
from benchmarks import run as suite
from benchmarks.suite import commands, meanings, must_score
from pathlib import Path

fifo, folder = sys.argv[1:]
CHILD = '''
import json, os, sys, time
path, number, fifo, outcome = sys.argv[1:]
if number == "1":
    open(path, "w").write(outcome)
else:
    with open(fifo, "w") as pipe:
        pipe.write(str(os.getpid()))
    time.sleep(600)
'''
one = suite_cases.micro()
numbers = iter("123")
OUTCOME = '{"score": 2.0, "units": "TF/s", "step_ms": [1, 1, 1, 1, 1], "sound": true, "safeguard": "fine"}'
commands.of_cell = lambda definition, cell, folder, hosts: [
    sys.executable, "-c", CHILD, f"{folder}/micro.json", next(numbers), fifo, OUTCOME
]
suite.load = lambda: [one]
meanings.recorded = lambda: {one.name: {one.version: meanings.digest(one)}}
must_score.rows = lambda: ({"cpus": 1, "memory_gib": 0}, [])
suite.report = lambda folder: "the table"
sys.exit(suite.main([f"--results_dir={folder}"]))
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_children_and_keeps_what_is_finished(tmp_path, number, code):
    os.mkfifo(tmp_path / "fifo")
    environ = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(Path(__file__).parent)])}
    command = [sys.executable, "-c", DRIVER, str(tmp_path / "fifo"), str(tmp_path / "suite")]
    process = subprocess.Popen(command, cwd=tmp_path, env=environ, stderr=subprocess.PIPE, text=True)
    try:
        child = int((tmp_path / "fifo").read_text())  # waits for it
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == code and "what is finished is kept, and --resume goes on" in err.splitlines()[-1]
    assert not psutil.pid_exists(child)
    (line,) = (tmp_path / "suite" / results.RECORDS_FILE).read_text().splitlines()
    assert json.loads(line)["status"] == "ok"


def test_run_all_starts_the_suite_wherever_it_is_called_from(tmp_path):
    done = subprocess.run([str(ROOT / "benchmarks/run_all.sh"), "--list"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == "" and "gemm-forward-small" in done.stdout
    done = subprocess.run(
        [str(ROOT / "benchmarks/run_all.sh"), "bert", "--results_dir", "here"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2 and "benchmark 'bert' is not known" in done.stderr and not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--list", "bert"], "bert"),
        (["--batch_sizes", "0"], "give whole numbers of at least 1, not '0'"),
        (["--repeats", "1.5"], "give whole numbers of at least 1, not '1.5'"),
        (["--hosts", "a:0"], "give each machine with the ranks it takes"),
        (["--hosts", "a"], "give each machine with the ranks it takes"),
        (["--results_dir", ""], "--results_dir is empty"),
        (["gemm-forward-small", "--search"], "only microbenchmarks are named"),
    ],
)
def test_options_that_cannot_be_are_one_line(arguments, said, capsys):
    assert suite.main(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def test_help_says_what_the_exit_codes_mean(capsys):
    with pytest.raises(SystemExit, match=r"^0$"):
        suite.main(["--help"])
    assert "The exit code is 0 if everything that was run has a score" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("error", [socket.gaierror(-2, "Name or service not known"), UnicodeError("label too long")])
def test_hosts_that_cannot_be_resolved_are_one_line_before_anything_is_measured(
    start, children, monkeypatch, tmp_path, error
):
    def getaddrinfo(name, _):
        if name == "nosuchhost":
            raise error

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    code, out, err = start("--hosts=here:1,nosuchhost:1")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert f"--hosts=here:1,nosuchhost:1: nosuchhost cannot be resolved: {error.args[-1]}; give names" in err
    assert children.commands == [] and not (tmp_path / "suite").exists()


def test_hosts_that_nothing_would_run_on_are_one_line(start, children, monkeypatch):
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: None)
    code, out, err = start("--hosts=a:1,b:1")
    assert (code, out, err.count("\n")) == (2, "", 1) and "--hosts=a:1,b:1 does nothing: all of the selection" in err
    assert children.commands == []


@pytest.mark.parametrize(("hosts", "skipped"), [("a:1,b:1", True), ("a:1,b:2", False)])
def test_more_ranks_than_the_hosts_take_are_skipped(start, children, monkeypatch, hosts, skipped):
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: None)
    facts = suite_cases.FACTS | {"versions": {"horovod": "1"}}
    monkeypatch.setattr(suite.fingerprints, "fingerprint", lambda: facts)
    code, _, err = start("gemm", "--world_sizes=3", "--repeats=1", f"--hosts={hosts}")
    assert ("3 ranks on hosts that take 2 (--hosts)" in err) == skipped and code == int(skipped)
    assert len(children.commands) == int(not skipped)


def test_nothing_but_skipped_cells_is_no_success():
    one = suite_cases.micro()
    planned = [plan.Planned(one, suite_cases.cell(one), 1, skipped="too large")]
    assert suite.problems(planned, [], {}) == ["nothing was run: every cell of the selection was skipped"]
    assert suite.problems([dataclasses.replace(planned[0], skipped="")], [], {}) == []
