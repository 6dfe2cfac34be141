"""Intervals by hand, by scipy, and by how often they hold on simulated repeats."""

import math

import numpy as np
import pytest
from scipy import stats

from benchmarks.report.statistics import Ratio, interval, ratio, spread


def test_interval_of_three_by_hand():
    # Logarithms 4, 5 and 6: mean 5, standard deviation 1; Student's t with 2 degrees of freedom is 4.3027.
    low, high = interval([math.exp(4), math.exp(5), math.exp(6)])
    assert math.log(low) == pytest.approx(5 - 4.302653 / math.sqrt(3), rel=1e-6)
    assert math.log(high) == pytest.approx(5 + 4.302653 / math.sqrt(3), rel=1e-6)


def test_one_repeat_has_neither_interval_nor_spread():
    assert interval([5.0]) is None
    assert spread([5.0]) is None
    for paired in (False, True):
        assert ratio([5.0], [10.0], paired=paired) == Ratio(pytest.approx(2))
    assert ratio([5.0], [10.0, 10.1]).verdict == "no interval"


def test_spread_is_of_the_median():
    assert spread([90.0, 100.0, 120.0]) == pytest.approx(0.3)


def test_welch_agrees_with_scipy():
    first, second = [100.0, 104.0, 99.0, 101.0], [150.0, 170.0, 149.0]
    found = ratio(first, second)
    expected = stats.ttest_ind(np.log(second), np.log(first), equal_var=False).confidence_interval(0.95)
    assert (found.low, found.high) == (pytest.approx(math.exp(expected.low)), pytest.approx(math.exp(expected.high)))
    assert found.ratio == pytest.approx(stats.gmean(second) / stats.gmean(first))
    assert found.method == "Welch t"


def test_pairs_agree_with_scipy():
    first, second = [100.0, 50.0, 75.0], [150.0, 76.0, 110.0]
    found = ratio(first, second, paired=True)
    expected = stats.ttest_rel(np.log(second), np.log(first)).confidence_interval(0.95)
    assert (found.low, found.high) == (pytest.approx(math.exp(expected.low)), pytest.approx(math.exp(expected.high)))
    assert found.method == "paired t"


def test_pairs_take_out_what_slows_both():
    first, second = [100.0, 50.0, 75.0], [150.0, 76.0, 110.0]
    assert ratio(first, second, paired=True).verdict == "faster"
    assert ratio(first, second).verdict == "no difference shown"


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (1.01, 1.2, "faster"),
        (0.8, 0.99, "slower"),
        (0.9, 1.1, "no difference shown"),
        (1.0, 1.2, "no difference shown"),
    ],
)
def test_verdicts(low, high, verdict):
    assert Ratio(1.0, low, high, "Welch t").verdict == verdict


def test_equal_scores_are_no_difference():
    assert ratio([5.0, 5.0], [5.0, 5.0]).verdict == "no difference shown"


def test_misuse():
    with pytest.raises(ValueError, match="either side"):
        ratio([], [1.0])
    with pytest.raises(ValueError):
        ratio([1.0, 2.0], [1.0], paired=True)


TRUE_RATIO = 1.1
SIMULATED = 4000


def covered(make):
    """Share of simulated comparisons whose interval has the true ratio."""
    generator = np.random.default_rng(7)
    held = 0
    for _ in range(SIMULATED):
        first, second, paired = make(generator)
        found = ratio(list(np.exp(first)), list(np.exp(second) * TRUE_RATIO), paired=paired)
        held += found.low <= TRUE_RATIO <= found.high
    return held / SIMULATED


@pytest.mark.parametrize(("first", "second", "at_most"), [(3, 3, 0.97), (5, 5, 0.965), (3, 10, 0.965), (2, 2, 0.995)])
def test_welch_intervals_hold_as_often_as_they_say(first, second, at_most):
    """Of two repeats a side, Welch's is known to be on the safe side; 4,000 trials are good for +-0.007."""

    def make(generator):
        return generator.normal(7, 0.05, first), generator.normal(7, 0.05, second), False

    assert 0.94 <= covered(make) <= at_most


def test_welch_intervals_hold_for_unequal_variances():
    assert 0.93 <= covered(lambda g: (g.normal(7, 0.01, 3), g.normal(7, 0.08, 3), False)) <= 0.97


@pytest.mark.parametrize("number", [3, 5])
@pytest.mark.parametrize("drift", [0.0, 0.3])
def test_paired_intervals_hold_whether_or_not_the_machine_drifts(number, drift):
    def make(generator):
        shared = generator.normal(7, drift, number)
        return shared + generator.normal(0, 0.05, number), shared + generator.normal(0, 0.05, number), True

    assert 0.94 <= covered(make) <= 0.96


def test_intervals_of_a_score_hold_as_often_as_they_say():
    generator = np.random.default_rng(3)
    held = 0
    for _ in range(SIMULATED):
        low, high = interval(list(np.exp(generator.normal(7, 0.05, 3))))
        held += low <= math.exp(7) <= high
    assert 0.94 <= held / SIMULATED <= 0.96
