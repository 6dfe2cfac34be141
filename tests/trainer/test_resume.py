"""Runs that are stopped and go on, with real steps under mixed precision: the same losses and the same state."""

import dataclasses
import json
import os
import shutil
import signal

import keras
import numpy as np
import pyarrow.parquet as pq
import pytest
import small_runs
from small_runs import STEPS_PER_EPOCH

from data.errors import InputError
from trainer import checkpoint, steps

STOP_DURING = 10  # in the middle of the second epoch, where no checkpoint is due


@dataclasses.dataclass
class Run:
    """What is left of a run."""

    record: object
    losses: dict
    digest: int
    slots: dict
    scales: list


@pytest.fixture(scope="module", autouse=True)
def growing_loss_scale():
    """The loss scale doubles every fifth step, so that a resumed run has something to lose; float32 afterwards."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(steps, "LOSS_SCALE_GROWTH_STEPS", 5)
        yield
    keras.mixed_precision.set_global_policy("float32")


def run(config, *, stop_during=None):
    """Trains; with `stop_during`, SIGTERM arrives while that step runs."""
    scales = []
    with pytest.MonkeyPatch.context() as patch, small_runs.watching(patch) as watched:

        def before(step):
            scales.append(float(watched.state.loss_scale))
            if step == stop_during:
                os.kill(os.getpid(), signal.SIGTERM)

        watched.before_step = before
        record = small_runs.open_experiment(config).train()
        state = watched.state
    slots = {name: variable.numpy() for name, variable in state.dense_variables().items()}
    return Run(record, small_runs.losses(config), state.digest(), slots, scales)


@pytest.fixture(scope="module")
def uninterrupted(dataset, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    config = small_runs.configure(dataset, folder, amp=True, deep_dropout=0.5)
    return config, run(config)


@pytest.fixture(scope="module")
def interrupted(dataset, tmp_path_factory):
    folder = tmp_path_factory.mktemp("parts")
    config = small_runs.configure(dataset, folder, amp=True, deep_dropout=0.5)
    first = run(config, stop_during=STOP_DURING)
    saved = checkpoint.latest(config.output.model_dir)
    second = run(small_runs.configure(dataset, folder, amp=True, deep_dropout=0.5, use_checkpoint=True))
    return config, first, saved, second


def test_a_signal_ends_training_after_the_step_with_a_checkpoint(interrupted):
    _, first, saved, _ = interrupted
    # The step that was under way is the last.
    assert saved.step == STOP_DURING + 1 and saved.step % STEPS_PER_EPOCH
    assert sorted(first.losses) == list(range(1, saved.step + 1))
    assert first.record.measured_steps == saved.step - 1
    assert first.record.missing_steps == 2 * STEPS_PER_EPOCH - saved.step
    assert any("Stopped by a signal after step 11" in note for note in first.record.notes)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_the_resumed_run_repeats_the_uninterrupted_one_bit_for_bit(uninterrupted, interrupted):
    _, whole = uninterrupted
    _, first, saved, second = interrupted
    assert sorted(second.losses) == list(range(saved.step + 1, 2 * STEPS_PER_EPOCH + 1))
    assert first.losses | second.losses == whole.losses
    assert second.digest == whole.digest
    assert second.slots.keys() == whole.slots.keys()
    assert all(np.array_equal(second.slots[name], whole.slots[name]) for name in whole.slots)


def test_what_the_comparison_rests_on(uninterrupted, interrupted):
    _, whole = uninterrupted
    _, first, _, second = interrupted
    assert len(set(whole.losses.values())) == 2 * STEPS_PER_EPOCH
    # The loss scale grew before the interruption and after it, and the resumed run began with the grown one.
    assert first.scales + second.scales == whole.scales
    assert whole.scales[0] == 2.0**15 < second.scales[0]
    assert len(set(second.scales)) > 1
    assert any(np.any(value) for name, value in whole.slots.items() if name.endswith("/rms"))


def test_the_last_evaluation_is_the_same_after_resuming(uninterrupted, interrupted):
    _, whole = uninterrupted
    second = interrupted[-1]
    for name in ("auc", "map_at_12", "log_loss", "displays", "displays_without_click"):
        assert getattr(second.record, name) == getattr(whole.record, name)


def test_evaluating_the_checkpoint_gives_the_figures_of_the_training_run(dataset, uninterrupted):
    config, whole = uninterrupted
    folder = os.path.dirname(config.output.model_dir)
    again = small_runs.configure(
        dataset,
        folder,
        amp=True,
        evaluate=True,
        use_checkpoint=True,
        results_dir=f"{folder}/evaluation",
        # Another batch size for training plays no part in an evaluation.
        global_batch_size=7,
        seed=99,
    )
    record = small_runs.open_experiment(again).evaluate()
    names = ("auc", "map_at_12", "log_loss", "normalized_entropy", "calibration", "displays", "displays_without_click")
    assert {name: getattr(record, name) for name in names} == {name: getattr(whole.record, name) for name in names}
    with open(f"{folder}/evaluation/result.json", encoding="utf-8") as file:
        assert json.load(file)["auc"] == whole.record.auc


def test_a_checkpoint_of_mixed_precision_goes_on_in_float32_without_its_loss_scale(dataset, uninterrupted, monkeypatch):
    config, _ = uninterrupted
    with small_runs.idling(monkeypatch) as idle:
        settings = {"model_dir": config.output.model_dir, "use_checkpoint": True, "max_steps": 16}
        folder = os.path.dirname(config.output.model_dir)
        other = small_runs.configure(dataset, folder, **settings, results_dir=f"{folder}/other")
        small_runs.open_experiment(other).train()
    # float32 steps do not divide by the scale, so any but 1 would enlarge every gradient.
    assert float(idle.state.loss_scale) == 1.0


def test_a_float32_checkpoint_goes_on_in_mixed_precision_with_the_initial_loss_scale(dataset, tmp_path, monkeypatch):
    with small_runs.idling(monkeypatch) as idle:
        small_runs.open_experiment(small_runs.configure(dataset, tmp_path, max_steps=3)).train()
        mixed = small_runs.configure(dataset, tmp_path, max_steps=5, use_checkpoint=True, amp=True)
        small_runs.open_experiment(mixed).train()
    assert float(idle.state.loss_scale) == 2.0**15
    assert len(idle.batches) == 5


@pytest.mark.parametrize(
    ("setting", "other", "said"),
    [("global_batch_size", 32, "64"), ("seed", 5, "0"), ("shuffle_buffer_rows", 64, "524288")],
)
def test_other_rows_than_before_are_refused_with_both_values(uninterrupted, dataset, tmp_path, setting, other, said):
    config, _ = uninterrupted
    folder = os.path.dirname(config.output.model_dir)
    changed = small_runs.configure(dataset, folder, use_checkpoint=True, results_dir=str(tmp_path), **{setting: other})
    with pytest.raises(InputError, match=f"{setting} {said} and this run has {other}.*--{setting}={said}"):
        small_runs.open_experiment(changed).train()


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda table: table.slice(0, table.num_rows - 1), "train_rows"),
        (lambda table: table.set_column(table.column_names.index("ctr"), "ctr", table["age"]), "train_checksum"),
    ],
    ids=["a row less", "another column"],
)
def test_another_dataset_is_refused_with_both_values(uninterrupted, dataset, tmp_path, change, name):
    config, _ = uninterrupted
    other = tmp_path / "other"
    shutil.copytree(dataset, other)
    (path,) = (other / "train").iterdir()
    pq.write_table(change(pq.read_table(path)), path, row_group_size=16)
    folder = os.path.dirname(config.output.model_dir)
    moved = small_runs.configure(other, folder, use_checkpoint=True, results_dir=str(tmp_path))
    with pytest.raises(InputError, match=rf"{name} \d+ and this run has \d+, .*the same dataset"):
        small_runs.open_experiment(moved).train()


def test_the_same_dataset_elsewhere_is_no_other(uninterrupted, dataset, tmp_path, monkeypatch):
    config, _ = uninterrupted
    shutil.copytree(dataset, tmp_path / "copy")
    folder = os.path.dirname(config.output.model_dir)
    moved = small_runs.configure(tmp_path / "copy", folder, use_checkpoint=True, results_dir=str(tmp_path))
    with small_runs.idling(monkeypatch) as idle:
        record = small_runs.open_experiment(moved).train()
    assert not idle.batches and "the checkpoint is of step 16" in "".join(record.notes)


def test_evaluation_refuses_to_go_on_without_a_checkpoint(dataset, tmp_path):
    config = small_runs.configure(dataset, tmp_path, evaluate=True, use_checkpoint=True)
    with pytest.raises(InputError, match="no checkpoint to evaluate: train first, or name another --model_dir"):
        small_runs.open_experiment(config).evaluate()


def test_training_without_a_checkpoint_says_so_and_begins(dataset, tmp_path, monkeypatch, capsys):
    config = small_runs.configure(dataset, tmp_path, use_checkpoint=True, max_steps=2)
    with small_runs.idling(monkeypatch) as idle:
        small_runs.open_experiment(config).train()
        assert f"no checkpoint in {tmp_path}/checkpoints: training begins at step 0" in capsys.readouterr().out
        small_runs.open_experiment(config).train()
        assert "training goes on at step 2" in capsys.readouterr().out
    assert len(idle.batches) == 2
