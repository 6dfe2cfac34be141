"""What each version of a benchmark means, as a hash: a meaning that changes without a new version is found out.

A meaning is everything that says what is measured: what a definition states but for those who own it, what it stands
for, the selections that it is in and the memory that is foreseen; with all that main.py makes of its flags, so that a
default that changes counts too. Settings that are off (null or false) are left out of it: a flag that is new and
off changes no meaning.
"""

import dataclasses
import hashlib
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.suite import micro
from benchmarks.suite.definitions import CONFIGS, LOSS_BAND, REFERENCE, SELECTIONS, Definition
from benchmarks.suite.settings import check_settings, config_of, settings
from data import whole_files
from data.errors import InputError
from trainer.config import OutputConfig
from trainer.records import jsonable

FILE = CONFIGS / "meanings.json"

_NO_MEANING = ("owner", "stands_for", "version", "expected_memory", *SELECTIONS)
# Where results go, and where generated data is kept, says nothing of what is measured.
_NO_SETTING_OF_MEANING = {field.name for field in dataclasses.fields(OutputConfig)} | {"synthetic_cache_dir"}


def meaning(definition: Definition) -> dict[str, Any]:
    """What the definition means, as plain data.

    Raises:
      InputError: its flags or parameters cannot be.
    """
    stated = {key: value for key, value in dataclasses.asdict(definition).items() if key not in _NO_MEANING}
    if definition.is_micro:
        stated["resolved"] = {
            precision: micro.resolved(definition, batch_size=max(definition.batch_sizes), precision=precision)
            for precision in definition.precisions
        }
        return jsonable(stated)
    largest = max(definition.batch_sizes)
    stated["resolved"] = {
        precision: _on(config_of(settings(definition, batch_size=largest, precision=precision)).flat())
        for precision in definition.precisions
    }
    if definition.correctness["check"] in (LOSS_BAND, REFERENCE):
        stated["resolved_check"] = _on(config_of(check_settings(definition)).flat())
    return jsonable(stated)


def digest(definition: Definition) -> str:
    """SHA-256 of the meaning."""
    text = json.dumps(meaning(definition), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def recorded(path: pathlib.Path = FILE) -> dict[str, dict[str, str]]:
    """Benchmark -> version -> hash; empty where there is no file.

    Raises:
      InputError: the file is none of ours.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read: {error}; take it from version control") from error
    if not isinstance(found, dict) or not all(isinstance(versions, dict) for versions in found.values()):
        raise InputError(f"{path}: must map benchmarks to versions to hashes: take it from version control")
    return found


def problems(definitions: Sequence[Definition], known: Mapping[str, Mapping[str, str]]) -> list[str]:
    """A line for each definition whose version means something else than was recorded, or was not recorded."""
    found = []
    for one in definitions:
        before = known.get(one.name, {}).get(one.version)
        if before is None:
            found.append(
                f"{one.name}: version {one.version} is not recorded: python -m benchmarks.run --record_meanings"
            )
        elif before != digest(one):
            found.append(
                f"{one.name}: version {one.version} meant something else: give a new version, or take the change back"
            )
    return found


def record(definitions: Sequence[Definition], path: pathlib.Path = FILE) -> str:
    """Adds what new versions mean to the file; says which.

    Raises:
      InputError: a version that is recorded means something else now, or the file cannot be written; then nothing is.
    """
    known = recorded(path)
    changed = [
        one.name
        for one in definitions
        if known.get(one.name, {}).get(one.version) is not None and known[one.name][one.version] != digest(one)
    ]
    if changed:
        raise InputError(
            f"{path}: {', '.join(changed)} changed and kept the version: scores of both would be compared; give a new "
            "version or take the change back"
        )
    added = []
    for one in definitions:
        versions = known.setdefault(one.name, {})
        if one.version not in versions:
            versions[one.version] = digest(one)
            added.append(f"{one.name} {one.version}")
    if added:
        whole_files.write(str(path), json.dumps(known, indent=2, sort_keys=True) + "\n")
    return f"recorded: {', '.join(added) or 'nothing new'}"


def _on(flat: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value
        for name, value in flat.items()
        if value is not None and value is not False and name not in _NO_SETTING_OF_MEANING
    }
