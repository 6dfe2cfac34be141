"""What the microbenchmarks check, and how close is close enough. numpy alone.

A result is compared with the same computed by numpy in float64 from the same operands. The error of a value is measured
against the root mean square of what is expected, of its row or of everything, whichever is larger: by that measure the
rounding of a product does not grow with its length, and in a result that is missing, or belongs somewhere else, the
largest error is that of the largest value: 2 and more.
"""

import dataclasses
import math
from collections.abc import Iterable

import numpy as np

from data import power_law

TOLERANCES = {"fp32": 1e-4, "tf32": 2e-2, "bf16": 0.15, "fp16": 5e-2}
"""Largest error of one operation: several times what was met on CPUs, and from tf32 on above a rounding of operands."""

_SIGMAS = 6.0  # of a count of random ids: beyond it by chance once in 500 million
_HEAD_SHARE = 0.01  # of the ranks of a table: those whose frequency is compared


@dataclasses.dataclass(frozen=True)
class Check:
    """What was looked at and what was found, and whether it is as it must be."""

    said: str
    held: bool


def worst_error(found: np.ndarray, expected: np.ndarray) -> float:
    """The largest error as the module says it; infinite where anything is not finite or nothing is expected but zeros.

    Args:
      found, expected: of one shape; rows are along the last axis.

    Raises:
      ValueError: the shapes differ.
    """
    found, expected = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    if found.shape != expected.shape:
        raise ValueError(f"found {found.shape}, expected {expected.shape}")
    square = np.square(expected)
    scale = math.sqrt(square.mean()) if square.size else 0.0
    if not (np.isfinite(found).all() and 0.0 < scale < math.inf):
        return math.inf
    if expected.ndim > 1:
        scale = np.maximum(np.sqrt(square.mean(axis=-1, keepdims=True)), scale)
    return float((np.abs(found - expected) / scale).max())


def close(what: str, found: np.ndarray, expected: np.ndarray, precision: str, *, operations: int = 1) -> Check:
    """Whether `found` is numpy's result but for the rounding of a precision.

    Args:
      what: for people.
      found, expected: as for `worst_error`.
      precision: see TOLERANCES.
      operations: of which each takes the rounded result of the one before it; the tolerance grows with their root.
    """
    error, most = worst_error(found, expected), TOLERANCES[precision] * math.sqrt(operations)
    held = error <= most
    return Check(f"{what}: off by {error:.1e}, {'at most' if held else 'ABOVE'} {most:.1e} ({precision})", held)


def exact(what: str, found: np.ndarray, expected: np.ndarray) -> Check:
    """Whether every value is the expected one."""
    wrong = int((np.asarray(found) != np.asarray(expected)).sum())
    count = np.size(expected)
    said = f"all of {count:,} values as expected" if wrong == 0 else f"{wrong:,} of {count:,} values are WRONG"
    return Check(f"{what}: {said}", wrong == 0 and count > 0)


def follow_law(what: str, ids: np.ndarray, cardinality: int, exponent: float) -> list[Check]:
    """Whether independent ids are spread over a table as `data.power_law` says.

    Two figures: the share of different ids among them, and that of the 1 % of ranks that are the most frequent. What
    the law expects is known exactly, and how far chance moves it is bounded: the number of different ids by independent
    ones, the other is a binomial count.
    """
    ids = np.asarray(ids).ravel().astype(np.int64)
    count = len(ids)
    if not count or ids.min() < 0 or ids.max() >= cardinality:
        return [Check(f"{what}: some of {count:,} are outside 0 to {cardinality - 1:,}", False)]
    expected, variance = power_law.expected_distinct(count, cardinality, exponent)
    found = len(np.unique(ids))
    slack = _SIGMAS * math.sqrt(variance) + 1.0
    head = max(1, int(_HEAD_SHARE * cardinality))
    share = float(power_law.cumulative(np.array([head]), cardinality, exponent)[0])
    heads = float((power_law.id_to_rank(ids, cardinality) < head).mean())
    head_slack = _SIGMAS * math.sqrt(share * (1.0 - share) / count) + 1.0 / count
    return [
        Check(f"{what}: {found / count:.4f} of them different, by the law {expected / count:.4f}",
              abs(found - expected) <= slack),
        Check(f"{what}: {heads:.4f} among the {head:,} most frequent, by the law {share:.4f}",
              abs(heads - share) <= head_slack),
    ]  # fmt: skip


def sampled(count: int, most: int, seed: int = 0) -> np.ndarray:
    """At most `most` different indices below `count`, ascending, the first and the last among them; all if they fit."""
    if count <= most:
        return np.arange(count)
    inner = np.random.default_rng(seed).choice(count - 2, size=max(0, most - 2), replace=False) + 1
    return np.sort(np.concatenate([[0, count - 1], inner]))


def one_line(checks: Iterable[Check]) -> str:
    """What was checked and found."""
    return "; ".join(check.said for check in checks)
