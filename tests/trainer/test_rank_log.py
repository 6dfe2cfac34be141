"""Rank logs of real processes: what is kept, whatever way the process ends."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from data.errors import InputError
from trainer.rank_log import rank_log

ROOT = Path(__file__).parents[2]


def run(path, program, **options):
    """Runs a program with its log at `path`; returns once it and its copier have ended, for both hold the pipes."""
    text = f"from trainer.rank_log import rank_log\nlog = rank_log({str(path)!r})\n" + textwrap.dedent(program)
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return subprocess.run(
        [sys.executable, "-c", text, str(path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        env=environ,
        **options,
    )


EVERYTHING = """
import ctypes, os, subprocess, sys
print("from print")
print("to standard error", file=sys.stderr)
os.write(2, b"native message\\n")
libc = ctypes.CDLL(None)
libc.dprintf(1, b"from C\\n")
subprocess.run([sys.executable, "-c", "print('from a child')"])
"""
WRITTEN_OUT = ["from print", "from C", "from a child"]
WRITTEN_ERR = ["to standard error", "native message"]


def assert_all_kept(result, path):
    assert sorted(result.stdout.splitlines()) == sorted(WRITTEN_OUT)
    assert result.stderr.splitlines()[:2] == WRITTEN_ERR
    kept = path.read_text().splitlines()
    assert all(line in kept for line in WRITTEN_OUT + WRITTEN_ERR)


def test_both_streams_of_python_c_and_children_are_kept_and_still_arrive(tmp_path):
    path = tmp_path / "results" / "rank-0.log"
    result = run(path, EVERYTHING)
    assert result.returncode == 0
    assert_all_kept(result, path)
    assert path.read_text() == path.read_text().strip() + "\n"


@pytest.mark.parametrize(
    ("ending", "returncode"),
    [
        ("import os; os._exit(7)", 7),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM),
        ("import os, signal; os.killpg(0, signal.SIGKILL)", -signal.SIGKILL),
        ("import sys; sys.exit(2)", 2),
    ],
)
def test_nothing_written_is_lost_by_any_ending(tmp_path, ending, returncode):
    path = tmp_path / "rank-1.log"
    result = run(path, EVERYTHING + ending, start_new_session=True)
    assert result.returncode == returncode
    assert_all_kept(result, path)


def test_uncaught_exception_and_native_crash_leave_their_traceback(tmp_path):
    path = tmp_path / "rank-0.log"
    result = run(path, "raise RuntimeError('the cause')")
    assert result.returncode == 1
    assert "RuntimeError: the cause" in path.read_text() and path.read_text() == result.stderr
    result = run(path, "import faulthandler\nfaulthandler._sigsegv()")
    assert result.returncode < 0
    assert "Segmentation fault" in path.read_text() and "the cause" not in path.read_text()
    assert "Segmentation fault" in result.stderr


def test_much_output_arrives_whole_and_in_order(tmp_path):
    path = tmp_path / "rank-0.log"
    result = run(path, "for i in range(20000): print(f'line {i}')")
    lines = [f"line {i}" for i in range(20000)]
    assert result.stdout.splitlines() == lines
    assert path.read_text().splitlines() == lines


def test_lines_are_in_the_file_while_the_process_runs(tmp_path):
    path = tmp_path / "rank-0.log"
    program = """
    import pathlib, sys, time
    print("first")
    deadline = time.monotonic() + 30
    while "first" not in pathlib.Path(sys.argv[1]).read_text():
        if time.monotonic() > deadline: sys.exit("the line never came")
    """
    text = f"from trainer.rank_log import rank_log\nrank_log({str(path)!r})\n" + textwrap.dedent(program)
    subprocess.run([sys.executable, "-c", text, str(path)], cwd=ROOT, check=True, capture_output=True, timeout=60)


def test_closing_gives_the_descriptors_back(tmp_path):
    path = tmp_path / "rank-0.log"
    result = run(
        path,
        """
        import sys
        from pathlib import Path
        with log:
            print("kept")
        assert "kept" in Path(sys.argv[1]).read_text()  # Copied before close returned.
        print("not kept")
        log.close()
        """,
    )
    assert (result.returncode, result.stdout) == (0, "kept\nnot kept\n")
    assert path.read_text() == "kept\n"


def test_terminal_stream_bypasses_the_file(tmp_path):
    path = tmp_path / "rank-0.log"
    result = run(path, "log.terminal.write('progress'); log.terminal.flush(); print('text')")
    assert (result.stderr, result.stdout, path.read_text()) == ("progress", "text\n", "text\n")


def test_exit_does_not_wait_for_a_child_that_stays(tmp_path):
    """A child that holds the pipes ends only when the test lets it; the rank must have ended before."""
    path = tmp_path / "rank-0.log"
    read, write = os.pipe()
    program = f"""
    import subprocess, sys
    import trainer.rank_log
    trainer.rank_log._CLOSE_TIMEOUT_S = 0.01
    subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read(); print('late words')"], stdin={read})
    """
    text = f"from trainer.rank_log import rank_log\nrank_log({str(path)!r})\n" + textwrap.dedent(program)
    process = subprocess.Popen([sys.executable, "-c", text], cwd=ROOT, stdout=subprocess.PIPE, pass_fds=[read])
    os.close(read)
    try:
        assert process.wait(60) == 0
    finally:
        os.close(write)
    assert process.communicate(timeout=60)[0] == b"late words\n"
    assert path.read_text() == "late words\n"


def test_forked_child_does_not_close_its_parents_log(tmp_path):
    path = tmp_path / "rank-0.log"
    result = run(
        path,
        """
        import os, sys
        child = os.fork()
        if child == 0:
            log.close()
            print("child goes on")
            sys.exit()
        os.waitpid(child, 0)
        print("parent goes on")
        """,
    )
    assert result.returncode == 0 and path.read_text() == "child goes on\nparent goes on\n"


def test_reader_that_goes_away_costs_neither_the_run_nor_the_log(tmp_path):
    path = tmp_path / "rank-0.log"
    program = """
    import sys
    sys.stdin.read()  # Until the test has closed the other end of standard output.
    for i in range(20000):
        print(f"line {i}")
    """
    text = f"from trainer.rank_log import rank_log\nlog = rank_log({str(path)!r})\n" + textwrap.dedent(program)
    process = subprocess.Popen([sys.executable, "-c", text], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    process.stdout.close()
    process.stdin.close()
    assert process.wait(60) == 0
    assert path.read_text().splitlines()[-1] == "line 19999"


def test_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"rank-0\.log.*results_dir"):
        rank_log(tmp_path / "file" / "rank-0.log")
