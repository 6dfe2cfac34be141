"""The configuration that a record holds, to be run again."""

import json
import os
import types
import typing
from collections.abc import Mapping
from typing import Any

from data.errors import InputError
from trainer.config import RunConfig
from trainer.presets import MODELS_OF

_OURS = "optimized"  # trainer.records.Identity.implementation, which is not read here: it brings numpy

# Where results go is no part of what was measured, and a run must not write over the record that it repeats.
_NOT_TAKEN = ("results_dir",)
# Settings that decide which defaults the others have: a record has all of them, so there is none left to decide on.
_DECIDED = ("model", "preset")
# What may give way to the machine when it is a default (trainer.config.fall_back_*).
_MAY_FALL_BACK = ("global_batch_size", "eval_batch_size", "model_dir")


def again(path: str, settings: Mapping[str, Any]) -> RunConfig:
    """The configuration of a record, with other settings in place of some of its.

    What the record states and its model or preset would not have by default counts as given, and so does what may
    fall back: the run is that of the record, whatever the machine.

    Args:
      path: a `result.json`, or "FILE:LINE": a line, counted from 1, of what the suite or a study keeps.
      settings: those that were given with it, by their flag's name.

    Raises:
      InputError: the file cannot be read, holds no configuration of this program, or settings contradict it.
    """
    recorded = _settings(path)
    for name in _DECIDED:
        if name in settings and settings[name] != recorded.get(name):
            raise InputError(
                f"--{name}={settings[name]} and --config={path}, whose {name} is {recorded.get(name)} and which states "
                "every setting: leave one of them out"
            )
    deciding = {name: recorded[name] for name in _DECIDED if recorded.get(name) is not None}
    usual = RunConfig.from_flat(deciding, frozenset(deciding))
    defaults = usual.flat()
    model = defaults["model"]
    stated = {name for name, value in recorded.items() if value != defaults[name] or name in _MAY_FALL_BACK}
    own = {name for name in stated | usual.given if model in MODELS_OF.get(name, (model,))}
    return RunConfig.from_flat({**recorded, **settings}, frozenset(own | set(settings)))


def _settings(path: str) -> dict[str, Any]:
    """The settings that the record states, checked for their names and types alone."""
    name, colon, line = path.rpartition(":")
    picked = int(line) if colon and line.isdecimal() and not os.path.exists(path) else None
    try:
        with open(path if picked is None else name, encoding="utf-8") as file:
            text = file.read()
    except OSError as error:
        raise InputError(
            f"--config={path}: cannot be read: {error.strerror or error}; give a run's result.json, or FILE:LINE of a "
            "records.jsonl"
        ) from error
    except ValueError as error:
        raise InputError(f"--config={path}: is no text: {error}; give a run's result.json") from error
    if picked is not None:
        lines = text.splitlines()
        if not 1 <= picked <= len(lines):
            raise InputError(f"--config={path}: {name} has {len(lines)} lines, counted from 1: name one of them")
        text = lines[picked - 1]
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"--config={path}: not a JSON document: {error}; give a run's result.json, or FILE:LINE of a records.jsonl"
        ) from error
    if isinstance(found, Mapping) and "cell" in found:
        found = found.get("record")  # of the suite or of a study
    identity = found.get("identity") if isinstance(found, Mapping) else None
    if isinstance(identity, Mapping) and identity.get("implementation", _OURS) != _OURS:
        raise InputError(
            f"--config={path}: is of the implementation {identity['implementation']}, and main.py is {_OURS}: "
            "python -m benchmarks.run repeats others"
        )
    settings = found.get("config") if isinstance(found, Mapping) else None
    if not isinstance(settings, Mapping) or not settings:
        raise InputError(
            f"--config={path}: holds no configuration: give a run's result.json, or a line of a records.jsonl that has "
            "a record"
        )
    allowed = {}
    for hint in typing.get_type_hints(RunConfig).values():
        if isinstance(hint, type) and hint.__module__ == RunConfig.__module__:
            allowed.update(typing.get_type_hints(hint))
    settings = {name: value for name, value in settings.items() if name not in _NOT_TAKEN}
    return {name: _checked(path, name, value, allowed) for name, value in settings.items()}


def _checked(path: str, name: str, value: Any, allowed: Mapping[str, Any]) -> Any:
    if name not in allowed:
        raise InputError(
            f"--config={path}: config.{name} is no setting of this version: take it out of the file, or use the "
            "version that wrote it"
        )
    kinds = typing.get_args(allowed[name]) if isinstance(allowed[name], types.UnionType) else (allowed[name],)
    for kind in kinds:
        if kind is type(None) and value is None:
            return None
        if kind in (bool, int, str) and type(value) is kind:
            return value
        if kind is float and type(value) in (int, float):
            return float(value)
        if typing.get_origin(kind) is tuple and isinstance(value, list) and all(type(item) is int for item in value):
            return tuple(value)
    raise InputError(
        f"--config={path}: config.{name} is {json.dumps(value)}, which is none of its type: give the file as a run "
        "wrote it"
    )
