"""What a run does with its settings: all is real but the model's computation (which test_resume and others have)."""

import dataclasses
import json
import os
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import small_runs
import tensorflow as tf
import yaml
from small_runs import EVAL_ROWS, STEPS_PER_EPOCH

from data.errors import InputError
from data.feature_spec import FeatureSpec
from trainer import assembly, experiment, resume
from trainer.distributed import SingleProcess


@pytest.fixture
def saved_steps(monkeypatch):
    """Steps at which checkpoints are saved."""
    steps, save = [], resume.checkpoint.save

    def spy(directory, state, **kwargs):
        steps.append(state.step)
        return save(directory, state, **kwargs)

    monkeypatch.setattr(resume.checkpoint, "save", spy)
    return steps


def evaluated_steps(config):
    return [step for step, data in small_runs.log_lines(config) if isinstance(step, int) and "loss_val" in data]


# When things happen.


def test_training_evaluates_and_saves_after_each_epoch(train, idle, saved_steps):
    record = train(num_epochs=3)
    assert len(idle.batches) == 3 * STEPS_PER_EPOCH == record.requested_steps
    # The first step traces, and is no part of the throughput.
    assert (record.warmup_steps, record.measured_steps) == (1, 3 * STEPS_PER_EPOCH - 1)
    assert evaluated_steps(train.config) == saved_steps == [8, 16, 24]
    assert record.missing_steps == 0


def test_max_steps_ends_training_with_an_evaluation_and_a_checkpoint(train, idle, saved_steps):
    record = train(num_epochs=3, max_steps=11)
    assert len(idle.batches) == 11
    assert evaluated_steps(train.config) == saved_steps == [8, 11]
    assert record.missing_steps == 0 and record.measured_steps == 10


def test_checkpoints_within_an_epoch(train, saved_steps):
    train(checkpoint_every_steps=3)
    assert saved_steps == [3, 6, 8, 9, 12, 15, 16]
    assert evaluated_steps(train.config) == [8, 16]


def test_log_points(train):
    train(log_every_steps=5)
    assert list(small_runs.losses(train.config)) == [5, 8, 10, 15, 16]


def test_every_epoch_has_the_same_rows_in_another_order(train, idle):
    train()
    first, second = idle.batches[:STEPS_PER_EPOCH], idle.batches[STEPS_PER_EPOCH:]
    assert small_runs.rows_of(first) == small_runs.rows_of(second)
    assert not all(np.array_equal(a["ids"], b["ids"]) for a, b in zip(first, second, strict=True))


def test_evaluation_scores_every_row_once(train, idle):
    record = train(num_epochs=1, eval_batch_size=50)
    assert [len(batch["mask"]) for batch in idle.eval_batches] == [50, 50, 50]
    assert sum(batch["mask"].sum() for batch in idle.eval_batches) == EVAL_ROWS
    assert record.displays + record.displays_without_click == len(
        np.unique(np.concatenate([b["group_ids"][b["mask"] > 0] for b in idle.eval_batches]))
    )


# Where the data comes from.


def test_another_specification_file_of_the_same_folder(train, dataset, idle):
    document = yaml.safe_load((dataset / "feature_spec.yaml").read_text())
    document["channel_spec"]["numerical"] = ["age"]
    document["metadata"] = {}
    (dataset / "fewer.yaml").write_text(yaml.safe_dump(document))
    record = train(fspec_file="fewer.yaml", max_steps=1)
    assert idle.batches[0]["numerical"].shape[1] == 1
    assert record.data_source == "real"  # nothing says that it was generated


def test_generated_data_is_called_so(train):
    assert train(max_steps=1).data_source == "generated"


def test_a_missing_dataset_names_the_three_ways_to_get_one(dataset, tmp_path):
    missing = small_runs.configure(dataset, tmp_path, dataset_path=str(tmp_path / "nowhere"))
    with pytest.raises(InputError) as caught:
        experiment.open_spec(missing)
    assert f"{tmp_path}/nowhere/feature_spec.yaml" in str(caught.value)
    for way in ("--dataset_path", "python -m data.synthetic", "--dataset_type=synthetic"):
        assert way in str(caught.value)


def test_a_specification_without_its_files_is_an_error_too(dataset, tmp_path):
    for name in ("feature_spec.yaml", "sizes.json"):
        shutil.copy(dataset / name, tmp_path)
    config = small_runs.configure(tmp_path, tmp_path)
    with pytest.raises(InputError, match=str(tmp_path / "train")):
        small_runs.open_experiment(config).train()


def test_a_damaged_specification_is_an_error(tmp_path):
    (tmp_path / "feature_spec.yaml").write_text("channel_spec: [")
    with pytest.raises(InputError, match="not a YAML file"):
        experiment.open_spec(small_runs.configure(tmp_path, tmp_path))


@pytest.mark.parametrize(
    ("teacher", "figure"),
    [
        (5, "map_at_12"),
        ({}, "map_at_12"),
        ({"map_at_12": 0.6}, "chance_map_at_12"),
        ({"auc": "x", "map_at_12": 0.6, "chance_map_at_12": 0.5}, "auc"),
    ],
)
def test_figures_of_a_teacher_that_are_none_are_found_before_training(dataset, tmp_path, teacher, figure):
    document = yaml.safe_load((dataset / "feature_spec.yaml").read_text())
    document["metadata"]["teacher"] = teacher
    (tmp_path / "feature_spec.yaml").write_text(yaml.safe_dump(document))
    with pytest.raises(InputError, match=rf"metadata\.teacher\.{figure} must be a number"):
        experiment.open_spec(small_runs.configure(tmp_path, tmp_path))


@pytest.mark.parametrize(("field", "value"), [("cardinality", 2**64), ("max_hotness", 10**9)])
def test_what_cannot_fit_is_refused_with_both_amounts(dataset, tmp_path, field, value):
    document = yaml.safe_load((dataset / "feature_spec.yaml").read_text())
    document["feature_spec"]["topics"][field] = value
    shutil.copytree(dataset, tmp_path / "large")
    (tmp_path / "large" / "feature_spec.yaml").write_text(yaml.safe_dump(document))
    with pytest.raises(InputError, match=rf"where .* GiB are available; .* feature 'topics' .*{field} {value}"):
        small_runs.open_experiment(small_runs.configure(tmp_path / "large", tmp_path))


def test_memory_is_that_of_all_ranks_of_the_machine(dataset, tmp_path):
    config = small_runs.configure(dataset, tmp_path)
    spec = experiment.open_spec(config)
    # Rows of 4 embedding values, their slot and last step, 3 values of the wide part. Of the batch: ids, and of each
    # feature 4 values and of all together one of the wide part, with their gradients.
    tables = 4 * (2 * 4 + 1 + 3) * (7 + 40 + 12)
    batch = 4 * ((1 + 1 + 3) + 2 * (3 * 4 + 1)) * small_runs.BATCH
    assembly.place_tables(config, spec, SingleProcess(), tables + batch)
    with pytest.raises(InputError):
        assembly.place_tables(config, spec, SingleProcess(), tables + batch - 1)
    two = SingleProcess(size=2, local_size=2)
    assembly.place_tables(config, spec, two, 2 * tables + batch)
    with pytest.raises(InputError):
        assembly.place_tables(config, spec, two, 2 * tables + batch - 1)
    assembly.place_tables(config, spec, SingleProcess(), None)


def test_a_folder_of_checkpoints_that_cannot_be_used_is_found_before_training(train, idle, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"file/checkpoints: checkpoints cannot be written there.*--model_dir"):
        train(model_dir=str(tmp_path / "file" / "checkpoints"))
    assert idle.batches == []


def test_synthetic_data_is_made_in_the_cache_and_found_again(tmp_path):
    made = {}
    for rows, seed in ((300, 1), (400, 1), (300, 2), (300, 1)):
        config = small_runs.configure(
            tmp_path,
            tmp_path,
            dataset_type="synthetic",
            synthetic_rows=rows,
            synthetic_seed=seed,
            seed=len(made),  # changes no data
            synthetic_cache_dir=str(tmp_path),
        )
        spec = experiment.open_spec(config)
        assert spec.metadata["synthetic"]["rows"] == rows and spec.path.startswith(f"{tmp_path}/synthetic/")
        made.setdefault((rows, seed), set()).add(spec.path)
    assert {key: len(paths) for key, paths in made.items()} == {(300, 1): 1, (400, 1): 1, (300, 2): 1}
    assert len(os.listdir(tmp_path / "synthetic")) >= 3


def test_too_few_rows_for_a_batch(train):
    with pytest.raises(InputError, match="567 training rows are fewer than one global batch of 1000"):
        train(global_batch_size=1000)


# What the reader of a record is told.


def test_shares_of_what_the_teacher_reaches(train, dataset):
    record = train()
    teacher = FeatureSpec.from_yaml(str(dataset / "feature_spec.yaml")).metadata["teacher"]
    assert record.auc == pytest.approx(0.5 + record.auc_margin_share * (teacher["auc"] - 0.5))
    chance = teacher["chance_map_at_12"]
    assert record.map_at_12 == pytest.approx(chance + record.map_margin_share * (teacher["map_at_12"] - chance))


def test_a_teacher_of_displays_alone_has_no_share_of_auc(train, dataset, monkeypatch):
    spec = FeatureSpec.from_yaml(str(dataset / "feature_spec.yaml"))
    teacher = {"map_at_12": 0.75, "chance_map_at_12": 0.5}
    monkeypatch.setattr(experiment, "open_spec", lambda _: dataclasses.replace(spec, metadata={"teacher": teacher}))
    record = train()
    assert record.auc_margin_share is None
    assert record.map_margin_share == pytest.approx((record.map_at_12 - 0.5) / 0.25)


def test_no_shares_without_a_teacher(train, dataset, monkeypatch):
    spec = FeatureSpec.from_yaml(str(dataset / "feature_spec.yaml"))
    monkeypatch.setattr(experiment, "open_spec", lambda _: dataclasses.replace(spec, metadata={}))
    record = train()
    assert record.data_source == "real" and record.auc is not None
    assert record.auc_margin_share is None and record.map_margin_share is None


def test_notes_of_rows_that_were_left_out_and_ids_that_were_cut(train, dataset, tmp_path, idle):
    other = tmp_path / "long"
    shutil.copytree(dataset, other)
    document = yaml.safe_load((other / "feature_spec.yaml").read_text())
    document["feature_spec"]["topics"]["max_hotness"] = 2
    (other / "feature_spec.yaml").write_text(yaml.safe_dump(document))
    for source in ("train", "valid"):
        (path,) = (other / source).iterdir()
        table = pq.read_table(path)
        lists = pa.array([[1, 2, 3] if row % 100 == 0 else [1] for row in range(table.num_rows)])
        column = table.column_names.index("topics")
        pq.write_table(table.set_column(column, "topics", lists), path, row_group_size=16)
    notes = train(dataset_path=str(other), num_epochs=1).notes
    # Training read ahead: rows 0, 100, .. 500 of the second epoch too. Evaluation: rows 0 and 100.
    cut = "were cut while {} rows were read: a row held more than its max_hotness of 2."
    assert f"12 ids of 'topics' {cut.format('training')}" in notes
    assert f"2 ids of 'topics' {cut.format('evaluation')}" in notes
    assert "55 training rows that fill no batch were left out of every epoch." in notes
    config = small_runs.configure(dataset, tmp_path, dataset_path=str(other), evaluate=True)
    notes = small_runs.open_experiment(config).evaluate().notes
    assert notes == (
        "Untrained weights: --use_checkpoint was not given.",
        f"2 ids of 'topics' {cut.format('evaluation')}",
    )


def test_a_run_that_has_nothing_left_to_do_still_evaluates(train, idle):
    first = train(num_epochs=1)
    record = train(num_epochs=1, use_checkpoint=True)
    assert record.notes[-1] == "Nothing was left to train: the checkpoint is of step 8."
    assert record.samples_per_sec is None and record.loss is None and record.measured_steps == 0
    assert record.auc == first.auc and len(idle.batches) == 8
    assert "train_throughput" not in small_runs.log_lines(train.config)[-1][1]


def test_the_record_is_written_and_returned(train, tmp_path):
    record = train(num_epochs=1)
    written = json.loads((tmp_path / "results/result.json").read_text())
    assert written == json.loads(record.to_json())
    assert written["identity"]["mode"] == "training" and written["config"]["num_epochs"] == 1
    assert written["environment"]["versions"]["tensorflow"] == tf.__version__
    assert written["peak_memory_bytes"][0] > 10_000_000


def test_only_rank_0_writes(train, tmp_path, capsys):
    train(comm=SingleProcess(rank=1, size=2), max_steps=1)
    assert capsys.readouterr().out == ""
    assert not (tmp_path / "results").exists() and not (tmp_path / "checkpoints").exists()


# Evaluations and a target.


def test_evaluations_within_an_epoch_are_logged_and_recorded(train, saved_steps):
    record = train(evals_per_epoch=2, max_steps=11)
    assert evaluated_steps(train.config) == [e["step"] for e in record.evaluations] == [4, 8, 11]
    assert saved_steps == [8, 11] and [e["epoch"] for e in record.evaluations] == [0.5, 1.0, 1.375]
    times = [e["train_seconds"] for e in record.evaluations]
    assert 0 < times[0] < times[1] < times[2] <= record.train_seconds and record.eval_samples_per_sec > 0


def test_more_evaluations_than_an_epoch_has_steps_are_refused(train):
    with pytest.raises(InputError, match=f"--evals_per_epoch=9 with {STEPS_PER_EPOCH} steps in an epoch"):
        train(evals_per_epoch=STEPS_PER_EPOCH + 1)


def test_training_ends_at_the_target(train, saved_steps):
    record = train(target_map12=0.01, evals_per_epoch=2)
    assert (record.ended_by, record.steps_to_target, record.missing_steps) == ("target", 4, 0) and saved_steps == [4]
    assert record.seconds_to_target == record.evaluations[0]["train_seconds"]
    assert "The target MAP@12 of 0.01 was reached after step 4." in record.notes


def test_a_target_without_displays_is_refused_before_anything_is_made(train, dataset, idle):
    document = yaml.safe_load((dataset / "feature_spec.yaml").read_text())
    del document["channel_spec"]["map"]
    document["metadata"] = {}
    (dataset / "no_displays.yaml").write_text(yaml.safe_dump(document))
    with pytest.raises(InputError, match=r"--target_map12=0\.5 needs displays, and .* has none"):
        train(fspec_file="no_displays.yaml", target_map12=0.5)
    assert not idle.states
