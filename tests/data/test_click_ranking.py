import itertools

import numpy as np
import pytest

from data.click_ranking import average_precision, chance_average_precision
from trainer.metrics import map_at_k


def one_click(sizes, rng):
    clicks = np.zeros(sizes.sum(), np.int8)
    clicks[np.cumsum(sizes) - sizes + rng.integers(0, sizes)] = 1
    return clicks


def test_equals_the_mean_over_all_orders_of_equals():
    rng = np.random.default_rng(0)
    sizes = rng.integers(1, 7, 60)
    starts = np.cumsum(sizes) - sizes
    scores = rng.integers(0, 4, sizes.sum()).astype(np.float64)
    clicks = one_click(sizes, rng)
    result = average_precision(scores, clicks, sizes)
    for display, (start, size) in enumerate(zip(starts, sizes, strict=True)):
        reciprocal_ranks = [
            1.0 / (1 + [clicks[row] for row in order].index(1))
            for order in itertools.permutations(range(start, start + size))
            if all(scores[a] >= scores[b] for a, b in itertools.pairwise(order))
        ]
        assert result[display] == pytest.approx(np.mean(reciprocal_ranks), abs=1e-12)


def test_more_ads_than_positions():
    scores = -np.arange(14.0)
    for rank, expected in ((1, 1.0), (12, 1 / 12), (13, 0.0)):
        clicks = (np.arange(14) == rank - 1).astype(np.int8)
        assert average_precision(scores, clicks, np.array([14])) == pytest.approx([expected], abs=1e-12)
    assert chance_average_precision(np.array([24])) == pytest.approx([sum(1 / i for i in range(1, 13)) / 24])


def test_is_the_trainers():
    rng = np.random.default_rng(0)
    sizes = rng.integers(1, 20, 200)
    clicks = one_click(sizes, rng)
    ids = np.repeat(np.arange(200), sizes)
    for scores in (rng.integers(0, 5, len(ids)).astype(float), rng.random(len(ids)), np.zeros(len(ids))):
        expected = map_at_k(ids, clicks, scores)
        assert average_precision(scores, clicks, sizes).mean() == pytest.approx(expected, abs=1e-12)
    assert chance_average_precision(sizes).mean() == pytest.approx(expected, abs=1e-12)
