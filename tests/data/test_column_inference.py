"""What columns are: every rule by hand, from text and from types, and over the whole input, not its beginning."""

import datetime
import decimal
import math

import pyarrow as pa
import pytest

from data.column_inference import ColumnObserver, Decision, Flags, Kind, Role, decide
from data.errors import InputError

NO_FLAGS = Flags("label", None, None, {})


def observed(*arrays):
    observer = ColumnObserver()
    for array in arrays:
        observer.observe(array if isinstance(array, pa.Array) else pa.array(array))
    return observer


def role(name, *arrays, flags=NO_FLAGS):
    return decide(name, observed(*arrays), flags).role


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (Kind.WHOLE, ["1", "-2", " 3", "4.0", "+5", None]),
        (Kind.WHOLE, ["1", "nan"]),
        (Kind.REAL, ["1", "2.5"]),
        (Kind.REAL, ["1", "inf", "-Infinity"]),
        (Kind.REAL, [".5", "1e-3", "2."]),
        (Kind.TEXT, ["1", "05"]),  # a postal code
        (Kind.TEXT, ["25000000", "05db9164"]),
        (Kind.TEXT, ["a", "b c"]),
        (Kind.TEXT, ["1", "true"]),
        (Kind.TEXT, ["2024-01-31", "1"]),
        (Kind.TEXT, ["[1,2]", "3"]),
        (Kind.BOOLEAN, ["True", "false"]),
        (Kind.DATE, ["2024-01-31", "2024-01-31 10:00", "2024-01-31T10:00:01.5+02:00", "2024-01-31T10:00:01Z"]),
        (Kind.LIST, ["[1,2]", " []", None]),
        (Kind.LIST, ["a", "a|b"]),
        (Kind.LIST, ["1", "2|3"]),
        (Kind.EMPTY, [None, "nan"]),
        (Kind.EMPTY, pa.nulls(3)),
        (Kind.WHOLE, pa.array([1, 2**64 - 1], pa.uint64())),
        (Kind.WHOLE, [1.0, 2.0, math.nan]),
        (Kind.REAL, [1.0, 2.5]),
        (Kind.REAL, [decimal.Decimal("1.50")]),
        (Kind.BOOLEAN, [True]),
        (Kind.DATE, [datetime.date(2024, 1, 31)]),
        (Kind.LIST, [[1], None]),
        (Kind.LIST, pa.array([None], pa.list_(pa.int64()))),
        (Kind.UNUSABLE, [[[1]]]),
        (Kind.UNUSABLE, [{"a": 1}]),
    ],
)
def test_kinds(kind, values):
    assert observed(values).kind is kind


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [
        (["25000000", "11111111"], ["05db9164"], Role.CATEGORICAL),
        (["1", "2"], ["2.5"], Role.NUMERICAL),
        (["a", "b"], ["a|b"], Role.MULTIHOT),
        (["[1]", "[2]"], ["x"], Role.CATEGORICAL),
        (["true"], ["maybe"], Role.CATEGORICAL),
        ([None], ["1"], Role.NUMERICAL),
        ([1, 2], [2**60], Role.CATEGORICAL),
    ],
)
@pytest.mark.parametrize("order", [1, -1])
def test_the_whole_column_decides(first, last, expected, order):
    """The one value that matters stands in the last of many batches, or in the first."""
    batches = [first] * 50 + [last]
    assert role("x", *batches[::order]) is expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        *((name, Role.CATEGORICAL) for name in ("id", "ID", "user_id", "user.ids", "itemId", "itemID", "id_user")),
        *((name, Role.NUMERICAL) for name in ("paid", "bid", "valid", "idle", "width", "I1", "AID")),
    ],
)
def test_whole_numbers_are_ids_by_name(name, expected):
    assert role(name, [1, 2]) is expected
    assert role(name, ["1", "2.0", "nan"]) is expected
    assert role(name, [1.5]) is Role.NUMERICAL


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([2**53], Role.NUMERICAL),
        ([2**53 + 1], Role.CATEGORICAL),
        ([-(2**53) - 1], Role.CATEGORICAL),
        ([str(2**53)], Role.NUMERICAL),
        ([str(2**53 + 1)], Role.CATEGORICAL),
        (["123456789012345678901234567890"], Role.CATEGORICAL),
        ([float(2**60)], Role.NUMERICAL),
        (["98765432109876543.0"], Role.NUMERICAL),  # somebody's float
    ],
)
def test_integers_that_no_float_holds_are_ids(values, expected):
    assert role("x", values) is expected


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["1", "-5.0"], True),
        ([str(2**63 - 1), str(-(2**63))], True),
        ([str(2**63)], False),
        (pa.array([2**63], pa.uint64()), False),
        ([1.0, 2.0], True),
        ([1e30], False),
        (["1", "1.5"], False),
        (["1", "x"], False),
        ([True], False),
        (["2024-01-31"], False),
        ([[1]], False),
    ],
)
def test_integers_of_64_bits_only(values, expected):
    assert observed([1], values).integers_only is expected


def test_missing_values_are_counted():
    observer = observed(["a", None], [None, "nan", "b"], pa.array([1.0, math.nan, None]))
    assert (observer.missing, observer.nan) == (3, 1)


def test_flags_come_first():
    flags = Flags("y", "d", "t", {"a": Role.CATEGORICAL, "t2": Role.IGNORED})
    assert decide("y", observed(["1"]), flags) == Decision(Role.LABEL, "--label")
    assert role("d", ["x"], flags=flags) is Role.DISPLAY
    assert role("a", [1.5], flags=flags) is Role.CATEGORICAL
    assert role("t2", [1.5], flags=flags) is Role.IGNORED
    assert role("t", [1.5], flags=flags) is Role.IGNORED
    assert role("", [1], flags=flags) is Role.IGNORED
    split = Flags("y", "d", "t", {"t": Role.NUMERICAL})
    assert role("t", [1.5], flags=split) is Role.NUMERICAL


@pytest.mark.parametrize("values", [[None], ["2024-01-31"], [{"a": 1}], [[[1]]]])
def test_what_cannot_be_learnt_from_is_ignored(values):
    assert role("x", values) is Role.IGNORED


@pytest.mark.parametrize(
    ("given", "values", "message"),
    [
        (Role.CATEGORICAL, [[1]], "holds lists and cannot be categorical; name it in --multihot"),
        (Role.NUMERICAL, [[1]], "holds lists and cannot be numerical"),
        (Role.NUMERICAL, ["2024-01-31"], "holds dates or times and cannot be numerical"),
        (Role.MULTIHOT, [[[1]]], "cannot be multi-hot; name it in --ignore"),
        (Role.CATEGORICAL, [{"a": 1}], "is of type struct<a: int64>, which cannot be categorical"),
    ],
)
def test_a_role_that_the_values_cannot_have(given, values, message):
    with pytest.raises(InputError, match="column 'x'") as error:
        role("x", values, flags=Flags("y", None, None, {"x": given}))
    assert message in str(error.value)
