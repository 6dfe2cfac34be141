"""Average precision of displays with one click each, for the figures that datasets carry.

The trainer has the general one, which `data` must not import.
"""

import numpy as np

POSITIONS = 12


def average_precision(scores: np.ndarray, clicks: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Average precision at 12 of each display, (displays,): 1 / rank of its click, 0 beyond rank 12.

    Equal scores count as their mean over orders.

    Args:
      scores: (rows,), the rows of a display side by side.
      clicks: (rows,), 1 on one row of each display, else 0.
      sizes: rows of each display, at least 1, (displays,).
    """
    starts = np.cumsum(sizes) - sizes
    clicked = np.repeat(scores[np.flatnonzero(clicks)], sizes)
    above = np.add.reduceat(scores > clicked, starts, dtype=np.int64)
    tied = np.add.reduceat(scores == clicked, starts, dtype=np.int64)
    return _mean_gain(above, tied)


def chance_average_precision(sizes: np.ndarray) -> np.ndarray:
    """The same for rows in random order, (displays,)."""
    return _mean_gain(np.zeros_like(sizes), sizes)


def _mean_gain(above: np.ndarray, tied: np.ndarray) -> np.ndarray:
    """Mean of 1 / rank over the ranks above + 1 to above + tied, those beyond POSITIONS counting 0."""
    harmonic = np.concatenate([[0.0], np.cumsum(1.0 / np.arange(1, POSITIONS + 1))])
    return (harmonic[np.minimum(above + tied, POSITIONS)] - harmonic[np.minimum(above, POSITIONS)]) / tied
