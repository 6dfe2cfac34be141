"""Arrow arrays as text, numbers, labels and lists: by hand, and the same from CSV's text as from parquet's types."""

import decimal
import math

import numpy as np
import pyarrow as pa
import pytest

from data.column_values import BadValue, integer_text, integers, labels, lists, numbers, parse_list, text


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (pa.array([2**63 + 5, 0], pa.uint64()), ["9223372036854775813", "0"]),
        (pa.array([-(2**63), None], pa.int64()), ["-9223372036854775808", None]),
        (pa.array([5.0, -3.0, 1.5, math.nan, None, 1e15]), ["5", "-3", "1.5", None, None, "1000000000000000"]),
        (pa.array([0.1, 2.0], pa.float32()), ["0.1", "2"]),
        (pa.array([True, False, None]), ["true", "false", None]),
        (pa.array(["05", " 5"]), ["05", " 5"]),
        (pa.array(["b", "a", "b"]).dictionary_encode(), ["b", "a", "b"]),
        (pa.array(["b"], pa.large_string()), ["b"]),
        (pa.nulls(2), [None, None]),
        (pa.array([decimal.Decimal("123456789012345678901234567890")]), ["123456789012345678901234567890"]),
    ],
)
def test_text(array, expected):
    found = text(array)
    assert found.type == pa.string() and found.to_pylist() == expected


def test_whole_numbers_have_one_form_and_other_text_stays():
    found = integer_text(pa.array(["5", " 5 ", "5.0", "+5", "5.", "-7.00", "05", "5.5", "a", "nan", "-NaN", None]))
    assert found.to_pylist() == ["5", "5", "5", "5", "5", "-7", "05", "5.5", "a", None, None, None]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["1", None, "-9223372036854775808", "9223372036854775807"], [1, None, -(2**63), 2**63 - 1]),
        (["9223372036854775808"], None),
        (["1", "01"], None),
        (["1", "x"], None),
        ([], []),
        ([None], [None]),
    ],
)
def test_integers_of_64_bits_or_nothing(values, expected):
    found = integers(pa.array(values, pa.string()))
    assert found is expected or found.to_pylist() == expected


@pytest.mark.parametrize(
    "array",
    [
        pa.array(["1", " -2.5 ", "1e3", "007", None, "NaN"]),
        pa.array([1.0, -2.5, 1000.0, 7.0, None, math.nan]),
        pa.array(
            [decimal.Decimal("1.0"), decimal.Decimal("-2.5"), decimal.Decimal(1000), decimal.Decimal(7), None, None]
        ),
    ],
)
def test_numbers(array):
    np.testing.assert_array_equal(numbers(array), [1, -2.5, 1000, 7, np.nan, np.nan])


def test_booleans_are_numbers():
    np.testing.assert_array_equal(numbers(pa.array(["True", "false", "1", "0.5"])), [1, 0, 1, 0.5])
    np.testing.assert_array_equal(numbers(pa.array([True, None])), [1, np.nan])


@pytest.mark.parametrize(
    ("array", "row", "value"),
    [
        (pa.array(["1", None, "x", "y"]), 2, "x"),
        (pa.array(["1", "0x10"]), 1, "0x10"),
        (pa.array(["1", "1_0"]), 1, "1_0"),
        (pa.array(["1", "-inf"]), 1, "-inf"),
        (pa.array(["1", "1e999"]), 1, "1e999"),
        (pa.array([None, 1.0, math.inf]), 2, math.inf),
        (pa.array([[1]]), 0, [1]),
    ],
)
def test_what_is_no_finite_number_is_told_with_its_row(array, row, value):
    with pytest.raises(BadValue) as error:
        numbers(array)
    assert (error.value.row, error.value.value) == (row, value)


@pytest.mark.parametrize(
    "array",
    [
        pa.array(["0", "1", "1.0", " 0", "TRUE", "false"]),
        pa.array([0, 1, 1, 0, 1, 0], pa.int8()),
        pa.array([0.0, 1.0, 1.0, 0.0, 1.0, 0.0]),
        pa.array([False, True, True, False, True, False]),
    ],
)
def test_labels(array):
    found = labels(array)
    assert found.dtype == np.int8 and found.tolist() == [0, 1, 1, 0, 1, 0]


@pytest.mark.parametrize(
    ("array", "row", "value"),
    [
        (pa.array(["0", "2"]), 1, "2"),
        (pa.array(["0", "yes"]), 1, "yes"),
        (pa.array(["0", "1", None]), 2, None),
        (pa.array([0.0, 0.5]), 1, 0.5),
        (pa.array(["0", "inf"]), 1, "inf"),
    ],
)
def test_bad_labels(array, row, value):
    with pytest.raises(BadValue, match="a label is 0 or 1") as error:
        labels(array)
    assert (error.value.row, error.value.value) == (row, value)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("[1,2]", ["1", "2"]),
        (" [ 1 , 2 ] ", ["1", "2"]),
        ("[]", []),
        ("[1, nan, None, null, , 2]", ["1", "2"]),
        ("[1 2\n 3]", ["1", "2", "3"]),
        ("[New York, Rome]", ["New York", "Rome"]),
        ("[New York]", ["New York"]),
        ("['a, b', 'c']", ["a, b", "c"]),
        ('["a, b", "c\\"d", null, 12345678901234567890123]', ["a, b", 'c"d', "12345678901234567890123"]),
        ("['it''s', 'x']", ["it's", "x"]),
        ("a|b", ["a", "b"]),
        ("a | b ||\\N", ["a", "b"]),
        ("nan|b", ["nan", "b"]),
        ("a", ["a"]),
        ("a,b", ["a,b"]),
        ("[1,2", ["[1,2"]),
    ],
)
def test_lists_as_text(written, expected):
    assert parse_list(written) == expected


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (pa.array(["[1,2]", None, "[]", "7"]), [["1", "2"], None, [], ["7"]]),
        (pa.array([[1, 2], None, [], [7, None]]), [["1", "2"], None, [], ["7"]]),
        (pa.array([[9, 9], [1, 2], None, [], [7]]).slice(1), [["1", "2"], None, [], ["7"]]),
        (pa.array([["a", ""], ["\\N"]], pa.large_list(pa.string())), [["a"], []]),
        (pa.array([[1, 2], [3, 4]], pa.list_(pa.uint64(), 2)), [["1", "2"], ["3", "4"]]),
        (pa.array([1.0, 2.0, math.nan]), [["1"], ["2"], None]),
        (pa.array([3, None]), [["3"], None]),
    ],
)
def test_lists(array, expected):
    found = lists(array)
    assert found.type == pa.list_(pa.string()) and found.to_pylist() == expected
