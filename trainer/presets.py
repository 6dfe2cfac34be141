"""Settings that stand in for those that the user does not give: by model and by preset, as plain data."""

from collections.abc import Mapping
from typing import Any

_DLRM, _DCNV2, _WIDE_DEEP = "dlrm", "dcnv2", "wide_deep"
_DLRM_FAMILY = (_DLRM, _DCNV2)

# Settings that only some models have. All others belong to every model.
MODELS_OF: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(
        (
            "embedding_sizes_file",
            "deep_hidden_units",
            "deep_dropout",
            "linear_learning_rate",
            "deep_learning_rate",
            "deep_warmup_epochs",
            "deep_warmup_steps",
            "deep_decay_step",
        ),
        (_WIDE_DEEP,),
    ),
    **dict.fromkeys(
        (
            "preset",
            "embedding_dim",
            "bottom_mlp_dims",
            "top_mlp_dims",
            "optimizer",
            "learning_rate",
            "warmup_steps",
            "decay_start_step",
            "decay_steps",
        ),
        _DLRM_FAMILY,
    ),
    **dict.fromkeys(("interaction", "self_interaction"), (_DLRM,)),
    **dict.fromkeys(("num_cross_layers", "cross_layer_projection_dim"), (_DCNV2,)),
}

# Their schedules end after about one pass over Criteo's rows.
_DLRM_TRAINING = {"global_batch_size": 65536, "eval_batch_size": 65536, "num_epochs": 1}

# Where a model's defaults differ from those of the configuration's fields, which are Wide & Deep's and DLRM's.
MODEL_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    _WIDE_DEEP: {},
    _DLRM: _DLRM_TRAINING,
    # NVIDIA's DCNv2 for TensorFlow 2: Adam at 0.0001, 100 steps of warm-up, and DLRM's decay.
    _DCNV2: _DLRM_TRAINING | {"optimizer": "adam", "learning_rate": 0.0001, "warmup_steps": 100},
}

# Criteo Terabyte with a frequency limit of 15, as in NVIDIA's DLRM: 32,709,138 rows in all.
_CRITEO_CARDINALITIES = (
    *(7912889, 33823, 17139, 7339, 20046, 4, 7105, 1382, 63, 5554114, 582469, 245828, 11),
    *(2209, 10667, 104, 4, 968, 15, 8165896, 2675940, 7156453, 302516, 12022, 97, 35),
)

# What `criteo` adds to the defaults of the model: the shape of the data.
_CRITEO = {
    "synthetic_dataset_cardinalities": _CRITEO_CARDINALITIES,
    "synthetic_dataset_hotness": (1,),
    "synthetic_dataset_num_numerical_features": 13,
}

# FAMBench's DLRM of that name. Its "512-512-64" begins with the numerical features; 200 batches train.
_TINY = {
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
    "optimizer": "sgd",
    "learning_rate": 0.01,
    "warmup_steps": 0,
    "decay_steps": 0,
}

# Preset -> model -> settings. For models that are not there it is refused.
PRESETS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "criteo": {model: {**MODEL_DEFAULTS[model], **_CRITEO} for model in _DLRM_FAMILY},
    "tiny": {
        model: {name: value for name, value in _TINY.items() if model in MODELS_OF.get(name, _DLRM_FAMILY)}
        for model in _DLRM_FAMILY
    },
}

# What a feature specification says itself: a preset's shape gives way to one that is given.
_IN_A_FEATURE_SPEC = (
    "synthetic_dataset_cardinalities",
    "synthetic_dataset_hotness",
    "synthetic_dataset_num_numerical_features",
)


def complete(settings: Mapping[str, Any]) -> tuple[dict[str, Any], frozenset[str]]:
    """Adds what the preset and the model say about settings that are not there, in this order of precedence.

    A name that is there keeps its value, None included. Models and presets that do not exist add nothing: checking is
    for others.

    Args:
      settings: by their flag's name; `model` and `preset` decide what is added.

    Returns:
      All settings, and the names of those that the preset has added.
    """
    model = settings.get("model", _WIDE_DEEP)
    preset = dict(PRESETS.get(settings.get("preset"), {}).get(model, {}))
    if settings.get("synthetic_feature_spec") is not None:
        for name in _IN_A_FEATURE_SPEC:
            preset.pop(name, None)
    completed = {**MODEL_DEFAULTS.get(model, {}), **preset, **settings}
    return completed, frozenset(preset) - frozenset(settings)
