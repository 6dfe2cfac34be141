import itertools

import numpy as np
import pytest

from data import distinct_ranks, power_law
from data.distinct_ranks import draw_distinct_ranks


def inclusion(cardinality, length, exponent):
    """P(a row of `length` ids holds a rank), (cardinality,), by going through all ordered draws without repeats."""
    share = power_law.probabilities(cardinality, cardinality, exponent)
    held = np.zeros(cardinality)
    for ranks in itertools.permutations(range(cardinality), length):
        probability, left = 1.0, 1.0
        for rank in ranks:
            probability *= share[rank] / left
            left -= share[rank]
        held[list(ranks)] += probability
    return held


def by_redrawing(rng, cardinality, lengths, exponent):
    return distinct_ranks._redraw_repeats(rng, cardinality, lengths, exponent)


def by_arrival(rng, cardinality, lengths, exponent):
    return distinct_ranks._first_arrivals(rng, cardinality, lengths, int(lengths.max()), exponent)


@pytest.mark.parametrize("exponent", [0.0, 1.0, 1.1, 2.5])
@pytest.mark.parametrize("way", [by_redrawing, by_arrival])
@pytest.mark.parametrize(("cardinality", "length"), [(6, 3), (25, 2)], ids=["small-table", "head-and-tail"])
def test_rows_hold_ids_as_often_as_draws_without_repeats_do(way, cardinality, length, exponent):
    rows = 20_000
    ranks = way(np.random.default_rng(0), cardinality, np.full(rows, length), exponent)
    expected = inclusion(cardinality, length, exponent) * rows
    observed = np.bincount(ranks, minlength=cardinality)
    error = np.abs(observed - expected) / np.sqrt(np.maximum(expected * (1 - expected / rows), 1.0))
    assert error.max() < 4.0


@pytest.mark.parametrize("exponent", [0.0, 1.1, 1.6])
def test_both_ways_agree_on_larger_tables(exponent):
    lengths = np.full(4000, 12)
    first = np.bincount(by_redrawing(np.random.default_rng(1), 3000, lengths, exponent), minlength=3000)
    second = np.bincount(by_arrival(np.random.default_rng(2), 3000, lengths, exponent), minlength=3000)
    for low, high in itertools.pairwise([0, 1, 2, 5, 10, 24, 100, 1000, 3000]):
        one, two = first[low:high].sum(), second[low:high].sum()
        assert abs(one - two) <= 5 * np.sqrt(one + two + 1), (low, high)


@pytest.mark.parametrize("exponent", [0.0, 0.7, 1.1, 2.0, 6.0, 60.0, 1e308])
@pytest.mark.parametrize(("cardinality", "most"), [(1, 1), (2, 2), (50, 50), (60, 50), (201, 50), (1_000_000, 50)])
def test_rows_hold_different_ranks_of_the_table_in_their_lengths(cardinality, most, exponent):
    lengths = np.random.default_rng(3).integers(0, most + 1, 300)
    lengths[:2] = most
    ranks = draw_distinct_ranks(np.random.default_rng(4), cardinality, lengths, exponent)
    assert ranks.dtype == np.int64 and len(ranks) == lengths.sum()
    assert ranks.min() >= 0 and ranks.max() < cardinality
    for row in np.split(ranks, np.cumsum(lengths)[:-1]):
        assert len(set(row)) == len(row)


def test_the_steepest_law_takes_the_first_ranks():
    ranks = draw_distinct_ranks(np.random.default_rng(0), 1_000_000, np.full(10, 7), 1e308)
    np.testing.assert_array_equal(ranks.reshape(10, 7), np.tile(np.arange(7), (10, 1)))


@pytest.mark.parametrize("exponent", [0.0, 1.1, 3.0])
def test_whole_tables_can_be_asked_for(exponent):
    ranks = draw_distinct_ranks(np.random.default_rng(0), 40, np.full(20, 40), exponent).reshape(20, 40)
    np.testing.assert_array_equal(np.sort(ranks, axis=1), np.tile(np.arange(40), (20, 1)))
    assert (ranks[0] != ranks[1]).any()


def test_the_same_generator_gives_the_same_ranks_however_rows_are_cut(monkeypatch):
    def draw():
        return draw_distinct_ranks(np.random.default_rng(9), 500, np.full(200, 40), 1.1)

    first = draw()
    np.testing.assert_array_equal(first, draw())
    monkeypatch.setattr(distinct_ranks, "_BLOCK_VALUES", 3000)  # rows are now made a few at a time
    assert len(draw()) == len(first)
    assert all(len(set(row)) == 40 for row in draw().reshape(200, 40))


def test_rows_for_which_the_tail_was_too_short_are_drawn_anew(monkeypatch):
    """After the only draw from the tail nothing is known, so that its rank can but end a row."""
    monkeypatch.setattr(distinct_ranks, "_tail_draws", lambda cardinality, most: 1)
    ranks = by_arrival(np.random.default_rng(5), 12, np.full(1000, 2), 0.0).reshape(-1, 2)
    assert (ranks[:, 0] < 4).all() and (ranks[:, 1] >= 4).any() and (ranks[:, 0] != ranks[:, 1]).all()


def test_no_rows_and_empty_rows():
    rng = np.random.default_rng(0)
    assert not len(draw_distinct_ranks(rng, 10, np.zeros(0, np.int64), 1.1))
    assert not len(draw_distinct_ranks(rng, 10, np.zeros(5, np.int64), 1.1))
