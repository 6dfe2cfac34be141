"""What a run does, as frozen data: checked once, then handed around in the parts that each place needs."""

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

from trainer import presets, setting_checks

REFERENCE_BATCH_SIZE = 131072
CPU_BATCH_SIZE = 4096


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """Where the rows come from.

    Attributes:
      synthetic_dataset_cardinalities, synthetic_dataset_hotness: rows of each table, and the most ids that a sample
        looks up in it; one hotness may stand for all tables.
      synthetic_dataset_power_law_exponent: how steeply the frequencies of ids fall; 0 for equal ones.
      synthetic_dataset_pooling: how many ids a sample looks up: "any" for 0 to the hotness, with repeats; "distinct"
        for 1 to the hotness, without; "fixed" for as many as the hotness, without.
    """

    dataset_type: str = "parquet"
    dataset_path: str = "/outbrain/data"
    fspec_file: str = "feature_spec.yaml"
    synthetic_rows: int = 1_000_000
    synthetic_seed: int = 0
    synthetic_cache_dir: str | None = None
    synthetic_dataset_cardinalities: tuple[int, ...] | None = None
    synthetic_dataset_hotness: tuple[int, ...] | None = None
    synthetic_dataset_num_numerical_features: int | None = None
    synthetic_dataset_power_law_exponent: float | None = None
    synthetic_dataset_pooling: str = "any"
    synthetic_feature_spec: str | None = None
    data_shards: int = 96
    shuffle_buffer_rows: int = 524_288


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """Which model, of what shape.

    Attributes:
      embedding_dim: one for all categorical features, or one for each.
      bottom_mlp_dims, top_mlp_dims: sizes of the layers without that of the input.
    """

    model: str = "wide_deep"
    embedding_sizes_file: str = "data/outbrain/embedding_sizes.json"
    deep_hidden_units: tuple[int, ...] = (1024,) * 5
    deep_dropout: float = 0.1
    embedding_dim: tuple[int, ...] = (128,)
    bottom_mlp_dims: tuple[int, ...] = (512, 256, 128)
    top_mlp_dims: tuple[int, ...] = (1024, 1024, 512, 256, 1)
    interaction: str = "dot"
    self_interaction: bool = False
    num_cross_layers: int = 3
    cross_layer_projection_dim: int = 512
    combiner: str = "sum"


@dataclasses.dataclass(frozen=True)
class EmbeddingsConfig:
    """How embedding tables are placed on ranks.

    Attributes:
      column_slice_threshold, row_slice_threshold: tables of more weights (rows x dimension) are cut by columns or by
        rows.
      data_parallel_threshold: tables of this many weights or fewer are held by every rank; None leaves it to the
        planner, 0 allows none.
    """

    embedding_parallelism: str = "data"
    column_slice_threshold: int | None = None
    row_slice_threshold: int | None = None
    data_parallel_threshold: int | None = None


@dataclasses.dataclass(frozen=True)
class TrainingConfig:
    """How long and how fast it learns. Batch sizes are over all ranks.

    Training ends when an evaluation on the way finds MAP@12 of at least `target_map12`. The rates and schedules: those
    of Wide & Deep, and from `optimizer` to `decay_steps` those of the other models.
    """

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
    optimizer: str = "sgd"
    learning_rate: float = 24.0
    warmup_steps: int = 8000
    decay_start_step: int = 48000
    decay_steps: int = 24000
    lr_scaling: str = "none"
    checkpoint_every_steps: int | None = None
    log_every_steps: int = 100
    evals_per_epoch: int = 1
    target_map12: float | None = None


@dataclasses.dataclass(frozen=True)
class DeviceConfig:
    """What it runs on, and in what precision. Of GPUs alone: see trainer.gpu_settings.

    Attributes:
      l2_fetch_granularity: bytes that a GPU's L2 cache fetches at once; 0 leaves it to the driver.
    """

    cpu: bool = False
    amp: bool = False
    amp_dtype: str = "float16"
    xla: bool = False
    affinity: str = "unique_interleaved"
    fp16_compression: bool = False
    table_reduction: str = "auto"
    intra_op_threads: int | None = None
    deterministic: bool = False
    tf32: bool = True
    gpu_allocator: str = "growth"
    l2_fetch_granularity: int = 128

    @property
    def precision(self) -> str:
        return f"mixed_{self.amp_dtype}" if self.amp else "float32"


@dataclasses.dataclass(frozen=True)
class ModeConfig:
    """Train, evaluate or benchmark.

    Attributes:
      benchmark_steps: at most so many, warm-up included; without `benchmark_seconds` exactly so many.
      benchmark_seconds: end when so many seconds are measured; at least 5 steps are. None: `benchmark_steps` decides.
      benchmark_name: what records call this configuration.
    """

    preset: str | None = None
    evaluate: bool = False
    benchmark: bool = False
    benchmark_warmup_steps: int = 500
    benchmark_steps: int = 1000
    benchmark_seconds: float | None = None
    benchmark_name: str = "default"
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

    The fields' defaults are Wide & Deep's, and DLRM's where only it and DCNv2 have the setting. `from_flat` knows those
    of each model and of the presets.

    Attributes:
      given: names of the settings that the user stated, or that a preset stated for them; only others may fall back.
    """

    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    embeddings: EmbeddingsConfig = EmbeddingsConfig()
    training: TrainingConfig = TrainingConfig()
    device: DeviceConfig = DeviceConfig()
    mode: ModeConfig = ModeConfig()
    output: OutputConfig = OutputConfig()
    given: frozenset[str] = frozenset()

    def __post_init__(self):
        setting_checks.check(self.flat(), self.given)

    def flat(self) -> dict[str, Any]:
        """All settings by their flag's name."""
        settings: dict[str, Any] = {}
        for part in (self.data, self.model, self.embeddings, self.training, self.device, self.mode, self.output):
            settings.update(dataclasses.asdict(part))
        return settings

    @classmethod
    def from_flat(cls, settings: Mapping[str, Any], given: frozenset[str] = frozenset()) -> "RunConfig":
        """The inverse of `flat`.

        Settings that are not there are those of the preset, then of the model, then of the fields. What the preset
        states counts as given.
        """
        completed, from_preset = presets.complete(settings)
        parts = {}
        for field in dataclasses.fields(cls):
            if field.name != "given":
                names = {inner.name for inner in dataclasses.fields(field.default)}
                parts[field.name] = type(field.default)(**{k: v for k, v in completed.items() if k in names})
        return cls(**parts, given=given | from_preset)

    def learning_rate_factor(self) -> float:
        """What --lr_scaling multiplies rates by: the batch size against that of the model's or preset's own rates."""
        own, _ = presets.complete({"model": self.model.model, "preset": self.mode.preset})
        ratio = self.training.global_batch_size / own.get("global_batch_size", REFERENCE_BATCH_SIZE)
        return {"none": 1.0, "sqrt": ratio**0.5, "linear": ratio}[self.training.lr_scaling]

    @property
    def learning_rate_flags(self) -> str:
        """The flags of the model's learning rates, for messages."""
        return (
            "--deep_learning_rate and --linear_learning_rate" if self.model.model == "wide_deep" else "--learning_rate"
        )


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
