"""Different ids in every row of a multi-hot column: draws from a power law without repeats.

A row of n ids holds the first n different ones of an endless series of independent draws: the most frequent ids are in
many rows, and given what a row holds already, each other id comes next with a probability proportional to its own.
This is done in one of two ways, both of them exact and for all rows at once.
"""

import numpy as np

from data import power_law

# Repeats are drawn anew where at least this share of such draws succeeds, so that few rounds end it.
_LEAST_SUCCESS = 0.5
_BLOCK_VALUES = 2**20


def draw_distinct_ranks(rng: np.random.Generator, cardinality: int, lengths: np.ndarray, exponent: float) -> np.ndarray:
    """Ranks of rows with `lengths` different ranks each, one row after the other.

    Args:
      cardinality: N; ranks are in 0..N-1.
      lengths: (rows,) int64, none above N.
      exponent: of the power law.

    Returns:
      (lengths.sum(),) int64.
    """
    most = int(lengths.max(initial=0))
    if most <= 1:
        return power_law.draw_ranks(rng, cardinality, int(lengths.sum()), exponent)
    # A row never holds more than `most` ranks, at worst the most frequent ones.
    if 1.0 - power_law.cumulative(most, cardinality, exponent) >= _LEAST_SUCCESS:
        return _redraw_repeats(rng, cardinality, lengths, exponent)
    head = _head(cardinality, most)
    block = max(1, _BLOCK_VALUES // (head + _tail_draws(cardinality, most)))
    parts = [
        _first_arrivals(rng, cardinality, lengths[start : start + block], most, exponent)
        for start in range(0, len(lengths), block)
    ]
    return np.concatenate(parts)


def _redraw_repeats(rng: np.random.Generator, cardinality: int, lengths: np.ndarray, exponent: float) -> np.ndarray:
    """Draws all, then draws what repeats an earlier rank of its row again until nothing does."""
    ranks = power_law.draw_ranks(rng, cardinality, int(lengths.sum()), exponent)
    rows = np.repeat(np.arange(len(lengths)), lengths)
    places = np.arange(len(ranks))  # of the rows that may hold repeats
    while True:
        keys = rows[places] * cardinality + ranks[places]
        order = np.argsort(keys, kind="stable")
        keys = keys[order]
        repeats = places[order[1:][keys[1:] == keys[:-1]]]
        if not len(repeats):
            return ranks
        ranks[repeats] = power_law.draw_ranks(rng, cardinality, len(repeats), exponent)
        unsettled = np.zeros(len(lengths), dtype=bool)
        unsettled[rows[repeats]] = True
        places = np.flatnonzero(unsettled[rows])


def _head(cardinality: int, most: int) -> int:
    return cardinality if cardinality <= 4 * most else 2 * most


def _tail_draws(cardinality: int, most: int) -> int:
    """Draws from behind the head, among which there are nearly surely `most` different ones or no need for them."""
    return 0 if _head(cardinality, most) == cardinality else 2 * most + 16


def _first_arrivals(
    rng: np.random.Generator, cardinality: int, lengths: np.ndarray, most: int, exponent: float
) -> np.ndarray:
    """Lets every rank arrive at its own random time and takes the first ones of each row.

    If ranks arrive as independent Poisson processes, at rates proportional to their probabilities, the series of
    arrivals is one of independent draws. A rank of the head has one time, that of its first arrival (exponential).
    The others, however many there are, arrive as one process whose arrivals are each given a rank. It works where
    repeats are the rule: in small tables, and under laws so steep that nearly all draws give the same few ranks.
    Times are kept as logarithms, as rates can be too small for a number.
    """
    shape = len(lengths)
    head, tail = _head(cardinality, most), _tail_draws(cardinality, most)
    low = np.arange(head)
    times = np.log(rng.standard_exponential((shape, head))) - power_law.log_mass(low, low + 1, exponent)
    ranks = np.broadcast_to(low, times.shape)
    if tail:
        late = np.log(np.cumsum(rng.standard_exponential((shape, tail)), axis=1))
        late -= power_law.log_mass(head, cardinality, exponent)
        drawn = power_law.ranks_at(rng.random((shape, tail)), cardinality, exponent, first=head)
        end = late[:, -1].copy()
        order = np.argsort(drawn, axis=1, kind="stable")  # of equal ranks the earliest stays first
        by_rank = np.take_along_axis(drawn, order, axis=1)
        row, place = np.nonzero(by_rank[:, 1:] == by_rank[:, :-1])
        late[row, order[row, place + 1]] = np.inf
        times, ranks = np.concatenate([times, late], axis=1), np.concatenate([ranks, drawn], axis=1)
    first = np.argsort(times, axis=1, kind="stable")[:, :most]
    taken = np.arange(first.shape[1]) < lengths[:, None]
    result = np.take_along_axis(ranks, first, axis=1)[taken]
    if tail:
        last = np.take_along_axis(times, first, axis=1)[np.arange(shape), np.maximum(lengths, 1) - 1]
        short = last > end  # what comes after the last draw is not known; less often than once in 10^12 rows
        if short.any():
            again = _first_arrivals(rng, cardinality, lengths[short], most, exponent)
            result[np.repeat(short, lengths)] = again
    return result
