"""Signals of the planted teacher: the numbers of mean 0 and variance 1 that it reads off a generated row.

Ids act by fixed random effects. Where the power law is uneven enough, each of the most frequent ids has an effect of
its own and all others have none: they are too rare for a million rows to teach theirs. Where ids are more alike, as
with an exponent of 0, those few would be in hardly any row. Then every id has an effect, which it shares with the ids
of its class: stretches of ranks that hold about equal shares of the draws, scattered over the table as ranks are.
"""

import dataclasses
import hashlib

import numpy as np

from data import power_law
from data.displays import IdLists
from data.feature_spec import Feature
from data.id_draw import ANY, IdDraw

# Ids that have effects of their own, or classes of ids.
_HEAD = 16
# With a default exponent the head has more than a quarter of all draws, whatever the cardinality.
_LEAST_HEAD_SHARE = 0.2
_LARGEST_GATE = 256
# That many ids make up at least 0.42 of the draws with a default exponent.
_LEAST_GATE_SHARE = 0.4
# An id that is nearly always the same, or lists that are nearly equal, would need huge effects in a few rows.
_MOST_OF_ONE_ID = 0.95
_LEAST_LIST_SPREAD = 0.2


@dataclasses.dataclass(frozen=True)
class Signal:
    """A number of a row, of mean 0 (a gate's is only near 0) and variance 1 over generated rows.

    Attributes:
      kind: "numerical" x, "square" (x^2 - 1) / sqrt 2, "id" the effect of an
        id, "list" the sum of the effects of ids.
      feature: the column.
      effects: for ids, the effect of each class of ranks, the most frequent first.
      bounds: the first ranks of all classes but the first, increasing.
    """

    kind: str
    feature: Feature
    effects: np.ndarray | None = None
    bounds: np.ndarray | None = None

    def values(self, column: np.ndarray | IdLists) -> np.ndarray:
        """(rows,) float64 from the column as `data.displays.Displays` holds it."""
        if self.kind == "numerical":
            return column.astype(np.float64)
        if self.kind == "square":
            return (column.astype(np.float64) ** 2 - 1.0) / np.sqrt(2.0)
        if self.kind == "id":
            return self.effects_of(column)
        rows = np.repeat(np.arange(len(column.lengths)), column.lengths)
        return np.bincount(rows, weights=self.effects_of(column.ids), minlength=len(column.lengths))

    def effects_of(self, ids: np.ndarray) -> np.ndarray:
        """The effect of each id, float64."""
        ranks = power_law.id_to_rank(ids, self.feature.cardinality)
        return self.effects[np.searchsorted(self.bounds, ranks, side="right")]


def tells_ids_apart(feature: Feature, draw: IdDraw) -> bool:
    """Whether single ids of a feature vary enough to have effects."""
    if feature.cardinality == 1:
        return False
    return bool(power_law.probabilities(1, feature.cardinality, draw.exponent)[0] <= _MOST_OF_ONE_ID)


def id_signal(feature: Feature, draw: IdDraw) -> Signal:
    """The effect of a one-hot id."""
    return Signal("id", feature, *_normal_effects(feature, draw))


def list_signal(feature: Feature, draw: IdDraw, sample: IdLists) -> Signal | None:
    """The sum of the effects of a row's ids, or None where rows hold too much of the same for such a signal.

    Args:
      sample: generated rows. Without repeats, how often a row holds an id has no closed form; so mean and variance are
        made 0 and 1 over these rows.
    """
    if draw.pooling == ANY:
        effects, bounds = _normal_effects(feature, draw)
        # A sum of half of max_hotness independent effects on average.
        return Signal("list", feature, effects / np.sqrt(feature.max_hotness / 2.0), bounds)
    bounds, _ = _classes(feature, draw)
    signal = Signal("list", feature, _standard_normal(feature, len(bounds) + 1), bounds)
    centred = dataclasses.replace(signal, effects=signal.effects - signal.effects_of(sample.ids).mean())
    spread = centred.values(sample).std()
    return dataclasses.replace(centred, effects=centred.effects / spread) if spread >= _LEAST_LIST_SPREAD else None


def gate_signal(feature: Feature, draw: IdDraw) -> Signal:
    """-1 for the most frequent ids that make up about half of the rows, 1 for all others.

    The signs nearly cancel, else the gated signal would have a linear part, and they never vanish, so that the utility
    is spread alike under every id.
    """
    ranks = np.arange(1, min(_LARGEST_GATE, feature.cardinality) + 1)
    shares = power_law.cumulative(ranks, feature.cardinality, draw.exponent)
    if shares[-1] >= _LEAST_GATE_SHARE:
        negative = 1 + int(np.argmin(np.abs(shares - 0.5)))
    else:
        negative = int(power_law.ranks_at(0.5, feature.cardinality, draw.exponent))
    return Signal("id", feature, np.array([-1.0, 1.0]), np.array([negative]))


def _normal_effects(feature: Feature, draw: IdDraw) -> tuple[np.ndarray, np.ndarray]:
    """Effects of mean 0 and variance 1 over single draws, and the bounds of their classes."""
    bounds, probability = _classes(feature, draw)
    effects = _standard_normal(feature, len(probability))
    effects -= effects @ probability / probability.sum()
    effects /= np.sqrt(effects**2 @ probability)
    return np.append(effects, np.zeros(len(bounds) + 1 - len(effects))), bounds


def _classes(feature: Feature, draw: IdDraw) -> tuple[np.ndarray, np.ndarray]:
    """The bounds of the classes of ranks, and the probabilities of those that have an effect: all but rare ids."""
    head = min(_HEAD, feature.cardinality)
    probability = power_law.probabilities(head, feature.cardinality, draw.exponent)
    if probability.sum() >= _LEAST_HEAD_SHARE:
        return np.arange(1, head + 1), probability
    bounds = power_law.ranks_at(np.arange(1, _HEAD) / _HEAD, feature.cardinality, draw.exponent)
    bounds = np.unique(bounds[bounds > 0])
    ends = np.concatenate([[0], bounds, [feature.cardinality]])
    return bounds, np.diff(power_law.cumulative(ends, feature.cardinality, draw.exponent))


def _standard_normal(feature: Feature, size: int) -> np.ndarray:
    seed = int.from_bytes(hashlib.sha256(feature.name.encode()).digest()[:8], "little")
    return np.random.default_rng(seed).standard_normal(size)
