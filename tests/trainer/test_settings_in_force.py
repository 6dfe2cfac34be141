"""What is read from the objects that ran, on real runs of small models."""

import numpy as np
import pytest
import small_runs
import tensorflow as tf

from trainer.config import RunConfig
from trainer.distributed import SingleProcess
from trainer.settings_in_force import compiled_functions


@pytest.mark.parametrize(
    ("settings", "dtype", "compiled"),
    [
        ({}, "float32", []),
        ({"amp": True}, "float16", []),
        ({"amp": True, "amp_dtype": "bfloat16"}, "bfloat16", []),
        ({"xla": True}, "float32", ["train_step.dense_part", "eval_step.dense_part"]),
        ({"model": "dcnv2", "embedding_dim": (4,), "bottom_mlp_dims": (4,), "top_mlp_dims": (4, 1)}, "float32", []),
    ],
)
def test_a_record_has_the_settings_of_the_model_and_the_steps(
    dataset, tmp_path, default_precision, settings, dtype, compiled
):
    config = small_runs.configure(dataset, tmp_path, max_steps=2)
    # Nothing counts as given: models refuse what is given of another.
    config = RunConfig.from_flat({**config.flat(), **settings}, frozenset())
    record = small_runs.open_experiment(config).train()
    assert record.settings_in_force == {
        "compute_dtype": dtype,
        "variable_dtype": "float32",
        "jit_compiled": compiled,
        "world_size": 1,
    }
    assert record.trained is True and record.ended_by == "steps"


def test_a_configuration_that_did_not_come_true_is_found_out(dataset, tmp_path, default_precision, monkeypatch):
    """The record is what ran: here the policy that the configuration asks for was never set."""
    config = small_runs.configure(dataset, tmp_path, amp=True, max_steps=1)
    monkeypatch.setattr(small_runs.keras.mixed_precision, "set_global_policy", lambda name: None)
    record = small_runs.open_experiment(config).train()
    assert record.precision == "mixed_float16" and record.settings_in_force["compute_dtype"] == "float32"


def test_functions_that_never_ran_and_those_that_are_not_compiled_do_not_count():
    compiled = tf.function(lambda x: x + 1.0, jit_compile=True, autograph=False)
    plain = tf.function(lambda x: x + 1.0, autograph=False)
    plain(tf.ones(()))
    assert compiled_functions({"a": compiled, "b": plain, "c": lambda x: x}) == []
    compiled(tf.ones(()))
    assert compiled_functions({"a": compiled, "b": plain}) == ["a"]


def test_the_ranks_are_counted_by_asking_them(train):
    class Three(SingleProcess):
        def allreduce_sum(self, array):
            return 3 * np.array(array)

    assert train(comm=Three(), max_steps=1).settings_in_force["world_size"] == 3


def test_training_that_changes_no_weight_is_told_apart(train):
    """Steps of the fixture compute nothing."""
    assert train(max_steps=2).trained is False
