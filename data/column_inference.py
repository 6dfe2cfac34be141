"""What each column of a user's table is, decided over the whole input and not over its first rows.

A flag decides first. Without one, the first rule that holds (missing values and NaN left out):
  unnamed                nothing in the header: ignored (the row numbers that pandas writes)
  split key, split time  ignored, unless a flag makes the column a feature too
  empty                  no value at all: ignored
  list                   a list type; every text is written `[...]`; or some text holds `a|b`: multi-hot
  date or time           a date or time type, or every text is written so (ISO 8601): ignored
  unusable type          maps, structs, nested lists: ignored
  text                   some value is no number (hexadecimal hashes, zeros in front, words): categorical
  boolean                only true and false: numerical, 1 and 0
  id by name             whole numbers and a name that ends or begins with the word id (user_id, ids, itemId, id_user):
                         categorical
  id by size             an integer beyond 2^53, which no float holds exactly: categorical
  number                 numerical
"""

import dataclasses
import enum
import re
from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from data import column_values as forms
from data.errors import InputError

_EXACT_FLOAT = 2**53
_DATE = (
    r"^\s*[0-9]{4}-[0-9]{2}-[0-9]{2}"
    r"([T ][0-9]{2}:[0-9]{2}(:[0-9]{2}([.,][0-9]+)?)?(\s?(Z|UTC|[+-][0-9]{2}(:?[0-9]{2})?))?)?\s*$"
)
_ID_NAME = re.compile(r"(.*[^A-Za-z])?ids?|id[^A-Za-z].*", re.IGNORECASE)
_ID_CAMEL = re.compile(r".*[a-z0-9]I[dD]s?$")


class Role(enum.Enum):
    """What becomes of a column."""

    LABEL = "label"
    DISPLAY = "display id"
    CATEGORICAL = "categorical"
    MULTIHOT = "multi-hot"
    NUMERICAL = "numerical"
    IGNORED = "ignored"


class Kind(enum.Enum):
    """What the values of a column have in common."""

    EMPTY = "empty"
    BOOLEAN = "boolean"
    WHOLE = "whole numbers"
    REAL = "numbers"
    DATE = "dates or times"
    LIST = "lists"
    TEXT = "text"
    UNUSABLE = "a type that cannot be used"


@dataclasses.dataclass(frozen=True)
class Flags:
    """What the user says of the columns; names of the input's columns throughout.

    Attributes:
      label, display: columns of these roles.
      split: the column that rows are split by, if it is none of the two.
      roles: name -> the role given.
    """

    label: str
    display: str | None
    split: str | None
    roles: Mapping[str, Role]


@dataclasses.dataclass(frozen=True)
class Decision:
    """The role of a column and the rule that gave it."""

    role: Role
    rule: str


class ColumnObserver:
    """Sees all values of a column, batch after batch, and tells what they have in common.

    Attributes:
      missing: nulls so far.
      nan: values so far that are NaN.
      integers_only: whether every value is an integer of 64 bits, as `5`, ` 5` or `5.0`.
    """

    def __init__(self):
        self.missing = self.nan = 0
        self.integers_only = True
        self._whole = self._real = self._boolean = self._date = 0
        self._bracketed = self._piped = self._text = 0
        self._wide = self._list_type = False
        self._unusable = ""

    @property
    def kind(self) -> Kind:
        """Of the values so far."""
        text = self._text + self._piped + self._bracketed
        numbers = self._whole + self._real
        if self._unusable:
            return Kind.UNUSABLE
        if self._list_type or self._piped:
            return Kind.LIST
        if not text + numbers + self._boolean + self._date:
            return Kind.EMPTY
        if self._bracketed and self._bracketed == text + numbers + self._boolean + self._date:
            return Kind.LIST
        if text or sum(map(bool, (numbers, self._boolean, self._date))) > 1:
            return Kind.TEXT
        if self._boolean:
            return Kind.BOOLEAN
        if self._date:
            return Kind.DATE
        return Kind.REAL if self._real else Kind.WHOLE

    @property
    def has_integers_beyond_floats(self) -> bool:
        """Whether a whole number lies beyond 2^53."""
        return self._wide

    @property
    def has_list_type(self) -> bool:
        """Whether a file has the column as a list, not as text."""
        return self._list_type

    @property
    def unusable_type(self) -> str:
        """The type that cannot be used, or ""."""
        return self._unusable

    def observe(self, array: pa.Array) -> None:
        """Takes the next values."""
        self.missing += array.null_count
        values, kind = array.drop_null(), array.type
        if not len(values):
            self._list_type |= forms.is_list(kind)
        elif forms.is_text(kind):
            self._observe_text(values)
        elif pa.types.is_boolean(kind):
            self._boolean += len(values)
            self.integers_only = False
        elif pa.types.is_integer(kind):
            self._observe_integers(values)
        elif pa.types.is_floating(kind):
            numbers = values.filter(pc.invert(pc.is_nan(values)))
            self.nan += len(values) - len(numbers)
            wide = self._wide
            self._observe_text(forms.text(numbers))
            self._wide = wide  # it was a float already
        elif pa.types.is_decimal(kind):
            self._observe_text(values.cast(pa.string()))
        elif pa.types.is_temporal(kind):
            self._date += len(values)
            self.integers_only = False
        elif forms.is_list(kind) and not pa.types.is_nested(kind.value_type):
            self._list_type = True
            self.integers_only = False
        elif pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
            self._observe_text(values.cast(pa.string()))
        else:
            self._unusable, self.integers_only = str(kind), False

    def _observe_integers(self, values: pa.Array) -> None:
        self._whole += len(values)
        ends = pc.min_max(values)
        low, high = ends["min"].as_py(), ends["max"].as_py()
        self._wide |= max(-low, high) > _EXACT_FLOAT
        self.integers_only &= high < 2**63

    def _observe_text(self, rest: pa.Array) -> None:
        if self._text:
            # Only a list written a|b can still change what the column is.
            if not self._piped:
                self._piped += pc.sum(pc.match_substring(rest, "|")).as_py() or 0
            return
        for attribute, pattern in (
            ("_whole", forms.WHOLE),
            ("_real", forms.REAL),
            ("nan", forms.NAN),
            ("_real", forms.INFINITE),
            ("_boolean", forms.BOOLEAN),
            ("_date", _DATE),
        ):
            if not len(rest):
                return
            matches = pc.match_substring_regex(rest, pattern)
            found = pc.sum(matches).as_py()
            if not found:
                continue
            setattr(self, attribute, getattr(self, attribute) + found)
            if attribute == "_whole":
                self._look_at_size(rest.filter(matches))
            elif attribute != "nan":
                self.integers_only = False
            rest = rest.filter(pc.invert(matches))
        if not len(rest):
            return
        self.integers_only = False
        trimmed = pc.utf8_trim_whitespace(rest)
        bracketed = pc.and_(pc.starts_with(trimmed, "["), pc.ends_with(trimmed, "]"))
        self._bracketed += pc.sum(bracketed).as_py()
        rest = rest.filter(pc.invert(bracketed))
        piped = pc.sum(pc.match_substring(rest, "|")).as_py() or 0
        self._piped += piped
        self._text += len(rest) - piped

    def _look_at_size(self, whole: pa.Array) -> None:
        long = whole.filter(pc.greater_equal(pc.utf8_length(whole), 16))
        for value in long.unique().to_pylist():
            digits, point, _ = value.strip().partition(".")
            self._wide |= not point and abs(int(digits)) > _EXACT_FLOAT
            self.integers_only &= -(2**63) <= int(digits) < 2**63


def decide(name: str, observer: ColumnObserver, flags: Flags) -> Decision:
    """The role of a column; the rules stand above.

    Raises:
      InputError: the role that a flag gives cannot hold the column's values.
    """
    if name == flags.label:
        return Decision(Role.LABEL, "--label")
    if name == flags.display:
        return Decision(Role.DISPLAY, "--display_id")
    kind = observer.kind
    if name in flags.roles:
        role = flags.roles[name]
        _check_role(name, role, observer)
        return Decision(role, f"flag; {kind.value}")
    if not name:
        return Decision(Role.IGNORED, "the header has no name for it")
    if name == flags.split:
        return Decision(Role.IGNORED, "splits the rows; a flag can make it a feature too")
    if kind is Kind.UNUSABLE:
        return Decision(Role.IGNORED, f"type {observer.unusable_type}")
    if kind in (Kind.EMPTY, Kind.DATE):
        return Decision(Role.IGNORED, kind.value)
    if kind is Kind.LIST:
        return Decision(Role.MULTIHOT, kind.value)
    if kind is Kind.TEXT:
        return Decision(Role.CATEGORICAL, kind.value)
    if kind is Kind.WHOLE and (_ID_NAME.fullmatch(name) or _ID_CAMEL.fullmatch(name)):
        return Decision(Role.CATEGORICAL, f"{kind.value}, id by name")
    if kind is Kind.WHOLE and observer.has_integers_beyond_floats:
        return Decision(Role.CATEGORICAL, f"{kind.value}, id by size")
    return Decision(Role.NUMERICAL, kind.value)


def _check_role(name: str, role: Role, observer: ColumnObserver) -> None:
    kind = observer.kind
    if role is Role.IGNORED:
        return
    if kind is Kind.UNUSABLE:
        raise InputError(
            f"column '{name}' is of type {observer.unusable_type}, which cannot be {role.value}; name it in --ignore"
        )
    if role is Role.CATEGORICAL and observer.has_list_type:
        raise InputError(f"column '{name}' holds lists and cannot be {role.value}; name it in --multihot")
    if role is Role.NUMERICAL and (observer.has_list_type or kind is Kind.DATE):
        raise InputError(f"column '{name}' holds {kind.value} and cannot be {role.value}; name it in --ignore")
