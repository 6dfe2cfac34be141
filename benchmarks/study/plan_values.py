"""What the values of a plan may be: a text that says it, and a test. Pure functions."""

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from data.errors import InputError

Kind = tuple[str, Callable[[Any], bool]]
"""What a value must be, for messages, and whether one is."""

_FILE_NAME = re.compile(r"[^\s./\\-][^/\\\x00-\x1f\x7f]{0,99}(?<!\s)")
_CPUS = re.compile(r"\d+(-\d+)?(,\d+(-\d+)?)*")


def check(where: str, found: Any, keys: Sequence[str], defaults: Collection[str], kinds: Mapping[str, Kind]) -> None:
    """Checks the keys of a mapping and the value of each.

    Args:
      where: names the mapping in messages.
      keys: that it may have.
      defaults: those that may be left out.
      kinds: by key.

    Raises:
      InputError: a key is missing or unknown, or a value cannot be.
    """
    if not isinstance(found, Mapping):
        raise InputError(f"{where}: must be a mapping of {', '.join(keys)}")
    for key in found:
        if key not in keys:
            raise InputError(f"{where}: there is no key '{key}': take it out, or use one of {', '.join(keys)}")
    for key in keys:
        if key not in found and key not in defaults:
            raise InputError(f"{where}: the key '{key}' is missing: add it")
    for key, value in found.items():
        need, holds = kinds[key]
        if not holds(value):
            raise InputError(f"{where}: {key} must be {need}, got {value!r}")


def some_of(allowed: Sequence[Any], least: int = 1) -> Kind:
    """A list of different ones of `allowed`, at least so many."""

    def holds(value: Any) -> bool:
        if not isinstance(value, list) or len(value) < least:
            return False
        # Types too, for 1 equals True.
        known = [any(type(item) is type(one) and item == one for one in allowed) for item in value]
        return all(known) and len(set(value)) == len(value)

    return f"a list of different ones of {', '.join(_spelt(one) for one in allowed)}", holds


def one_of(allowed: Sequence[str]) -> Kind:
    """One of `allowed`."""
    return f"one of {', '.join(allowed)}", lambda value: isinstance(value, str) and value in allowed


def or_null(kind: Kind) -> Kind:
    """Of a kind, or nothing."""
    need, holds = kind
    return f"{need}, or null", lambda value: value is None or holds(value)


def _spelt(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _are_numbers(value: Any, least: int) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(type(item) is int and item >= least for item in value)
        and len(set(value)) == len(value)
    )


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 1


def _are_settings(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(key, str) for key in value)


def _are_factors(value: Any) -> bool:
    return _are_settings(value) and all(
        _is_file_name(key) and _is_number(one) and one > 0 and one != 1 for key, one in value.items()
    )


def _is_file_name(value: Any) -> bool:
    return isinstance(value, str) and _FILE_NAME.fullmatch(value) is not None


def _is_device_set(value: Any) -> bool:
    if not isinstance(value, Mapping) or not value or not set(value) <= {"cpus", "gpus"}:
        return False
    texts = all(isinstance(one, str) and one for one in value.values())
    return texts and ("cpus" not in value or _CPUS.fullmatch(value["cpus"]) is not None)


NAME: Kind = ("a plain file name: no / or \\, and none of . - or a blank at its beginning", _is_file_name)
TEXT: Kind = ("a text", lambda value: isinstance(value, str) and bool(value.strip()))
SIZES: Kind = ("a list of different numbers from 1 on", lambda value: _are_numbers(value, 1))
SEEDS: Kind = (
    "a number from 1 on, or a list of different ones from 0 on",
    lambda value: _is_count(value) or _are_numbers(value, 0),
)
COUNT: Kind = ("a number from 1 on", _is_count)
FOLDS: Kind = ("a number from 2 on", lambda value: _is_count(value) and value >= 2)
SECONDS: Kind = ("a number above 0", lambda value: _is_number(value) and value > 0)
SHARE: Kind = ("a number between 0 and 1", lambda value: _is_number(value) and 0 < value < 1)
SETTINGS: Kind = ("a mapping of settings", _are_settings)
FACTORS: Kind = ("a mapping of labels, plain file names, to numbers above 0 other than 1", _are_factors)
DEVICE_SETS: Kind = (
    'a list of mappings such as {cpus: "0-3"} and {gpus: "0,1"}, texts in quotes',
    lambda value: isinstance(value, list) and bool(value) and all(map(_is_device_set, value)),
)
