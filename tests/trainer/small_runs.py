"""A dataset of a few hundred rows and whole runs on it in this process, for the tests of what a run does."""

import contextlib
import json

import keras
import numpy as np
import tensorflow as tf

from data import synthetic
from data.feature_spec import Feature, FeatureSpec
from trainer import assembly, experiment, steps
from trainer.config import RunConfig
from trainer.distributed import SingleProcess
from trainer.runtime import Device, Surroundings

ROWS = 700
BATCH = 64
# Of ROWS rows drawn with seed 1. Displays stay whole, so the shares are not round.
TRAIN_ROWS, EVAL_ROWS = 567, 133
STEPS_PER_EPOCH = TRAIN_ROWS // BATCH
PLACE = Surroundings(Device(has_gpu=False, description="CPU, in a test"))


def small_spec():
    features = [
        Feature("clicked"),
        Feature("display_id"),
        Feature("site", 7),
        Feature("ad", 40),
        Feature("topics", 12, 3),
        Feature("ctr"),
        Feature("age"),
    ]
    return FeatureSpec(
        {feature.name: feature for feature in features},
        onehot=("site", "ad"),
        multihot=("topics",),
        numerical=("ctr", "age"),
        label="clicked",
        display="display_id",
    )


def make_dataset(folder, *, seed=1, rows=ROWS):
    """Writes generated data in many row groups, and embedding sizes as sizes.json; returns the specification."""
    spec = synthetic.generate(str(folder), rows=rows, seed=seed, spec=small_spec(), rows_per_group=16)
    (folder / "sizes.json").write_text(json.dumps({"site": 4, "ad": 4, "topics": 4}))
    return spec


def configure(dataset, folder, **settings):
    """The configuration of a small run that writes below `folder`; every setting counts as given."""
    small = {
        "dataset_path": str(dataset),
        "embedding_sizes_file": f"{dataset}/sizes.json",
        "model_dir": f"{folder}/checkpoints",
        "results_dir": f"{folder}/results",
        "global_batch_size": BATCH,
        "eval_batch_size": 50,
        "num_epochs": 2,
        "deep_hidden_units": (6,),
        "deep_warmup_epochs": 0.5,
        "deep_learning_rate": 0.01,
        "log_every_steps": 1,
    } | settings
    return RunConfig.from_flat(small, frozenset(small))


def open_experiment(config, *, comm=None, place=PLACE):
    """The experiment under the precision policy that trainer.runtime would have set."""
    keras.mixed_precision.set_global_policy(config.device.precision)
    return experiment.Experiment.open(config, comm or SingleProcess(), place)


def log_lines(config, kind="LOG"):
    """The lines of a run's DLLogger log, as (step, data) for LOG and as objects for METADATA."""
    with open(f"{config.output.results_dir}/{config.output.log_filename}", encoding="utf-8") as file:
        lines = [line.split(" ", 1) for line in file]
    if {prefix for prefix, _ in lines} != {"DLLL"}:
        raise ValueError("a line does not begin with DLLL")
    found = [json.loads(text) for _, text in lines]
    if kind == "LOG":
        return [(line["step"], line["data"]) for line in found if line["type"] == "LOG"]
    return [line for line in found if line["type"] == kind]


def losses(config):
    """Step -> training loss as logged."""
    return {step: data["loss"] for step, data in log_lines(config) if isinstance(step, int) and "loss" in data}


class Watched:
    """What runs made while it was installed: states, and the arguments of every training step that was made."""

    def __init__(self):
        self.states = []
        self.step_arguments = []
        self.train_steps = []
        self.eval_arguments = []
        self.before_step = lambda step: None

    @property
    def state(self):
        return self.states[-1]


@contextlib.contextmanager
def watching(monkeypatch):
    """Records the states and steps that runs make; the runs are the real ones."""
    watched = Watched()
    real_state, real_train, real_eval = assembly.TrainState, steps.make_train_step, steps.make_eval_step

    def new_state(*args, **kwargs):
        watched.states.append(real_state(*args, **kwargs))
        return watched.states[-1]

    def make_train_step(state, **arguments):
        watched.step_arguments.append(arguments)
        compiled = real_train(state, **arguments)
        watched.train_steps.append(compiled)

        def train_step(batch, signals, step):
            watched.before_step(int(step))
            return compiled(batch, signals, step)

        return train_step

    def make_eval_step(model, **arguments):
        watched.eval_arguments.append((model, arguments))
        return real_eval(model, **arguments)

    with monkeypatch.context() as patch:
        patch.setattr(assembly, "TrainState", new_state)
        patch.setattr(assembly, "make_train_step", make_train_step)
        patch.setattr(experiment, "make_eval_step", make_eval_step)
        yield watched


class IdleSteps(Watched):
    """Steps that compute nothing, but keep the batches that they were given."""

    def __init__(self):
        super().__init__()
        self.batches = []
        self.eval_batches = []

    def make_train_step(self, state, **arguments):
        self.states.append(state)
        self.step_arguments.append(arguments)

        def train_step(batch, signals, step):
            self.before_step(int(step))
            self.batches.append({name: tensor.numpy() for name, tensor in batch.items()})
            state.applied_steps.assign_add(1)
            return {
                "loss": tf.constant(0.5),
                "signals": tf.constant(signals),
                "skipped": tf.zeros(()),
                "wire_bytes": tf.constant(0, tf.int64),
                "alltoall_bytes": tf.constant(0, tf.int64),
            }

        return train_step

    def make_eval_step(self, model, **arguments):
        self.eval_arguments.append((model, arguments))

        def eval_step(batch):
            self.eval_batches.append({name: tensor.numpy() for name, tensor in batch.items()})
            return batch["numerical"][:, 0]

        return eval_step


@contextlib.contextmanager
def idling(monkeypatch):
    """Runs go through everything but the model's own computation, which is slow to trace."""
    idle = IdleSteps()
    with monkeypatch.context() as patch:
        patch.setattr(assembly, "make_train_step", idle.make_train_step)
        patch.setattr(experiment, "make_eval_step", idle.make_eval_step)
        yield idle


def rows_of(batches):
    """The rows of batches as one sorted list of tuples: which rows they are, whatever their order."""
    rows = []
    for batch in batches:
        columns = np.concatenate([batch["ids"], batch["numerical"], batch["labels"][:, None]], axis=1)
        rows += [tuple(row) for row in columns.tolist()]
    return sorted(rows)
