"""The planted teacher: the utility by which generated displays choose their click, and what it scores.

An ad's utility is a sum of products of signals: numericals, their squares, and effects of frequent ids. A display
clicks one of its ads with the probabilities softmax(utility), the choice model of multinomial logit. Anything that is
equal for all ads of a display cancels there, so columns of the page act only by turning the sign of another signal.

The ads of a display are independent of each other and of the page, and their utility is spread alike on every page.
So P(click | row) rises with the row's utility alone: no model that sees one row at a time can rank better than the
utility, nor have a lower expected log loss than `Teacher.click_probability`.

The teacher is a function of the specification: datasets of any seed and size are draws from the same world.
"""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from data.displays import Displays, IdLists, page_features, parent_feature
from data.feature_spec import Feature, FeatureSpec
from data.id_draw import ANY, DEFAULT_DRAW, IdDraw
from data.teacher_signals import Signal, gate_signal, id_signal, list_signal, tells_ids_apart

TARGET_AUC = 0.775

_MOST_ID_EFFECTS = 4
_MOST_LIST_EFFECTS = 3

# Shares of the utility's variance. Where a specification offers no term of a kind, the others of its group take over.
_LINEAR_SHARE = {"numericals": 0.18, "ids": 0.14, "lists": 0.06}
_NONLINEAR_SHARE = {"gates": 0.45, "products": 0.05, "squares": 0.12}
_GATE_WEIGHTS = (0.32, 0.32, 0.32, 0.04)  # three signals under the first gate, one under the second

_KNOTS = 129


@dataclasses.dataclass(frozen=True)
class Term:
    """weight x the product of the factors."""

    weight: float
    factors: tuple[Signal, ...]


@dataclasses.dataclass(frozen=True)
class Teacher:
    """A calibrated teacher.

    Attributes:
      terms: the utility before `scale`; none if no feature can tell ads apart, and then it is 0.
      scale: factor that brings the utility's AUC to TARGET_AUC.
      knots: increasing utilities, (n,), and `knot_probabilities`: P(click | utility) there.
    """

    terms: tuple[Term, ...]
    scale: float
    knots: np.ndarray
    knot_probabilities: np.ndarray

    def utility(self, columns: Mapping[str, np.ndarray | IdLists]) -> np.ndarray:
        """Utility of each row, (rows,) float64."""
        return self.scale * _sum_terms(self.terms, columns)

    def click_probability(self, utility: np.ndarray) -> np.ndarray:
        """P(click | utility) of a row whose display is not known, (rows,)."""
        return np.interp(utility, self.knots, self.knot_probabilities)


def draw_clicks(utility: np.ndarray, displays: Displays, rng: np.random.Generator) -> np.ndarray:
    """One click per display with probabilities softmax(utility), (rows,) int8 (the Gumbel-max method)."""
    noisy = displays.padded(utility + rng.gumbel(size=len(utility)), -np.inf)
    clicks = np.zeros(len(utility), dtype=np.int8)
    clicks[displays.starts + noisy.argmax(axis=1)] = 1
    return clicks


def plant(spec: FeatureSpec, sample: Displays, draw: IdDraw = DEFAULT_DRAW) -> Teacher:
    """The teacher of `spec`, with scale and click probabilities found on `sample`, thousands of rows by `draw`."""
    terms = _plan(spec, sample, draw)
    raw = _sum_terms(terms, sample.columns)
    scale = _find_scale(raw, sample)
    utility = scale * raw
    exponent = np.exp(utility)
    rivals = np.repeat(np.add.reduceat(exponent, sample.starts), sample.sizes) - exponent
    knots = np.unique(np.quantile(utility, np.linspace(0.0, 1.0, _KNOTS)))
    probabilities = [float(np.mean(1.0 / (1.0 + rivals * np.exp(-knot)))) for knot in knots]
    return Teacher(terms, scale, knots, np.array(probabilities))


def roc_auc(scores: np.ndarray, positives: np.ndarray) -> float:
    """Area under the ROC curve where row i counts `positives[i]` in 0..1 as positive and the rest as negative.

    With 0 and 1, the usual AUC; ties count one half. NaN if one class is missing.
    """
    return _grouped_auc(np.unique(scores, return_inverse=True)[1], positives)


def _grouped_auc(group: np.ndarray, positives: np.ndarray) -> float:
    """AUC where the scores are replaced by their place 0, 1, ... among the distinct ones."""
    positive = np.bincount(group, weights=positives)
    negative = np.bincount(group) - positive
    below = np.cumsum(negative) - negative
    pairs = positive.sum() * negative.sum()
    return float(np.sum(positive * (below + 0.5 * negative)) / pairs) if pairs > 0 else float("nan")


def _sum_terms(terms: Sequence[Term], columns: Mapping[str, np.ndarray | IdLists]) -> np.ndarray:
    total = 0.0
    for term in terms:
        product = term.weight
        for factor in term.factors:
            product = product * factor.values(columns[factor.feature.name])
        total = total + product
    if not terms:
        column = next(iter(columns.values()))
        return np.zeros(len(column.lengths if isinstance(column, IdLists) else column))
    return total


def _find_scale(raw: np.ndarray, sample: Displays) -> float:
    """The scale at which the expected AUC is TARGET_AUC, or the nearest of the range searched; 1 without signal."""
    if np.ptp(raw) == 0.0:
        return 1.0
    group = np.unique(raw, return_inverse=True)[1]
    low, high = 0.0, 8.0
    for _ in range(14):
        middle = 0.5 * (low + high)
        utility = middle * raw
        exponent = np.exp(utility - np.repeat(np.maximum.reduceat(utility, sample.starts), sample.sizes))
        probability = exponent / np.repeat(np.add.reduceat(exponent, sample.starts), sample.sizes)
        if _grouped_auc(group, probability) < TARGET_AUC:
            low = middle
        else:
            high = middle
    return middle


def _plan(spec: FeatureSpec, sample: Displays, draw: IdDraw) -> tuple[Term, ...]:
    page = page_features(spec)

    def describe(names: Sequence[str]) -> list[Feature]:
        return [spec.features[name] for name in names]

    def smallest(names: Sequence[str]) -> list[Feature]:
        return sorted(describe(names), key=lambda feature: feature.cardinality)

    def single(names: Sequence[str]) -> list[Feature]:
        return [feature for feature in smallest(names) if tells_ids_apart(feature, draw)]

    roots = [name for name in spec.onehot if parent_feature(spec, name) is None]
    ids = [id_signal(f, draw) for f in single([name for name in roots if name not in page])[:_MOST_ID_EFFECTS]]
    lists = _list_signals(smallest([name for name in spec.multihot if name not in page]), sample, draw)
    gates = [gate_signal(f, draw) for f in single(roots)[:2]]
    numericals = [Signal("numerical", f) for f in describe([name for name in spec.numerical if name not in page])]

    # Disjoint where there are enough: a numerical in two terms would make the utility's spread depend on the page.
    turn = itertools.cycle(numericals or [*ids, *lists] or [None])
    linear = {
        "numericals": [(signal,) for signal in itertools.islice(turn, min(3, len(numericals)))],
        "ids": [(signal,) for signal in ids],
        "lists": [(signal,) for signal in lists],
    }
    gated = list(zip([gates[0]] * 3 + gates[-1:], itertools.islice(turn, 4), strict=True)) if gates else []
    pairs = list(zip(itertools.islice(turn, 2), itertools.islice(turn, 2), strict=True))
    nonlinear = {
        "gates": gated,
        "products": pairs,
        "squares": [(Signal("square", next(turn).feature),)] if numericals else [],
    }
    weights = {"gates": _GATE_WEIGHTS}
    terms: list[Term] = []
    for shares, families in ((_LINEAR_SHARE, linear), (_NONLINEAR_SHARE, nonlinear)):
        usable = {name: _distinct(family, weights.get(name)) for name, family in families.items()}
        present = sum(shares[name] for name, family in usable.items() if family)
        for name, family in usable.items():
            whole = sum(weight for weight, _ in family)
            for weight, factors in family:
                variance = sum(shares.values()) * shares[name] / present * weight / whole
                terms.append(Term(float(np.sqrt(variance)), factors))
    return tuple(terms)


def _distinct(
    family: Sequence[tuple[Signal | None, ...]], weights: Sequence[float] | None
) -> list[tuple[float, tuple[Signal, ...]]]:
    """(weight, factors) of a family, without products of a feature with itself or with nothing."""
    return [
        (weight, factors)
        for weight, factors in zip(weights or itertools.repeat(1.0), family, strict=False)
        if None not in factors and len({factor.feature.name for factor in factors}) == len(factors)
    ]


def _list_signals(features: Sequence[Feature], sample: Displays, draw: IdDraw) -> list[Signal]:
    # Where ids of a row differ, rows vary even if all draws but a few give one id.
    features = [feature for feature in features if draw.pooling != ANY or tells_ids_apart(feature, draw)]
    made = (list_signal(feature, draw, sample.columns[feature.name]) for feature in features)
    return list(itertools.islice(filter(None, made), _MOST_LIST_EFFECTS))
