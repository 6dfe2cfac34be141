"""Ends training where the loss is not finite, and says what of the data may be the reason."""

import collections
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tensorflow as tf

from data.errors import InputError
from trainer.state import INITIAL_LOSS_SCALE

# So many steps in a row bring the loss scale from its first value down to 1. A loss that is not finite after that is
# none of the scale's doing, and skipping steps for ever would only look like training.
MOST_SKIPPED_STEPS = int(math.log2(INITIAL_LOSS_SCALE)) + 5

_MOST_COLUMNS = 3  # of those whose values are finite: the message is one line


class LossWatch:
    """Ends training where the loss is not finite, and says what the batches hold that may be the reason."""

    def __init__(self, learning_rate_flags: str, describe_batch: Callable[[Mapping[str, tf.Tensor]], str]):
        self._learning_rate_flags = learning_rate_flags
        self._describe_batch = describe_batch
        # A loss may be read one step late, and an extreme row may spoil the weights for the step after its own.
        self._batches: collections.deque[tuple[int, Mapping[str, tf.Tensor]]] = collections.deque(maxlen=3)
        self._checked_step: int | None = None
        self._skipped_steps = 0

    def saw(self, step: int, batch: Mapping[str, tf.Tensor]) -> None:
        """Keeps the batch of a step."""
        self._batches.append((step, batch))

    def check(self, step: int, out: Mapping[str, tf.Tensor]) -> float:
        """The loss of a step, which may have been asked for before.

        Raises:
          InputError: it is not finite, and no skipped step that loss scaling may mend.
        """
        loss = float(out["loss"])
        if step == self._checked_step:
            return loss
        self._checked_step = step
        if math.isfinite(loss):
            self._skipped_steps = 0
            return loss
        if float(out["skipped"]):
            self._skipped_steps += 1
            if self._skipped_steps <= MOST_SKIPPED_STEPS:
                return loss
        in_a_row = f", like those of the {self._skipped_steps - 1} steps before it" if self._skipped_steps > 1 else ""
        rows = "; ".join(
            f"this rank's rows of step {number}: {self._describe_batch(batch)}"
            for number, batch in self._batches
            if step - 1 <= number <= step
        )
        raise InputError(
            f"the loss of step {step} is {loss}{in_a_row}: lower {self._learning_rate_flags}, or look for extreme "
            f"numerical features in the data; {rows}"
        )


def describe_batch(batch: Mapping[str, tf.Tensor], numerical: Sequence[str]) -> str:
    """The numerical features of a batch that are remarkable, and the range of its ids, as one line.

    Features with values that are not finite come first, then those with the largest magnitudes, three at most.
    Minimum, maximum and mean are of the finite values.

    Args:
      batch: `numerical` (rows, n) and `ids` (rows, hotness), -1 for an absent one.
      numerical: the n features' names.
    """
    values, ids = np.asarray(batch["numerical"]), np.asarray(batch["ids"])
    finite = np.isfinite(values)
    bad = (~finite).sum(axis=0)
    largest = np.max(np.abs(values), axis=0, initial=0.0, where=finite)
    order = sorted(range(len(numerical)), key=lambda column: (-int(bad[column]), -float(largest[column]), column))
    shown = [column for column in order if bad[column]]
    shown += [column for column in order if not bad[column]][:_MOST_COLUMNS]
    parts = [_describe_column(numerical[column], values[:, column]) for column in shown]
    present = ids[ids >= 0]
    parts.append(f"ids {present.min()} to {present.max()}" if present.size else "no ids")
    return ", ".join(parts)


def _describe_column(name: str, column: np.ndarray) -> str:
    good = column[np.isfinite(column)].astype(np.float64)
    figures = f"min {good.min():.4g} max {good.max():.4g} mean {good.mean():.4g}" if good.size else "nothing finite"
    return f"'{name}' {figures} ({len(column) - len(good)} not finite)"
