"""Small models of every kind, ours and in plain Keras with the same weights, and runs of a few steps."""

import keras
import numpy as np

from benchmarks.ootb import weights
from benchmarks.ootb.models import build_model, make_variables
from benchmarks.our_steps import OurSteps
from benchmarks.our_steps import weights as our_weights
from benchmarks.workloads import Workload
from data import synthetic
from data.feature_spec import Feature, FeatureSpec
from trainer.config import RunConfig
from trainer.runtime import Device, Surroundings

BATCH = 32
PLACE = Surroundings(Device(has_gpu=False, description="CPU, in a test"))
_DLRM = {
    "embedding_dim": (4,),
    "bottom_mlp_dims": (6, 4),
    "top_mlp_dims": (8, 5, 1),
    "learning_rate": 0.1,
    "warmup_steps": 0,
    "decay_steps": 0,
}
SETTINGS = {
    "wide_deep": {
        "model": "wide_deep",
        "deep_hidden_units": (8, 4),
        "deep_dropout": 0.0,
        "deep_learning_rate": 0.02,
        "deep_warmup_steps": 3,
        "deep_decay_step": 6,
    },
    "dlrm": {"model": "dlrm", **_DLRM},
    "dcnv2": {
        "model": "dcnv2",
        **_DLRM,
        "optimizer": "sgd",
        "num_cross_layers": 2,
        "cross_layer_projection_dim": 3,
        "embedding_dim": (4, 8, 4),
    },
}


def make_spec(numericals: int = 2) -> FeatureSpec:
    """Two features of one id, one of up to three, and numericals."""
    names = tuple(f"number_{i}" for i in range(numericals))
    features = [Feature("ad", 30), Feature("site", 7), Feature("topics", 20, 3), *map(Feature, names), Feature("click")]
    return FeatureSpec(
        {feature.name: feature for feature in features},
        onehot=("ad", "site"),
        multihot=("topics",),
        numerical=names,
        label="click",
    )


def make_workload(name: str, *, numericals: int = 2, **changes) -> Workload:
    """A model of SETTINGS with some of its settings changed."""
    settings = {
        **SETTINGS[name],
        "global_batch_size": BATCH,
        "eval_batch_size": BATCH,
        "cpu": True,
        **changes,
    }
    return Workload(RunConfig.from_flat(settings), make_spec(numericals))


def make_keras(workload: Workload) -> keras.Model:
    """The model in plain Keras, with initial weights."""
    model = build_model(workload.config, workload.spec)
    make_variables(model, workload.spec)
    return model


def make_pair(workload: Workload, *, training: bool = True) -> tuple[OurSteps, keras.Model]:
    """Ours and the one in plain Keras with the same initial weights."""
    ours, model = OurSteps(workload, training=training), make_keras(workload)
    weights.load(model, our_weights(ours.model), workload.spec)
    return ours, model


def make_dataset(folder, rows: int = 900) -> FeatureSpec:
    """Generated rows of the small specification on disk."""
    return synthetic.generate(str(folder), rows=rows, seed=3, spec=make_spec(), rows_per_group=64)


def run_config(name: str, dataset, folder, **changes) -> RunConfig:
    """A benchmark of 6 steps, 2 of them warm-up, on a dataset of `make_dataset`."""
    settings = {
        **SETTINGS[name],
        "dataset_path": str(dataset),
        "results_dir": str(folder / "results"),
        "model_dir": str(folder / "checkpoints"),
        "global_batch_size": BATCH,
        "eval_batch_size": BATCH,
        "cpu": True,
        "benchmark": True,
        "benchmark_steps": 6,
        "benchmark_warmup_steps": 2,
        **changes,
    }
    return RunConfig.from_flat(settings, frozenset(settings))


def random_like(array: np.ndarray, seed: int) -> np.ndarray:
    """Values to see a difference by."""
    return np.random.default_rng(seed).normal(size=array.shape).astype(np.float32)
