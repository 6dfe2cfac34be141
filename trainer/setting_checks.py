"""What settings may be, each by itself and together: refused in one line before anything is read or allocated."""

import os
import re
from collections.abc import Collection, Mapping
from typing import Any

from data.errors import InputError
from trainer.affinity import MODES as AFFINITY_MODES
from trainer.presets import MODEL_DEFAULTS, MODELS_OF, PRESETS

CHOICES: Mapping[str, tuple[str, ...]] = {
    "dataset_type": ("parquet", "synthetic"),
    "synthetic_dataset_pooling": ("any", "distinct", "fixed"),
    "model": tuple(MODEL_DEFAULTS),
    "preset": tuple(PRESETS),
    "interaction": ("dot", "concat"),
    "combiner": ("sum", "mean"),
    "embedding_parallelism": ("data", "model", "auto"),
    "optimizer": ("sgd", "adagrad", "rowwise_adagrad", "rmsprop", "adam"),
    "lr_scaling": ("none", "sqrt", "linear"),
    "amp_dtype": ("float16", "bfloat16"),
    "affinity": AFFINITY_MODES,
    "table_reduction": ("auto", "gather", "allreduce"),
    "gpu_allocator": ("growth", "async"),
}

_AT_LEAST = {
    "synthetic_rows": 1,
    "synthetic_dataset_num_numerical_features": 0,
    "data_shards": 1,
    "shuffle_buffer_rows": 1,
    "num_cross_layers": 1,
    "cross_layer_projection_dim": 1,
    "column_slice_threshold": 0,
    "row_slice_threshold": 0,
    "data_parallel_threshold": 0,
    "global_batch_size": 1,
    "eval_batch_size": 1,
    "num_epochs": 1,
    "max_steps": 1,
    "deep_warmup_epochs": 0,
    "deep_warmup_steps": 0,
    "deep_decay_step": 0,
    "warmup_steps": 0,
    "decay_start_step": 0,
    "decay_steps": 0,
    "checkpoint_every_steps": 1,
    "log_every_steps": 1,
    "evals_per_epoch": 1,
    "intra_op_threads": 1,
    "benchmark_warmup_steps": 0,
    "benchmark_steps": 1,
    "num_auc_thresholds": 1,
}
# Fewer measured steps say too little of how they vary.
LEAST_TIMED_STEPS = 5

_SIZES = (
    "deep_hidden_units",
    "embedding_dim",
    "bottom_mlp_dims",
    "top_mlp_dims",
    "synthetic_dataset_cardinalities",
    "synthetic_dataset_hotness",
)


def check(settings: Mapping[str, Any], given: Collection[str]) -> None:
    """Refuses settings that cannot be.

    Args:
      settings: all of them, by their flag's name.
      given: names of those that the user stated.

    Raises:
      InputError: the message names the flag, its value and the remedy.
    """
    _check_each(settings)
    _check_model(settings, given)
    _check_generated_data(settings)
    _check_target(settings)
    if settings["benchmark"] and settings["benchmark_warmup_steps"] >= settings["benchmark_steps"]:
        raise InputError(
            f"--benchmark_warmup_steps {settings['benchmark_warmup_steps']} leaves nothing to measure of "
            f"--benchmark_steps {settings['benchmark_steps']}, which counts the warm-up: lower the first or raise the "
            "second"
        )
    measured = settings["benchmark_steps"] - settings["benchmark_warmup_steps"]
    if settings["benchmark"] and settings["benchmark_seconds"] is not None and measured < LEAST_TIMED_STEPS:
        raise InputError(
            f"--benchmark_seconds {settings['benchmark_seconds']:g} measures at least {LEAST_TIMED_STEPS} steps, and "
            f"--benchmark_steps {settings['benchmark_steps']} leaves {measured} after --benchmark_warmup_steps "
            f"{settings['benchmark_warmup_steps']}: raise the steps or lower the warm-up"
        )


def _check_each(settings: Mapping[str, Any]) -> None:
    def refuse(name: str, need: str) -> None:
        value = settings[name]
        raise InputError(f"--{name} must be {need}, got {_text(value) if isinstance(value, tuple) else repr(value)}")

    for name, allowed in CHOICES.items():
        # Only the preset may be none of its choices.
        if settings[name] not in allowed and not (name == "preset" and settings[name] is None):
            refuse(name, f"one of {', '.join(allowed)}")
    for name, lowest in _AT_LEAST.items():
        if settings[name] is not None and not settings[name] >= lowest:
            refuse(name, f"at least {lowest}")
    for name in ("linear_learning_rate", "deep_learning_rate", "learning_rate"):
        if not 0 < settings[name] < float("inf"):
            refuse(name, "a finite number above 0")
    seconds = settings["benchmark_seconds"]
    if seconds is not None and not 0 < seconds < float("inf"):
        refuse("benchmark_seconds", "a finite number above 0")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}", settings["benchmark_name"]):
        refuse("benchmark_name", "1 to 100 letters, digits or ._+-, the first one of the former two")
    if settings["target_map12"] is not None and not 0 < settings["target_map12"] <= 1:
        refuse("target_map12", "above 0 and at most 1")
    if settings["l2_fetch_granularity"] not in (0, 32, 64, 128):
        refuse("l2_fetch_granularity", "32, 64 or 128, or 0 to leave it to the driver")
    if settings["deep_warmup_epochs"] == float("inf"):
        refuse("deep_warmup_epochs", "finite")
    exponent = settings["synthetic_dataset_power_law_exponent"]
    if exponent is not None and not 0 <= exponent < float("inf"):
        refuse("synthetic_dataset_power_law_exponent", "a finite number of at least 0")
    for name in ("seed", "synthetic_seed"):
        if not 0 <= settings[name] < 2**31:
            refuse(name, "from 0 to 2147483647")
    if not 0 <= settings["deep_dropout"] <= 0.9999:
        refuse("deep_dropout", "from 0 to 0.9999")
    for name in _SIZES:
        if settings[name] is not None and (not settings[name] or min(settings[name]) < 1):
            refuse(name, "a comma-separated list of positive sizes")
    if settings["top_mlp_dims"][-1] != 1:
        refuse("top_mlp_dims", "a list that ends with 1, the logit")
    # The log shares its folder with the record and the ranks' output, and must not be written over by them.
    log = os.path.normpath(settings["log_filename"])  # "." for an empty one
    if log in (".", "..", "result.json") or re.fullmatch(r"rank-\d+\.log", log):
        refuse("log_filename", "a file name other than result.json and rank-N.log")


def _check_target(settings: Mapping[str, Any]) -> None:
    """Refuses a target that no evaluation could reach."""
    if settings["target_map12"] is None:
        return
    for name, why in (
        ("evaluate", "which trains nothing"),
        ("benchmark", "which evaluates nothing on the way"),
        ("disable_map_calculation", "which leaves MAP@12 out"),
    ):
        if settings[name]:
            raise InputError(
                f"--target_map12={settings['target_map12']:g} ends training, and does not go with --{name}, {why}: "
                "leave one of them out"
            )


def _check_model(settings: Mapping[str, Any], given: Collection[str]) -> None:
    """Refuses what the model does not have or cannot combine."""
    model = settings["model"]
    for name, value in settings.items():
        models = MODELS_OF.get(name, (model,))
        # A preset changes many settings, so it is refused however it came here.
        if model not in models and (name in given or (name == "preset" and value is not None)):
            owners = " and ".join(f"--model={owner}" for owner in models)
            raise InputError(
                f"--{name}={_text(value)} is for {owners}, not for --model={model}: leave it out or change --model"
            )
    if model == "dlrm":
        dims = sorted(set(settings["embedding_dim"]))
        if settings["interaction"] == "dot" and len(dims) > 1:
            raise InputError(
                "--interaction=dot needs one embedding dimension for all features, got --embedding_dim="
                f"{_text(settings['embedding_dim'])} with {dims[0]} and {dims[-1]}: give one number or use "
                "--interaction=concat"
            )
        if settings["interaction"] != "dot" and settings["self_interaction"]:
            raise InputError(
                f"--self_interaction is for --interaction=dot, got --interaction={settings['interaction']}: leave one "
                "of them out"
            )
    if settings["optimizer"] == "rowwise_adagrad":
        threshold = settings["column_slice_threshold"]
        if threshold is not None:
            raise InputError(
                f"--column_slice_threshold={threshold} cuts rows of tables, and --optimizer=rowwise_adagrad needs all "
                "columns of a row in one place: use --row_slice_threshold or another --optimizer"
            )


def _check_generated_data(settings: Mapping[str, Any]) -> None:
    """Refuses shapes of generated data that are said twice, in part, or that contradict each other."""
    prefix = "synthetic_dataset_"
    cardinalities, hotness = settings[prefix + "cardinalities"], settings[prefix + "hotness"]
    spec = settings["synthetic_feature_spec"]
    for name in ("cardinalities", "hotness", "num_numerical_features"):
        value = settings[prefix + name]
        if value is None:
            continue
        if spec is not None:
            raise InputError(
                f"--{prefix}{name}={_text(value)} and --synthetic_feature_spec={spec} both say what to generate: "
                "leave one of them out"
            )
        if cardinalities is None:
            raise InputError(
                f"--{prefix}{name}={_text(value)} needs --{prefix}cardinalities, one number for each table: add it, "
                f"or leave --{prefix}{name} out"
            )
    if cardinalities is None or hotness is None:
        return
    if len(hotness) not in (1, len(cardinalities)):
        preset = settings["preset"]
        where = "" if preset is None else f" (--preset={preset} sets those that are not given)"
        raise InputError(
            f"--{prefix}hotness has {len(hotness)} numbers and --{prefix}cardinalities has {len(cardinalities)}"
            f"{where}: give one hotness for each table, or one for all"
        )
    if settings[prefix + "pooling"] == "fixed":
        each = hotness * len(cardinalities) if len(hotness) == 1 else hotness
        for number, (ids, rows) in enumerate(zip(each, cardinalities, strict=True), start=1):
            if ids > rows:
                raise InputError(
                    f"--{prefix}pooling=fixed draws different ids, and --{prefix}hotness asks for {ids} of the {rows} "
                    f"that table {number} has: lower it or use --{prefix}pooling=distinct"
                )


def _text(value: Any) -> str:
    """A value as the command line spells it."""
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
