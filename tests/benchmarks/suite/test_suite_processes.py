"""Commands end with all that they have started, however they are left."""

import os
import signal
import subprocess
import sys
import textwrap

import psutil
import pytest

from benchmarks.suite import processes

# Starts a child in a session of its own, as launchers of ranks do, says its number, and waits for ever.
PARENT = """
import subprocess, sys, time, pathlib
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
pathlib.Path(sys.argv[1]).write_text(str(child.pid))
print("started", flush=True)
time.sleep(600)
"""


@pytest.fixture
def run(tmp_path):
    def run(source, *arguments, timeout_s=60):
        command = [sys.executable, "-c", textwrap.dedent(source), *map(str, arguments)]
        return processes.run(command, log=str(tmp_path / "log"), timeout_s=timeout_s, cwd=str(tmp_path))

    return run


def test_code_and_output(run, tmp_path):
    ended = run("import os, sys; print(os.getcwd()); print('bad', file=sys.stderr); sys.exit(3)")
    assert ended.code == 3 and ended.seconds > 0
    assert sorted((tmp_path / "log").read_text().split()) == sorted([str(tmp_path), "bad"])


def test_a_run_past_its_time_is_ended(run):
    ended = run("import time; time.sleep(600)", timeout_s=0.2)
    assert ended.code is None and 0.2 <= ended.seconds < 60


def test_an_exception_ends_the_children_too(tmp_path):
    reading, writing = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path / "pid")], stdout=writing, start_new_session=True
    )
    os.close(writing)
    try:
        assert os.read(reading, 7) == b"started"
        processes.end(process)
    finally:
        os.close(reading)
        process.kill()
    assert process.returncode == -signal.SIGTERM
    assert not psutil.pid_exists(int((tmp_path / "pid").read_text()))


def test_who_does_not_listen_is_killed(tmp_path):
    reading, writing = os.pipe()
    ignoring = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    source = f"{ignoring}; print('ready', flush=True); time.sleep(600)"
    process = subprocess.Popen([sys.executable, "-c", source], stdout=writing, start_new_session=True)
    os.close(writing)
    try:
        assert os.read(reading, 5) == b"ready"
        processes.end(process, grace_s=0.1)
    finally:
        os.close(reading)
        process.kill()
    assert process.returncode == -signal.SIGKILL


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no output"),
        ("a\n\nb\nc\nd\n", "b | c | d"),
        (
            "first\nmain.py: --num_epochs must be at least 1, got 0\nTraceback\nRuntimeError: launcher\n",
            "main.py: --num_",
        ),
        ("Traceback\n  File x\nValueError: shapes differ\n", "ValueError: shapes differ"),
        ("[1]<stderr>:tensorflow.python.OOMError: no memory\nother\n", "OOMError: no memory"),
        ("main.py: rank 0 failed:\nTraceback:\n  deep\nValueError: broken\n", "ValueError: broken"),
    ],
)
def test_last_words(tmp_path, text, said):
    (tmp_path / "log").write_text(text)
    found = processes.last_words(str(tmp_path / "log"))
    assert said in found and "\n" not in found


def test_last_words_are_few(tmp_path):
    (tmp_path / "log").write_text("x" * 10_000)
    assert len(processes.last_words(str(tmp_path / "log"))) < 500
    assert "no output" in processes.last_words(str(tmp_path / "none"))
