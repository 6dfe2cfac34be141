"""Each setting by what it changes in a run, of which all is real but the model's computation."""

import json

import numpy as np
import pytest
import small_runs
import tensorflow as tf
from small_runs import STEPS_PER_EPOCH

from data.errors import InputError
from trainer import assembly, experiment
from trainer.distributed import SingleProcess


def deep_rates(idle, steps):
    schedule = idle.step_arguments[-1]["schedules"]["deep"]
    return [float(schedule(tf.constant(step))) for step in steps]


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
    spec, comm = experiment.open_spec(config), SingleProcess()
    mlp = assembly.make_model(config, spec, comm, assembly.place_tables(config, spec, comm, None)).mlp
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
    [
        ({}, "float32", False),
        ({"amp": True}, "float16", True),
        ({"amp": True, "amp_dtype": "bfloat16"}, "bfloat16", False),
    ],
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
