"""The tests against cases worked by hand, all arrangements counted, and scipy's own t-tests."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from benchmarks.study.report.statistics import (
    DIFFERENT,
    EQUIVALENT,
    PAIRED,
    UNDECIDED,
    WELCH,
    WITHIN,
    Ks,
    Spread,
    compare,
    interval,
    ks,
    spread,
)


def seeds(values, first=1):
    return dict(enumerate(values, start=first))


def test_spread_of_a_case_worked_by_hand():
    found = spread([0.2, 0.4, 0.6])
    assert found == Spread(3, pytest.approx(0.4), pytest.approx(0.2), 0.2, 0.6)
    assert spread([0.5]) == Spread(1, 0.5, None, 0.5, 0.5)
    assert spread([0.5, 0.5]).std == 0
    assert spread([]) is None


@pytest.mark.parametrize(
    ("first", "second", "statistic", "p_value"),
    [
        # Of the 20 arrangements of 3 and 3 just the two that part them wholly are as far apart.
        ([1, 2, 3], [4, 5, 6], 1.0, 0.1),
        ([1, 3, 5], [2, 4, 6], 1 / 3, 1.0),
        ([1, 2, 3], [1, 2, 3], 0.0, 1.0),
        ([1, 1, 1, 1], [1, 1, 1, 1], 0.0, 1.0),
        ([1], [2], 1.0, 1.0),
        # 2 of C(20, 10) arrangements.
        (range(10), range(10, 20), 1.0, 2 / 184756),
    ],
)
def test_ks_of_known_cases(first, second, statistic, p_value):
    assert ks(list(first), list(second)) == Ks(pytest.approx(statistic), pytest.approx(p_value))


def test_ks_p_value_is_the_share_of_arrangements_as_far_apart():
    first, second = [0.1, 0.4, 0.5, 0.9], [0.2, 0.6, 0.7, 0.8, 1.0]

    def distance(a, b):
        return max(abs(np.mean(np.array(a) <= at) - np.mean(np.array(b) <= at)) for at in [*a, *b])

    pooled = first + second
    far, total = 0, 0
    for chosen in itertools.combinations(range(9), 4):
        a = [pooled[place] for place in chosen]
        b = [pooled[place] for place in range(9) if place not in chosen]
        total += 1
        far += distance(a, b) >= distance(first, second) - 1e-12
    found = ks(first, second)
    assert found.statistic == pytest.approx(distance(first, second))
    assert found.p_value == pytest.approx(far / total)


def test_interval_worked_by_hand_and_by_scipy():
    # With two degrees of freedom the 97.5 % quantile is 4.302653.
    values = [0.01, 0.02, 0.03]
    half = 4.302653 * 0.01 / math.sqrt(3)
    assert interval(values, 0.95) == pytest.approx((0.02 - half, 0.02 + half))
    assert interval(values, 0.8) == pytest.approx(tuple(stats.ttest_1samp(values, 0).confidence_interval(0.8)))
    assert interval([0.5, 0.5], 0.95) == (0.5, 0.5)
    assert interval([0.5], 0.95) is None
    with pytest.raises(ValueError, match="finite"):
        interval([0.5, math.nan], 0.95)


def test_ks_without_values_is_none():
    assert ks([], [1.0]) is None
    assert ks([1.0], []) is None


def test_pairs_worked_by_hand():
    # Differences 0.001, 0.002, 0.003; with two degrees of freedom P(T > t) = 1/2 - t / (2 sqrt(2 + t^2)).
    first = {1: 0.70, 2: 0.71, 3: 0.72}
    second = {1: 0.701, 2: 0.712, 3: 0.723}
    found = compare(first, second, margin=0.005, confidence=0.95)
    error = 0.001 / math.sqrt(3)

    def above(t):
        return 0.5 - t / (2 * math.sqrt(2 + t * t))

    assert found.method == PAIRED
    assert found.runs == (3, 3)
    assert found.difference == pytest.approx(0.002)
    assert found.p_different == pytest.approx(2 * above(0.002 / error))
    assert found.p_different == pytest.approx(0.07418, abs=1e-5)
    assert found.p_equivalent == pytest.approx(above(0.003 / error))
    assert found.p_equivalent == pytest.approx(0.01755, abs=1e-5)
    # The 95 % quantile of two degrees of freedom is 2.919986.
    assert (found.low, found.high) == pytest.approx((0.002 - 2.919986 * error, 0.002 + 2.919986 * error))
    assert found.verdict == EQUIVALENT


def test_pairs_agree_with_scipy():
    random = np.random.default_rng(1)
    first = random.normal(0.7, 0.01, 12)
    second = first + random.normal(0.002, 0.003, 12)
    found = compare(seeds(first), seeds(second), margin=0.004, confidence=0.9)
    assert found.method == PAIRED
    assert found.p_different == pytest.approx(stats.ttest_rel(second, first).pvalue)
    sides = [
        stats.ttest_rel(second, first - 0.004, alternative="greater").pvalue,
        stats.ttest_rel(second, first + 0.004, alternative="less").pvalue,
    ]
    assert found.p_equivalent == pytest.approx(max(sides))
    interval = stats.ttest_rel(second, first).confidence_interval(0.8)
    assert (found.low, found.high) == pytest.approx(tuple(interval))


def test_other_seeds_agree_with_scipys_welch():
    random = np.random.default_rng(2)
    first, second = random.normal(0.7, 0.01, 7), random.normal(0.705, 0.002, 11)
    found = compare(seeds(first), seeds(second, 100), margin=0.01, confidence=0.95)
    assert (found.method, found.runs) == (WELCH, (7, 11))
    assert found.p_different == pytest.approx(stats.ttest_ind(second, first, equal_var=False).pvalue)
    sides = [
        stats.ttest_ind(second, first - 0.01, equal_var=False, alternative="greater").pvalue,
        stats.ttest_ind(second, first + 0.01, equal_var=False, alternative="less").pvalue,
    ]
    assert found.p_equivalent == pytest.approx(max(sides))
    interval = stats.ttest_ind(second, first, equal_var=False).confidence_interval(0.9)
    assert (found.low, found.high) == pytest.approx(tuple(interval))


def test_a_seed_that_one_side_lacks_is_left_out_of_the_pairs():
    first = {1: 0.70, 2: 0.71, 3: 0.72, 4: 0.1}
    second = {1: 0.70, 2: 0.71, 3: 0.72, 5: 0.9}
    found = compare(first, second, margin=0.01, confidence=0.95)
    assert (found.method, found.runs, found.difference) == (PAIRED, (3, 3), 0)


def test_two_common_seeds_are_no_pairs():
    found = compare({1: 0.1, 2: 0.2}, {1: 0.1, 2: 0.3}, margin=0.01, confidence=0.95)
    assert (found.method, found.runs) == (WELCH, (2, 2))


@pytest.mark.parametrize(
    ("shift", "noise", "verdict"),
    [(0.0, 0.001, EQUIVALENT), (0.005, 0.001, WITHIN), (0.05, 0.001, DIFFERENT), (0.0, 0.1, UNDECIDED)],
)
@pytest.mark.parametrize("first_seed", [1, 50])
def test_verdicts(shift, noise, verdict, first_seed):
    pattern = np.array([-1, 1, -0.5, 0.5, 0.25, -0.25, 0.75, -0.75])
    first, second = 0.7 + 0 * pattern, 0.7 + shift + noise * pattern
    found = compare(seeds(first), seeds(second, first_seed), margin=0.01, confidence=0.95)
    assert found.verdict == verdict
    assert (abs(found.low) < 0.01 and abs(found.high) < 0.01) == (verdict in (EQUIVALENT, WITHIN))


@pytest.mark.parametrize(
    ("difference", "verdict"),
    [(0.0, EQUIVALENT), (0.0078125, WITHIN), (-0.0078125, WITHIN), (0.25, DIFFERENT), (-0.25, DIFFERENT)],
)
@pytest.mark.parametrize("first_seed", [1, 50])
def test_without_any_spread_the_difference_itself_decides(difference, verdict, first_seed):
    found = compare(seeds([0.5] * 4), seeds([0.5 + difference] * 4, first_seed), margin=0.0625, confidence=0.95)
    assert found.verdict == verdict
    assert found.low == found.high == difference


def test_differences_that_are_equal_but_for_rounding_are_no_trouble():
    first = [0.1, 0.2, 0.3, 0.7]
    found = compare(seeds(first), seeds([one + 0.01 for one in first]), margin=0.02, confidence=0.95)
    assert found.verdict == WITHIN


def test_a_single_run_is_undecided():
    found = compare({1: 0.7}, {1: 0.7}, margin=0.01, confidence=0.95)
    assert (found.low, found.high, found.p_different, found.p_equivalent) == (None,) * 4
    assert found.verdict == UNDECIDED
    assert compare({1: 0.7, 2: 0.7}, {1: 0.7}, margin=0.01, confidence=0.95).verdict == UNDECIDED


def test_a_side_without_runs_is_nothing():
    assert compare({}, {1: 0.7}, margin=0.01, confidence=0.95) is None
    assert compare({1: 0.7}, {}, margin=0.01, confidence=0.95) is None


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_finite_is_refused(bad):
    with pytest.raises(ValueError, match="finite"):
        spread([0.5, bad])
    with pytest.raises(ValueError, match="finite"):
        ks([0.5], [bad])
    with pytest.raises(ValueError, match="finite"):
        compare({1: bad}, {1: 0.5}, margin=0.01, confidence=0.95)


def test_more_confidence_asks_for_more():
    first, second = seeds([0.70, 0.71, 0.72]), seeds([0.701, 0.712, 0.723])
    verdicts = [compare(first, second, margin=0.005, confidence=level).verdict for level in (0.9, 0.95, 0.99)]
    assert verdicts == [WITHIN, EQUIVALENT, UNDECIDED]
