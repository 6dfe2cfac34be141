"""A bounded power law over the ids of a table: how often each id occurs in generated data.

Rank r of a table of N rows (r = 0 is the most frequent) has the probability F(r + 1) - F(r) with

    F(r) = (1 - (1 + r)^-0.1) / (1 - (1 + N)^-0.1),

a density falling like r^-1.1. The inverse of F is closed, so that a draw needs no table, and with 0.1 = 1/10 it is made
of multiplications and one division: the same bits on every machine.
"""

import functools
import math

import numpy as np

_TAIL = 0.1
_GOLDEN = 0.6180339887498949


def cumulative(ranks: np.ndarray, cardinality: int) -> np.ndarray:
    """F(ranks): the probability that a drawn rank is below each of `ranks`, which lie in 0..cardinality."""
    return (1.0 - (1.0 + np.asarray(ranks, np.float64)) ** -_TAIL) / _mass(cardinality)


def probabilities(count: int, cardinality: int) -> np.ndarray:
    """Probabilities of the `count` most frequent ranks, (count,); count <= cardinality."""
    return np.diff(cumulative(np.arange(count + 1), cardinality))


def draw_ranks(rng: np.random.Generator, cardinality: int, size: int) -> np.ndarray:
    """`size` independent ranks in 0..cardinality-1, int64."""
    base = 1.0 - rng.random(size) * _mass(cardinality)
    square = base * base
    eighth = square * square
    eighth *= eighth
    # The power -10, written out: libraries differ in the last bit of pow.
    ranks = (1.0 / (eighth * square) - 1.0).astype(np.int64)
    return np.minimum(ranks, cardinality - 1, out=ranks)


def rank_to_id(ranks: np.ndarray, cardinality: int) -> np.ndarray:
    """Spreads frequent ids over the table, as hashing does: an affine permutation of 0..cardinality-1."""
    multiplier, shift = _permutation(cardinality)
    return (ranks * multiplier + shift) % cardinality


def id_to_rank(ids: np.ndarray, cardinality: int) -> np.ndarray:
    """The inverse of `rank_to_id`."""
    multiplier, shift = _permutation(cardinality)
    return (ids - shift) % cardinality * pow(multiplier, -1, cardinality) % cardinality


def _mass(cardinality: int) -> float:
    return 1.0 - (1.0 + cardinality) ** -_TAIL


@functools.cache
def _permutation(cardinality: int) -> tuple[int, int]:
    multiplier = max(1, int(cardinality * _GOLDEN))
    while math.gcd(multiplier, cardinality) != 1:
        multiplier += 1
    return multiplier, cardinality // 3
