"""The program as users start it. Each start imports TensorFlow, so few are made and each is looked at closely."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import main
from data import synthetic
from data.feature_spec import Feature, FeatureSpec
from trainer import experiment, launch
from trainer.config import RunConfig

ROOT = Path(__file__).resolve().parents[1]
ROOTS = {"model_dir": "/outbrain", "results_dir": "/results"}
FALL_BACK = {"model_dir": "checkpoints", "results_dir": "results"}
TABLE_TITLE = re.compile(r"^wide_deep (training|inference), optimized, configuration default, version", re.MULTILINE)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    """Generated data of one feature of a kind."""
    folder = tmp_path_factory.mktemp("data set")  # with a space, as folders can have
    features = [Feature("clicked"), Feature("display_id"), Feature("ad", 30), Feature("topics", 9, 3), Feature("ctr")]
    spec = FeatureSpec({f.name: f for f in features}, ("ad",), ("topics",), ("ctr",), "clicked", "display_id")
    synthetic.generate(str(folder), rows=500, seed=1, spec=spec, rows_per_group=64)
    return folder


def start(*arguments, cwd):
    """`python main.py ...` in a folder of its own, without what a test runner may have set."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("TF_", "CUDA_"))}
    command = [sys.executable, str(ROOT / "main.py"), *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, env=environ)


def log_data(path):
    lines = [line.split(" ", 1) for line in path.read_text().splitlines()]
    assert {prefix for prefix, _ in lines} == {"DLLL"}
    return [(line["step"], line["data"]) for _, text in lines if (line := json.loads(text))["type"] == "LOG"]


@pytest.fixture(scope="module")
def trained(dataset, tmp_path_factory):
    """A plain training run that leaves its folders and the batch size of evaluation to the defaults, if it may."""
    folder = tmp_path_factory.mktemp("run")
    there = [
        name for name, root in ROOTS.items() if os.access(root, os.W_OK | os.X_OK)
    ]  # nothing for tests to write to
    done = start(
        f"--dataset_path={dataset}",
        "--global_batch_size",
        "64",
        "--deep_hidden_units=8,4",
        "--num_epochs=2",
        "--log_every_steps=2",
        "--num_auc_thresholds=8000",
        "--noamp",
        *(f"--{name}={folder}/{FALL_BACK[name]}" for name in there),
        cwd=folder,
    )
    return folder, done, there


def test_a_plain_run_ends_well_and_says_nothing_on_stderr(trained):
    _, done, _ = trained
    assert done.returncode == 0 and done.stderr == ""


def test_the_first_line_says_what_runs_and_what_fell_back(trained):
    _, done, there = trained
    first = done.stdout.splitlines()[0]
    assert re.match(r"training of wide_deep \| (CPU, \d+ threads? a rank|GPU .*) \| float32 \| 1 rank \(", first)
    assert " | batch 64 global, 64 per rank | learning rates: wide 0.02, deep 0.00012" in first
    assert "num_auc_thresholds (AUC is exact)" in first and "global_batch_size" not in first
    for name, folder in FALL_BACK.items():
        assert (f"{name} ./{folder} (no writable {ROOTS[name]})" in first) == (name not in there)
    if " | CPU, " in first:
        assert "eval_batch_size 4096 (no GPU)" in first


def test_the_output_is_one_table_and_kept_in_the_ranks_log(trained):
    folder, done, _ = trained
    assert len(TABLE_TITLE.findall(done.stdout)) == 1 and done.stdout.count("throughput  ") == 1
    assert "\r" not in done.stdout  # no progress bar but on a terminal
    assert ((folder / "results") / "rank-0.log").read_text() == done.stdout


def test_log_record_and_checkpoint_are_written(trained):
    folder, *_ = trained
    results = folder / "results"
    data = log_data(results / "log.json")
    assert data[0][0] == "PARAMETER" and data[-1][0] == []
    assert {"train_throughput", "loss_val", "auc_roc", "streaming_map_val"} == set(data[-1][1])
    record = json.loads((results / "result.json").read_text())
    epoch = (record["warmup_steps"] + record["measured_steps"]) // 2
    assert [step for step, values in data if "loss_val" in values][:-1] == [epoch, 2 * epoch]
    assert record["auc"] == data[-1][1]["auc_roc"] and record["config"]["num_auc_thresholds"] == 8000
    assert record["data_source"] == "generated" and record["samples_per_sec"] > 0
    assert [path.name for path in sorted((folder / "checkpoints").glob("step-*"))][-1] == f"step-{2 * epoch:09d}"


def test_a_benchmark_of_evaluation_under_mixed_precision_and_xla(dataset, trained, tmp_path):
    folder, *_ = trained
    done = start(
        f"--dataset_path={dataset}",
        "--evaluate",
        "--benchmark",
        "--benchmark_steps=6",
        "--benchmark_warmup_steps",
        "2",
        "--eval_batch_size=32",
        "--deep_hidden_units=8,4",
        "--use_checkpoint",
        "--amp",
        "--xla",
        "--log_filename=bench.json",
        f"--model_dir={folder / 'checkpoints'}",
        f"--results_dir={tmp_path}/a folder's (results)",
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    first = done.stdout.splitlines()[0]
    assert (
        first.startswith("benchmark of evaluation, wide_deep | ") and "mixed_float16" in first and ", XLA | " in first
    )
    assert "slower than float32" in first or " | GPU " in first
    assert len(TABLE_TITLE.findall(done.stdout)) == 1
    results = tmp_path / "a folder's (results)"
    record = json.loads((results / "result.json").read_text())
    assert (record["warmup_steps"], record["measured_steps"], record["identity"]["mode"]) == (2, 4, "inference")
    assert set(record["step_ms"]) == {"mean", "p50", "p90", "p95", "p99"} and record["auc"] > 0
    assert set(log_data(results / "bench.json")[-1][1]) == {
        "validation_throughput",
        "loss_val",
        "auc_roc",
        "streaming_map_val",
    }


def test_a_missing_dataset_is_one_line_and_code_2(tmp_path):
    done = start(f"--dataset_path={tmp_path}/none", f"--results_dir={tmp_path}", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1 and done.stderr.startswith(f"main.py: {tmp_path}/none/feature_spec.yaml: ")
    for way in ("--dataset_path", "python -m data.synthetic", "--dataset_type=synthetic"):
        assert way in done.stderr


@pytest.mark.parametrize("bad", [["--batch=3"], ["--num_epochs=0"], ["train"], ["--affinity=none"]])
def test_bad_flags_are_one_line_and_code_2(bad, tmp_path):
    done = start(*bad, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("main.py: ") and done.stderr.count("\n") == 1
    assert not any(tmp_path.iterdir())


def test_help_ends_well(tmp_path):
    done = start("--help", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert all(f"--{name}=" in done.stdout or f"--[no]{name}\n" in done.stdout for name in RunConfig().flat())
    assert not any(tmp_path.iterdir())


def test_a_reader_that_leaves_early_is_no_error(tmp_path):
    reading, writing = os.pipe()
    os.close(reading)
    try:
        command = [sys.executable, str(ROOT / "main.py"), "--help"]
        done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True)
    finally:
        os.close(writing)
    assert done.stderr == ""


# What main wires.


@pytest.mark.parametrize(
    ("mode", "method"),
    [
        ({}, "train"),
        ({"evaluate": True}, "evaluate"),
        ({"benchmark": True}, "benchmark_training"),
        ({"benchmark": True, "evaluate": True}, "benchmark_inference"),
    ],
)
def test_each_mode_runs_its_method_and_returns_its_record(monkeypatch, mode, method):
    class Opened:
        def __getattr__(self, name):
            return lambda: f"record of {name}"

    monkeypatch.setattr(experiment.Experiment, "open", lambda *arguments: Opened())
    assert main.run(RunConfig.from_flat(mode), None, None) == f"record of {method}"


def test_main_hands_over_the_configuration_and_returns_the_code(monkeypatch):
    given = []
    monkeypatch.setattr(launch, "run_as_rank", lambda config, run: given.append((config, run)) or 7)
    assert main.main(["--num_epochs", "3"]) == 7
    ((config, run),) = given
    assert config.training.num_epochs == 3 and run is main.run


def test_bad_values_never_start_anything(monkeypatch, capsys):
    monkeypatch.setattr(launch, "run_as_rank", lambda *arguments: pytest.fail("started"))
    assert main.main(["--num_epochs", "0"]) == 2
    assert tuple(capsys.readouterr()) == ("", "main.py: --num_epochs must be at least 1, got 0\n")
