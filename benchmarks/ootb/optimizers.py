"""Keras's optimizers and learning rates as a configuration asks for them.

Where they differ from our own: Adam moves every weight of a table at every step. And Keras gives its optimizers the
gradient of an Embedding as a list of rows in which an id that occurs several times stands several times. SGD sums them.
Adagrad, RMSprop, Adam and FTRL take the sum of the squares where the square of the sum belongs; in the loop of several
ranks (benchmarks.ootb.loop), where gradients are whole tables, they do not.
"""

from collections.abc import Callable

import keras

from benchmarks.ootb.models import WideDeep
from trainer.config import RunConfig
from trainer.schedules import default_decay_step, warmup_then_polynomial_decay, warmup_then_steps_down


class Rate(keras.optimizers.schedules.LearningRateSchedule):
    """A learning rate that is a function of the number of updates before."""

    def __init__(self, function: Callable):
        super().__init__()
        self._function = function

    def __call__(self, step):
        return self._function(step)


def make_optimizer(config: RunConfig, model: keras.Model, steps_per_epoch: int) -> keras.optimizers.Optimizer:
    """The optimizer of a model; for Wide & Deep, FTRL on the wide part and RMSprop on the deep one.

    Args:
      config: which one, and its rates.
      model: what it is for.
      steps_per_epoch: turns epochs of the schedule into steps.
    """
    training, factor = config.training, config.learning_rate_factor()
    if isinstance(model, WideDeep):
        return _wide_and_deep(config, model, steps_per_epoch)
    rate = Rate(
        lambda step: warmup_then_polynomial_decay(
            training.learning_rate * factor,
            warmup_steps=training.warmup_steps,
            decay_start_step=training.decay_start_step,
            decay_steps=training.decay_steps,
            step=step,
        )
    )
    make = {
        "sgd": keras.optimizers.SGD,
        "adagrad": keras.optimizers.Adagrad,
        "rmsprop": keras.optimizers.RMSprop,
        "adam": keras.optimizers.Adam,
    }
    return make[training.optimizer](rate)


def _wide_and_deep(config: RunConfig, model: WideDeep, steps_per_epoch: int) -> keras.optimizers.Optimizer:
    training, factor = config.training, config.learning_rate_factor()
    warmup, decay = training.deep_warmup_steps, training.deep_decay_step
    if warmup is None:
        warmup = round(training.deep_warmup_epochs * steps_per_epoch)
    if decay is None:
        decay = default_decay_step(warmup, training.num_epochs * steps_per_epoch)
    deep_rate = Rate(
        lambda step: warmup_then_steps_down(
            training.deep_learning_rate * factor, warmup_steps=warmup, decay_step=decay, step=step
        )
    )
    deep = keras.optimizers.RMSprop(deep_rate, rho=0.5)
    wide = keras.optimizers.Ftrl(training.linear_learning_rate * factor)
    of_wide = {id(variable) for variable in model.wide_variables()}
    return keras.optimizers.MultiOptimizer(lambda variable: wide if id(variable) in of_wide else deep)
