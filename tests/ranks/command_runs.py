"""Command lines of main.py for small runs, and what they leave in their folder."""

import json
import os
import pathlib
import re
import sys

from rank_processes import FOLDER, ROOT

PLAIN = [sys.executable, ROOT / "main.py"]
WRAPPED = ["sh", ROOT / "hvd_wrapper.sh", "python", ROOT / "main.py"]  # what the README puts after `horovodrun -np 2`

_SHARED_CPU = re.compile(r"main\.py: warning: rank \d+: affinity .* share a CPU")


def observed(folder: pathlib.Path, fault: str) -> list:
    """The command that stands for `python main.py`; see observed_main.py for faults."""
    return [sys.executable, FOLDER / "observed_main.py", folder, fault]


def flags(dataset: pathlib.Path, folder: pathlib.Path, *more: str) -> list[str]:
    """A run of 49 steps an epoch that keeps everything in `folder`; later flags replace earlier ones."""
    return [
        "--cpu",
        f"--dataset_path={dataset}",
        f"--results_dir={folder / 'results'}",
        f"--model_dir={folder / 'checkpoints'}",
        "--global_batch_size=64",
        "--eval_batch_size=512",
        "--deep_hidden_units=16,8",
        "--deep_warmup_steps=5",
        "--deep_decay_step=20",
        "--deep_learning_rate=0.02",
        "--max_steps=30",
        "--log_every_steps=1",
        "--intra_op_threads=1",
        "--shuffle_buffer_rows=1500",
        *more,
    ]


def losses(folder: pathlib.Path) -> dict[int, float]:
    """The training losses in the log, by step."""
    found = {}
    for line in (folder / "results" / "log.json").read_text().splitlines():
        entry = json.loads(line.removeprefix("DLLL "))
        if entry["type"] == "LOG" and isinstance(entry["step"], int) and "loss" in entry["data"]:
            found[entry["step"]] = entry["data"]["loss"]
    return found


def checkpoint_steps(folder: pathlib.Path) -> list[int]:
    """The steps of the checkpoints that are there, oldest first."""
    return sorted(int(path.name.split("-")[1]) for path in (folder / "checkpoints").glob("step-*"))


def error_lines(finished, rank: int) -> list[str]:
    """What a rank wrote to standard error, but for the warning that is due where the ranks have one CPU in all."""
    one_cpu = len(os.sched_getaffinity(0)) == 1
    return [line for line in finished.lines(rank, "stderr") if not (one_cpu and _SHARED_CPU.fullmatch(line))]


def own_lines(finished, rank: int) -> list[str]:
    """Of these, what the rank itself wrote: not Horovod's own messages, which begin with a date."""
    return [line for line in error_lines(finished, rank) if not line.startswith("[")]
