"""Checks that need runs of their own: once each, and never a pass where the run went wrong."""

import pytest
import suite_cases

from benchmarks.suite import correctness
from benchmarks.suite.correctness import Correctness, ids_as_configured, outputs_match
from data import synthetic
from trainer import dataset
from trainer.config import RunConfig

MATCH = {"rows": 100, "largest_difference": 1e-6, "largest_logit": 1.0, "spread": 0.3}
BAND = suite_cases.definition()
REFERENCE = suite_cases.definition(
    mode="inference", correctness={"check": "reference", "flags": suite_cases.SMALL_DATA | {"eval_batch_size": 8}}
)


@pytest.fixture
def checks(tmp_path, monkeypatch):
    """checks(one, answer, cell...): what is found of the implementation, and the commands that were run."""
    monkeypatch.setattr(correctness, "ids_as_configured", lambda record: correctness.Check("ids", True))

    def run(one, answer, *cells):
        launches = suite_cases.Launches(answer)
        found = Correctness(str(tmp_path), launch=launches)
        return [found.of(one, cell, {})[0] for cell in cells], launches.commands

    return run


def left(document, code=0, text="main.py: it went wrong\n"):
    return lambda command: (code, text, document)


def test_a_short_training_must_reach_its_band(checks):
    cell = suite_cases.cell(BAND, implementation="optimized")
    (check,), (command,) = checks(BAND, left(suite_cases.record(loss=0.5)), cell)
    assert check.held and "loss 0.5000, must be 0.3 to 0.6 after 4 steps" in check.said
    assert command[1] == "main.py" and {"--benchmark_steps=4", "--benchmark_warmup_steps=0"} <= set(command)
    assert "--global_batch_size=32" in command


def test_zero_gradients_stay_out_of_the_band(checks):
    """A model that does not learn stays at ln 2."""
    (check,), _ = checks(BAND, left(suite_cases.record(loss=0.6931)), suite_cases.cell(BAND))
    assert not check.held and "loss 0.6931" in check.said


def test_ootb_is_checked_by_its_own_run_and_each_once(checks):
    cells = [
        suite_cases.cell(BAND, implementation=name, batch_size=size)
        for size in (32, 64)
        for name in ("ootb", "optimized")
    ]
    found, commands = checks(BAND, left(suite_cases.record()), *cells)
    assert [check.held for check in found] == [True] * 4
    assert [command[1:3] for command in commands] == [
        ["-m", "benchmarks.ootb"],
        ["main.py", "--dataset_type=synthetic"],
    ]


def test_outputs_must_match_the_references(checks):
    cells = [suite_cases.cell(REFERENCE, implementation=name) for name in ("ootb", "optimized")]
    found, commands = checks(REFERENCE, left(MATCH), *cells)
    assert [check.held for check in found] == [True, True] and len(commands) == 1
    (check,), _ = checks(REFERENCE, left(MATCH | {"largest_difference": 0.01}), cells[0])
    assert not check.held and "differ from the plain Keras model's by 0.01" in check.said


@pytest.mark.parametrize("one", [BAND, REFERENCE], ids=["loss band", "reference"])
@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (left(None, code=1), "its check ended with code 1: main.py: it went wrong"),
        (left(None, code=None), "its check ran past its time"),
        (left(None), "its check left no result"),
        (left("{"), "its check left no result"),
        (left([]), "its check left no result"),
        (left({}), "not finite"),
    ],
)
def test_a_check_that_went_wrong_is_no_pass(checks, one, answer, said):
    (check,), _ = checks(one, answer, suite_cases.cell(one))
    assert not check.held and said in check.said


@pytest.mark.parametrize(
    ("changes", "held"),
    [
        ({}, True),
        ({"largest_difference": 1e-3, "largest_logit": 10.0}, True),
        ({"largest_difference": 1e-3}, False),
        ({"largest_difference": None}, False),
        ({"spread": 0.0}, False),
    ],
)
def test_outputs_that_match(changes, held):
    assert outputs_match(MATCH | changes).held == held


# Ids.


@pytest.fixture
def recorded(tmp_path, monkeypatch):
    settings = suite_cases.SMALL_DATA | {"synthetic_rows": 4000, "synthetic_cache_dir": str(tmp_path)}
    config = RunConfig.from_flat(
        {name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()}
    )
    return suite_cases.record(config=config.flat())


def test_ids_of_generated_data_are_as_configured(recorded):
    check = ids_as_configured(recorded)
    assert check.held and check.said.endswith("ids of 2 features are distributed as configured")


def test_constant_ids_take_the_score(recorded, monkeypatch):
    """A generator that has lost its mind."""
    draw = synthetic.DEFAULT_DRAW
    monkeypatch.setattr(type(draw), "ids", lambda self, rng, cardinality, size: rng.integers(0, 1, size))
    check = ids_as_configured(recorded)
    assert not check.held and check.said.startswith("ids are not distributed as configured: cat_0: ")


def test_real_data_has_no_law():
    assert ids_as_configured({"config": {"dataset_type": "parquet"}}).said == "ids are those of real data"


def test_data_that_cannot_be_looked_at_is_no_pass(recorded, monkeypatch):
    for config in ({"dataset_type": "csv"}, {"speed": 1, "num_epochs": "x"}, recorded["config"]):
        monkeypatch.setattr(correctness, "open_spec", lambda config: dataset.open_spec(config).source_files("none"))
        check = ids_as_configured({"config": config | {"dataset_type": config.get("dataset_type", "synthetic")}})
        assert not check.held and "\n" not in check.said
