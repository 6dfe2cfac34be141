"""What repeats of a score say: an interval for it, their spread, and an interval for the ratio of two.

Only repeats count, each of them a process of its own: steps within a process share its memory layout, its threads and
the state that the machine was in, so that an interval from them would be too narrow. All intervals are of logarithms,
since what disturbs a speed multiplies it, and an interval of a speed or of a ratio must not reach below 0.
"""

import dataclasses
import math
import statistics
from collections.abc import Sequence

from scipy.special import stdtrit

CONFIDENCE = 0.95

NOISY_SPREAD = 0.10
"""Spread of repeats above which a score is marked. Three repeats a tenth apart give an interval of about +-12 %, which
cannot show the differences of 10 to 20 % that machines and versions are chosen by."""

PAIRS_AT_LEAST = 3
"""Pairs below which interleaved repeats are not paired: two have one degree of freedom, whose t value is 12.7."""


@dataclasses.dataclass(frozen=True)
class Ratio:
    """Of two scores, the second over the first.

    Attributes:
      ratio: of the geometric means of the repeats.
      low, high: ends of its 95 % interval; None where a side has one repeat.
      method: "paired t" or "Welch t"; "" without an interval.
    """

    ratio: float
    low: float | None = None
    high: float | None = None
    method: str = ""

    @property
    def verdict(self) -> str:
        """What may be said: "faster", "slower", "no difference shown" where the interval has 1, "no interval"."""
        if self.low is None or self.high is None:
            return "no interval"
        if self.low > 1:
            return "faster"
        return "slower" if self.high < 1 else "no difference shown"


def spread(scores: Sequence[float]) -> float | None:
    """(highest - lowest) / median; None of fewer than two scores."""
    if len(scores) < 2:
        return None
    return (max(scores) - min(scores)) / statistics.median(scores)


def interval(scores: Sequence[float]) -> tuple[float, float] | None:
    """95 % confidence interval of a score: Student's t interval of the mean of the logarithms; None of one score.

    With 3 repeats: exp(mean +- 4.30 x standard deviation / sqrt(3)), all of logarithms.
    """
    if len(scores) < 2:
        return None
    logs = [math.log(score) for score in scores]
    mean = statistics.fmean(logs)
    half = _t(len(logs) - 1) * math.sqrt(statistics.variance(logs) / len(logs))
    return math.exp(mean - half), math.exp(mean + half)


def ratio(first: Sequence[float], second: Sequence[float], *, paired: bool = False) -> Ratio:
    """The second score over the first, with its 95 % interval.

    Args:
      first, second: scores of the repeats, above 0.
      paired: repeats at the same place were made one after the other, so that what slowed the machine for a while
        slowed both. Then a t interval of the differences of their logarithms, otherwise Welch's, which does not
        ask for equal variances. Say it by how the repeats were made: the narrower of the two, chosen by the scores,
        would be too narrow.

    Raises:
      ValueError: there is no score on a side, or paired ones are not equally many.
    """
    if not first or not second:
        raise ValueError("a ratio needs a score on either side")
    logs_1 = [math.log(score) for score in first]
    logs_2 = [math.log(score) for score in second]
    if paired:
        differences = [two - one for one, two in zip(logs_1, logs_2, strict=True)]
        mean = statistics.fmean(differences)
        if len(differences) < 2:
            return Ratio(math.exp(mean))
        half = _t(len(differences) - 1) * math.sqrt(statistics.variance(differences) / len(differences))
        return Ratio(math.exp(mean), math.exp(mean - half), math.exp(mean + half), "paired t")
    mean = statistics.fmean(logs_2) - statistics.fmean(logs_1)
    if len(first) < 2 or len(second) < 2:
        return Ratio(math.exp(mean))
    half = _welch_half_width(logs_1, logs_2)
    return Ratio(math.exp(mean), math.exp(mean - half), math.exp(mean + half), "Welch t")


def _welch_half_width(first: Sequence[float], second: Sequence[float]) -> float:
    """Half the width of Welch's interval of a difference of means (Welch 1947, degrees of freedom by Satterthwaite)."""
    parts = [(statistics.variance(values) / len(values), len(values) - 1) for values in (first, second)]
    variance = sum(part for part, _ in parts)
    if not variance:
        return 0.0
    freedom = variance**2 / sum(part**2 / degrees for part, degrees in parts)
    return _t(freedom) * math.sqrt(variance)


def _t(freedom: float) -> float:
    """Quantile of Student's t that leaves half of what is outside the interval above it."""
    return float(stdtrit(freedom, (1 + CONFIDENCE) / 2))
