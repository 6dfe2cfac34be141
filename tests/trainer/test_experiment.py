"""What a run does with its settings, everything real but the model's computation; real steps: test_resume, test_modes."""

import json
import os
import shutil

import keras
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import small_runs
import tensorflow as tf
import yaml

from data.errors import InputError
from trainer import assembly, experiment, resume
from trainer.distributed import SingleProcess
from trainer.evaluate import Figures

# Displays and their ads do not depend on the values, so the number of rows is known.
TRAIN_ROWS, EVAL_ROWS = 567, 133
STEPS_PER_EPOCH = TRAIN_ROWS // small_runs.BATCH


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    small_runs.make_dataset(folder)
    return folder


@pytest.fixture(autouse=True)
def default_precision():
    yield
    keras.mixed_precision.set_global_policy("float32")


@pytest.fixture
def idle(monkeypatch):
    with small_runs.idling(monkeypatch) as idle:
        yield idle


@pytest.fixture
def train(dataset, tmp_path, idle, monkeypatch):
    """train(**settings): a training run; its record, and its configuration as `train.config`.

    With a communicator of several ranks, of which there is but one, nothing is evaluated.
    """

    def run(comm=None, **settings):
        if comm is not None:
            figures = Figures(0.5, 1.0, 1.0, 0.5, 0.5, 1, 0, 10)
            monkeypatch.setattr(experiment, "evaluate", lambda *args, **kwargs: figures)
        run.config = small_runs.configure(dataset, tmp_path, **settings)
        return small_runs.open_experiment(run.config, comm=comm).train()

    return run


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


def deep_rates(idle, steps):
    schedule = idle.step_arguments[-1]["schedules"]["deep"]
    return [float(schedule(tf.constant(step))) for step in steps]


# When things happen.


def test_training_evaluates_and_saves_after_each_epoch(train, idle, saved_steps):
    record = train(num_epochs=3)
    assert len(idle.batches) == 3 * STEPS_PER_EPOCH == record.measured_steps == record.requested_steps
    assert evaluated_steps(train.config) == saved_steps == [8, 16, 24]
    assert record.missing_steps == 0


def test_max_steps_ends_training_with_an_evaluation_and_a_checkpoint(train, idle, saved_steps):
    record = train(num_epochs=3, max_steps=11)
    assert len(idle.batches) == 11
    assert evaluated_steps(train.config) == saved_steps == [8, 11]
    assert record.missing_steps == 0 and record.measured_steps == 11


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


# What a setting changes.


def test_seed_changes_rows_initial_values_and_dropout(train, idle):
    digests = []
    for seed in (3, 4, 3):
        train(seed=seed, max_steps=1)
        digests.append(idle.state.digest())
    first, other, again = (batch["ids"] for batch in idle.batches)
    assert np.array_equal(first, again) and not np.array_equal(first, other)
    assert digests[0] == digests[2] != digests[1]
    dropout = [arguments["seed"] for arguments in idle.step_arguments]
    assert dropout[0] == dropout[2] != dropout[1]


def test_ranks_drop_different_units(train, idle):
    for rank in (0, 1):
        train(max_steps=1, comm=SingleProcess(rank=rank, size=2))
    assert idle.step_arguments[0]["seed"] != idle.step_arguments[1]["seed"]


def test_the_buffer_changes_which_rows_meet_in_a_batch(train, idle):
    for rows in (64, 100_000):
        train(shuffle_buffer_rows=rows)
    small, large = idle.batches[:STEPS_PER_EPOCH], idle.batches[2 * STEPS_PER_EPOCH : 3 * STEPS_PER_EPOCH]
    assert small_runs.rows_of(small[:1]) != small_runs.rows_of(large[:1])
    assert small_runs.rows_of(small) == small_runs.rows_of(large)


@pytest.mark.parametrize("comm", [SingleProcess(rank=0, size=3), SingleProcess(rank=2, size=3)])
def test_more_ranks_than_data_shards_are_refused(train, comm):
    with pytest.raises(InputError, match="3 ranks for 2 data shards"):
        train(comm=comm, data_shards=2)


def test_data_shards_decide_what_a_rank_reads(train, idle):
    sizes = {}
    for shards in (2, 96):
        train(max_steps=1, comm=SingleProcess(rank=1, size=2), data_shards=shards, global_batch_size=65)
        sizes[shards] = len(idle.batches[-1]["labels"])
    train(max_steps=1, comm=SingleProcess(rank=1, size=2), data_shards=3, global_batch_size=65)
    assert sizes == {2: 33, 96: 33}
    assert len(idle.batches[-1]["labels"]) == 65 - 65 // 3  # two of three shards


def test_model_settings_reach_the_model(train, idle, tmp_path):
    (tmp_path / "wide.json").write_text(json.dumps({"site": 12, "ad": 12}))
    record = train(
        deep_hidden_units=(10, 7, 4),
        combiner="mean",
        deep_dropout=0.25,
        embedding_sizes_file=str(tmp_path / "wide.json"),
        max_steps=1,
    )
    model = idle.state.model
    kernels = [tuple(v.shape) for v in model.dense_variables()["deep"] if len(v.shape) == 2]
    # 24 numbers of site and ad; by the rule of models.registry 16 of topics, whose size the file does not state.
    assert kernels == [(24 + 16 + 2, 10), (10, 7), (7, 4), (4, 1)]
    ids = tf.constant([[0, 0, 3, 3, -1]])
    once = tf.constant([[0, 0, 3, -1, -1]])
    for several, one in zip(model.embed(ids)[1:], model.embed(once)[1:], strict=True):
        np.testing.assert_allclose(several, one)
    assert record.config["combiner"] == "mean"


def test_dropout_drops_the_stated_share(dataset, tmp_path):
    config = small_runs.configure(dataset, tmp_path, deep_hidden_units=(50,), deep_dropout=0.25)
    mlp = assembly.make_model(config, experiment.open_spec(config)).mlp
    inputs = tf.ones((2000, 14))
    active = mlp(inputs, seed=tf.constant([1, 2]), training=False).numpy() > 0
    dropped = mlp(inputs, seed=tf.constant([1, 2]), training=True).numpy()[active] == 0
    assert active.any() and dropped.mean() == pytest.approx(0.25, abs=0.01)


def test_the_default_pooling_is_the_sum(train, idle):
    train(max_steps=1)
    model = idle.state.model
    difference = 0.0
    for twice, once in zip(
        model.embed(tf.constant([[0, 0, 3, 3, -1]])), model.embed(tf.constant([[0, 0, 3, -1, -1]])), strict=True
    ):
        difference += float(tf.reduce_sum(tf.abs(twice - once)))
    assert difference > 0


def test_default_learning_rates_follow_the_stated_schedule(train, idle):
    train(deep_learning_rate=0.8, deep_warmup_epochs=1.0, num_epochs=5, max_steps=1)
    # 8 steps an epoch: up to step 8, a quarter until half of the remaining 32 steps is done, then an eighth.
    assert deep_rates(idle, [0, 4, 8, 23, 24, 39]) == pytest.approx([0.0, 0.4, 0.2, 0.2, 0.1, 0.1])
    assert float(idle.step_arguments[-1]["schedules"]["wide"](tf.constant(30))) == pytest.approx(0.02)


def test_warm_up_and_decay_in_steps(train, idle):
    train(deep_learning_rate=0.8, deep_warmup_epochs=1.0, deep_warmup_steps=2, deep_decay_step=3, max_steps=1)
    assert deep_rates(idle, [0, 1, 2, 3]) == pytest.approx([0.0, 0.4, 0.2, 0.1])
    train(deep_learning_rate=0.8, deep_warmup_steps=2, num_epochs=3, max_steps=1)
    assert deep_rates(idle, [12, 13]) == pytest.approx([0.2, 0.1])  # 2 + (24 - 2) / 2


@pytest.mark.parametrize(("scaling", "factor"), [("none", 1), ("sqrt", 2**-5.5), ("linear", 2**-11)])
def test_lr_scaling_scales_both_rates(train, idle, capsys, scaling, factor):
    train(lr_scaling=scaling, linear_learning_rate=0.5, deep_learning_rate=0.8, deep_warmup_steps=1, max_steps=1)
    assert deep_rates(idle, [1]) == pytest.approx([0.2 * factor])
    assert float(idle.step_arguments[-1]["schedules"]["wide"](tf.constant(0))) == pytest.approx(0.5 * factor)
    assert idle.state.optimizers["wide"].learning_rate == pytest.approx(0.5 * factor)
    first = capsys.readouterr().out.splitlines()[0]
    assert f"learning rates: wide {0.5 * factor:g}, deep {0.8 * factor:g}" in first


@pytest.mark.parametrize("xla", [False, True])
def test_xla_reaches_both_steps(train, idle, xla):
    train(max_steps=1, xla=xla)
    assert idle.step_arguments[-1]["xla"] is xla
    assert idle.eval_arguments[-1][1] == {"xla": xla}


@pytest.mark.parametrize(
    ("settings", "hidden", "dynamic"),
    [({}, "float32", False), ({"amp": True}, "float16", True), ({"amp": True, "amp_dtype": "bfloat16"}, "bfloat16", False)],
)
def test_precision_of_layers_tables_and_slots(train, idle, settings, hidden, dynamic):
    record = train(max_steps=1, **settings)
    state = idle.state
    assert state.model.mlp.compute_dtype == hidden
    assert {layer.compute_dtype for layer in (state.model.head, *state.model.tables)} == {"float32"}
    assert state.dynamic_loss_scale is dynamic
    assert {variable.dtype for variable in state.variables()} == {tf.float32, tf.int32}
    assert record.precision == ("float32" if hidden == "float32" else f"mixed_{hidden}")


def test_reduction_settings_reach_the_step(train, idle):
    two = SingleProcess(rank=0, size=2)
    train(comm=two, max_steps=1, table_reduction="gather", fp16_compression=True)
    train(comm=two, max_steps=1, table_reduction="allreduce")
    gather, allreduce = (arguments["reduction"] for arguments in idle.step_arguments)
    assert (set(gather.methods), gather.half) == ({"gather"}, True)
    assert (set(allreduce.methods), allreduce.half) == ({"allreduce"}, False)


def test_map_can_be_left_out(train, idle):
    record = train(disable_map_calculation=True, num_epochs=1)
    assert record.map_at_12 is record.displays is record.displays_without_click is None and record.auc > 0
    assert "group_ids" not in idle.eval_batches[0]
    assert not any("streaming_map_val" in data for _, data in small_runs.log_lines(train.config))


def test_the_log_has_the_name_that_was_asked_for(train, tmp_path):
    train(log_filename="deeper/other.json", max_steps=1)
    assert (tmp_path / "results/deeper/other.json").exists() and not (tmp_path / "results/log.json").exists()


def test_the_log_names_its_figures_as_readers_know_them(train):
    train(num_epochs=1)
    (parameters, config), *rest = small_runs.log_lines(train.config)
    assert parameters == "PARAMETER" and config["global_batch_size"] == small_runs.BATCH
    assert rest[0][0] == 1 and set(rest[0][1]) == {"loss", "batch_samplesps"}
    assert rest[-2][0] == STEPS_PER_EPOCH and set(rest[-2][1]) == {"loss_val", "auc_roc", "streaming_map_val"}
    assert rest[-1][0] == [] and set(rest[-1][1]) == {"train_throughput", "loss_val", "auc_roc", "streaming_map_val"}
    units = {line["metric"]: line["metadata"]["unit"] for line in small_runs.log_lines(train.config, "METADATA")}
    assert units["train_throughput"] == units["validation_throughput"] == units["batch_samplesps"] == "samples/s"


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
    shutil.copy(dataset / "feature_spec.yaml", tmp_path)
    config = small_runs.configure(tmp_path, tmp_path)
    with pytest.raises(InputError, match=str(tmp_path / "train")):
        small_runs.open_experiment(config).train()


def test_a_damaged_specification_is_an_error(tmp_path):
    (tmp_path / "feature_spec.yaml").write_text("channel_spec: [")
    with pytest.raises(InputError, match="not a YAML file"):
        experiment.open_spec(small_runs.configure(tmp_path, tmp_path))


def test_synthetic_data_is_made_in_the_cache_and_found_again(tmp_path):
    made = {}
    for rows, seed in ((300, 1), (400, 1), (300, 2), (300, 1)):
        config = small_runs.configure(
            tmp_path, tmp_path, dataset_type="synthetic", synthetic_rows=rows, seed=seed, synthetic_cache_dir=str(tmp_path)
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
