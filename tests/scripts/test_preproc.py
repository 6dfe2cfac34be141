"""scripts/preproc.sh with a stand-in for Python or for the module: what is started, where, with which arguments."""

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

SHOW = "import json, os, sys\nprint(json.dumps([sys.argv[1:], os.getcwd(), os.environ['PYTHONPATH']]))\n"
FLAGS = ["--data_path", "raw files", "--metadata_path=../out put", "it's", "", "two\nlines\n", "$HOME *", "--", "-h"]


@pytest.fixture
def checkout(root, tmp_path):
    """A checkout that holds the launcher and a stand-in for the module, in a folder with a space in its name."""
    copy = tmp_path / "check out"
    (copy / "data/outbrain").mkdir(parents=True)
    (copy / "scripts").mkdir()
    shutil.copy(root / "scripts/preproc.sh", copy / "scripts")
    for name in ("data/__init__.py", "data/outbrain/__init__.py"):
        (copy / name).touch()
    (copy / "data/outbrain/preprocess.py").write_text(SHOW)
    return copy


@pytest.fixture
def preproc(checkout, run, tmp_path):
    """preproc(*ARGUMENTS, shell=..., **environment): the launcher, started in a folder that has a `data` of its own."""
    (tmp_path / "elsewhere/data").mkdir(parents=True)
    (tmp_path / "elsewhere/data/__init__.py").write_text("raise ImportError('the data package of another project')\n")

    def preproc(*arguments, shell="sh", **environment):
        command = [shell, checkout / "scripts/preproc.sh", *arguments]
        return run(command, cwd=tmp_path / "elsewhere", **{"PYTHONPATH": None, **environment})

    return preproc


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_flags_arrive_unharmed(preproc, recorder, tmp_path, shell):
    recorder(tmp_path / "bin/python")
    finished = preproc(*FLAGS, shell=shell, PATH=f"{tmp_path / 'bin'}:/usr/bin:/bin")
    assert (finished.returncode, finished.stdout, finished.stderr) == (0, "", "")
    assert recorder.calls() == [[str(tmp_path / "bin/python"), "-m", "data.outbrain.preprocess", *FLAGS]]


def test_the_checkouts_module_runs_in_the_callers_folder(preproc, checkout, program, tmp_path):
    program(tmp_path / "bin/python", f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    finished = preproc(*FLAGS, PATH=f"{tmp_path / 'bin'}:/usr/bin:/bin", PYTHONPATH="/other modules")
    assert finished.returncode == 0, finished.stderr
    arguments, folder, search_path = json.loads(finished.stdout)
    assert arguments == FLAGS and Path(folder) == (tmp_path / "elsewhere").resolve()
    assert search_path.split(os.pathsep) == [str(checkout), "/other modules"]


def test_the_environment_of_the_checkout_goes_first(preproc, checkout, recorder, tmp_path):
    recorder(tmp_path / "bin/python")
    recorder(checkout / ".venv/bin/python")
    assert preproc(PATH=f"{tmp_path / 'bin'}:/usr/bin:/bin").returncode == 0
    assert [call[0] for call in recorder.calls()] == [f"{checkout}/.venv/bin/python"]


def test_the_exit_code_and_the_process_are_the_programs(preproc, program, tmp_path):
    program(tmp_path / "bin/python", '#!/bin/sh\necho "$$ $PPID"\nexit 3\n')
    finished = preproc(PATH=f"{tmp_path / 'bin'}:/usr/bin:/bin")
    assert finished.returncode == 3
    # exec: the caller's child is the program itself, so that a signal reaches it.
    assert finished.stdout.split()[1] == str(os.getpid())


def test_without_python_it_says_what_to_do(preproc, tmp_path):
    (tmp_path / "bin").mkdir()
    for name in ("sh", "dirname"):
        (tmp_path / "bin" / name).symlink_to(shutil.which(name))
    finished = preproc(shell=tmp_path / "bin/sh", PATH=str(tmp_path / "bin"))
    assert (finished.returncode, finished.stdout) == (2, "")
    assert len(finished.stderr.splitlines()) == 1 and "make setup" in finished.stderr
