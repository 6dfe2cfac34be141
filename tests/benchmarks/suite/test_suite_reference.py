"""Our outputs and plain Keras's on the same weights; a change of either is seen."""

import json

import pytest

from benchmarks.suite import reference
from benchmarks.suite.correctness import outputs_match
from models import embedding
from trainer.config import RunConfig
from trainer.distributed import SingleProcess

SHAPE = {
    "dataset_type": "synthetic",
    "synthetic_rows": 400,
    "synthetic_dataset_cardinalities": (50, 20, 9),
    "synthetic_dataset_hotness": (1, 1, 3),
    "synthetic_dataset_num_numerical_features": 4,
    "eval_batch_size": 64,
}
MODELS = {
    "wide_deep": {"deep_hidden_units": (8, 4)},
    "dlrm": {"embedding_dim": (4,), "bottom_mlp_dims": (8, 4), "top_mlp_dims": (8, 1)},
    "dcnv2": {
        "embedding_dim": (4,),
        "bottom_mlp_dims": (8, 4),
        "top_mlp_dims": (8, 1),
        "cross_layer_projection_dim": 2,
    },
}


@pytest.fixture
def config(tmp_path):
    def make(model):
        return RunConfig.from_flat(
            {
                **SHAPE,
                **MODELS[model],
                "model": model,
                "synthetic_cache_dir": str(tmp_path),
                "results_dir": str(tmp_path),
            }
        )

    return make


@pytest.mark.parametrize("model", MODELS)
def test_outputs_are_those_of_plain_keras(config, model):
    found = reference.compare(config(model), SingleProcess())
    assert found["rows"] == 64 and found["spread"] > 0
    assert outputs_match(found).held


def test_a_lookup_of_other_rows_is_seen(config, monkeypatch):
    real = embedding.FusedTable.call
    monkeypatch.setattr(embedding.FusedTable, "call", lambda self, ids: 1.1 * real(self, ids))
    assert not outputs_match(reference.compare(config("dlrm"), SingleProcess())).held


def test_the_command_writes_what_it_found(config, tmp_path, capsys):
    reference.run(config("dlrm"), SingleProcess(), None)
    found = json.loads((tmp_path / reference.RESULT).read_text())
    assert outputs_match(found).held and "64 rows, largest difference" in capsys.readouterr().out


@pytest.mark.parametrize("bad", [["--speed=3"], ["--num_epochs=0"]])
def test_bad_flags_are_code_2(bad, capsys):
    assert reference.main(bad) == 2
    assert capsys.readouterr().err.startswith("python -m benchmarks.suite.reference: ")


def test_help_is_printed_and_is_code_0(capsys):
    assert reference.main(["--help"]) == 0
    out, err = capsys.readouterr()
    assert "--eval_batch_size" in out and err == ""
