"""Several runs in one process, and the same seed in several processes: real runs, in processes of their own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from data.errors import InputError
from trainer.config import RunConfig
from trainer.launch import check_one_process

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
import json, sys
import main
from trainer import flags, launch

folder, *runs = json.loads(sys.argv[1])

def started(index):
    print("started", index, file=events)

def ended(index, record, reason):
    said = None if record is None else [record.loss, record.precision, record.settings_in_force["compute_dtype"]]
    print("ended", index, json.dumps([said, reason]), file=events)

with open(f"{folder}/events", "w") as events:
    code = launch.run_several_as_rank(
        [flags.parse(run) for run in runs], main.run,
        log_path=f"{folder}/rank-{{rank}}.log", started=started, ended=ended,
    )
sys.exit(code)
"""


def start(folder, runs):
    """Exit code and standard error of a process that does these runs, which write below `folder` by their number."""
    folder.mkdir(exist_ok=True)
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("TF_", "CUDA_", "HOROVOD_"))}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps([str(folder), *runs])],
        cwd=ROOT, capture_output=True, text=True, env=environ,
    )  # fmt: skip
    return done.returncode, done.stderr


def flags(dataset, folder, number, *more):
    own = [f"--results_dir={folder}/{number}", f"--model_dir={folder}/{number}/checkpoints"]
    return [
        f"--dataset_path={dataset}", f"--embedding_sizes_file={dataset}/sizes.json", "--cpu", "--affinity=disabled",
        "--global_batch_size=64", "--num_epochs=3", "--deep_hidden_units=32,16", "--deep_dropout=0.3",
        "--deep_learning_rate=0.01", "--deep_warmup_epochs=0.5", "--log_every_steps=1", *own, *more,
    ]  # fmt: skip


def losses(folder, number):
    lines = [json.loads(line[5:]) for line in (folder / str(number) / "log.json").read_text().splitlines()]
    return [line["data"]["loss"] for line in lines if line["type"] == "LOG" and "loss" in line["data"]]


@pytest.fixture(scope="module")
def folders(dataset, tmp_path_factory):
    """One process with five runs, the second of which fails, and one with a single run under --deterministic."""
    many, alone = tmp_path_factory.mktemp("many"), tmp_path_factory.mktemp("alone")
    missing = str(many / "missing")
    runs = [
        flags(dataset, many, 0),
        flags(missing, many, 1),
        flags(dataset, many, 2, "--amp"),
        flags(dataset, many, 3, "--seed=5"),
        flags(dataset, many, 4),
    ]
    code, said = start(many, runs)
    assert code == 0, said
    code, said = start(alone, [flags(dataset, alone, 0, "--deterministic")])
    assert code == 0, said
    return many, alone


def test_the_same_seed_gives_the_same_losses_bit_for_bit_in_one_process_and_in_another(folders):
    many, alone = folders
    first = losses(many, 0)
    assert len(first) == 24 and len(set(first)) == 24
    # After a failed run, another precision and another seed. --deterministic changes no bit on a CPU either.
    assert losses(many, 4) == first and losses(alone, 0) == first
    assert losses(many, 3) != first and losses(many, 2) != first


def test_each_run_is_told_of_as_it_begins_and_ends(folders):
    many, _ = folders
    lines = (many / "events").read_text().splitlines()
    assert [line.split(" ", 2)[:2] for line in lines] == [
        [word, str(number)] for number in range(5) for word in ("started", "ended")
    ]
    records = [json.loads(line.split(" ", 2)[2]) for line in lines[1::2]]
    assert [record is None for record, _ in records] == [False, True, False, False, False]
    assert "missing" in records[1][1] and records[0][1] is None
    # The precision of a run is its own and not the last one's.
    assert [record[1:] for record, _ in records if record] == [
        ["float32", "float32"],
        ["mixed_float16", "float16"],
        ["float32", "float32"],
        ["float32", "float32"],
    ]
    assert f"main.py: {many / 'missing'}" in (many / "rank-0.log").read_text()


def test_what_a_process_can_have_but_once_is_refused_in_two_kinds(tmp_path):
    plain = RunConfig.from_flat({"amp": True, "xla": True, "global_batch_size": 8}, frozenset())
    check_one_process([RunConfig(), plain])
    for name, value in {"deterministic": True, "intra_op_threads": 3, "affinity": "all", "cpu": True}.items():
        with pytest.raises(InputError, match=f"--{name} is .* in one run and {value} in another"):
            check_one_process([RunConfig(), plain, RunConfig.from_flat({name: value}, frozenset())])
    with pytest.raises(InputError, match="no run was asked for"):
        check_one_process([])
