"""Definitions, records and stand-ins for runs, for the tests of the suite."""

import dataclasses
import json
import os

import yaml

from benchmarks.suite.definitions import Definition
from benchmarks.suite.processes import Ended
from benchmarks.suite.results import Cell
from trainer.records import Identity, Record

SMALL_DATA = {
    "dataset_type": "synthetic",
    "synthetic_rows": 400,
    "synthetic_dataset_cardinalities": [50, 20],
    "synthetic_dataset_num_numerical_features": 2,
}
DOCUMENT = {
    "model": "wide_deep",
    "config": "small",
    "mode": "training",
    "implementations": ["ootb", "optimized"],
    "version": "1.0",
    "owner": "somebody",
    "stands_for": "Small things.",
    "flags": {**SMALL_DATA, "deep_hidden_units": [8, 4]},
    "batch_sizes": [32, 64],
    "latency_limit_ms": None,
    "world_sizes": [1],
    "scaling": None,
    "precisions": ["fp32"],
    "needs": None,
    "expected_memory": None,
    "correctness": {
        "check": "loss_band",
        "steps": 4,
        "low": 0.3,
        "high": 0.6,
        "flags": {**SMALL_DATA, "global_batch_size": 32, "deep_hidden_units": [8]},
    },
    "quick": {"ootb": [32], "optimized": [32]},
    "default": {"ootb": [32, 64], "optimized": [32, 64]},
}
MICRO = {
    "model": "gemm",
    "mode": "forward",
    "implementations": ["micro"],
    "flags": {},
    "batch_sizes": [256],
    "correctness": {"check": "own"},
    "quick": None,
    "default": {"micro": [256]},
}
FACTS = {"cpu_model": "a CPU", "cpus": 2, "allowed_cpus": 2, "memory_gib": 24, "gpus": [], "versions": {"keras": "3"}}


def definition(**changes):
    """A definition as if it had been read."""
    document = DOCUMENT | changes
    found = {key: tuple(value) if isinstance(value, list) else value for key, value in document.items()}
    return Definition(**found)


def micro(**changes):
    return definition(**(MICRO | changes))


def write_definition(folder, **changes):
    """The same as a file; returns its path."""
    document = DOCUMENT | changes
    path = folder / f"{document['model']}-{document['mode']}-{document['config']}.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


def cell(one, **changes):
    """The first cell of a definition."""
    made = Cell(
        model=one.model,
        implementation=one.implementations[0],
        mode=one.mode,
        config=one.config,
        version=one.version,
        batch_size=one.batch_sizes[0],
    )
    return dataclasses.replace(made, **changes)


def record(**changes):
    """A record of ten steps of 20 ms over 32 rows, as JSON."""
    figures = {
        "samples_per_sec": 1600.0,
        "step_ms": dict.fromkeys(("mean", "p50", "p90", "p95", "p99"), 20.0),
        "step_times_ms": (20.0,) * 10,
        "measured_seconds": 0.2,
        "rank_step_ms": (20.0,),
        "warmup_steps": 3,
        "measured_steps": 10,
        "requested_steps": 13,
        "global_batch_size": 32,
        "loss": 0.5,
        "peak_memory_bytes": (10**9,),
    } | changes
    mode = figures.pop("mode", "training")
    return json.loads(Record(identity=Identity("wide_deep", mode, "small"), **figures).to_json())


class Launches:
    """Stands in for processes: each command leaves what `answer` says in the folder that it names.

    answer(command) -> (exit code or None, text that it prints, document to leave or None)
    """

    def __init__(self, answer):
        self.answer = answer
        self.commands = []

    def __call__(self, command, *, log, timeout_s, cwd, environ):
        self.commands.append(list(command))
        code, text, document = self.answer(command)
        with open(log, "w", encoding="utf-8") as file:
            file.write(text)
        if document is not None:
            with open(self._path(command), "w", encoding="utf-8") as file:
                file.write(document if isinstance(document, str) else json.dumps(document))
        return Ended(code, 1.0)

    @staticmethod
    def _path(command):
        if "--result" in command:
            return command[command.index("--result") + 1]
        (folder,) = (word.partition("=")[2] for word in command if word.startswith("--results_dir="))
        return os.path.join(folder, "reference.json" if "benchmarks.suite.reference" in command else "result.json")
