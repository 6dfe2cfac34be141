import numpy as np
import pytest

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
