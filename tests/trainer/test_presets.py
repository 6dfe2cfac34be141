import pytest

from trainer import flags
from trainer.config import RunConfig
from trainer.presets import MODEL_DEFAULTS, MODELS_OF, PRESETS, complete

FAMILY = ("dlrm", "dcnv2")
DLRM_SHAPE = {
    "embedding_dim": (128,),
    "bottom_mlp_dims": (512, 256, 128),
    "top_mlp_dims": (1024, 1024, 512, 256, 1),
    "interaction": "dot",
    "self_interaction": False,
    "num_cross_layers": 3,
    "cross_layer_projection_dim": 512,
    "combiner": "sum",
}
DLRM_TRAINING = {
    "global_batch_size": 65536,
    "eval_batch_size": 65536,
    "optimizer": "sgd",
    "learning_rate": 24.0,
    "warmup_steps": 8000,
    "decay_start_step": 48000,
    "decay_steps": 24000,
}
DEFAULTS = {
    "dlrm": DLRM_SHAPE | DLRM_TRAINING,
    "dcnv2": DLRM_SHAPE | DLRM_TRAINING | {"optimizer": "adam", "learning_rate": 0.0001, "warmup_steps": 100},
}
TINY = {
    "dataset_type": "parquet",  # of the user's choosing
    "synthetic_rows": 16000,
    "synthetic_dataset_cardinalities": (1_000_000,) * 8,
    "synthetic_dataset_hotness": (100,),
    "synthetic_dataset_num_numerical_features": 512,
    "synthetic_dataset_power_law_exponent": 0.0,
    "synthetic_dataset_pooling": "distinct",
    "global_batch_size": 64,
    "eval_batch_size": 64,
    "embedding_dim": (64,),
    "bottom_mlp_dims": (512, 64),
    "top_mlp_dims": (1024, 1024, 1024, 1),
    "interaction": "dot",
    "self_interaction": False,
    "combiner": "sum",
    "optimizer": "sgd",
    "learning_rate": 0.01,
    "warmup_steps": 0,
    "decay_steps": 0,
}


def settings(line):
    return flags.parse(line.split()).flat()


def holds(found, expected):
    return {name: found[name] for name in expected} == expected


@pytest.mark.parametrize("model", FAMILY)
def test_defaults_of_a_model(model):
    config = flags.parse([f"--model={model}"])
    assert holds(config.flat(), DEFAULTS[model])
    assert config.given == {"model"} and config.mode.preset is None
    # All else is as it is for Wide & Deep.
    assert {name for name, value in config.flat().items() if value != RunConfig().flat()[name]} == {
        "model",
        *MODEL_DEFAULTS[model],
    }


def test_wide_and_deep_keeps_its_defaults():
    assert flags.parse(["--model=wide_deep"]).flat() == RunConfig().flat()
    assert settings("")["global_batch_size"] == settings("")["eval_batch_size"] == 131072


@pytest.mark.parametrize("model", FAMILY)
def test_tiny_is_fambenchs(model):
    config = flags.parse([f"--model={model}", "--preset=tiny"])
    assert holds(config.flat(), TINY)
    others = set(config.flat()) - set(TINY) - {"preset"}
    assert holds(config.flat(), {name: settings(f"--model={model}")[name] for name in others})


@pytest.mark.parametrize("model", FAMILY)
def test_criteo_is_the_defaults_with_criteos_tables(model):
    found = settings(f"--model={model} --preset=criteo")
    cardinalities = found["synthetic_dataset_cardinalities"]
    assert len(cardinalities) == 26 and cardinalities[0] == 7912889 and cardinalities[-1] == 35
    assert sum(cardinalities) == 32_709_138
    assert found["synthetic_dataset_hotness"] == (1,)
    assert found["synthetic_dataset_num_numerical_features"] == 13
    plain = settings(f"--model={model}")
    changed = {name for name in plain if plain[name] != found[name]}
    assert changed == {"preset"} | {
        f"synthetic_dataset_{name}" for name in ("cardinalities", "hotness", "num_numerical_features")
    }


@pytest.mark.parametrize("model", FAMILY)
@pytest.mark.parametrize("preset", ["criteo", "tiny"])
def test_what_a_preset_states_counts_as_given(model, preset):
    given = flags.parse([f"--model={model}", f"--preset={preset}"]).given
    assert given == {"model", "preset", *PRESETS[preset][model]} and "global_batch_size" in given


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("--model=dcnv2", "learning_rate", 0.0001),
        ("--model=dcnv2 --preset=tiny", "learning_rate", 0.01),
        ("--model=dcnv2 --preset=tiny --learning_rate=3", "learning_rate", 3.0),
        ("--learning_rate=3 --preset=tiny --model=dcnv2", "learning_rate", 3.0),  # whatever the order
        ("--model=dcnv2 --learning_rate=3", "learning_rate", 3.0),
        ("--model=dlrm --preset=tiny --global_batch_size=65536", "global_batch_size", 65536),
        ("--model=dlrm --preset=tiny --synthetic_dataset_pooling=any", "synthetic_dataset_pooling", "any"),
        ("--model=dlrm --preset=tiny --decay_steps=24000", "decay_steps", 24000),
        ("--model=dlrm --preset=tiny --synthetic_dataset_cardinalities=500,600", "synthetic_dataset_hotness", (100,)),
        ("--model=dlrm --preset=tiny --num_epochs=1", "num_epochs", 1),
    ],
)
def test_the_command_line_comes_before_the_preset_and_that_before_the_model(line, name, value):
    assert settings(line)[name] == value


@pytest.mark.parametrize("preset", ["criteo", "tiny"])
def test_a_given_feature_specification_replaces_the_presets_shape(preset):
    config = flags.parse(f"--model=dlrm --preset={preset} --synthetic_feature_spec=mine.yaml".split())
    data = config.data
    shape = {"cardinalities", "hotness", "num_numerical_features"}
    assert {getattr(data, f"synthetic_dataset_{name}") for name in shape} == {None}
    assert not {f"synthetic_dataset_{name}" for name in shape} & config.given
    pooling = {"criteo": "any", "tiny": "distinct"}[preset]
    assert data.synthetic_feature_spec == "mine.yaml" and data.synthetic_dataset_pooling == pooling


def test_completing_changes_neither_what_is_there_nor_the_tables():
    stated = {"model": "dlrm", "preset": "tiny", "learning_rate": None}
    completed, added = complete(stated)
    assert stated == {"model": "dlrm", "preset": "tiny", "learning_rate": None}
    assert completed["learning_rate"] is None and "learning_rate" not in added
    assert completed["optimizer"] == "sgd" and added == set(PRESETS["tiny"]["dlrm"]) - {"learning_rate"}
    completed["optimizer"] = "adam"
    assert complete(stated)[0]["optimizer"] == "sgd"


def test_unknown_names_add_nothing():
    assert complete({"model": "deepfm", "preset": "huge"}) == ({"model": "deepfm", "preset": "huge"}, frozenset())
    assert complete({"model": "wide_deep", "preset": "tiny"})[1] == complete({})[1] == frozenset()


def test_tables_name_settings_that_exist_and_that_the_model_has():
    known = set(RunConfig().flat())
    assert set(MODELS_OF) <= known
    states = [(model, names) for preset in PRESETS.values() for model, names in preset.items()]
    for model, names in [*states, *MODEL_DEFAULTS.items()]:
        assert set(names) <= known
        assert {name for name in names if model not in MODELS_OF.get(name, (model,))} == set()
