"""One Arrow array of a user's column as text, numbers, labels or lists, be it from CSV (all text) or parquet.

The same values give the same results from both. A missing value is null; the readers have made empty texts null.
"""

import csv
import json
import re

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

# Numbers as people write them; no leading zeros, which ids have (postal codes, hashes) and quantities have not.
INTEGER = r"^\s*-?(0|[1-9][0-9]*)\s*$"
WHOLE = r"^\s*[+-]?(0|[1-9][0-9]*)(\.0*)?\s*$"
REAL = r"^\s*[+-]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?\s*$"
NAN = r"(?i)^\s*[+-]?nan\s*$"
INFINITE = r"(?i)^\s*[+-]?inf(inity)?\s*$"
BOOLEAN = r"(?i)^\s*(true|false)\s*$"
# What is parsed once a column is known to hold numbers: zeros in front may stay.
_NUMBER = r"(?i)^[+-]?(([0-9]+(\.[0-9]*)?|\.[0-9]+)(e[+-]?[0-9]+)?|nan|inf(inity)?)$"
_ABSENT_ELEMENTS = frozenset(("", "\\N"))
_ABSENT_UNQUOTED = _ABSENT_ELEMENTS | {"nan", "NaN", "None", "null"}
_NUMBERS_AND_SPACES = re.compile(r"[-+0-9.eE\s]+")


class BadValue(ValueError):
    """A value that its column cannot hold. Whoever knows the file turns it into an InputError.

    Attributes:
      row: position in the array.
      value: what stands there.
      problem: what is wrong with it and the remedy.
    """

    def __init__(self, row: int, value: object, problem: str):
        super().__init__(problem)
        self.row, self.value, self.problem = int(row), value, problem


def is_list(kind: pa.DataType) -> bool:
    """Whether the type is one of Arrow's list types."""
    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)


def is_text(kind: pa.DataType) -> bool:
    """Whether the type is one of Arrow's text types."""
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def text(array: pa.Array) -> pa.Array:
    """The values as strings: integers by their digits, whole floats like integers, NaN as null, text as it is."""
    array = _plain(array)
    if pa.types.is_string(array.type):
        return array
    if pa.types.is_null(array.type):
        return pa.nulls(len(array), pa.string())
    if not pa.types.is_floating(array.type):
        return array.cast(pa.string())
    if pa.types.is_float16(array.type):
        array = array.cast(pa.float32())
    array = pc.if_else(pc.is_nan(array), pa.scalar(None, array.type), array)
    whole = pc.and_(pc.equal(pc.floor(array), array), pc.less(pc.abs(array), 2.0**63))
    digits = pc.if_else(whole, array, pa.scalar(0, array.type)).cast(pa.int64()).cast(pa.string())
    return pc.if_else(whole, digits, array.cast(pa.string()))


def integer_text(array: pa.Array) -> pa.Array:
    """`text` in which every whole number has one form: `+5`, ` 5` and `5.0` are `5`. NaN is null, other text stays."""
    values = text(array)
    if not is_text(_plain(array).type):
        return values
    whole = pc.match_substring_regex(values, WHOLE)
    if pc.any(whole).as_py():
        digits = pc.replace_substring_regex(values, r"^\s*\+?(-?[0-9]+)(\.0*)?\s*$", r"\1")
        values = pc.if_else(whole, digits, values)
    nan = pc.match_substring_regex(values, NAN)
    return pc.if_else(nan, pa.scalar(None, pa.string()), values) if pc.any(nan).as_py() else values


def integers(array: pa.Array) -> pa.Array | None:
    """Strings of digits as int64 with nulls; None if one is no integer, has zeros in front or more than 64 bits."""
    if not pc.all(pc.match_substring_regex(array, INTEGER), min_count=0).as_py():
        return None
    try:
        return pc.utf8_trim_whitespace(array).cast(pa.int64())
    except pa.ArrowInvalid:
        return None


def numbers(array: pa.Array) -> np.ndarray:
    """float64, NaN where missing.

    Raises:
      BadValue: a value is no number, or is infinite.
    """
    array = _plain(array)
    if pa.types.is_null(array.type):
        return np.full(len(array), np.nan)
    if is_text(array.type):
        trimmed = pc.utf8_trim_whitespace(array)
        try:
            parsed = trimmed.cast(pa.float64())
        except pa.ArrowInvalid:
            parsed = _booleans_to_digits(array, trimmed).cast(pa.float64())
    elif pa.types.is_boolean(array.type):
        parsed = array.cast(pa.int8()).cast(pa.float64())
    elif pa.types.is_integer(array.type) or pa.types.is_floating(array.type) or pa.types.is_decimal(array.type):
        # Unsafe: an integer beyond 2^53 is rounded, as every number of a model is.
        parsed = array.cast(pa.float64(), safe=False)
    else:
        raise BadValue(0, array[0].as_py(), f"a value of type {array.type} is no number; name the column in --ignore")
    values = pc.fill_null(parsed, np.nan).to_numpy(zero_copy_only=False)
    infinite = np.isinf(values)
    if infinite.any():
        row = int(infinite.argmax())
        raise BadValue(row, array[row].as_py(), "a numerical value is finite: correct it, or leave it empty")
    return values


def labels(array: pa.Array) -> np.ndarray:
    """int8 of zeros and ones, from 0, 1, 0.0, 1.0, true or false.

    Raises:
      BadValue: a value is missing or something else.
    """
    array, problem = _plain(array), "a label is 0 or 1 (or false or true): correct or drop the row"
    try:
        values = numbers(array)
    except BadValue as error:
        raise BadValue(error.row, error.value, problem) from None
    bad = ~((values == 0) | (values == 1))
    if bad.any():
        row = int(bad.argmax())
        raise BadValue(row, array[row].as_py(), problem)
    return values.astype(np.int8)


def lists(array: pa.Array) -> pa.Array:
    """list<string> with the elements' `text`, null where the whole list is missing; missing elements are left out.

    A text that is written `[1, 2]`, `["a", "b"]` or `[1 2]` (numbers alone) or `a|b` is split; any other value is a
    list of one.
    """
    array = _plain(array)
    if is_text(array.type):
        encoded = pc.dictionary_encode(array)
        parsed = pa.array(
            [None if value is None else parse_list(value) for value in encoded.dictionary.to_pylist()],
            pa.list_(pa.string()),
        )
        return parsed.take(encoded.indices)
    if not is_list(array.type):
        values = text(array)
        offsets = np.concatenate([[0], np.cumsum(values.is_valid().to_numpy(zero_copy_only=False))]).astype(np.int32)
        return _list_array(offsets, values.drop_null(), values.is_null())
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
    elements = text(array.flatten())  # of lists that are there
    absent = pc.is_in(elements, pa.array(sorted(_ABSENT_ELEMENTS)))
    elements = pc.if_else(absent, pa.scalar(None, pa.string()), elements)
    owner = np.repeat(np.arange(len(array)), lengths)[elements.is_valid().to_numpy(zero_copy_only=False)]
    offsets = np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=len(array)))]).astype(np.int32)
    return _list_array(offsets, elements.drop_null(), array.is_null())


def parse_list(value: str) -> list[str]:
    """The elements of a list that is written as text; see `lists`."""
    stripped = value.strip()
    if not (stripped.startswith("[") and stripped.endswith("]")):
        return [part for part in (part.strip() for part in value.split("|")) if part not in _ABSENT_ELEMENTS]
    inner = stripped[1:-1]
    if '"' in inner or "'" in inner:
        return _quoted_elements(stripped, inner)
    if "," not in inner and _NUMBERS_AND_SPACES.fullmatch(inner):
        parts = inner.split()  # the way numpy prints
    else:
        parts = [part.strip() for part in inner.split(",")]
    return [part for part in parts if part not in _ABSENT_UNQUOTED]


def _quoted_elements(bracketed: str, inner: str) -> list[str]:
    try:
        # Numbers stay the text that they are.
        elements = json.loads(bracketed, parse_int=str, parse_float=str, parse_constant=str)
    except (ValueError, RecursionError):
        quote = '"' if inner.lstrip().startswith('"') else "'"
        elements = next(csv.reader([inner.replace("\n", " ")], quotechar=quote, skipinitialspace=True), [])
        return [part.strip() for part in elements if part.strip() not in _ABSENT_ELEMENTS]
    return [
        element if isinstance(element, str) else json.dumps(element)
        for element in elements
        if element is not None and element not in _ABSENT_ELEMENTS
    ]


def _plain(array: pa.Array | pa.ChunkedArray) -> pa.Array:
    """One array, its dictionary decoded, text as `string`."""
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
        if isinstance(array, pa.ChunkedArray):  # of no or several chunks, depending on the version of pyarrow
            array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    return array.cast(pa.string()) if is_text(array.type) and not pa.types.is_string(array.type) else array


def _booleans_to_digits(array: pa.Array, trimmed: pa.Array) -> pa.Array:
    lower = pc.utf8_lower(trimmed)
    digits = pc.if_else(pc.equal(lower, "true"), "1", pc.if_else(pc.equal(lower, "false"), "0", trimmed))
    good = pc.fill_null(pc.match_substring_regex(digits, _NUMBER), True).to_numpy(zero_copy_only=False)
    if not good.all():
        row = int(good.argmin())
        raise BadValue(
            row, array[row].as_py(), "it is not a number: correct it, or name the column in --categorical or --ignore"
        )
    return digits


def _list_array(offsets: np.ndarray, elements: pa.Array, missing: pa.Array) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), elements, mask=missing)
