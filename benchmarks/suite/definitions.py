"""The benchmarks that there are: one YAML file each under benchmarks/configs, read strictly. No TensorFlow.

A file states what is run and what it stands for:

  model, config, mode     name the benchmark: MODEL-MODE-CONFIG, which is the file's name too
  implementations         [ootb, optimized], one of them, or [micro]
  version, owner          of its meaning, and who answers questions
  stands_for              one sentence: which real work the figures speak of
  flags                   settings of main.py by name; of a microbenchmark its parameters
  batch_sizes             rows over all ranks; of a collective bytes. The first one is that of --quick with a name
  latency_limit_ms        what the 95th percentile of the step times may be; null for no limit
  world_sizes             numbers of ranks
  scaling                 null, or of several ranks: `implementations` and, of one rank, the batch sizes for `strong`
                          (the ranks share the batch) and `weak` (each rank has such a batch)
  precisions              of fp32, tf32, bf16, fp16
  needs                   null, or `gpus`: of each machine, and `machines`
  expected_memory         implementation -> MiB that a rank takes at the largest batch, or null
  correctness             check: loss_band (steps, low, high, flags), reference (flags) or own (a microbenchmark's)
  quick, default          null, or what of it is in this selection: implementation -> batch sizes; the selection has
                          these at one rank, and `default` has what `scaling` states of these implementations, too

Every key must be there and no other may. What a version means is kept as a hash, see benchmarks.suite.meanings. What
is in no selection is run by its name.
"""

import dataclasses
import fnmatch
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.microbenchmarks.shapes import PRECISIONS
from benchmarks.suite.results import SCALINGS
from data import strict_yaml
from data.errors import InputError

CONFIGS = pathlib.Path(__file__).resolve().parents[1] / "configs"
MUST_SCORE = "must_score.yaml"
"""In the same folder, and no benchmark: see benchmarks.suite.must_score."""

OOTB, OPTIMIZED, MICRO = "ootb", "optimized", "micro"
TRAINING, INFERENCE = "training", "inference"
STRONG, WEAK = SCALINGS[1:]
QUICK, DEFAULT = SELECTIONS = ("quick", "default")
"""Selections that the files state, which are keys of theirs."""
LOSS_BAND, REFERENCE, OWN = "loss_band", "reference", "own"
_CHECK_KEYS = {LOSS_BAND: {"steps", "low", "high", "flags"}, REFERENCE: {"flags"}, OWN: set()}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Definition:
    """A benchmark; the attributes are the keys of its file."""

    model: str
    config: str
    mode: str
    implementations: tuple[str, ...]
    version: str
    owner: str
    stands_for: str
    flags: Mapping[str, Any]
    batch_sizes: tuple[int, ...]
    latency_limit_ms: float | None
    world_sizes: tuple[int, ...]
    scaling: Mapping[str, Any] | None
    precisions: tuple[str, ...]
    needs: Mapping[str, int] | None
    expected_memory: Mapping[str, int] | None
    correctness: Mapping[str, Any]
    quick: Mapping[str, Sequence[int]] | None
    default: Mapping[str, Sequence[int]] | None

    @property
    def name(self) -> str:
        return f"{self.model}-{self.mode}-{self.config}"

    def stated(self, selection: str) -> Mapping[str, Sequence[int]]:
        """What of it is in one of SELECTIONS: implementation -> batch sizes; empty if nothing is."""
        return getattr(self, selection) or {}

    @property
    def is_micro(self) -> bool:
        return self.implementations == (MICRO,)


def load(folder: pathlib.Path = CONFIGS) -> list[Definition]:
    """All benchmarks, by the names of their files.

    Raises:
      InputError: a file cannot be read or says what cannot be.
    """
    return [read(path) for path in sorted(folder.glob("*.yaml")) if path.name != MUST_SCORE]


def read(path: pathlib.Path) -> Definition:
    """The benchmark of one file.

    Raises:
      InputError: it cannot be read, lacks a key, has one that nobody knows, or a value that cannot be.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    found = strict_yaml.load(content, path)
    _check_keys(str(path), found, {field.name for field in dataclasses.fields(Definition)})
    for key, (need, holds) in _KINDS.items():
        if not holds(found[key]):
            raise InputError(f"{path}: {key} must be {need}, got {found[key]!r}")
    _check_together(path, found)
    lists = {key: tuple(value) for key, value in found.items() if isinstance(value, list)}
    definition = Definition(**{**found, **lists})
    if path.stem != definition.name:
        raise InputError(f"{path}: describes {definition.name}: call the file {definition.name}.yaml")
    return definition


def select(definitions: Sequence[Definition], names: Sequence[str]) -> list[Definition]:
    """Those that the names mean, in the order of `definitions`: names, models, or patterns such as "dlrm-*".

    Raises:
      InputError: a name means none.
    """
    chosen = set()
    for name in names:
        meant = [one.name for one in definitions if name == one.model or fnmatch.fnmatchcase(one.name, name)]
        if not meant:
            known = ", ".join(one.name for one in definitions)
            raise InputError(f"benchmark '{name}' is not known: give names, models or patterns of {known}")
        chosen.update(meant)
    return [one for one in definitions if one.name in chosen]


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf")


def _are_sizes(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(item) is int and item > 0 for item in value)


def _are_settings(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(key, str) for key in value)


def _some_of(allowed: Sequence[str]) -> tuple[str, Callable[[Any], bool]]:
    def holds(value: Any) -> bool:
        return isinstance(value, list) and bool(value) and len(set(value)) == len(value) and set(value) <= set(allowed)

    return f"a list of some of {', '.join(allowed)}", holds


_TEXT = ("a text", _is_text)
_SIZES = ("a list of numbers from 1 on", _are_sizes)
_STATED = (
    "a mapping of implementations to lists of numbers from 1 on, or null",
    lambda value: value is None or (_are_settings(value) and bool(value) and all(map(_are_sizes, value.values()))),
)
_KINDS: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "model": _TEXT,
    "config": _TEXT,
    "mode": _TEXT,
    "implementations": _some_of((OOTB, OPTIMIZED, MICRO)),
    "version": ("a text in quotes, as '1.0'", _is_text),
    "owner": _TEXT,
    "stands_for": _TEXT,
    "flags": ("a mapping of settings", _are_settings),
    "batch_sizes": _SIZES,
    "latency_limit_ms": ("a number above 0 or null", lambda value: value is None or _is_number(value)),
    "world_sizes": _SIZES,
    "scaling": ("a mapping or null", lambda value: value is None or _are_settings(value)),
    "precisions": _some_of(PRECISIONS),
    "needs": ("a mapping or null", lambda value: value is None or _are_settings(value)),
    "expected_memory": (
        "a mapping of implementations to MiB, or null",
        lambda value: value is None or (_are_settings(value) and _are_sizes(list(value.values()))),
    ),
    "correctness": ("a mapping", _are_settings),
    QUICK: _STATED,
    DEFAULT: _STATED,
}


def _check_keys(where: str, found: Any, keys: set[str], optional: Sequence[str] = ()) -> None:
    if not isinstance(found, Mapping):
        raise InputError(f"{where}: must be a mapping of {', '.join(sorted(keys))}")
    for key in found:
        if key not in keys:
            raise InputError(f"{where}: there is no key '{key}': take it out, or use one of {', '.join(sorted(keys))}")
    for key in sorted(keys - set(optional)):
        if key not in found:
            raise InputError(f"{where}: the key '{key}' is missing: add it")


def _check_together(path: pathlib.Path, found: Mapping[str, Any]) -> None:
    implementations, mode = found["implementations"], found["mode"]
    micro = MICRO in implementations
    if micro and len(implementations) > 1:
        raise InputError(f"{path}: implementations {implementations}: micro stands alone")
    if not micro and mode not in (TRAINING, INFERENCE):
        raise InputError(f"{path}: mode must be {TRAINING} or {INFERENCE}, got {mode!r}")
    check = found["correctness"].get("check")
    if check not in _CHECK_KEYS or (check == OWN) != micro:
        raise InputError(
            f"{path}: correctness.check must be {OWN if micro else f'{LOSS_BAND} or {REFERENCE}'}, got {check!r}"
        )
    _check_keys(f"{path}: correctness", found["correctness"], _CHECK_KEYS[check] | {"check"})
    if check == LOSS_BAND:
        steps, low, high = (found["correctness"][key] for key in ("steps", "low", "high"))
        if type(steps) is not int or steps < 1 or not (_is_number(low) and _is_number(high) and low < high):
            raise InputError(
                f"{path}: correctness must have steps of at least 1 and low below high, got {steps!r}, {low!r} and "
                f"{high!r}"
            )
    if found["scaling"] is not None:
        keys = {"implementations", STRONG, WEAK}
        _check_keys(f"{path}: scaling", found["scaling"], keys, optional=(STRONG, WEAK))
        for kind in (STRONG, WEAK):
            if kind in found["scaling"] and not _are_sizes(found["scaling"][kind]):
                raise InputError(f"{path}: scaling.{kind} must be {_SIZES[0]}, got {found['scaling'][kind]!r}")
        if not set(found["scaling"]["implementations"]) <= set(implementations):
            raise InputError(f"{path}: scaling.implementations has others than implementations {implementations}")
    if not micro and max(found["world_sizes"]) > 1 and found["scaling"] is None:
        raise InputError(f"{path}: world_sizes {found['world_sizes']} need scaling: say strong or weak")
    for selection in SELECTIONS:
        for implementation, sizes in (found[selection] or {}).items():
            if implementation not in implementations or not set(sizes) <= set(found["batch_sizes"]):
                raise InputError(
                    f"{path}: {selection} has batch sizes {sizes} of {implementation}, and the benchmark "
                    f"{found['batch_sizes']} of {', '.join(implementations)}: a selection is a part of it"
                )
    if found["needs"] is not None:
        _check_keys(f"{path}: needs", found["needs"], {"gpus", "machines"}, optional=("gpus", "machines"))
        if not _are_sizes(list(found["needs"].values())):
            raise InputError(f"{path}: needs must have numbers from 1 on, got {dict(found['needs'])!r}")
