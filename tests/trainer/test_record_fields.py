"""Figures of an evaluation by the names of a record, on cases worked by hand."""

import dataclasses
import math
import types

import pytest

from trainer.config import RunConfig
from trainer.distributed import SingleProcess
from trainer.evaluate import Figures
from trainer.gpu_settings import TUNING_VARIABLES, GpuSettings
from trainer.record_fields import evaluation_fields, run_fields, skipped_note, training_fields, training_notes
from trainer.records import jsonable
from trainer.runtime import Device, Surroundings
from trainer.train import Evaluation, Outcome

FIGURES = Figures(
    log_loss=0.4, normalized_entropy=0.9, calibration=1.0, auc=0.625, map_at_12=0.6, displays=9,
    displays_without_click=1, rows=40, ids_cut={"ad": 3},
)  # fmt: skip
TEACHER = {"auc": 0.75, "map_at_12": 0.7, "chance_map_at_12": 0.5}


def test_figures_keep_their_names_and_rows_are_none_of_them():
    found = evaluation_fields(FIGURES, None)
    expected = dataclasses.asdict(FIGURES)
    del expected["rows"], expected["ids_cut"]
    assert found == expected


@pytest.mark.parametrize(("reached", "share"), [(0.5, 0.0), (0.75, 1.0), (0.625, 0.5), (0.45, -0.2)])
def test_share_of_the_teachers_margin(reached, share):
    found = evaluation_fields(dataclasses.replace(FIGURES, auc=reached), TEACHER)
    assert found["auc_margin_share"] == pytest.approx(share)
    assert found["map_margin_share"] == pytest.approx(0.5)


def test_a_teacher_that_is_no_better_than_chance_has_no_margin():
    teacher = {"auc": 0.5, "map_at_12": 0.5, "chance_map_at_12": 0.5}
    found = evaluation_fields(FIGURES, teacher)
    assert math.isnan(found["auc_margin_share"]) and math.isnan(found["map_margin_share"])


def test_figures_that_are_not_there_have_no_share():
    found = evaluation_fields(dataclasses.replace(FIGURES, map_at_12=None), {"auc": None})
    assert "auc_margin_share" not in found and "map_margin_share" not in found


# How training went.


def outcome(**changes):
    """Four steps of 10 rows, an evaluation after two and after four."""
    evaluations = tuple(
        Evaluation(step, 3.0 * step, 2.0, dataclasses.replace(FIGURES, map_at_12=found))
        for step, found in ((2, 0.5), (4, 0.6))
    )
    fields = {
        "step": 4, "loss": 0.4, "figures": evaluations[-1].figures, "ended_by": "steps", "steps": 4, "timed_steps": 3,
        "seconds": 6.0, "train_seconds": 12.0, "evaluations": evaluations,
    }  # fmt: skip
    return Outcome(**fields | changes)


def fields_of(found, *, target=None, first_step=0, last_step=4):
    config = RunConfig.from_flat({"target_map12": target, "global_batch_size": 10}, frozenset())
    return training_fields(found, config, first_step=first_step, last_step=last_step, steps_per_epoch=8)


def test_the_curve_and_the_times_of_training():
    found = fields_of(outcome())
    assert found["evaluations"] == (
        {"step": 2, "epoch": 0.25, "train_seconds": 6.0, "map_at_12": 0.5, "auc": 0.625, "log_loss": 0.4},
        {"step": 4, "epoch": 0.5, "train_seconds": 12.0, "map_at_12": 0.6, "auc": 0.625, "log_loss": 0.4},
    )
    assert found["samples_per_sec"] == 5.0 and found["train_seconds"] == 12.0 and found["eval_samples_per_sec"] == 20.0
    assert (found["target_map12"], found["steps_to_target"], found["seconds_to_target"]) == (None, None, None)


@pytest.mark.parametrize(
    ("target", "first_step", "steps", "seconds"),
    [(0.5, 0, 2, 6.0), (0.6, 0, 4, 12.0), (0.55, 0, 4, 12.0), (0.61, 0, None, None), (0.5, 1, 2, None)],
)
def test_the_way_to_a_target(target, first_step, steps, seconds):
    found = fields_of(outcome(), target=target, first_step=first_step)
    assert (found["target_map12"], found["steps_to_target"], found["seconds_to_target"]) == (target, steps, seconds)


def test_steps_that_a_target_saved_are_not_missing():
    ended = outcome(ended_by="target", step=2, steps=2)
    assert fields_of(ended, target=0.5, last_step=100)["requested_steps"] == 2
    assert fields_of(outcome(ended_by="signal"), last_step=100)["requested_steps"] == 100


def test_notes_say_how_training_ended():
    def notes(found, target=None):
        return training_notes(found, target_map12=target, first_step=7)

    assert notes(outcome()) == []
    assert notes(outcome(ended_by="target"), 0.6) == ["The target MAP@12 of 0.6 was reached after step 4."]
    assert notes(outcome(), 0.7) == ["The target MAP@12 of 0.7 was not reached in 4 steps."]
    assert notes(outcome(steps=0)) == ["Nothing was left to train: the checkpoint is of step 7."]
    stopped, accuracy = notes(outcome(ended_by="signal"))
    assert stopped.startswith("Stopped by a signal after step 4") and "before the signal" in accuracy


def test_skipped_steps_are_noted_if_there_were_any():
    assert skipped_note(0) == ()
    assert skipped_note(1) == ("1 step was skipped: a gradient was not finite.",)
    assert skipped_note(3) == ("3 steps were skipped: a gradient was not finite.",)


SETTINGS = GpuSettings(False, "bfc", memory_growth=True, l2_fetch_granularity=None, compute_capability="7.0")


@pytest.mark.parametrize(
    ("gpu", "precision", "kept"),
    [(None, "float32", None), (SETTINGS, "float32, no TF32", dataclasses.asdict(SETTINGS))],
)
def test_what_a_gpu_computed_with_is_beside_the_figures(monkeypatch, gpu, precision, kept):
    for name in TUNING_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOROVOD_CYCLE_TIME", "3.5")
    place = Surroundings(Device(gpu is not None, "X", gpu))
    found = run_fields(RunConfig(), SingleProcess(), place, types.SimpleNamespace(metadata={}), {"host": "a"})
    assert found["precision"] == precision
    assert jsonable(found["environment"]) == {
        "host": "a",
        "gpu_settings": kept,
        "tuning": {"HOROVOD_CYCLE_TIME": "3.5"},
    }
