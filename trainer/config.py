"""What a run does, as frozen data: checked once, then handed around in the parts that each place needs."""

import dataclasses
import os
import re
from collections.abc import Mapping
from typing import Any

from data.errors import InputError
from trainer.affinity import MODES as AFFINITY_MODES

REFERENCE_BATCH_SIZE = 131072
CPU_BATCH_SIZE = 4096

DATASET_TYPES = ("parquet", "synthetic")
MODEL_NAMES = ("wide_deep", "dlrm")
LR_SCALINGS = ("none", "sqrt", "linear")
COMBINERS = ("sum", "mean")
AMP_DTYPES = ("float16", "bfloat16")
TABLE_REDUCTIONS = ("auto", "gather", "allreduce")


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """Where the rows come from."""

    dataset_type: str = "parquet"
    dataset_path: str = "/outbrain/data"
    fspec_file: str = "feature_spec.yaml"
    synthetic_rows: int = 1_000_000
    synthetic_seed: int = 0
    synthetic_cache_dir: str | None = None
    data_shards: int = 96
    shuffle_buffer_rows: int = 524_288


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """Which model, of what shape."""

    model: str = "wide_deep"
    embedding_sizes_file: str = "data/outbrain/embedding_sizes.json"
    deep_hidden_units: tuple[int, ...] = (1024,) * 5
    deep_dropout: float = 0.1
    combiner: str = "sum"


@dataclasses.dataclass(frozen=True)
class TrainingConfig:
    """How long and how fast it learns. Batch sizes are over all ranks."""

    global_batch_size: int = REFERENCE_BATCH_SIZE
    eval_batch_size: int = REFERENCE_BATCH_SIZE
    num_epochs: int = 20
    max_steps: int | None = None
    seed: int = 0
    linear_learning_rate: float = 0.02
    deep_learning_rate: float = 0.00012
    deep_warmup_epochs: float = 6.0
    deep_warmup_steps: int | None = None
    deep_decay_step: int | None = None
    lr_scaling: str = "none"
    checkpoint_every_steps: int | None = None
    log_every_steps: int = 100

    def learning_rate_factor(self) -> float:
        """What --lr_scaling multiplies both rates by, from the batch size and that of the stated rates."""
        ratio = self.global_batch_size / REFERENCE_BATCH_SIZE
        return {"none": 1.0, "sqrt": ratio**0.5, "linear": ratio}[self.lr_scaling]


@dataclasses.dataclass(frozen=True)
class DeviceConfig:
    """What it runs on, and in what precision."""

    cpu: bool = False
    amp: bool = False
    amp_dtype: str = "float16"
    xla: bool = False
    affinity: str = "unique_interleaved"
    fp16_compression: bool = False
    table_reduction: str = "auto"
    intra_op_threads: int | None = None

    @property
    def precision(self) -> str:
        return f"mixed_{self.amp_dtype}" if self.amp else "float32"


@dataclasses.dataclass(frozen=True)
class ModeConfig:
    """Train, evaluate or benchmark."""

    evaluate: bool = False
    benchmark: bool = False
    benchmark_warmup_steps: int = 500
    benchmark_steps: int = 1000
    use_checkpoint: bool = False
    disable_map_calculation: bool = False
    num_auc_thresholds: int = 8000


@dataclasses.dataclass(frozen=True)
class OutputConfig:
    """Where results go."""

    model_dir: str = "/outbrain/checkpoints"
    results_dir: str = "/results"
    log_filename: str = "log.json"


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """A whole run.

    Attributes:
      given: names of the settings that the user stated; only others may fall back.
    """

    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    training: TrainingConfig = TrainingConfig()
    device: DeviceConfig = DeviceConfig()
    mode: ModeConfig = ModeConfig()
    output: OutputConfig = OutputConfig()
    given: frozenset[str] = frozenset()

    def __post_init__(self):
        _validate(self)

    def flat(self) -> dict[str, Any]:
        """All settings by their flag's name."""
        settings: dict[str, Any] = {}
        for part in (self.data, self.model, self.training, self.device, self.mode, self.output):
            settings.update(dataclasses.asdict(part))
        return settings

    @classmethod
    def from_flat(cls, settings: Mapping[str, Any], given: frozenset[str] = frozenset()) -> "RunConfig":
        """The inverse of `flat`; settings that are not there keep their defaults."""
        parts = {}
        for field in dataclasses.fields(cls):
            if field.name != "given":
                names = {inner.name for inner in dataclasses.fields(field.default)}
                parts[field.name] = type(field.default)(**{k: v for k, v in settings.items() if k in names})
        return cls(**parts, given=given)


def fall_back_directories(config: RunConfig) -> tuple[RunConfig, tuple[str, ...]]:
    """Replaces a default directory that this machine does not have.

    Rule: --model_dir and --results_dir, if not given and their first folder (/outbrain, /results) is missing or cannot
    be written, become ./checkpoints and ./results.

    Returns:
      The configuration and a note for each change.
    """
    changes, notes = {}, []
    for name, root, substitute in (
        ("model_dir", "/outbrain", "checkpoints"),
        ("results_dir", "/results", "results"),
    ):
        if name not in config.given and not os.access(root, os.W_OK | os.X_OK):
            changes[name] = substitute
            notes.append(f"{name} ./{substitute} (no writable {root})")
    return dataclasses.replace(config, output=dataclasses.replace(config.output, **changes)), tuple(notes)


def fall_back_batch_sizes(config: RunConfig, *, has_gpu: bool) -> tuple[RunConfig, tuple[str, ...]]:
    """Replaces the default batch sizes where there is no GPU.

    Rule: --global_batch_size and --eval_batch_size, if not given, become 4096 on a CPU. Numbers of steps and epochs
    never change.

    Returns:
      The configuration and a note for each change.
    """
    names = ("global_batch_size", "eval_batch_size")
    changes = {} if has_gpu else {name: CPU_BATCH_SIZE for name in names if name not in config.given}
    notes = tuple(f"{name} {size} (no GPU)" for name, size in changes.items())
    return dataclasses.replace(config, training=dataclasses.replace(config.training, **changes)), notes


def _validate(config: RunConfig) -> None:
    settings = config.flat()

    def refuse(name: str, need: str) -> None:
        raise InputError(f"--{name} must be {need}, got {settings[name]!r}")

    choices = {
        "dataset_type": DATASET_TYPES,
        "model": MODEL_NAMES,
        "lr_scaling": LR_SCALINGS,
        "combiner": COMBINERS,
        "amp_dtype": AMP_DTYPES,
        "affinity": AFFINITY_MODES,
        "table_reduction": TABLE_REDUCTIONS,
    }
    for name, allowed in choices.items():
        if settings[name] not in allowed:
            refuse(name, f"one of {', '.join(allowed)}")
    at_least = {
        "synthetic_rows": 1,
        "data_shards": 1,
        "shuffle_buffer_rows": 1,
        "global_batch_size": 1,
        "eval_batch_size": 1,
        "num_epochs": 1,
        "max_steps": 1,
        "deep_warmup_epochs": 0,
        "deep_warmup_steps": 0,
        "deep_decay_step": 0,
        "checkpoint_every_steps": 1,
        "log_every_steps": 1,
        "intra_op_threads": 1,
        "benchmark_warmup_steps": 0,
        "benchmark_steps": 1,
        "num_auc_thresholds": 1,
    }
    for name, lowest in at_least.items():
        if settings[name] is not None and not settings[name] >= lowest:
            refuse(name, f"at least {lowest}")
    for name in ("linear_learning_rate", "deep_learning_rate"):
        if not 0 < settings[name] < float("inf"):
            refuse(name, "a finite number above 0")
    if settings["deep_warmup_epochs"] == float("inf"):
        refuse("deep_warmup_epochs", "finite")
    for name in ("seed", "synthetic_seed"):
        if not 0 <= settings[name] < 2**31:
            refuse(name, "from 0 to 2147483647")
    if not 0 <= settings["deep_dropout"] <= 0.9999:
        refuse("deep_dropout", "from 0 to 0.9999")
    if not settings["deep_hidden_units"] or min(settings["deep_hidden_units"]) < 1:
        refuse("deep_hidden_units", "a comma-separated list of positive sizes")
    # The log shares its folder with the record and the ranks' output, and must not be written over by them.
    log = os.path.normpath(settings["log_filename"])  # "." for an empty one
    if log in (".", "..", "result.json") or re.fullmatch(r"rank-\d+\.log", log):
        refuse("log_filename", "a file name other than result.json and rank-N.log")
    mode = config.mode
    if mode.benchmark and mode.benchmark_warmup_steps >= mode.benchmark_steps:
        raise InputError(
            f"--benchmark_warmup_steps {mode.benchmark_warmup_steps} leaves nothing to measure of --benchmark_steps "
            f"{mode.benchmark_steps}, which counts the warm-up: lower the first or raise the second"
        )
    if config.model.model == "dlrm":
        raise InputError("--model dlrm is not part of this version; use --model wide_deep")
