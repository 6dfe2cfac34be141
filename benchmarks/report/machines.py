"""The machine that results are of: that it is one, how two differ, and its description."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks.suite.fingerprint import differences
from data.errors import InputError

_MOST_NAMED = 8
# Of a run and not of a machine, or said by another field.
_NOT_SHOWN = ("start_time", "commit", "dirty", "memory_gib")


def only_one(fingerprints: Iterable[Mapping[str, Any]], where: str) -> Mapping[str, Any]:
    """The fingerprint of results that are all of one machine; empty if none of them has one.

    Raises:
      InputError: they are of several; the message names the fields that differ, with two values of each.
    """
    first: Mapping[str, Any] | None = None
    for fingerprint in fingerprints:
        if first is None:
            first = fingerprint
        elif bool(first) != bool(fingerprint):
            raise InputError(f"{where}: results with and without a machine's fingerprint: a table is of one machine")
        elif fields := differences(first, fingerprint):
            raise InputError(
                f"{where}: results of several machines, which a table must not mix; they differ in "
                f"{shown(first, fingerprint, fields)}; show them apart, or compare them"
            )
    return first or {}


def shown(first: Mapping[str, Any], second: Mapping[str, Any], fields: Sequence[str]) -> str:
    """Fields that differ, with both values, in one line."""
    parts = [f"{field} ({_value(first, field)} / {_value(second, field)})" for field in fields[:_MOST_NAMED]]
    more = len(fields) - _MOST_NAMED
    return ", ".join(parts) + (f" and {more} more" if more > 0 else "")


def described(fingerprint: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """(name, value) of what a fingerprint says of the machine, in its order; of nested fields as name.name."""
    found = []
    for name, value in fingerprint.items():
        if not prefix and name in _NOT_SHOWN:
            continue
        if isinstance(value, Mapping):
            found += described(value, f"{prefix}{name}.")
        elif isinstance(value, list | tuple):
            found.append((f"{prefix}{name}", ", ".join(_text(item) for item in value) or "none"))
        elif name.endswith("_bytes") and isinstance(value, int):
            found.append((f"{prefix}{name.removesuffix('_bytes')}", f"{value / 2**30:.1f} GiB"))
        else:
            found.append((f"{prefix}{name}", _text(value)))
    return found


def _value(fingerprint: Mapping[str, Any], field: str) -> str:
    """Of a field, which may be name.name of a nested one."""
    if field in fingerprint:
        return _text(fingerprint[field])
    outer, _, inner = field.partition(".")
    nested = fingerprint.get(outer)
    return _text(nested.get(inner) if isinstance(nested, Mapping) else None)


def _text(value: Any) -> str:
    if value is None:
        return "none"
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False)
