"""What the contenders of `benchmarks.compare_peers` work on: models of known shapes, and batches of ids in memory."""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from data.feature_spec import Feature, FeatureSpec
from data.flat_spec import flat_spec
from data.id_draw import DEFAULT_DRAW, IdDraw
from data.outbrain.schema import outbrain_feature_spec
from data.parquet_decode import id_type
from trainer.config import RunConfig, TrainingConfig

DISTINCT_BATCHES = 64
ADS_PER_DISPLAY = 5
_NUMERICAL_SETS = 16  # distinct ones: what is in them costs nobody any time

# A batch has the tensors of data.input_pipeline, `mask` and `group_ids` included, as numpy arrays.
Batch = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Workload:
    """A model, its training, and the law of its data.

    Attributes:
      config: what our step is made of; peers take shapes, rates and batch size from it.
      spec: the features.
      draw: the law of the ids.
    """

    config: RunConfig
    spec: FeatureSpec
    draw: IdDraw = DEFAULT_DRAW

    @property
    def batch_size(self) -> int:
        return self.config.training.global_batch_size

    @property
    def learning_rates(self) -> dict[str, float]:
        """By optimizer group; constant."""
        training = self.config.training
        if self.config.model.model != "wide_deep":
            return {"main": training.learning_rate}
        return {"wide": training.linear_learning_rate, "deep": training.deep_learning_rate / 4}

    def changed(self, **settings: Any) -> "Workload":
        """The same with other settings, by their flag's name."""
        return dataclasses.replace(self, config=_config(self.config.flat() | settings))

    def batches(self, count: int = DISTINCT_BATCHES, *, seed: int = 1) -> list[Batch]:
        """`count` batches, all ids of their own."""
        return list(itertools.islice(self.endless_batches(seed=seed), count))

    def endless_batches(self, *, seed: int = 1, share_numericals: bool = True) -> Iterator[Batch]:
        """Batch after batch, each drawn when it is asked for; numericals repeat if they are shared."""
        rng = np.random.default_rng(seed)
        shape = (self.batch_size, len(self.spec.numerical))
        numericals: list[np.ndarray] = []
        for number in itertools.count():
            if not share_numericals or number < _NUMERICAL_SETS:
                numericals.append(rng.random(shape, dtype=np.float32))
            rows = np.arange(number * self.batch_size, (number + 1) * self.batch_size)
            yield {
                "ids": draw_ids(self.spec, self.draw, rng, self.batch_size),
                "numerical": numericals[number % _NUMERICAL_SETS] if share_numericals else numericals.pop(),
                "labels": (rng.random(self.batch_size) < 1 / ADS_PER_DISPLAY).astype(np.float32),
                "mask": np.ones(self.batch_size, np.float32),
                "group_ids": rows // ADS_PER_DISPLAY,
            }


def draw_ids(spec: FeatureSpec, draw: IdDraw, rng: np.random.Generator, rows: int) -> np.ndarray:
    """Packed ids (rows, total hotness), -1 where absent."""
    cardinalities = sum(spec.features[name].cardinality for name in spec.categorical)
    ids = np.full((rows, spec.total_hotness), -1, id_type(cardinalities))
    column = 0
    for name in spec.categorical:
        feature = spec.features[name]
        hotness = feature.max_hotness
        if name in spec.multihot:
            flat, lengths = draw.id_lists(rng, feature, rows)
            ids[:, column : column + hotness][np.arange(hotness) < lengths[:, None]] = flat
        else:
            ids[:, column] = draw.ids(rng, feature.cardinality, rows)
        column += hotness
    return ids


def wide_deep(*, batch_size: int = 4096, shrink: int = 1, grow: int = 1, hidden_units: Sequence[int] = ()) -> Workload:
    """Wide & Deep with Outbrain's features, embedding dimensions, real optimizers and dropout 0.1.

    Args:
      batch_size: rows of a batch.
      shrink: tables, batches and layers are that many times smaller.
      grow: tables have that many times the rows.
      hidden_units: 5 layers of 1024 by default.
    """
    spec = outbrain_feature_spec()
    spec = _resized(spec, {name: spec.features[name].cardinality * grow // shrink for name in spec.categorical})
    batch = max(2 * ADS_PER_DISPLAY, batch_size // shrink)
    units = tuple(hidden_units) or (1024,) * 5
    return Workload(
        _config(
            {
                "model": "wide_deep",
                "global_batch_size": batch,
                "eval_batch_size": batch,
                "deep_hidden_units": tuple(max(8, size // shrink) for size in units),
                # A constant rate, as peers have: after a warm-up, here of no steps, it is a quarter of what is stated.
                **{"deep_warmup_steps": 0, "deep_decay_step": 2**30},
                "deep_learning_rate": 4 * TrainingConfig().deep_learning_rate,
            }
        ),
        spec,
    )


def dlrm_tiny(pooling: str, *, shrink: int = 1) -> Workload:
    """FAMBench's DLRM "tiny": eight tables of a million rows, up to 100 ids in each, batches of 64."""
    config = _config({"model": "dlrm", "preset": "tiny"})
    return _dlrm(config, pooling, shrink, config.data.synthetic_dataset_cardinalities)


def dlrm_criteo(*, table_bytes: int = 2 << 30, batch_size: int = 2048, shrink: int = 1) -> Workload:
    """DLRM of the preset "criteo", its largest tables cut so that all together take `table_bytes`."""
    config = _config(
        {
            **{"model": "dlrm", "preset": "criteo", "global_batch_size": batch_size, "eval_batch_size": batch_size},
            # A constant rate, as peers have.
            **{"learning_rate": 0.1, "warmup_steps": 0, "decay_steps": 0},
        }
    )
    rows = table_bytes // (4 * config.model.embedding_dim[0])
    cardinalities = config.data.synthetic_dataset_cardinalities
    return _dlrm(config, "any", shrink, _cut(cardinalities, rows))


def _dlrm(config: RunConfig, pooling: str, shrink: int, cardinalities: Sequence[int]) -> Workload:
    data, model, batch = config.data, config.model, max(2, config.training.global_batch_size // shrink)
    if shrink > 1:
        smaller = {
            "embedding_dim": (8,),
            "bottom_mlp_dims": (16, 8),
            "top_mlp_dims": (*(max(8, size // shrink) for size in model.top_mlp_dims[:-1]), 1),
            "global_batch_size": batch,
            "eval_batch_size": batch,
        }
        config = _config(config.flat() | smaller)
    spec = flat_spec(
        [max(2 * max(data.synthetic_dataset_hotness), rows // shrink) for rows in cardinalities]
        if shrink > 1
        else cardinalities,
        data.synthetic_dataset_hotness,
        data.synthetic_dataset_num_numerical_features,
    )
    exponent = data.synthetic_dataset_power_law_exponent
    return Workload(config, spec, IdDraw(DEFAULT_DRAW.exponent if exponent is None else exponent, pooling))


def _cut(cardinalities: Sequence[int], most_rows: int) -> tuple[int, ...]:
    """The same tables, the largest cut to one size, so that there are at most `most_rows` rows in all."""
    low, high = 1, max(cardinalities)
    while low < high:
        middle = (low + high + 1) // 2
        if sum(min(rows, middle) for rows in cardinalities) <= most_rows:
            low = middle
        else:
            high = middle - 1
    return tuple(min(rows, low) for rows in cardinalities)


def _resized(spec: FeatureSpec, cardinalities: dict[str, int]) -> FeatureSpec:
    features = {
        name: Feature(name, max(4, cardinalities[name]), feature.max_hotness) if name in cardinalities else feature
        for name, feature in spec.features.items()
    }
    return dataclasses.replace(spec, features=features)


def _config(settings: dict[str, Any]) -> RunConfig:
    return RunConfig.from_flat({**settings, "cpu": True})
