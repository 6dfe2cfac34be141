"""Faults planted in real runs of the trainer: each takes the score away, and the same run without it has one."""

import functools
import json
import os

import keras
import pytest
import suite_cases

import main
from benchmarks.suite import commands, safeguards
from benchmarks.suite.correctness import Correctness
from benchmarks.suite.definitions import load
from benchmarks.suite.processes import Ended
from models.backward_training import BackwardTrainer
from trainer import benchmark, flags, optimizers
from trainer.distributed import SingleProcess
from trainer.runtime import Device, Surroundings
from trainer.timing import StepTimer


def in_this_process(command, *, log, timeout_s, cwd, environ):
    """Stands in for benchmarks.suite.processes.run: main.py's run, with what is planted in this process."""
    del timeout_s, cwd, environ
    with open(log, "w", encoding="utf-8"):
        pass
    config = flags.parse(command[command.index("main.py") + 1 :])
    keras.mixed_precision.set_global_policy(config.device.precision)
    main.run(config, SingleProcess(), Surroundings(Device(has_gpu=False, description="CPU, in a test")))
    return Ended(0, 1.0)


@pytest.fixture
def cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "suite-cache"))


def loss_check(tmp_path):
    """What the project's own check of DLRM's training finds."""
    (one,) = (one for one in load() if one.name == "dlrm-training-tiny")
    cell = suite_cases.cell(one, implementation="optimized")
    return Correctness(str(tmp_path), launch=in_this_process).of(one, cell, {"config": {"dataset_type": "parquet"}})[0]


def test_a_training_that_learns_reaches_its_band(cache, tmp_path):
    check = loss_check(tmp_path)
    assert check.held, check.said


def test_zero_gradients_take_the_score(cache, tmp_path, monkeypatch):
    def without_gradients(apply, gradients):
        """`apply` with zeros, or no pairs at all, in place of the positional argument `gradients`."""

        def patched(self, *arguments, **named):
            changed = list(arguments)
            changed[gradients] = 0 * changed[gradients]
            return apply(self, *changed, **named)

        return patched

    for name, gradients in (("apply_dense", 1), ("apply_rows", 2), ("apply_pools", 2), ("apply_all_dense", 0)):
        monkeypatch.setattr(optimizers.SGD, name, without_gradients(getattr(optimizers.SGD, name), gradients))
    monkeypatch.setattr(BackwardTrainer, "take", lambda self, variables: False)  # it would not ask the optimizer
    check = loss_check(tmp_path)
    assert not check.held and check.said.startswith("loss 0.")


@pytest.mark.parametrize("synchronised", [True, False])
def test_a_clock_that_does_not_wait_takes_the_score(cache, tmp_path, monkeypatch, synchronised):
    """Its steps are said to take a hundredth of what they take, as where a device is only given work."""
    if not synchronised:

        class Hasty(StepTimer):
            def __init__(self, warmup_steps, **given):
                real = given.pop("clock", None) or benchmark.time.perf_counter_ns
                super().__init__(warmup_steps, clock=lambda: real() // 100, **given)

        monkeypatch.setattr(benchmark, "StepTimer", Hasty)
    one = suite_cases.definition(
        flags={**suite_cases.SMALL_DATA, "deep_hidden_units": [64, 32], "benchmark_steps": 203}
    )
    command = commands.of_cell(one, suite_cases.cell(one, implementation="optimized"), str(tmp_path))
    functools.partial(in_this_process, command)(log=str(tmp_path / "log"), timeout_s=1, cwd="", environ={})
    with open(os.path.join(tmp_path, "result.json"), encoding="utf-8") as file:
        found = safeguards.verdict(safeguards.of_record(json.load(file)))
    assert found.sound == synchronised, found
