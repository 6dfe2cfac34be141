import itertools

import numpy as np
import pytest
import scipy.integrate

from data import power_law


@pytest.mark.parametrize("cardinality", [1, 2, 3, 4, 100, 1000, 2500, 300000])
def test_ids_are_a_permutation_of_the_ranks(cardinality):
    ranks = np.arange(cardinality)
    ids = power_law.rank_to_id(ranks, cardinality)
    np.testing.assert_array_equal(np.sort(ids), ranks)
    np.testing.assert_array_equal(power_law.id_to_rank(ids, cardinality), ranks)


def test_frequent_ids_are_spread_over_the_table():
    ids = power_law.rank_to_id(np.arange(100), 300000)
    assert np.unique(ids // 30000).size == 10


@pytest.mark.parametrize("cardinality", [1, 4, 300000, 10**9])
def test_probabilities_fall_and_add_up(cardinality):
    assert power_law.cumulative(cardinality, cardinality) == pytest.approx(1.0, abs=1e-12)
    share = power_law.probabilities(min(cardinality, 1000), cardinality)
    assert (share > 0).all() and (np.diff(share) < 0).all()


@pytest.mark.parametrize("cardinality", [4, 300000])
def test_draws_follow_the_probabilities(cardinality):
    size = 200_000
    ranks = power_law.draw_ranks(np.random.default_rng(0), cardinality, size)
    assert ranks.dtype == np.int64 and ranks.min() == 0 and ranks.max() < cardinality
    count = min(cardinality, 50)
    expected = power_law.probabilities(count, cardinality) * size
    observed = np.bincount(ranks, minlength=count)[:count]
    assert np.abs((observed - expected) / np.sqrt(expected)).max() < 4.5
    # Heavy head, long tail.
    if cardinality == 300000:
        assert np.unique(ranks).size > 20_000


def test_a_table_of_one_row_has_one_id():
    assert not power_law.draw_ranks(np.random.default_rng(0), 1, 100).any()


EXPONENTS = [0.0, 0.5, 0.9, 1.0, 1.1, 1.5, 2.0, 4.0]


def exact(low, high, cardinality, exponent):
    """Mass of the ranks low..high-1 by numerical integration of the density."""

    def area(start, end):
        points = np.unique([1.0 + start, *np.geomspace(1.0 + start, 1.0 + end, 12)[1:-1], 1.0 + end])
        return sum(scipy.integrate.quad(lambda x: x**-exponent, *piece)[0] for piece in itertools.pairwise(points))

    return area(low, high) / area(0, cardinality)


@pytest.mark.parametrize("exponent", EXPONENTS)
def test_the_law_is_that_of_its_density(exponent):
    share = power_law.probabilities(20, 5000, exponent)
    np.testing.assert_allclose(share, [exact(r, r + 1, 5000, exponent) for r in range(20)], rtol=1e-7)
    assert power_law.cumulative(700, 5000, exponent) == pytest.approx(exact(0, 700, 5000, exponent), rel=1e-7)
    assert power_law.cumulative([0, 5000], 5000, exponent) == pytest.approx([0.0, 1.0], abs=1e-12)


@pytest.mark.parametrize("exponent", EXPONENTS)
def test_masses_are_precise_for_rare_ranks_too(exponent):
    low, high = np.array([0, 1, 40, 1000, 40]), np.array([1, 2, 41, 1001, 5000])
    mass = np.exp(power_law.log_mass(low, high, exponent) - power_law.log_mass(0, 5000, exponent))
    expected = [exact(*bounds, 5000, exponent) for bounds in zip(low, high, strict=True)]
    np.testing.assert_allclose(mass, expected, rtol=1e-6)


@pytest.mark.parametrize("exponent", EXPONENTS)
@pytest.mark.parametrize("cardinality", [3, 1_000_000])
def test_draws_follow_any_exponent(cardinality, exponent):
    size = 100_000
    ranks = power_law.draw_ranks(np.random.default_rng(1), cardinality, size, exponent)
    assert ranks.dtype == np.int64 and ranks.min() >= 0 and ranks.max() < cardinality
    bounds = np.unique([*range(min(cardinality, 10)), *np.geomspace(10, cardinality, 12).astype(int), cardinality])
    bounds = bounds[bounds <= cardinality]
    expected = np.diff(power_law.cumulative(bounds, cardinality, exponent)) * size
    observed = np.histogram(ranks, bounds)[0]
    assert observed.sum() == size
    # Chi-square, where enough are expected: its mean is the number of cells.
    cells = expected > 5
    assert np.sum((observed - expected)[cells] ** 2 / expected[cells]) < 3 * cells.sum() + 10
    assert observed[~cells].sum() <= 10 + 3 * expected[~cells].sum()


@pytest.mark.parametrize("exponent", EXPONENTS)
@pytest.mark.parametrize("first", [0, 7, 4999])
def test_ranks_at_inverts_the_law_from_any_rank_on(exponent, first):
    shares = np.linspace(0.0, 1.0, 999, endpoint=False)
    ranks = power_law.ranks_at(shares, 5000, exponent, first=first)
    assert ranks.min() >= first and ranks.max() < 5000
    whole = power_law.log_mass(first, 5000, exponent)
    after = np.exp(power_law.log_mass(first, ranks + 1, exponent) - whole)
    assert (after > shares - 1e-9).all()
    later = ranks > first
    before = np.exp(power_law.log_mass(first, ranks[later], exponent) - whole)
    assert (before < shares[later] + 1e-9).all()


@pytest.mark.parametrize("exponent", [50.0, 1e6, 1e308])
def test_the_steepest_laws_give_the_first_rank_without_complaint(exponent):
    assert not power_law.draw_ranks(np.random.default_rng(0), 10**9, 1000, exponent).any()
    np.testing.assert_allclose(power_law.probabilities(3, 10**9, exponent), [1.0, 0.0, 0.0], atol=1e-12)


def test_expected_number_of_different_ids():
    expected, variance = power_law.expected_distinct(2, 4, 0.0)
    assert expected == pytest.approx(1.75) and variance == pytest.approx(4 * 0.4375 * 0.5625)
    assert power_law.expected_distinct(5, 1, 1.1) == (1.0, 0.0)


@pytest.mark.parametrize("exponent", EXPONENTS)
def test_drawn_ids_are_as_many_different_ones_as_expected(monkeypatch, exponent):
    whole = power_law.expected_distinct(3000, 5000, exponent)
    monkeypatch.setattr(power_law, "_BLOCK", 7)
    expected, variance = power_law.expected_distinct(3000, 5000, exponent)
    assert (expected, variance) == pytest.approx(whole)
    found = len(np.unique(power_law.draw_ranks(np.random.default_rng(3), 5000, 3000, exponent)))
    assert abs(found - expected) <= 6 * variance**0.5 + 1
