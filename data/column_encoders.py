"""Columns of a user's table -> columns of a dataset, each by an encoder that first sees the training rows.

An encoder `observe`s every batch, `finish`es once, and then `encode`s every batch. Values that cannot be used raise
`BadValue`, whose row is that of the batch.
"""

import abc
import dataclasses

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from data.column_values import BadValue, integer_text, integers, labels, lists, numbers, text
from data.feature_spec import Feature
from data.hashing import text_bits
from data.numerical_transform import Moments, NumericalTransform, signed_log1p
from data.vocabulary import ValueCounter, Vocabulary

# Whole numbers stay the ids that they are where a table of this many rows or fewer, a tenth of them in use, holds them.
MAX_KEPT_ID = 10_000_000
MIN_KEPT_SHARE = 0.1


class ColumnEncoder(abc.ABC):
    """Turns one column of the input into columns of the dataset.

    Attributes:
      features: the columns it writes; complete after `finish`.
    """

    features: tuple[Feature, ...]

    def observe(self, array: pa.Array, training: np.ndarray) -> None:  # noqa: B027
        """Takes the next batch; `training` marks its training rows."""

    def finish(self) -> None:  # noqa: B027
        """Everything has been observed."""

    @abc.abstractmethod
    def encode(self, array: pa.Array) -> list[pa.Array]:
        """The arrays of `features` for a batch."""


class LabelEncoder(ColumnEncoder):
    """0 and 1 as int8."""

    def __init__(self, name: str):
        self.features = (Feature(name, dtype="int8"),)

    def encode(self, array: pa.Array) -> list[pa.Array]:
        return [pa.array(labels(array))]


class DisplayEncoder(ColumnEncoder):
    """Display ids as int64: integers as they are, or 63 bits of a hash of the text.

    Two of n texts share a hash with a chance of about n^2 / 2^64: 5 in a million for 10 million displays.
    """

    def __init__(self, name: str, *, hashed: bool):
        self.features, self.hashed = (Feature(name, dtype="int64"),), hashed

    def encode(self, array: pa.Array) -> list[pa.Array]:
        values = integer_text(array)
        if values.null_count:
            row = values.is_null().to_numpy(zero_copy_only=False).argmax()
            raise BadValue(row, array[row].as_py(), "every row needs a display id: fill it, or drop the row")
        if not self.hashed:
            return [integers(values)]
        encoded = values.dictionary_encode()
        hashes = [text_bits(value) >> 1 for value in encoded.dictionary.to_pylist()]
        return [pa.array(hashes, pa.int64()).take(encoded.indices)]


@dataclasses.dataclass(frozen=True)
class IdOptions:
    """What the user wants of a categorical column.

    Attributes:
      cardinality, hotness: given ones, which values may not exceed; None to infer.
      min_count: training rows that a value needs for an id of its own.
      vocabulary: maps whole numbers too, where they could stay as they are.
      whole: the values are whole numbers, so that `5.0` is `5` and NaN is missing.
    """

    cardinality: int | None = None
    hotness: int | None = None
    min_count: int = 1
    vocabulary: bool = False
    whole: bool = False


class IdEncoder(ColumnEncoder):
    """Ids of a categorical column, one-hot or multi-hot.

    Whole numbers are kept as ids where none is negative, the largest is below MAX_KEPT_ID and training rows have at
    least a tenth of those from 0 to the largest; or where the cardinality is given (then -1 is an absent id). All else
    is mapped by a vocabulary of the training rows.

    Attributes:
      vocabulary: None where ids are kept; set by `finish`.
    """

    def __init__(self, name: str, options: IdOptions, *, multihot: bool):
        self.name, self.multihot, self._options = name, multihot, options
        self.vocabulary: Vocabulary | None = None
        self._counter, self._all_integers = ValueCounter(), True
        self._low, self._high, self._hotness = 0, -1, 1
        self.features = ()

    def observe(self, array: pa.Array, training: np.ndarray) -> None:
        values = self._values(array)
        if self.multihot:
            lengths = pc.fill_null(pc.list_value_length(values), 0).to_numpy(zero_copy_only=False)
            self._check_hotness(lengths, array)
            self._hotness = max(self._hotness, int(lengths.max(initial=0)))
            values, training = values.flatten(), np.repeat(training, lengths)
        self._counter.add(values.filter(pa.array(training)))
        if self._all_integers:
            found = integers(values)
            self._all_integers = found is not None
            if found is not None and found.null_count < len(found):
                ends = pc.min_max(found)
                self._low, self._high = min(self._low, ends["min"].as_py()), max(self._high, ends["max"].as_py())

    def finish(self) -> None:
        counts = self._counter.counts()
        options, cardinality = self._options, self._options.cardinality
        dense = self._low >= 0 and self._high < MAX_KEPT_ID and counts.num_rows >= MIN_KEPT_SHARE * (self._high + 1)
        if not self._all_integers or options.vocabulary or not (dense or cardinality is not None):
            self.vocabulary = Vocabulary.of_counts(counts, min_count=options.min_count)
            cardinality = cardinality or self.vocabulary.size
        elif cardinality is None:
            cardinality = max(1, self._high + 1)
        del self._counter
        dtype = "int32" if cardinality <= 2**31 else "int64"
        hotness = (options.hotness or self._hotness) if self.multihot else 1
        self.features = (Feature(self.name, cardinality, hotness, dtype),)

    def encode(self, array: pa.Array) -> list[pa.Array]:
        values = self._values(array)
        flat = values.flatten() if self.multihot else values
        ids = integers(flat) if self.vocabulary is None else self.vocabulary.ids(flat)
        feature = self.features[0]
        self._check_ids(ids, flat, values, feature.cardinality)
        ids = ids.cast(feature.dtype)
        if not self.multihot:
            return [ids]
        return [pa.ListArray.from_arrays(values.offsets, ids, mask=values.is_null())]

    def _values(self, array: pa.Array) -> pa.Array:
        if self.multihot:
            return lists(array)
        return integer_text(array) if self._options.whole else text(array)

    def _check_hotness(self, lengths: np.ndarray, array: pa.Array) -> None:
        given = self._options.hotness
        if given is not None and lengths.max(initial=0) > given:
            row = int((lengths > given).argmax())
            raise BadValue(
                row,
                array[row].as_py(),
                f"has {lengths[row]} ids, more than --hotness {self.name}={given}: raise it, or cut the list",
            )

    def _check_ids(self, ids: pa.Array, flat: pa.Array, values: pa.Array, cardinality: int) -> None:
        lowest = -1 if self.vocabulary is None else 0
        bad = pc.fill_null(pc.or_(pc.less(ids, lowest), pc.greater_equal(ids, cardinality)), False)
        if not pc.any(bad, min_count=0).as_py():
            return
        place = int(bad.to_numpy(zero_copy_only=False).argmax())
        row = place
        if self.multihot:
            row = int(np.searchsorted(values.offsets.to_numpy(), place, side="right")) - 1
        if self.vocabulary is None:
            problem = f"ids are 0 to {cardinality - 1} with --cardinality {self.name}={cardinality}: raise it"
        else:
            problem = (
                f"there are {self.vocabulary.size - 1} values for the ids 1 to {cardinality - 1} of --cardinality "
                f"{self.name}={cardinality}: raise it to {self.vocabulary.size}, or raise --min_count"
            )
        raise BadValue(row, flat[place].as_py(), problem)


class NumericalEncoder(ColumnEncoder):
    """float32, transformed, gaps filled; and a 0/1 column that flags them, where the input has any.

    Attributes:
      transform: set by `finish`.
    """

    def __init__(self, name: str, *, missing_name: str, log_standardize: bool, fill: float | None):
        """`fill` is the value of gaps in the column's own units, None for the mean of the training rows."""
        self.name, self._missing_name, self._log_standardize, self._fill = name, missing_name, log_standardize, fill
        self._moments, self._gaps = Moments(), False
        self.features = ()
        self.transform: NumericalTransform | None = None

    def observe(self, array: pa.Array, training: np.ndarray) -> None:
        values = numbers(array)
        gaps = np.isnan(values)
        self._gaps |= bool(gaps.any())
        values = values[training & ~gaps]
        self._moments.add(signed_log1p(values) if self._log_standardize else values)

    def finish(self) -> None:
        mean, std = self._moments.finish()
        # A constant column is 0 after standardisation, not infinite.
        identity = NumericalTransform(
            self._log_standardize,
            mean if self._log_standardize else 0.0,
            (std or 1.0) if self._log_standardize else 1.0,
            0.0,
            self._missing_name if self._gaps else None,
        )
        if self._fill is None:
            fill = 0.0 if self._log_standardize else mean
        else:
            fill = float(identity.apply(np.array([self._fill]))[0])
        self.transform = dataclasses.replace(identity, fill=fill)
        self.features = (Feature(self.name, dtype="float32"),)
        if self._gaps:
            self.features += (Feature(self._missing_name, dtype="float32"),)

    def encode(self, array: pa.Array) -> list[pa.Array]:
        values = numbers(array)
        encoded = self.transform.apply(values)
        beyond = np.abs(encoded) > np.finfo(np.float32).max
        if beyond.any():
            row = int(beyond.argmax())
            raise BadValue(row, array[row].as_py(), "does not fit a 32-bit float: correct it, or use --log_standardize")
        arrays = [pa.array(encoded.astype(np.float32))]
        return [*arrays, pa.array(np.isnan(values).astype(np.float32))] if self._gaps else arrays
