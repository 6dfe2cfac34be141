"""Which rows are held out, against the definition in plain Python integers."""

import datetime
import hashlib

import numpy as np
import pyarrow as pa
import pytest

from data.column_values import BadValue
from data.errors import InputError
from data.row_split import HashSplit, TimeSplit

MASK = 2**64 - 1
STEP = 0x9E3779B97F4A7C15


def splitmix(bits):
    bits = ((bits ^ bits >> 30) * 0xBF58476D1CE4E5B9) & MASK
    bits = ((bits ^ bits >> 27) * 0x94D049BB133111EB) & MASK
    return bits ^ bits >> 31


def fraction(value, seed):
    """Of an integer or a text."""
    if isinstance(value, int):
        bits = splitmix((value + STEP) & MASK)
    else:
        bits = int.from_bytes(hashlib.blake2b(value.encode(), digest_size=8).digest(), "little")
    return (splitmix((splitmix((seed + STEP) & MASK) + STEP + bits) & MASK) >> 11) / 2**53


def held_out(split, values, first_row=0):
    array = values if isinstance(values, pa.Array | None) else pa.array(values)
    return split.held_out(array, first_row, 0 if array is None else len(array)).tolist()


@pytest.mark.parametrize(("seed", "share"), [(0, 0.2), (7, 0.5), (2**63 - 1, 0.9)])
def test_keys_by_the_definition(seed, share):
    split = HashSplit("k", share, seed)
    numbers = [*range(-50, 500), 2**63 - 1, -(2**63)]
    texts = [f"user {n}" for n in range(300)] + ["", "05", "é", str(2**63), "1.5"]
    assert held_out(split, numbers) == [fraction(n, seed) < share for n in numbers]
    assert held_out(split, texts) == [fraction(t, seed) < share for t in texts]
    assert split.held_out(None, 40, 400).tolist() == [fraction(n, seed) < share for n in range(40, 440)]


def test_a_value_has_one_side_however_it_is_written_and_whatever_stands_beside_it():
    split = HashSplit("k", 0.5)
    numbers = list(range(200))
    expected = held_out(split, numbers)
    assert 60 < sum(expected) < 140
    assert held_out(split, pa.array(numbers, pa.int16())) == expected
    assert held_out(split, [float(n) for n in numbers]) == expected
    assert held_out(split, [str(n) for n in numbers]) == expected
    assert held_out(split, [f" {n}.0" for n in numbers]) == expected
    assert held_out(split, [*(str(n) for n in numbers), "x"])[:-1] == expected
    texts = [f"t{n}" for n in numbers]
    assert held_out(split, texts) == [held_out(split, [text, "5"])[0] for text in texts]


def test_the_seed_and_the_fraction_matter():
    numbers = list(range(20_000))
    one, other, more = (np.array(held_out(HashSplit("k", *a), numbers)) for a in ((0.2, 0), (0.2, 1), (0.3, 0)))
    assert one.mean() == pytest.approx(0.2, abs=0.02) and more.mean() == pytest.approx(0.3, abs=0.02)
    assert (one & other).mean() == pytest.approx(0.04, abs=0.01)
    assert more[one].all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(("k", 0.0), "--test_fraction=0.0"), (("k", 1.0), "--test_fraction=1.0"), (("k", 0.5, -1), "--seed=-1")],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(InputError, match=message):
        HashSplit(*arguments)


@pytest.mark.parametrize("array", [pa.array(["a", None]), pa.array([1.0, float("nan")]), pa.array([1, None])])
def test_a_row_without_a_key(array):
    with pytest.raises(BadValue, match="every row needs a value to split by") as error:
        HashSplit("k").held_out(array, 0, 2)
    assert error.value.row == 1


@pytest.mark.parametrize(
    ("at", "values", "expected"),
    [
        ("5", [4, 5, 6], [False, True, True]),
        ("5", ["4", "5.0", " 6"], [False, True, True]),
        ("5", ["4.5", "5.5"], [False, True]),
        ("4.5", [4, 5], [False, True]),
        # Neighbours that are the same number as floats.
        ("9007199254740993", [9007199254740992, 9007199254740993], [False, True]),
        ("9007199254740993", ["9007199254740992", "9007199254740993"], [False, True]),
        ("2024-01-31", ["2024-01-30T23:59:59.999999", "2024-01-31", "2024-01-31 00:00"], [False, True, True]),
        ("2024-01-31", [datetime.date(2024, 1, 30), datetime.date(2024, 1, 31)], [False, True]),
        ("2024-01-31T01:00:00+01:00", ["2024-01-30T23:59:59Z", "2024-01-31T00:00:00Z"], [False, True]),
        ("2024-01-31T00:00", ["2024-01-31T00:30:00+01:00", "2024-01-30T23:30:00-01:00"], [False, True]),
        ("1969-12-31", [datetime.datetime(1969, 12, 30, 23), datetime.datetime(1969, 12, 31)], [False, True]),
    ],
)
def test_times(at, values, expected):
    assert held_out(TimeSplit("t", at), values) == expected


def test_timestamps_of_any_unit_and_zone():
    moments = [datetime.datetime(2024, 1, 30, 23), datetime.datetime(2024, 1, 31)]
    for unit in ("s", "ms", "us", "ns"):
        for zone in (None, "UTC", "America/New_York"):
            array = pa.array(moments, pa.timestamp(unit, zone))  # naive moments are UTC here
            assert held_out(TimeSplit("t", "2024-01-31"), array) == [False, True]


@pytest.mark.parametrize("at", ["soon", "nan", "", "2024-13-01"])
def test_bad_times_to_split_at(at):
    with pytest.raises(InputError, match=f"--split_at={at}"):
        TimeSplit("t", at)


@pytest.mark.parametrize(
    ("at", "values", "row", "message"),
    [
        ("5", ["4", "x"], 1, "is not a number"),
        ("5", ["4", None], 1, "every row needs a time"),
        ("5", [4.5, float("nan")], 1, "every row needs a time"),
        ("5", [datetime.date(2024, 1, 1)], 0, "give --split_at as one, such as 2024-01-31"),
        ("2024-01-31", [5], 0, "is a number: give --split_at as one"),
        ("2024-01-31", ["2024-01-30", "2024-01-30", "30.1.2024"], 2, "is no date or time of ISO 8601"),
    ],
)
def test_times_that_cannot_be_compared(at, values, row, message):
    with pytest.raises(BadValue, match=message) as error:
        held_out(TimeSplit("t", at), values)
    assert error.value.row == row
