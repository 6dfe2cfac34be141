"""The batches of our own input pipeline as the models in plain Keras take them."""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from data.feature_spec import FeatureSpec
from data.input_pipeline import BatchStream


def model_inputs(spec: FeatureSpec, batch: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs of a batch of numpy arrays or tensors.

    Returns:
      ids: feature -> (rows, hotness), one more than in the data, so that absent ones are 0.
      numerical: (rows, numerical features).
    """
    ids, column = {}, 0
    for name in spec.categorical:
        hotness = spec.features[name].max_hotness
        ids[name] = batch["ids"][:, column : column + hotness] + 1
        column += hotness
    return {"ids": ids, "numerical": batch["numerical"]}


def training_dataset(stream: BatchStream, spec: FeatureSpec) -> tf.data.Dataset:
    """Batches of (inputs, labels (rows, 1)), without end."""

    def split(batch):
        return model_inputs(spec, batch), batch["labels"][:, None]

    return stream.dataset.map(split).prefetch(tf.data.AUTOTUNE)


def scoring_dataset(stream: BatchStream, spec: FeatureSpec) -> tf.data.Dataset:
    """Batches of inputs alone, those rows included that only fill up a batch."""
    return stream.dataset.map(lambda batch: model_inputs(spec, batch)).prefetch(tf.data.AUTOTUNE)
