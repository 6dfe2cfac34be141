"""A feature specification from a few numbers, as benchmarks of recommenders give them: no names, no files."""

from collections.abc import Sequence

from data.errors import InputError
from data.feature_spec import Feature, FeatureSpec

# Ranks are permuted in 64-bit integers by a product of two numbers below the cardinality.
_LARGEST_CARDINALITY = 2**31


def flat_spec(cardinalities: Sequence[int], hotness: Sequence[int], num_numerical: int) -> FeatureSpec:
    """Features cat_0, cat_1, ... of the given tables, num_0, num_1, ... and the label `label`.

    A table of hotness 1 is one-hot, any other multi-hot. Features are numbered in the order given, while
    `FeatureSpec.categorical` has the one-hot ones first.

    Args:
      cardinalities: rows of each table; empty for numerical features alone.
      hotness: most ids of a row in each table, or one number for all tables.
      num_numerical: number of numerical features, 0 or more.

    Raises:
      InputError: a number is out of range, hotnesses and tables differ in number, or there is no feature at all. The
        message names the flags `synthetic_dataset_...`.
    """
    if num_numerical < 0:
        raise InputError(f"synthetic_dataset_num_numerical_features={num_numerical}: give 0 or more")
    if not cardinalities and not num_numerical:
        raise InputError(
            "synthetic_dataset_cardinalities names no table and synthetic_dataset_num_numerical_features is 0: "
            "nothing to learn from; give either"
        )
    if len(hotness) not in (1, len(cardinalities)):
        raise InputError(
            f"synthetic_dataset_hotness has {len(hotness)} values and synthetic_dataset_cardinalities "
            f"{len(cardinalities)}; give as many, or one hotness for all tables"
        )
    for value in cardinalities:
        if not 1 <= value <= _LARGEST_CARDINALITY:
            raise InputError(
                f"synthetic_dataset_cardinalities has {value}: a table has 1 to {_LARGEST_CARDINALITY} rows"
            )
    for value in hotness:
        if value < 1:
            raise InputError(
                f"synthetic_dataset_hotness has {value}: rows hold at least 1 id; use 1 for one-hot tables"
            )
    if len(hotness) == 1:
        hotness = tuple(hotness) * len(cardinalities)
    tables = [Feature(f"cat_{i}", *shape) for i, shape in enumerate(zip(cardinalities, hotness, strict=True))]
    numericals = [Feature(f"num_{i}") for i in range(num_numerical)]
    return FeatureSpec(
        features={feature.name: feature for feature in (*tables, *numericals, Feature("label"))},
        onehot=tuple(table.name for table in tables if table.max_hotness == 1),
        multihot=tuple(table.name for table in tables if table.max_hotness > 1),
        numerical=tuple(feature.name for feature in numericals),
        label="label",
    )
