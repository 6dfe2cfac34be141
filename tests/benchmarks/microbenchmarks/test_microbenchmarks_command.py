"""`python -m benchmarks.microbenchmarks`: a whole run in a process of its own, and what it says and writes."""

import importlib
import json
import subprocess
import sys

import pytest

from benchmarks.microbenchmarks import catalogue, ranks
from benchmarks.microbenchmarks.timed import Outcome
from trainer.distributed import SingleProcess

command = importlib.import_module("benchmarks.microbenchmarks.__main__")
KEYS = {
    *("score", "units", "step_ms", "rank_step_ms", "figures", "safeguard", "sound", "reason", "peak_memory_bytes"),
    "batch",
}


def test_a_run_by_itself(tmp_path, pytestconfig):
    path = tmp_path / "a result.json"
    arguments = ["gemm", "forward", "--shapes", "512,512,512", "--cpu", "--seconds", "0.2", "--result", str(path)]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.microbenchmarks", *arguments],
        cwd=pytestconfig.rootpath,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(path.read_text())
    assert set(found) == KEYS and found["units"] == "TF/s" and found["batch"] == 512
    assert 5 <= len(found["step_ms"]) <= 30 and found["figures"]["gflop_per_step"] == 2 * 512**3 / 1e9
    assert "before, 512 of 512 rows of the product" in found["safeguard"]
    assert (
        done.stdout.startswith("gemm forward fp32, batch 512, 512,512,512, 1 rank: ") and done.stdout.count("\n") == 1
    )
    assert [file.name for file in tmp_path.iterdir()] == ["a result.json"]


OUTCOME = Outcome(
    score=0.25,
    units="TF/s",
    step_ms=[4.0, 2.0],
    rank_step_ms=[3.0, 2.5],
    figures={"bytes_per_step": 123456.0, "undefined": float("nan")},
    safeguard="right",
    peak_memory_bytes=[7, 8],
    batch=8,
)


@pytest.fixture
def started(monkeypatch):
    """Commands begin at once, and their runs end with this outcome; `comm` is the rank's communicator."""

    class Started:
        comm, outcome, asked = SingleProcess(), OUTCOME, None

    def run(settings, comm, *, seconds, most_steps):
        Started.asked = (settings, seconds, most_steps)
        return Started.outcome

    monkeypatch.setattr(ranks, "connect", lambda settings: Started.comm)
    monkeypatch.setattr(ranks, "run", run)
    return Started


def test_what_is_written(started, tmp_path, capsys):
    path = tmp_path / "result.json"
    stated = ["--params", '{"shapes": [[8, 9, 10]]}', "--batch", "16", "--precision", "bf16", "--seconds", "0.5"]
    assert command.main(["gemm", "forward", *stated, "--steps", "9", "--result", str(path)]) == 0
    settings, *limits = started.asked
    assert settings == catalogue.settings("gemm", "forward", shapes="16,9,10", precision="bf16") and limits == [0.5, 9]
    found = json.loads(path.read_text())
    assert set(found) == KEYS and found["score"] == 0.25 and found["figures"]["undefined"] is None
    out = capsys.readouterr().out
    assert out.startswith(
        "gemm forward bf16, batch 16, 16,9,10, 1 rank: 0.25 TF/s, median of 2 steps 3 ms, bytes_per_step"
    )
    assert "bytes_per_step 123,456" in out


def test_without_a_score(started, tmp_path, capsys):
    started.outcome = Outcome(score=None, units="TF/s", safeguard="it is WRONG", sound=False, reason="it is WRONG")
    assert command.main(["gemm", "forward", "--result", str(tmp_path / "result.json")]) == 0
    assert capsys.readouterr().out.endswith("1 rank: NO SCORE: it is WRONG\n")
    found = json.loads((tmp_path / "result.json").read_text())
    assert (found["score"], found["sound"], found["reason"]) == (None, False, "it is WRONG")


def test_other_ranks_say_and_write_nothing(started, tmp_path, capsys):
    started.comm = SingleProcess(rank=1, size=2)
    assert command.main(["gemm", "forward", "--result", str(tmp_path / "result.json")]) == 0
    assert capsys.readouterr().out == "" and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give NAME and MODE; --list says which there are"),
        (["gemm"], "give NAME and MODE"),
        (["conv", "forward"], "there is no microbenchmark 'conv'"),
        (["gemm", "backward"], "gemm: there is no mode 'backward'"),
        (["gemm", "forward", "--seconds", "0"], "--seconds=0.0 --steps=30: give more than 0 seconds"),
        (["gemm", "forward", "--seconds", "nan"], "--seconds=nan"),
        (["gemm", "forward", "--steps", "4"], "--steps=4: give more than 0 seconds and at least 5 steps"),
        (["gemm", "forward", "--batch", "many"], "invalid int value: 'many'"),
        (["gemm", "forward", "--result", "no/such/folder/x"], "--result=no/such/folder/x: cannot be written"),
        (["gemm", "forward", "--result", "/"], "--result=/: cannot be written"),
    ],
)
def test_bad_input_is_one_line_and_code_2(started, monkeypatch, tmp_path, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    assert command.main(arguments) == 2
    said = capsys.readouterr()
    assert message in said.err and said.err.count("\n") == 1 and said.out == ""
    assert started.asked is None and list(tmp_path.iterdir()) == []


def test_listing(capsys):
    assert command.main(["--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(catalogue.BENCHMARKS)
    assert (
        "embedding_bag forward|forward_backward_update; GB/s; fp32; --shapes rows,dimension,pooling, or small"
        in lines[2]
    )
    assert "ids (law of the ids; default uniform)" in lines[2] and lines[3].endswith("at least 2 ranks")
