"""A bounded power law over the ids of a table: how often each id occurs in generated data.

Rank r of a table of N rows (r = 0 is the most frequent) has the probability F(r + 1) - F(r), where F is the
distribution function of a density falling like x^-a on 1..1+N, moved to begin at 0. With c = 1 - a

    F(r) = ((1 + r)^c - 1) / ((1 + N)^c - 1),        log(1 + r) / log(1 + N) where a = 1.

An exponent a of 0 makes all ids as likely. The inverse of F is closed, so that a draw needs no table, and with the
default a = 1.1 it is made of multiplications and one division: the same bits on every machine. Other exponents take
logarithms, whose last bit libraries round differently.
"""

import functools
import math

import numpy as np

DEFAULT_EXPONENT = 1.1

_TAIL = 0.1  # DEFAULT_EXPONENT - 1 to the last bit
_GOLDEN = 0.6180339887498949
_BLOCK = 1 << 22  # ranks of a table that are looked at together


def cumulative(ranks: np.ndarray, cardinality: int, exponent: float = DEFAULT_EXPONENT) -> np.ndarray:
    """F(ranks): the probability that a drawn rank is below each of `ranks`, which lie in 0..cardinality."""
    ranks = np.asarray(ranks, np.float64)
    if exponent == DEFAULT_EXPONENT:
        return (1.0 - (1.0 + ranks) ** -_TAIL) / _mass(cardinality)
    if exponent == 0.0:
        return ranks / cardinality
    if exponent == 1.0:
        return np.log1p(ranks) / math.log1p(cardinality)
    power = 1.0 - exponent
    with np.errstate(over="ignore"):
        return np.expm1(power * np.log1p(ranks)) / math.expm1(power * math.log1p(cardinality))


def probabilities(count: int, cardinality: int, exponent: float = DEFAULT_EXPONENT) -> np.ndarray:
    """Probabilities of the `count` most frequent ranks, (count,); count <= cardinality."""
    return np.diff(cumulative(np.arange(count + 1), cardinality, exponent))


def expected_distinct(draws: int, cardinality: int, exponent: float = DEFAULT_EXPONENT) -> tuple[float, float]:
    """Expectation of the number of different ids among independent draws, and a bound of its variance.

    The bound is the variance of ids that would turn up independently of each other; they do so less than that.
    """
    expected = variance = 0.0
    for first in range(0, cardinality, _BLOCK):
        ranks = np.arange(first, min(first + _BLOCK, cardinality) + 1)
        mass = np.clip(np.diff(cumulative(ranks, cardinality, exponent)), 0.0, 1.0)
        with np.errstate(divide="ignore"):  # an id that has all the mass
            missing = np.exp(draws * np.log1p(-mass))
        expected += float((1.0 - missing).sum())
        variance += float((missing * (1.0 - missing)).sum())
    return expected, variance


def log_mass(low: np.ndarray, high: np.ndarray, exponent: float) -> np.ndarray:
    """Logarithm of the mass of the ranks low..high-1, up to a constant of the law; precise however rare they are."""
    low, high = np.asarray(low, np.float64), np.asarray(high, np.float64)
    power = 1.0 - exponent
    width = np.log1p((high - low) / (1.0 + low))
    with np.errstate(over="ignore", divide="ignore"):  # of steep laws all but the first ranks have no mass
        stretch = np.expm1(power * width) / (power * width) if power else 1.0
        return power * np.log1p(low) + np.log(width * stretch)


def draw_ranks(
    rng: np.random.Generator, cardinality: int, size: int | tuple[int, ...], exponent: float = DEFAULT_EXPONENT
) -> np.ndarray:
    """`size` independent ranks in 0..cardinality-1, int64."""
    return ranks_at(rng.random(size), cardinality, exponent)


def ranks_at(shares: np.ndarray, cardinality: int, exponent: float = DEFAULT_EXPONENT, *, first: int = 0) -> np.ndarray:
    """The rank r with F(r) <= share < F(r + 1), int64, of each share in 0..1, 1 excluded.

    Args:
      first: F is that of the ranks first..cardinality-1 alone, 0 at `first`.
    """
    if exponent == DEFAULT_EXPONENT and first == 0:
        base = 1.0 - shares * _mass(cardinality)
        square = base * base
        eighth = square * square
        eighth *= eighth
        # The power -10, written out: libraries differ in the last bit of pow.
        ranks = 1.0 / (eighth * square) - 1.0
    elif exponent == 0.0:
        ranks = first + shares * (cardinality - first)
    else:
        power = 1.0 - exponent
        width = math.log1p((cardinality - first) / (1.0 + first))
        step = np.log1p(shares * math.expm1(power * width)) / power if power else shares * width
        ranks = first + (1.0 + first) * np.expm1(step)
    return np.minimum(np.asarray(ranks).astype(np.int64), cardinality - 1)


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
