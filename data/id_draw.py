"""How the ids of generated data are drawn: how unlike their frequencies are, and how many a multi-hot row holds."""

import dataclasses
import math

import numpy as np

from data import power_law
from data.distinct_ranks import draw_distinct_ranks
from data.errors import InputError
from data.feature_spec import Feature, FeatureSpec

ANY, DISTINCT, FIXED = POOLINGS = ("any", "distinct", "fixed")


@dataclasses.dataclass(frozen=True)
class IdDraw:
    """The law that ids of all tables follow.

    Attributes:
      exponent: a of the power law x^-a of `data.power_law`; 0 makes all ids as likely.
      pooling: ids of a multi-hot row. "any": 0 to max_hotness ids, each length as likely, repeats allowed. "distinct":
        1 to max_hotness different ids, each length as likely, but no more than the table has. "fixed": max_hotness
        different ids.

    Raises:
      InputError: the exponent is negative or not finite, or there is no such pooling.
    """

    exponent: float = power_law.DEFAULT_EXPONENT
    pooling: str = ANY

    def __post_init__(self):
        object.__setattr__(self, "exponent", float(self.exponent) + 0.0)  # 0, 0.0 and -0.0 are one dataset
        if not (math.isfinite(self.exponent) and self.exponent >= 0.0):
            raise InputError(
                f"exponent={self.exponent} of the power law of ids: give a number of at least 0; 0 makes all ids as "
                f"likely, {power_law.DEFAULT_EXPONENT} is the default"
            )
        if self.pooling not in POOLINGS:
            raise InputError(f"pooling='{self.pooling}': give one of {', '.join(POOLINGS)}")

    def check(self, spec: FeatureSpec) -> None:
        """Raises InputError if a table of `spec` has too few rows for "fixed" pooling."""
        for name in spec.multihot if self.pooling == FIXED else ():
            feature = spec.features[name]
            if feature.max_hotness > feature.cardinality:
                raise InputError(
                    f"feature '{name}': no {feature.max_hotness} different ids (its max_hotness) are in a table of "
                    f"{feature.cardinality} rows; give a lower hotness, a larger cardinality or pooling 'distinct'"
                )

    def ids(self, rng: np.random.Generator, cardinality: int, size: int) -> np.ndarray:
        """`size` independent ids, int64."""
        return power_law.rank_to_id(power_law.draw_ranks(rng, cardinality, size, self.exponent), cardinality)

    def id_lists(self, rng: np.random.Generator, feature: Feature, rows: int) -> tuple[np.ndarray, np.ndarray]:
        """Ids of `rows` rows of a multi-hot feature, one row after the other, and the rows' lengths, both int64."""
        if self.pooling == ANY:
            lengths = rng.integers(0, feature.max_hotness + 1, rows)
            return self.ids(rng, feature.cardinality, int(lengths.sum())), lengths
        most = min(feature.max_hotness, feature.cardinality)
        lengths = rng.integers(1, most + 1, rows) if self.pooling == DISTINCT else np.full(rows, most)
        ranks = draw_distinct_ranks(rng, feature.cardinality, lengths, self.exponent)
        return power_law.rank_to_id(ranks, feature.cardinality), lengths


DEFAULT_DRAW = IdDraw()
