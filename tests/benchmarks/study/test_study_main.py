"""The command: its exit codes, what a signal leaves, and a small study from plan to runs."""

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import study_cases
import study_click_cases
import yaml

from benchmarks.study import __main__ as study
from benchmarks.study import cells, proofs
from benchmarks.study.cells import OK, RUNS_FILE

ROOT = Path(__file__).resolve().parents[3]
HOROVOD = importlib.util.find_spec("horovod") is not None


def written(folder, **changed):
    """Path of a plan's file."""
    path = folder / "plan.yaml"
    path.write_text(yaml.safe_dump(study_cases.mapping(**changed)))
    return str(path)


@pytest.fixture
def small(tmp_path):
    """The changes that make a plan of real runs a matter of seconds."""
    flags = {
        "dataset_type": "synthetic",
        "synthetic_cache_dir": str(tmp_path / "cache"),
        "synthetic_rows": 2000,
        "synthetic_dataset_cardinalities": [20, 10],
        "synthetic_dataset_num_numerical_features": 2,
        "deep_hidden_units": [8],
        "num_epochs": 1,
        "eval_batch_size": 256,
    }
    return {"flags": flags, "global_batch_sizes": [256], "runs_per_launch": 8}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "the following arguments are required: VERB"),
        (["run", "no.yaml"], "no.yaml: cannot be read"),
        (["plan", "desktop"], "or a preset: clicks, laptop, paper"),
        (["run", "PLAN", "--results_dir", "PLAN"], "cannot be written"),
    ],
)
def test_bad_input_is_one_line_and_code_2(tmp_path, capsys, arguments, said):
    path = written(tmp_path)
    assert study.main([path if word == "PLAN" else word for word in arguments]) == 2
    err = capsys.readouterr().err
    assert said in err and err.count("\n") == 1


@pytest.mark.parametrize("verb", [[], ["run"], ["report"]])
def test_help_says_what_the_exit_codes_mean(capsys, verb):
    with pytest.raises(SystemExit, match=r"^0$"):
        study.main([*verb, "--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert "The exit code is 0 if all runs are there" in said and "a baseline is too weak" in said


def test_a_plan_can_be_looked_at(tmp_path, capsys):
    assert study.main(["plan", written(tmp_path, controls={"degraded": 0.1})]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "small: 3 cells x 2 seeds = 6 runs",
        "  wide_deep-float32-1x64",
        "  wide_deep-mixed_bfloat16-1x64",
        "  wide_deep-float32-1x64-rate*0.1-degraded",
    ]
    assert study.main(["plan", written(tmp_path, flags={}, folds=3, sample_path="raw")]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "small: 2 cells x 2 seeds x 3 folds = 12 runs"


def test_a_study_runs_from_its_plan_to_runs_that_prove_their_settings(tmp_path, capsys, small):
    # One cell of two ranks where there is Horovod, and one more precision where there is not.
    second = {"world_sizes": [1, 2], "precisions": ["float32"]} if HOROVOD else {}
    arguments = ["run", written(tmp_path, **{**small, **second}), "--results_dir", str(tmp_path / "study")]
    assert study.main(arguments) == 0, capsys.readouterr().err
    out, err = capsys.readouterr()
    assert out == f"{tmp_path / 'study'}: 4 runs of 2 cells\n" and "4/4" in err.splitlines()[-1]
    runs = cells.read(str(tmp_path / "study" / RUNS_FILE))
    assert len(runs) == 4 and [proofs.why_not(run) for run in runs] == [None] * 4
    assert {run.cell.world_size for run in runs} == ({1, 2} if HOROVOD else {1})
    baseline = [run for run in runs if run.cell == runs[0].cell]
    assert len({run.record["log_loss"] for run in baseline}) == 2, "seeds change nothing"
    assert len({run.record["displays"] for run in runs}) == 1
    assert not (tmp_path / "study" / "scratch").exists()
    # A second start has nothing to do.
    before = (tmp_path / "study" / RUNS_FILE).read_bytes()
    assert study.main(arguments) == 0 and "holds 4 of 4 runs" in capsys.readouterr().err
    assert (tmp_path / "study" / RUNS_FILE).read_bytes() == before


def test_a_study_of_folds_runs_from_raw_clicks_to_its_report(tmp_path, capsys, monkeypatch, small):
    monkeypatch.setenv("CLICKS", study_click_cases.write(tmp_path / "raw"))
    given = {name: small["flags"][name] for name in ("deep_hidden_units", "num_epochs", "eval_batch_size")}
    changes = {**small, "flags": given, "global_batch_sizes": [64], "precisions": ["float32"]}
    path = written(tmp_path, **changes, folds=2, sample_path="$CLICKS")
    arguments = ["run", path, "--results_dir", str(tmp_path / "study")]
    assert study.main(arguments) == 0, capsys.readouterr().err
    runs = cells.read(str(tmp_path / "study" / RUNS_FILE))
    assert [(run.seed, run.fold) for run in runs] == [(1, 1), (1, 2), (2, 1), (2, 2)]
    assert [proofs.why_not(run) for run in runs] == [None] * 4
    assert runs[0].record["displays"] + runs[1].record["displays"] == study_click_cases.DISPLAYS
    # The datasets are not needed any more: neither to look at what is done, nor to report on it.
    shutil.rmtree(tmp_path / "study" / "folds")
    shutil.rmtree(tmp_path / "raw")
    capsys.readouterr()
    assert study.main(arguments) == 0 and "holds 4 of 4 runs" in capsys.readouterr().err
    assert study.main(["report", str(tmp_path / "study")]) == 0, capsys.readouterr().err
    assert capsys.readouterr().out.splitlines()[-1].startswith("float32, 1 x 64: MAP@12 0.")
    text = (tmp_path / "study" / "report.md").read_text()
    assert "4 of 4 planned runs count: 1 configurations, 2 seeds each on each of 2 folds" in text
    assert f"{study_click_cases.DISPLAYS:,} displays of real clicks in 2 folds" in text


def test_a_missing_sample_is_one_line_and_code_2(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("CLICKS", raising=False)
    path = written(tmp_path, flags={}, folds=2, sample_path="$CLICKS")
    assert study.main(["run", path, "--results_dir", str(tmp_path / "study")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "sample_path: $CLICKS: the variable is not set: let it name the folder of raw clicks"


def test_a_run_that_fails_is_reported_and_does_not_stop_the_rest(tmp_path, capsys, small):
    # The degraded cell's rates are so large that its loss is not finite for long.
    small["flags"] |= {"deep_warmup_epochs": 0.0}
    path = written(tmp_path, **small, precisions=["float32"], seeds=1, controls={"wild": 1e30})
    assert study.main(["run", path, "--results_dir", str(tmp_path / "study")]) == 1
    err = capsys.readouterr().err
    runs = {run.cell.label: run for run in cells.read(str(tmp_path / "study" / RUNS_FILE))}
    assert runs[""].status == OK and proofs.why_not(runs[""]) is None
    assert proofs.why_not(runs["wild"]) is not None and runs["wild"].cell.name in err.splitlines()[-1]


# The first run ends at once; the second says that it is there and waits for ever.
WORKER = """
import json, os, sys
sys.path[:0] = [sys.argv[1], sys.argv[2]]
import study_cases
from benchmarks.study import cells, worker
job = worker.read_job(sys.argv[3])
cell, seed, *_ = job.runs[0]
cells.append(job.runs_file, study_cases.run(cell, seed))
worker.Notes(job).started(1)
with open(sys.argv[4], "w") as pipe:
    pipe.write(str(os.getpid()))
os.mkfifo(os.path.join(job.scratch, "never"))
open(os.path.join(job.scratch, "never")).read()
"""
DRIVER = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # tests that a shell starts in the background ignore it
root, here, worker, plan, folder, fifo = sys.argv[1:]
sys.path[:0] = [root, here]
from benchmarks.study import __main__ as study, launcher
launcher.command = lambda ranks, job, devices: [sys.executable, "-c", worker, root, here, job, fifo]
sys.exit(study.main(["run", plan, "--results_dir", folder]))
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_processes_and_keeps_what_is_done(tmp_path, number, code):
    os.mkfifo(tmp_path / "fifo")
    places = (written(tmp_path, runs_per_launch=4), str(tmp_path / "study"), str(tmp_path / "fifo"))
    command = [sys.executable, "-c", DRIVER, str(ROOT), str(Path(__file__).parent), WORKER, *places]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    try:
        child = int((tmp_path / "fifo").read_text())  # waits for it
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == code and "the same command goes on from there" in err.splitlines()[-1]
    assert not psutil.pid_exists(child)
    (run,) = cells.read(str(tmp_path / "study" / RUNS_FILE))
    assert run.status == OK
