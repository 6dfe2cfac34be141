import dataclasses
import os

import pytest

from data.errors import InputError
from trainer import config as configuration
from trainer.config import RunConfig, TrainingConfig, fall_back_batch_sizes, fall_back_directories


@pytest.fixture
def writable(monkeypatch):
    """writable(*folders): the only folders of the root that exist and may be written."""

    def allow(*folders):
        monkeypatch.setattr(
            configuration.os, "access", lambda path, mode: path in folders and mode == os.W_OK | os.X_OK
        )

    return allow


def changes(before, after):
    return {name: value for name, value in after.flat().items() if value != before.flat()[name]}


def test_flat_and_back():
    config = RunConfig.from_flat({"num_epochs": 3, "amp": True, "deep_hidden_units": (5,)}, frozenset({"amp"}))
    assert config.training.num_epochs == 3 and config.device.amp and config.given == {"amp"}
    assert RunConfig.from_flat(config.flat(), config.given) == config
    names = [
        f.name
        for part in dataclasses.fields(RunConfig)
        if part.name != "given"
        for f in dataclasses.fields(part.default)
    ]
    assert sorted(config.flat()) == sorted(set(names)) == sorted(names)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"model": "dlrm"},
        {"model": "dcnv2", "num_cross_layers": 2},
        {"model": "dlrm", "preset": "tiny", "learning_rate": 0.5, "embedding_parallelism": "model"},
        {"model": "dcnv2", "preset": "criteo", "column_slice_threshold": 0, "row_slice_threshold": 10**9},
        {"model": "dlrm", "preset": "tiny", "synthetic_feature_spec": "mine.yaml"},
    ],
)
def test_a_record_of_all_settings_gives_the_same_run(settings):
    config = RunConfig.from_flat(settings, frozenset(settings))
    again = RunConfig.from_flat(config.flat(), config.given)
    assert again == config and again.given == config.given
    # Settings that are stated stay, whatever the preset and the model say of them.
    assert RunConfig.from_flat(config.flat()) == dataclasses.replace(config, given=frozenset())


def test_bad_values_are_refused_however_they_are_given():
    with pytest.raises(InputError, match="--num_epochs must be at least 1, got 0"):
        dataclasses.replace(RunConfig(), training=TrainingConfig(num_epochs=0))
    with pytest.raises(InputError, match=r"--affinity must be one of all, .* got 'none'"):
        RunConfig.from_flat({"affinity": "none"})


def test_a_benchmark_alone_needs_steps_after_its_warm_up():
    few = {"benchmark_steps": 10, "benchmark_warmup_steps": 10}
    assert RunConfig.from_flat(few).mode.benchmark_steps == 10
    with pytest.raises(
        InputError, match="--benchmark_warmup_steps 10 leaves nothing to measure of --benchmark_steps 10"
    ):
        RunConfig.from_flat(few | {"benchmark": True})
    RunConfig.from_flat(few | {"benchmark": True, "benchmark_warmup_steps": 9})


def test_directories_stay_where_they_can_be_written(writable):
    writable("/outbrain", "/results")
    assert fall_back_directories(RunConfig()) == (RunConfig(), ())


def test_default_directories_fall_back_where_they_cannot(writable):
    writable()
    config, notes = fall_back_directories(RunConfig())
    assert changes(RunConfig(), config) == {"model_dir": "checkpoints", "results_dir": "results"}
    assert notes == ("model_dir ./checkpoints (no writable /outbrain)", "results_dir ./results (no writable /results)")


def test_each_directory_falls_back_by_itself(writable):
    writable("/outbrain")
    config, notes = fall_back_directories(RunConfig())
    assert changes(RunConfig(), config) == {"results_dir": "results"} and len(notes) == 1


def test_a_given_directory_never_falls_back(writable):
    writable()
    # Given is what counts, not whether it differs from the default.
    given = RunConfig(given=frozenset({"model_dir", "results_dir"}))
    assert fall_back_directories(given) == (given, ())


def test_default_batch_sizes_fall_back_without_a_gpu():
    config, notes = fall_back_batch_sizes(RunConfig(), has_gpu=False)
    assert changes(RunConfig(), config) == {"global_batch_size": 4096, "eval_batch_size": 4096}
    assert notes == ("global_batch_size 4096 (no GPU)", "eval_batch_size 4096 (no GPU)")
    assert fall_back_batch_sizes(RunConfig(), has_gpu=True) == (RunConfig(), ())


@pytest.mark.parametrize("model", ["dlrm", "dcnv2"])
def test_a_models_default_batch_sizes_fall_back_and_a_presets_do_not(model):
    config = RunConfig.from_flat({"model": model}, frozenset({"model"}))
    smaller, notes = fall_back_batch_sizes(config, has_gpu=False)
    assert changes(config, smaller) == {"global_batch_size": 4096, "eval_batch_size": 4096} and len(notes) == 2
    assert fall_back_batch_sizes(config, has_gpu=True) == (config, ())
    for preset in ("criteo", "tiny"):
        stated = RunConfig.from_flat({"model": model, "preset": preset}, frozenset({"model", "preset"}))
        assert fall_back_batch_sizes(stated, has_gpu=False) == (stated, ())


def test_given_batch_sizes_never_fall_back():
    given = RunConfig(given=frozenset({"global_batch_size"}))
    config, notes = fall_back_batch_sizes(given, has_gpu=False)
    assert changes(given, config) == {"eval_batch_size": 4096} and len(notes) == 1


def test_nothing_else_ever_falls_back(writable):
    """Numbers of steps and epochs above all."""
    writable()
    config, _ = fall_back_batch_sizes(fall_back_directories(RunConfig())[0], has_gpu=False)
    assert set(changes(RunConfig(), config)) == {"model_dir", "results_dir", "global_batch_size", "eval_batch_size"}


@pytest.mark.parametrize(
    ("settings", "factor"),
    [
        ({"lr_scaling": "none", "global_batch_size": 4096}, 1),
        ({"lr_scaling": "linear"}, 1),
        ({"lr_scaling": "linear", "global_batch_size": 131072}, 1),
        ({"lr_scaling": "linear", "global_batch_size": 4096}, 1 / 32),
        ({"lr_scaling": "sqrt", "global_batch_size": 32768}, 1 / 2),
        ({"lr_scaling": "sqrt", "global_batch_size": 524288}, 2),
        ({"lr_scaling": "linear", "model": "dlrm"}, 1),
        ({"lr_scaling": "linear", "model": "dlrm", "global_batch_size": 4096}, 1 / 16),
        ({"lr_scaling": "sqrt", "model": "dcnv2", "global_batch_size": 262144}, 2),
        # The rate that a preset states is that of the batch that it states.
        ({"lr_scaling": "linear", "model": "dlrm", "preset": "tiny"}, 1),
        ({"lr_scaling": "linear", "model": "dlrm", "preset": "tiny", "global_batch_size": 128}, 2),
        ({"lr_scaling": "linear", "model": "dcnv2", "preset": "criteo", "global_batch_size": 128}, 1 / 512),
    ],
)
def test_learning_rate_factor(settings, factor):
    assert RunConfig.from_flat(settings).learning_rate_factor() == pytest.approx(factor)


def test_flags_of_the_learning_rates():
    flags = {
        model: RunConfig.from_flat({"model": model}).learning_rate_flags for model in ("wide_deep", "dlrm", "dcnv2")
    }
    assert flags == {
        "wide_deep": "--deep_learning_rate and --linear_learning_rate",
        "dlrm": "--learning_rate",
        "dcnv2": "--learning_rate",
    }


@pytest.mark.parametrize(
    ("settings", "precision"),
    [
        ({}, "float32"),
        ({"amp": True}, "mixed_float16"),
        ({"amp": True, "amp_dtype": "bfloat16"}, "mixed_bfloat16"),
        ({"amp_dtype": "bfloat16"}, "float32"),
    ],
)
def test_precision(settings, precision):
    assert RunConfig.from_flat(settings).device.precision == precision
