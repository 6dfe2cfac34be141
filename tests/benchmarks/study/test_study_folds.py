"""Datasets of folds: made once, whole or not at all, and of one sample."""

import json
import os

import pytest
import study_cases
import study_click_cases

from benchmarks.study import folds
from data.errors import InputError
from data.feature_spec import FeatureSpec


@pytest.fixture
def plan(tmp_path):
    raw = study_click_cases.write(tmp_path / "raw")
    (tmp_path / "study").mkdir()
    return study_cases.plan(folds=3, sample_path=raw, flags={})


def test_a_dataset_for_each_fold_and_what_is_known_of_it(tmp_path, plan):
    folder = str(tmp_path / "study")
    assert folds.read(folder) == {}
    folds.prepare(folder, plan)
    assert sorted(os.listdir(folder)) == ["folds", "folds.json"]
    facts = folds.read(folder)
    assert list(facts) == [1, 2, 3] and sum(one[folds.DISPLAYS] for one in facts.values()) == study_click_cases.DISPLAYS
    for fold, one in facts.items():
        path = folds.settings(folder, fold)["dataset_path"]
        spec = FeatureSpec.from_yaml(os.path.join(path, "feature_spec.yaml"))
        assert spec.metadata["outbrain_sample"] == one and one["fold"] == [fold, 3]
        assert folds.is_dataset(path, fold) and not folds.is_dataset(path, fold + 1)
        # Three ads in random order.
        assert one[folds.CHANCE] == pytest.approx((1 + 1 / 2 + 1 / 3) / 3)
        assert one[folds.BASELINE] != one[folds.CHANCE]
    assert folds.settings(folder, None) == {}


def test_datasets_that_are_there_stay(tmp_path, plan, monkeypatch):
    folder = str(tmp_path / "study")
    folds.prepare(folder, plan)
    monkeypatch.setattr(folds.sample, "prepare", None)
    folds.prepare(folder, plan)


def test_datasets_that_are_gone_are_made_again_of_the_same_sample_alone(tmp_path, plan):
    folder = str(tmp_path / "study")
    folds.prepare(folder, plan)
    known = folds.read(folder)
    os.rename(tmp_path / "study" / "folds", tmp_path / "away")
    other = study_cases.plan(folds=3, sample_path=study_click_cases.write(tmp_path / "other", displays=90), flags={})
    with pytest.raises(InputError, match=r"is another sample than that of the runs in .*name another --results_dir"):
        folds.prepare(folder, other)
    assert os.listdir(folder) == ["folds.json"] and folds.read(folder) == known
    folds.prepare(folder, plan)
    assert sorted(os.listdir(folder)) == ["folds", "folds.json"]


def test_nothing_half_made_is_left(tmp_path, plan, monkeypatch):
    prepare = folds.sample.prepare

    def fail(*arguments, fold):
        if fold == (2, 3):
            raise InputError("the disk is full")
        prepare(*arguments, fold=fold)
        return FeatureSpec.from_yaml(os.path.join(arguments[1], "feature_spec.yaml"))

    monkeypatch.setattr(folds.sample, "prepare", fail)
    with pytest.raises(InputError, match="the disk is full"):
        folds.prepare(str(tmp_path / "study"), plan)
    assert os.listdir(tmp_path / "study") == []


@pytest.mark.parametrize(
    ("path", "said"),
    [("no/such", "sample_path: no/such: no such folder"), ("$NO_SUCH_NAME/raw", "the variable is not set")],
)
def test_a_sample_that_is_not_there_is_one_line(tmp_path, path, said, monkeypatch):
    monkeypatch.delenv("NO_SUCH_NAME", raising=False)
    with pytest.raises(InputError, match=said) as caught:
        folds.prepare(str(tmp_path), study_cases.plan(folds=3, sample_path=path, flags={}))
    assert "\n" not in str(caught.value) and os.listdir(tmp_path) == []


@pytest.mark.parametrize("text", ["[1", "[]", '{"1": {}}', '{"one": {}}', '{"1": {"chance_map_at_12": null}}'])
def test_a_damaged_note_is_one_line(tmp_path, text):
    (tmp_path / "folds.json").write_text(text)
    with pytest.raises(InputError, match=r"folds\.json: does not say what is known of the folds") as caught:
        folds.read(str(tmp_path))
    assert "\n" not in str(caught.value)


def test_the_order_of_folds_is_by_number(tmp_path):
    facts = {str(fold): {folds.CHANCE: 0.4, folds.BASELINE: 0.5, folds.DISPLAYS: 3} for fold in (10, 2, 1)}
    (tmp_path / "folds.json").write_text(json.dumps(facts))
    assert list(folds.read(str(tmp_path))) == [1, 2, 10]
