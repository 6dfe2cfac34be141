"""Fake programs for the tests of shell scripts: the scripts are real, what they call is not."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def write_program(path: Path, text: str) -> Path:
    """Writes an executable file; text that has no `#!` line becomes a program of this Python."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text if text.startswith("#!") else f"#!{sys.executable} -IS\n{text}")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.fixture
def root() -> Path:
    """The checkout that is tested."""
    return ROOT


@pytest.fixture
def program():
    """write_program, for test modules, which cannot import from here."""
    return write_program


@pytest.fixture
def recorder(tmp_path):
    """recorder(PATH) makes a program that appends its argument list to a file; recorder.calls() reads them back."""
    log = tmp_path / "calls.jsonl"

    record = f"""
import json, sys
with open({str(log)!r}, "a") as log:
    log.write(json.dumps(sys.argv) + "\\n")
"""

    class Recorder:
        def __call__(self, path: Path) -> Path:
            return write_program(path, record)

        def calls(self) -> list[list[str]]:
            return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []

    return Recorder()


@pytest.fixture
def run():
    """run(ARGUMENTS, **environment): a finished process with its text; a variable given as None is taken away."""

    def run(arguments, cwd=None, **environment):
        merged = {name: value for name, value in {**os.environ, **environment}.items() if value is not None}
        return subprocess.run(
            [str(argument) for argument in arguments], env=merged, cwd=cwd, capture_output=True, text=True, timeout=60
        )

    return run
