"""A training loop whose steps compute nothing, for the tests of when things happen in it."""

import math
import types

import numpy as np
import tensorflow as tf

from data.errors import InputError
from trainer.distributed import SingleProcess
from trainer.evaluate import Figures
from trainer.train import SignalledBatches, train
from trainer.writers import NullWriter

FIGURES = Figures(
    log_loss=0.3,
    normalized_entropy=0.9,
    calibration=1.1,
    auc=0.7,
    map_at_12=0.6,
    displays=5,
    displays_without_click=1,
    rows=20,
)


class Notes(NullWriter):
    """Keeps what is written."""

    def __init__(self):
        self.written = []
        self.steps = 0

    def write(self, step, values):
        self.written.append((step, dict(values)))

    def step_done(self):
        self.steps += 1


class Loop:
    """A training loop of steps that compute nothing, on a clock that only they, evaluations and saving move.

    stop_from: the first step before which this process has been asked to stop. losses: step (from 1) -> loss.
    others: step (from 1) -> signals of the other ranks. fails_at: the step whose batch cannot be read.
    ranks: how many there are; those that are not this one only show in `others`.
    """

    def __init__(self, *, stop_from=math.inf, losses=None, skipped=(), others=None, fails_at=None, ranks=1):
        self.ranks = ranks
        self.stop_from, self.losses, self.skipped = stop_from, losses or {}, skipped
        self.others, self.fails_at = others or {}, fails_at
        self.events, self.seen, self.now, self.writer = [], [], 0.0, Notes()
        self.step = 0

    def run(self, **settings):
        defaults = {"first_step": 0, "last_step": 10, "steps_per_epoch": 4}
        settings = defaults | {"log_every_steps": 100, "checkpoint_every_steps": None} | settings
        self.step = settings["first_step"]
        return train(
            comm=SingleProcess(size=self.ranks),
            train_step=self.train_step,
            batches=SignalledBatches(self),
            global_batch_size=6,
            evaluate=self.evaluate,
            save=lambda step: self.record("save", step),
            stop_requested=lambda: self.step >= self.stop_from,
            learning_rate_flags="--the_rate",
            describe_batch=lambda batch: f"labels {batch['labels'].numpy().tolist()}",
            writer=self.writer,
            clock=lambda: self.now,
            **settings,
        )

    dataset = types.SimpleNamespace(element_spec={"labels": tf.TensorSpec((3,), tf.float32)})

    def __iter__(self):
        while True:
            if self.step + 1 == self.fails_at:
                raise InputError("row 5 holds nonsense")
            yield {"labels": tf.ones((3,))}

    def train_step(self, batch, signals, step):
        if int(step) != self.step:
            raise AssertionError(f"step {int(step)} instead of {self.step}")
        self.step += 1
        self.seen.append((self.step, batch["labels"].numpy().tolist(), signals.numpy().tolist()))
        self.now += 2.0
        return {
            "loss": tf.constant(self.losses.get(self.step, 1.0 / self.step)),
            "signals": signals + np.array(self.others.get(self.step, (0, 0)), np.float32),
            "skipped": tf.constant(float(self.step in self.skipped)),
        }

    def evaluate(self):
        self.record("evaluate", self.step)
        return FIGURES

    def record(self, event, step):
        self.now += 100.0
        self.events.append((event, step))
