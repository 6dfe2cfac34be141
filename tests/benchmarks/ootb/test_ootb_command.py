import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from ootb_cases import make_dataset

from benchmarks.ootb import __main__ as command
from trainer import launch

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("flags", [["--global_batch_size=0"], ["--no_such_flag"], [], ["--benchmark", "stray"]])
def test_bad_flags_end_with_code_2_and_one_line(flags, capsys, monkeypatch):
    monkeypatch.setattr(launch, "run_as_rank", lambda *given: pytest.fail("it ran"))
    assert command.main(flags) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("benchmarks.ootb: ") and err.count("\n") == 1


def test_help_lists_the_flags_of_main(capsys, monkeypatch):
    monkeypatch.setattr(command.signal, "signal", lambda *given: None)
    assert command.main(["--help"]) == 0
    assert "--benchmark_steps" in capsys.readouterr().out


def test_the_exit_code_is_the_ranks(monkeypatch):
    seen = []
    monkeypatch.setattr(launch, "run_as_rank", lambda config, run: seen.append((config, run)) or 7)
    assert command.main(["--benchmark", "--model=dlrm"]) == 7
    ((config, run),) = seen
    assert config.model.model == "dlrm" and run is command.run


def test_the_command_leaves_a_record(tmp_path):
    make_dataset(tmp_path / "rows", rows=300)
    flags = [
        "--cpu",
        "--benchmark",
        f"--dataset_path={tmp_path / 'rows'}",
        f"--results_dir={tmp_path / 'results'}",
        "--global_batch_size=16",
        "--deep_hidden_units=4",
        "--benchmark_steps=3",
        "--benchmark_warmup_steps=1",
    ]
    finished = subprocess.run(
        [sys.executable, "-m", "benchmarks.ootb", *flags],
        cwd=ROOT,
        env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "2"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert finished.returncode == 0, finished.stderr
    record = json.loads((tmp_path / "results" / "result.json").read_text())
    assert record["identity"]["implementation"] == "ootb" and record["measured_steps"] == 2
    assert "wide_deep training, ootb" in finished.stdout
