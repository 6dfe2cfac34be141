"""What figures of several runs say: their spread, and whether two settings differ or are as good as equal.

That a difference is not shown does not show that there is none, which the p-value of a Kolmogorov-Smirnov test is often
taken for. Two one-sided tests (Schuirmann 1987) show it: the difference of means is above -margin, and below +margin.
"""

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from scipy import stats

from benchmarks.report.statistics import PAIRS_AT_LEAST

EQUIVALENT = "equivalent"
DIFFERENT = "different"
WITHIN = "different but within the margin"
UNDECIDED = "undecided"
VERDICTS = (EQUIVALENT, WITHIN, DIFFERENT, UNDECIDED)

PAIRED, WELCH = "paired", "Welch"


@dataclasses.dataclass(frozen=True)
class Spread:
    """Of the figures of some runs. std: of the sample (n - 1); None of one run."""

    runs: int
    mean: float
    std: float | None
    lowest: float
    highest: float


@dataclasses.dataclass(frozen=True)
class Ks:
    """Two-sample Kolmogorov-Smirnov test, two-sided.

    Attributes:
      statistic: largest distance of the two distribution functions, 0 to 1.
      p_value: of such a distance or a larger one, were both samples of one distribution.
    """

    statistic: float
    p_value: float


@dataclasses.dataclass(frozen=True)
class Difference:
    """Of two settings' means, the second's less the first's.

    Attributes:
      method: PAIRED (a t-test of the differences of runs with the same seed) or WELCH.
      runs: that each side has; of pairs, their number twice.
      difference: of the means.
      low, high: ends of the interval that lies within the margin just where both one-sided tests reject: at confidence
        0.95 that of 90 %. None where a side has fewer than two runs, and so are the next two.
      p_different: of the two-sided test that the means are equal.
      p_equivalent: the larger one of the two one-sided tests.
      margin: differences below it are of no account.
      confidence: 1 less the level of all tests.
    """

    method: str
    runs: tuple[int, int]
    difference: float
    low: float | None
    high: float | None
    p_different: float | None
    p_equivalent: float | None
    margin: float
    confidence: float

    @property
    def verdict(self) -> str:
        """One of VERDICTS."""
        if self.p_different is None or self.p_equivalent is None:
            return UNDECIDED
        level = 1 - self.confidence
        differs, is_equivalent = self.p_different < level, self.p_equivalent < level
        if differs:
            return WITHIN if is_equivalent else DIFFERENT
        return EQUIVALENT if is_equivalent else UNDECIDED


def spread(values: Sequence[float]) -> Spread | None:
    """None of no values.

    Raises:
      ValueError: a value is not finite.
    """
    if not values:
        return None
    _check(values)
    std = statistics.stdev(values) if len(values) > 1 else None
    return Spread(len(values), statistics.fmean(values), std, min(values), max(values))


def interval(values: Sequence[float], confidence: float) -> tuple[float, float] | None:
    """Both ends of Student's interval of the mean; None of fewer than two values.

    Raises:
      ValueError: a value is not finite.
    """
    if len(values) < 2:
        return None
    _check(values)
    half = float(stats.t.ppf((1 + confidence) / 2, len(values) - 1)) * _of_mean(values)
    return statistics.fmean(values) - half, statistics.fmean(values) + half


def ks(first: Sequence[float], second: Sequence[float]) -> Ks | None:
    """The Kolmogorov-Smirnov test; None where a side has no value.

    Raises:
      ValueError: a value is not finite.
    """
    if not first or not second:
        return None
    _check(first)
    _check(second)
    found = stats.ks_2samp(first, second)
    return Ks(float(found.statistic), float(found.pvalue))


def compare(
    first: Mapping[Any, float], second: Mapping[Any, float], *, margin: float, confidence: float
) -> Difference | None:
    """Tests of the second's mean against the first's; None where a side has no value.

    They are paired where at least PAIRS_AT_LEAST seeds are on both sides: runs of one seed begin with the same weights
    and see the same batches, so that what the seed does is taken out. Seeds of one side alone are left out then.

    Args:
      first, second: seed, or what else makes pairs, -> figure.
      margin: above 0, in the figures' unit.
      confidence: 0 to 1.

    Raises:
      ValueError: a value is not finite.
    """
    if not first or not second:
        return None
    _check(tuple(first.values()))
    _check(tuple(second.values()))
    common = sorted(first.keys() & second.keys())
    if len(common) >= PAIRS_AT_LEAST:
        differences = [second[seed] - first[seed] for seed in common]
        method, runs, difference = PAIRED, (len(common), len(common)), statistics.fmean(differences)
        error, freedom = _of_mean(differences), len(differences) - 1.0
    else:
        sides = tuple(first.values()), tuple(second.values())
        method, runs = WELCH, (len(sides[0]), len(sides[1]))
        difference = statistics.fmean(sides[1]) - statistics.fmean(sides[0])
        if min(runs) < 2:
            return Difference(method, runs, difference, None, None, None, None, margin, confidence)
        errors = [_of_mean(side) for side in sides]
        error = math.hypot(*errors)
        # Satterthwaite's degrees of freedom; any will do where nothing varies.
        parts = sum(one**4 / (count - 1) for one, count in zip(errors, runs, strict=True))
        freedom = error**4 / parts if parts else 1.0
    half = float(stats.t.ppf(confidence, freedom)) * error
    return Difference(
        method,
        runs,
        difference,
        difference - half,
        difference + half,
        p_different=min(1.0, 2 * _above(abs(difference), error, freedom)),
        p_equivalent=max(_above(difference + margin, error, freedom), _above(margin - difference, error, freedom)),
        margin=margin,
        confidence=confidence,
    )


def _above(distance: float, error: float, freedom: float) -> float:
    """Chance of a distance like this or a larger one, were the true one 0. Without any spread it is 0 or 1."""
    if error == 0:
        return 0.0 if distance > 0 else 1.0
    return float(stats.t.sf(distance / error, freedom))


def _of_mean(values: Sequence[float]) -> float:
    """Standard error of the mean."""
    return math.sqrt(statistics.variance(values) / len(values))


def _check(values: Sequence[float]) -> None:
    wrong = [value for value in values if not math.isfinite(value)]
    if wrong:
        raise ValueError(f"figures of runs must be finite, got {wrong[0]}")
