"""Which rows are trained on and which are held out: by the hash of a key, or by time."""

import abc
import datetime
import re

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from data.column_values import BadValue, integer_text, integers, is_text, numbers
from data.errors import InputError
from data.hashing import WEYL_STEP, fractions, mix, text_bits

DEFAULT_TEST_FRACTION = 0.2
_INTEGER = re.compile(r"-?(0|[1-9][0-9]*)")


class RowSplit(abc.ABC):
    """A rule that holds rows out.

    Attributes:
      column: the column it looks at; None for the number of the row.
    """

    column: str | None

    @abc.abstractmethod
    def held_out(self, array: pa.Array | None, first_row: int, rows: int) -> np.ndarray:
        """bool for each of `rows` rows, the first of which is number `first_row` of the whole input.

        Raises:
          BadValue: a value of the column is missing or cannot be used.
        """

    @abc.abstractmethod
    def describe(self) -> dict[str, object]:
        """Plain values for the specification's metadata."""

    @abc.abstractmethod
    def remedy(self) -> str:
        """What to do where one side has no rows."""


class HashSplit(RowSplit):
    """Holds out about a fraction of the values of a column, each with all its rows.

    A value's side depends on the seed and its digits or text alone: it is the same in every file, in CSV and parquet.
    """

    def __init__(self, column: str | None, test_fraction: float = DEFAULT_TEST_FRACTION, seed: int = 0):
        if not 0.0 < test_fraction < 1.0:
            raise InputError(f"--test_fraction={test_fraction}: give a share between 0 and 1, both excluded")
        if not 0 <= seed < 2**63:
            raise InputError(f"--seed={seed}: a seed is an integer from 0 to 2^63-1; give another")
        self.column, self._fraction, self._seed = column, test_fraction, seed

    def held_out(self, array: pa.Array | None, first_row: int, rows: int) -> np.ndarray:
        if array is None:
            bits = mix(np.arange(first_row, first_row + rows, dtype=np.uint64) + WEYL_STEP)
        else:
            bits = _value_bits(array)
        seed = mix(np.array([self._seed], np.uint64) + WEYL_STEP)
        return fractions(mix(seed + WEYL_STEP + bits)) < self._fraction

    def describe(self) -> dict[str, object]:
        return {"key": self.column, "test_fraction": self._fraction, "seed": self._seed}

    def remedy(self) -> str:
        key = f"the values of '{self.column}'" if self.column else "the rows"
        return f"give another --test_fraction or --seed; {key} are split as a whole, with a chance of {self._fraction}"


class TimeSplit(RowSplit):
    """Holds out the rows at or after a time: a number, or a date or time of ISO 8601 (UTC unless it says otherwise)."""

    def __init__(self, column: str, split_at: str):
        self.column, self._text = column, split_at
        self._at: int | float
        self._is_number = True
        try:
            self._at = int(split_at)
        except ValueError:
            try:
                self._at = float(split_at)
            except ValueError:
                self._is_number = False
                try:
                    self._at = _microseconds(split_at)
                except ValueError:
                    raise InputError(
                        f"--split_at={split_at}: is no number and no date or time such as 2024-01-31T18:00:00"
                    ) from None
        if self._at != self._at:
            raise InputError(f"--split_at={split_at}: give a number, or a date or time such as 2024-01-31T18:00:00")

    def held_out(self, array: pa.Array | None, first_row: int, rows: int) -> np.ndarray:
        if array.null_count:
            row = array.is_null().to_numpy(zero_copy_only=False).argmax()
            raise BadValue(row, None, "every row needs a time: fill it, drop the row, or split by --split_key")
        return self._numbers(array) if self._is_number else self._times(array)

    def describe(self) -> dict[str, object]:
        return {"time_column": self.column, "at": self._text}

    def remedy(self) -> str:
        return f"give a --split_at that lies between the first and the last '{self.column}'"

    def _numbers(self, array: pa.Array) -> np.ndarray:
        if pa.types.is_temporal(array.type):
            raise BadValue(0, array[0].as_py(), "is a date or time: give --split_at as one, such as 2024-01-31")
        if isinstance(self._at, int) and -(2**63) <= self._at < 2**63:
            exact = integers(integer_text(array))
            if exact is not None:
                return exact.to_numpy() >= self._at
        values = numbers(array)
        if np.isnan(values).any():
            raise BadValue(np.isnan(values).argmax(), None, "every row needs a time")
        return values >= self._at

    def _times(self, array: pa.Array) -> np.ndarray:
        if pa.types.is_timestamp(array.type) or pa.types.is_date(array.type):
            zone = array.type.tz if pa.types.is_timestamp(array.type) else None
            times = array.cast(pa.timestamp("us", zone), safe=False).cast(pa.int64())
            return times.to_numpy() >= self._at
        if not is_text(array.type):
            raise BadValue(0, array[0].as_py(), "is a number: give --split_at as one")
        encoded = array.dictionary_encode()
        times = np.empty(len(encoded.dictionary), np.int64)
        for number, value in enumerate(encoded.dictionary.to_pylist()):
            try:
                times[number] = _microseconds(value)
            except ValueError:
                row = pc.index(array, value).as_py()
                raise BadValue(row, value, "is no date or time of ISO 8601, as --split_at is; correct it") from None
        return times[encoded.indices.to_numpy()] >= self._at


def _microseconds(text: str) -> int:
    """Of a date or time of ISO 8601 since 1970, UTC where it names no zone. Raises ValueError."""
    time = datetime.datetime.fromisoformat(text.strip().removesuffix(" UTC").replace(",", "."))
    zoned = time if time.tzinfo is not None else time.replace(tzinfo=datetime.UTC)
    since = zoned - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    return (since.days * 86400 + since.seconds) * 10**6 + since.microseconds


def _value_bits(array: pa.Array) -> np.ndarray:
    """uint64 for every value; whole numbers of one value have the same, however they are written."""
    values = integer_text(array)
    if values.null_count:
        row = values.is_null().to_numpy(zero_copy_only=False).argmax()
        raise BadValue(row, None, "every row needs a value to split by: fill it, drop the row, or name another key")
    whole = integers(values)
    if whole is not None:
        return mix(whole.to_numpy().astype(np.uint64) + WEYL_STEP)
    encoded = values.dictionary_encode()
    texts = encoded.dictionary.to_pylist()
    bits = np.array([text_bits(value) for value in texts], np.uint64)
    # The other values of a batch must not change a value's bits: an integer among texts has those of an integer.
    places = [place for place, value in enumerate(texts) if _is_integer(value)]
    digits = np.array([int(texts[place]) for place in places], np.int64)
    bits[places] = mix(digits.astype(np.uint64) + WEYL_STEP)
    return bits[encoded.indices.to_numpy()]


def _is_integer(value: str) -> bool:
    return _INTEGER.fullmatch(value) is not None and -(2**63) <= int(value) < 2**63
