"""Numerical columns: signed logarithm, standardisation by the training rows, and a value for the gaps.

    y = sign(x) log(1 + |x|)   if log1p, else x
    z = (y - mean) / std       a gap is `fill` instead

The figures are a function of the training rows in their order alone, not of how they were cut into batches.
"""

import dataclasses
from typing import Any

import numpy as np

_BLOCK = 1 << 16


def signed_log1p(values: np.ndarray) -> np.ndarray:
    """sign(x) log(1 + |x|), which is defined for all x; 0 to 0."""
    return np.sign(values) * np.log1p(np.abs(values))


class Moments:
    """Mean and standard deviation of numbers that come in batches, merged over blocks of a fixed length.

    Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances" (1979).
    """

    def __init__(self):
        self._pending = np.empty(0)
        self._count, self._mean, self._squares = 0, 0.0, 0.0
        self._low, self._high = np.inf, -np.inf

    def add(self, values: np.ndarray) -> None:
        """Takes the next float64 values, none of them NaN."""
        self._pending = np.concatenate([self._pending, values])
        while len(self._pending) >= _BLOCK:
            self._merge(self._pending[:_BLOCK])
            self._pending = self._pending[_BLOCK:]

    def finish(self) -> tuple[float, float]:
        """Mean and population standard deviation; 0 and 0 of nothing."""
        if len(self._pending):
            self._merge(self._pending)
            self._pending = np.empty(0)
        if self._low >= self._high:  # rounding must not give a constant a standard deviation
            return (self._low, 0.0) if self._count else (0.0, 0.0)
        return self._mean, float(np.sqrt(self._squares / self._count))

    def _merge(self, block: np.ndarray) -> None:
        self._low, self._high = min(self._low, float(block.min())), max(self._high, float(block.max()))
        with np.errstate(over="ignore", invalid="ignore"):  # of values that the encoder refuses
            mean = block.mean()
            squares = np.square(block - mean).sum()
            total, difference = self._count + len(block), mean - self._mean
            self._squares += float(squares + np.square(difference) * self._count * len(block) / total)
            self._mean += float(difference * len(block) / total)
        self._count = total


@dataclasses.dataclass(frozen=True)
class NumericalTransform:
    """What is done to a column; see above. `fill` is the value written, after the transformation.

    Attributes:
      missing: name of the column that is 1 in gaps and 0 elsewhere; None where the input has no gap.
    """

    log1p: bool
    mean: float
    std: float
    fill: float
    missing: str | None

    def apply(self, values: np.ndarray) -> np.ndarray:
        """float64 in, NaN in gaps; float64 out, without NaN."""
        transformed = (signed_log1p(values) if self.log1p else values) - self.mean
        return np.where(np.isnan(values), self.fill, transformed / self.std)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for the specification's metadata."""
        return dataclasses.asdict(self)
