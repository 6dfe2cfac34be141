"""A benchmark that means something else needs a new version."""

import json

import pytest
import suite_cases

from benchmarks.suite import meanings
from benchmarks.suite.definitions import load
from data.errors import InputError
from trainer import presets


@pytest.fixture
def file(tmp_path):
    return tmp_path / "meanings.json"


def test_the_projects_benchmarks_mean_what_their_versions_meant():
    assert meanings.problems(load(), meanings.recorded()) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"owner": "somebody else"},
        {"stands_for": "Other things."},
        {"version": "2.0"},
        {"quick": None},
        {"default": {"optimized": [64]}},
        {"expected_memory": {"ootb": 100}},
    ],
)
def test_who_owns_it_and_what_selects_it_is_no_meaning(changes):
    assert meanings.digest(suite_cases.definition(**changes)) == meanings.digest(suite_cases.definition())


@pytest.mark.parametrize(
    "changes",
    [
        {"batch_sizes": [32]},
        {"latency_limit_ms": 5},
        {"flags": {**suite_cases.DOCUMENT["flags"], "deep_dropout": 0.2}},
        {"flags": {**suite_cases.DOCUMENT["flags"], "benchmark_steps": 40}},
        {"implementations": ["optimized"]},
        {"correctness": {**suite_cases.DOCUMENT["correctness"], "high": 0.7}},
        {"precisions": ["fp32", "bf16"]},
    ],
)
def test_all_else_is(changes):
    assert meanings.digest(suite_cases.definition(**changes)) != meanings.digest(suite_cases.definition())


def test_a_default_that_changes_is_a_meaning_that_changes(monkeypatch):
    one = suite_cases.definition(
        model="dcnv2", flags=suite_cases.SMALL_DATA, correctness={"check": "reference", "flags": {}}
    )
    before = meanings.digest(one)
    changed = dict(presets.MODEL_DEFAULTS) | {"dcnv2": {**presets.MODEL_DEFAULTS["dcnv2"], "learning_rate": 0.5}}
    monkeypatch.setattr(presets, "MODEL_DEFAULTS", changed)
    assert meanings.digest(one) != before


def test_what_is_off_and_where_results_go_is_no_meaning():
    resolved = meanings.meaning(suite_cases.definition())["resolved"]["fp32"]
    assert resolved["global_batch_size"] == 64 and resolved["deep_learning_rate"] == 0.00012
    assert not {"results_dir", "model_dir", "synthetic_cache_dir", "amp", "max_steps"} & set(resolved)


def test_parameters_of_a_microbenchmark_count_with_their_defaults():
    stated = meanings.meaning(suite_cases.micro())
    assert stated["resolved"]["fp32"]["shapes"] == [[256, 1024, 1024]]
    assert meanings.digest(suite_cases.micro(flags={"shapes": "64,64,64"})) != meanings.digest(suite_cases.micro())


def test_new_versions_are_added_and_old_ones_never_change(file):
    one = suite_cases.definition()
    assert meanings.problems([one], meanings.recorded(file))[0].startswith(f"{one.name}: version 1.0 is not recorded")
    assert meanings.record([one], file) == "recorded: wide_deep-training-small 1.0"
    assert meanings.problems([one], meanings.recorded(file)) == []
    before = file.read_text()
    changed = suite_cases.definition(batch_sizes=[8])
    assert "meant something else: give a new version" in meanings.problems([changed], meanings.recorded(file))[0]
    with pytest.raises(InputError, match="wide_deep-training-small changed and kept the version"):
        meanings.record([suite_cases.micro(), changed], file)
    assert file.read_text() == before
    newer = suite_cases.definition(batch_sizes=[8], version="1.1")
    assert meanings.record([newer], file) == "recorded: wide_deep-training-small 1.1"
    assert set(json.loads(file.read_text())[one.name]) == {"1.0", "1.1"}
    assert meanings.record([newer], file) == "recorded: nothing new"
    assert [path.name for path in file.parent.iterdir()] == ["meanings.json"]


@pytest.mark.parametrize("text", ["", "[]", '{"a": "b"}'])
def test_a_broken_file_is_named(file, text):
    file.write_text(text)
    with pytest.raises(InputError, match=str(file)):
        meanings.recorded(file)
