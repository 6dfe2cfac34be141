"""A repeat becomes a result, whatever becomes of its process."""

import contextlib
import dataclasses

import pytest
import suite_cases

from benchmarks.microbenchmarks.checks import Check
from benchmarks.suite import commands, runner
from benchmarks.suite.devices import Seen
from benchmarks.suite.plan import Planned
from benchmarks.suite.results import FAILED, OK, SKIPPED, UNSOUND
from benchmarks.suite.runner import Runner
from data.errors import InputError

ONE = suite_cases.definition(latency_limit_ms=30.0)
MICRO = suite_cases.micro()
OUTCOME = {
    "score": 0.15, "units": "TF/s", "step_ms": [1.0] * 6, "rank_step_ms": [1.0], "figures": {"gflop_per_step": 0.5},
    "safeguard": "products are right", "sound": True, "reason": "", "peak_memory_bytes": [7], "batch": 256,
}  # fmt: skip


class Checks:
    """Stands in for benchmarks.suite.correctness."""

    def __init__(self, *checks):
        self.checks = checks

    def of(self, definition, cell, record):
        return list(self.checks)


def planned(one, **changes):
    return Planned(one, suite_cases.cell(one, **changes), 2)


@pytest.fixture
def run(tmp_path):
    """run(one, document, ...): the result of a repeat whose process leaves this document."""

    def run(one, document, *, code=0, text="", checks=(), peak=1e15, **cell):
        launches = suite_cases.Launches(lambda command: (code, text, document))
        made = Runner(
            str(tmp_path),
            fingerprint=suite_cases.FACTS,
            correctness=Checks(*checks),
            peak_flops={"fp32": peak},
            launch=launches,
        )
        return made.run(planned(one, **cell)), launches.commands

    return run


def test_a_good_run_has_a_score(run):
    result, (command,) = run(ONE, suite_cases.record(), checks=[Check("fine", True)], implementation="optimized")
    assert (result.status, result.score, result.units, result.repeat) == (OK, 1600.0, "samples/s", 2)
    assert result.step_ms == (20.0,) * 10 and result.p95_ms == 20.0 and not result.missed_limit
    assert result.figures["loss"] == 0.5 and result.peak_memory_bytes == (10**9,) and result.rank_step_ms == (20.0,)
    assert result.safeguard.endswith("; fine") and result.record["samples_per_sec"] == 1600.0
    assert result.fingerprint == suite_cases.FACTS and result.latency_limit_ms == 30.0
    # The same command, but for where results go.
    folder = next(word for word in command if word.startswith("--results_dir=")).partition("=")[2]
    assert [word.replace(folder, "RESULTS") for word in command] == list(result.command)
    assert command[1] == "main.py" and "--global_batch_size=32" in command


def test_ootb_is_a_program_of_its_own(run):
    result, (command,) = run(ONE, suite_cases.record())
    assert command[1:3] == ["-m", "benchmarks.ootb"] and result.status == OK


@pytest.mark.parametrize(
    ("record", "options", "reason"),
    [
        (suite_cases.record(loss=None), {}, "the loss is not finite"),
        (suite_cases.record(), {"checks": [Check("loss 0.69, must be less", False)]}, "loss 0.69, must be less"),
        (suite_cases.record(measured_seconds=3.0), {}, "by a second clock"),
        (suite_cases.record(), {"peak": 1.0}, "GFLOP/s of dense products"),
    ],
)
def test_a_safeguard_that_does_not_hold_takes_the_score(run, record, options, reason):
    result, _ = run(ONE, record, **options)
    assert result.status == UNSOUND and result.score is None and reason in result.reason


@pytest.mark.parametrize("one", [ONE, MICRO], ids=["model", "micro"])
@pytest.mark.parametrize(
    ("document", "code", "text", "reason"),
    [
        (None, 2, "main.py: bad data\n", "ended with code 2: main.py: bad data"),
        (None, -9, "", "ended with code -9: no output"),
        (None, None, "step 3\n", "ran past its time of 900 s and was ended: step 3"),
        (None, 0, "", "ended well and left no result that can be read: FileNotFoundError"),
        ("{", 0, "", "left no result that can be read"),
        ([], 0, "", "left no result that can be read"),
        ({}, 0, "", ""),
    ],
)
def test_a_run_that_went_wrong_is_failed_and_says_why(run, one, document, code, text, reason):
    result, _ = run(one, document, code=code, text=text)
    assert result.status in (FAILED, UNSOUND) and result.score is None and reason in result.reason and result.reason
    assert "\n" not in result.reason and result.units == ("samples/s" if one is ONE else "TF/s")


def test_a_microbenchmark(run):
    result, (command,) = run(MICRO, OUTCOME)
    assert (result.status, result.score, result.units) == (OK, 0.15, "TF/s")
    assert result.figures == {"gflop_per_step": 0.5} and result.safeguard == "products are right"
    assert command[1:5] == ["-m", "benchmarks.microbenchmarks", "gemm", "forward"]
    assert command[command.index("--batch") + 1] == "256"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"sound": False, "reason": "ids are constant", "score": None}, "ids are constant"),
        ({"sound": "yes"}, "does not say that it is sound"),
        ({"step_ms": [1.0] * 4}, "4 steps measured"),
    ],
)
def test_an_unsound_microbenchmark_has_no_score(run, changes, reason):
    result, _ = run(MICRO, OUTCOME | changes)
    assert result.status == UNSOUND and result.score is None and reason in result.reason


@pytest.mark.parametrize(("gpus", "hosts", "ranks"), [(["G"] * 8, None, 2), ([], None, 0), (["G"] * 8, "a:1,b:1", 0)])
@pytest.mark.parametrize(("one", "document"), [(ONE, suite_cases.record()), (MICRO, OUTCOME)], ids=["model", "micro"])
def test_gpus_are_watched_while_it_runs(monkeypatch, tmp_path, one, document, gpus, hosts, ranks):
    watched = []

    @contextlib.contextmanager
    def watch(ranks, environ):
        watched.append((ranks, environ["NVIDIA_TF32_OVERRIDE"]))
        seen = Seen()
        yield seen
        seen.peak_memory_bytes, seen.figures = (5, 6), {"gpu_power_w": 250.0}

    monkeypatch.setattr(commands, "on_ranks", lambda command, *_: command)
    made = Runner(
        str(tmp_path),
        fingerprint=suite_cases.FACTS | {"gpus": gpus},
        correctness=Checks(),
        peak_flops={},
        hosts=hosts,
        launch=suite_cases.Launches(lambda command: (0, "", document)),
        watch=watch,
    )
    result = made.run(planned(one, world_size=2))
    assert watched == [(ranks, "0")] and result.status == OK and result.peak_device_memory_bytes == (5, 6)
    assert result.figures["gpu_power_w"] == 250.0 and len(result.figures) > 1  # beside those of the run itself


def test_several_ranks_are_launched_with_horovod(run, monkeypatch, tmp_path):
    (tmp_path / "bin").mkdir()
    for name in ("python", "horovodrun"):
        (tmp_path / "bin" / name).touch()
    monkeypatch.setattr(commands.sys, "executable", str(tmp_path / "bin/python"))
    _, (command,) = run(ONE, suite_cases.record(), world_size=2, implementation="optimized")
    assert command[:3] == [str(tmp_path / "bin/horovodrun"), "-np", "2"]
    assert command[3:5] == ["sh", str(commands.ROOT / "hvd_wrapper.sh")] and command[6] == "main.py"
    _, (command,) = run(suite_cases.micro(model="allreduce", mode="exchange"), OUTCOME, world_size=2)
    assert command[1:3] == ["-np", "2"]


def test_no_horovodrun_is_a_failed_run(run, monkeypatch, tmp_path):
    monkeypatch.setattr(commands.sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(commands.shutil, "which", lambda name: None)
    result, started = run(ONE, suite_cases.record(), world_size=2)
    assert result.status == FAILED and "2 ranks need horovodrun" in result.reason and started == []


def test_what_is_skipped_says_why(tmp_path):
    made = Runner(str(tmp_path), fingerprint={}, correctness=Checks(), peak_flops={})
    result = made.skipped(dataclasses.replace(planned(ONE), skipped="too large"))
    assert (result.status, result.reason, result.score) == (SKIPPED, "too large", None)


def test_flops_of_dense_products():
    # 2 tables of dimensions 16 and 16 by the rule, 2 numericals: 34 x 8, 8 x 4, 4 x 1, and the wide part's 2.
    one = suite_cases.definition()
    weights = 34 * 8 + 8 * 4 + 4 + 2
    assert runner.dense_flops(one, suite_cases.cell(one, implementation="optimized")) == 6 * 32 * weights
    scoring = suite_cases.definition(mode="inference", correctness={"check": "reference", "flags": {}})
    assert runner.dense_flops(scoring, suite_cases.cell(scoring)) == 2 * 32 * weights


@pytest.mark.parametrize(
    ("precision", "before", "after"),
    [("fp32", {}, "0"), ("tf32", {"NVIDIA_TF32_OVERRIDE": "0"}, None), ("bf16", {}, None)],
)
def test_float32_is_float32_on_gpus_too(precision, before, after):
    found = commands.environment(precision, before | {"PATH": "/bin"})
    assert found.get("NVIDIA_TF32_OVERRIDE") == after and found["PATH"].endswith(":/bin")


def test_commands_of_bad_settings_are_refused():
    one = suite_cases.definition(flags={"speed": 1})
    with pytest.raises(InputError, match="speed"):
        commands.of_cell(one, suite_cases.cell(one), "/nowhere")
