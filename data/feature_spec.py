"""The feature specification: which columns a dataset has, what they are, and which files hold them.

    python -m data.feature_spec check DIR    reads every file of a dataset (`data.dataset_check`)

The YAML format is the one that users of the ancestors have (`feature_spec`, `source_spec`, `channel_spec`,
`metadata`), so their files load unchanged.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import yaml

from data import filesystem, strict_yaml
from data.errors import InputError

SPEC_FILE = "feature_spec.yaml"
TRAIN = "train"
TEST = "test"

_SECTIONS = ("channel_spec", "feature_spec", "source_spec", "metadata")
_CHANNELS = ("onehot_categorical", "multihot_categorical", "numerical", "label", "map")


@dataclasses.dataclass(frozen=True)
class Feature:
    """One column.

    Attributes:
      name: column name in the files.
      cardinality: number of rows of the table of a categorical feature (valid ids are 0..cardinality-1), else None.
      max_hotness: most ids one row can hold; 1 unless multi-hot.
      dtype: the type the writer declared, or None. Informative: readers accept any integer or float width.
    """

    name: str
    cardinality: int | None = None
    max_hotness: int = 1
    dtype: str | None = None


@dataclasses.dataclass(frozen=True)
class Chunk:
    """Files of one source. `files` are relative to the directory of the specification unless absolute."""

    type: str
    features: tuple[str, ...]
    files: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class FeatureSpec:
    """Columns of a dataset by channel, and its files by source (`train`, `test`).

    The order of `categorical` (one-hot features, then multi-hot ones) is the order of the columns in the packed id
    tensor: feature f occupies `max_hotness` adjacent columns.

    Attributes:
      features: name -> Feature, for every column named by a channel.
      onehot, multihot, numerical: feature names by channel, in file order.
      label: the column of the label.
      display: the column of the display (group) id, the `map` channel; None where there is none.
      sources: source name -> chunks.
      metadata: free-form mapping; `metadata["teacher"]` is written by `data.synthetic`.
      path: the file this was read from, for messages; empty when built in memory.
    """

    features: Mapping[str, Feature]
    onehot: tuple[str, ...]
    multihot: tuple[str, ...]
    numerical: tuple[str, ...]
    label: str
    display: str | None = None
    sources: Mapping[str, tuple[Chunk, ...]] = dataclasses.field(default_factory=dict)
    metadata: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    path: str = ""

    def __post_init__(self):
        for name in ("features", "sources", "metadata"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))
        self._validate()

    @property
    def categorical(self) -> tuple[str, ...]:
        return self.onehot + self.multihot

    @property
    def total_hotness(self) -> int:
        """Columns of the packed id tensor."""
        return sum(self.features[name].max_hotness for name in self.categorical)

    def columns(self, *, with_display: bool) -> tuple[str, ...]:
        """Columns a reader needs: categorical, numerical, label and, if asked for and present, display."""
        names = self.categorical + self.numerical + (self.label,)
        return (*names, self.display) if with_display and self.display is not None else names

    def source_files(self, source: str) -> tuple[str, ...]:
        """Paths or addresses of the files of `source`, resolved against the specification's folder.

        Raises:
          InputError: the source is missing, has no files, or is not one chunk of parquet holding every column.
        """
        chunks = self.sources.get(source, ())
        for chunk in chunks:
            if chunk.type != "parquet":
                raise self._error(
                    f"source_spec.{source} is of type '{chunk.type}'; only parquet is read: convert the files first "
                    "(python -m data.transcode reads CSV)"
                )
        if len(chunks) != 1:
            raise self._error(
                f"source_spec.{source} has {len(chunks)} chunks; exactly one chunk of parquet files is read"
            )
        (chunk,) = chunks
        if not chunk.files:
            raise self._error(f"source_spec.{source} names no files")
        missing = [name for name in self.columns(with_display=False) if name not in chunk.features]
        if missing:
            raise self._error(f"source_spec.{source} lacks the feature '{missing[0]}' that channel_spec names")
        return tuple(filesystem.join(filesystem.parent(self.path), name) for name in chunk.files)

    def digest(self) -> str:
        """Hash of what a model depends on: features and channels, not files or metadata.

        A multi-hot feature of at most one id is to a model what a one-hot feature is, so the two have the same hash.
        """
        shape = [
            [[name, self.features[name].cardinality, self.features[name].max_hotness] for name in self.categorical],
            list(self.numerical),
        ]
        return hashlib.sha256(json.dumps(shape).encode()).hexdigest()

    def to_dict(self) -> dict[str, Any]:
        """The YAML document as plain dictionaries and lists."""

        def describe(feature: Feature) -> dict[str, Any]:
            entry: dict[str, Any] = {}
            if feature.dtype is not None:
                entry["dtype"] = feature.dtype
            if feature.cardinality is not None:
                entry["cardinality"] = feature.cardinality
            if feature.name in self.multihot:
                entry["max_hotness"] = feature.max_hotness
            return entry

        return {
            "channel_spec": {
                "label": [self.label],
                "map": [] if self.display is None else [self.display],
                "onehot_categorical": list(self.onehot),
                "multihot_categorical": list(self.multihot),
                "numerical": list(self.numerical),
            },
            "feature_spec": {name: describe(feature) for name, feature in self.features.items()},
            "source_spec": {
                source: [{"type": c.type, "features": list(c.features), "files": list(c.files)} for c in chunks]
                for source, chunks in self.sources.items()
            },
            "metadata": dict(self.metadata),
        }

    def to_yaml(self, path: str) -> None:
        """Writes the document, complete or not at all."""
        partial = f"{path}.{os.getpid()}.partial"
        try:
            with open(partial, "w", encoding="utf-8") as file:
                yaml.safe_dump(self.to_dict(), file, sort_keys=False)
            os.replace(partial, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.remove(partial)
            raise

    @classmethod
    def from_yaml(cls, path: str) -> "FeatureSpec":
        """Reads and checks a specification file.

        Raises:
          InputError: the file is missing, is not YAML, or what it says is inconsistent; the message names the file,
            the feature and the value.
        """
        try:
            content = filesystem.read_bytes(path)
        except InputError:
            raise  # a filesystem that cannot be reached
        except OSError as error:
            problem = error.strerror or error
            raise InputError(f"{path}: cannot read the feature specification: {problem}") from error
        return cls.from_dict(strict_yaml.load(content, path), path=path)

    @classmethod
    def from_dict(cls, document: Any, *, path: str = "") -> "FeatureSpec":
        """Builds a specification from the YAML document; see `from_yaml`."""
        where = path or "feature specification"
        sections = _mapping(document, where, "the document")
        for section in _SECTIONS[:3]:
            if section not in sections:
                raise InputError(f"{where}: section '{section}' is missing")
        channels = {
            name: _names(value, where, f"channel_spec.{name}")
            for name, value in _mapping(sections["channel_spec"], where, "channel_spec").items()
        }
        for name in channels:
            if name not in _CHANNELS:
                raise InputError(f"{where}: channel_spec has the unknown channel '{name}'; known: {_CHANNELS}")
        labels, displays = channels.get("label", ()), channels.get("map", ())
        if len(labels) != 1:
            raise InputError(f"{where}: channel_spec.label needs exactly one feature, got {list(labels)}")
        if len(displays) > 1:
            raise InputError(f"{where}: channel_spec.map takes at most one feature, got {list(displays)}")
        features = {
            name: _feature(name, _mapping(entry or {}, where, f"feature_spec.{name}"), where)
            for name, entry in _mapping(sections["feature_spec"], where, "feature_spec").items()
        }
        sources = {
            source: _chunks(chunks, where, f"source_spec.{source}")
            for source, chunks in _mapping(sections["source_spec"], where, "source_spec").items()
        }
        return cls(
            features=features,
            onehot=channels.get("onehot_categorical", ()),
            multihot=channels.get("multihot_categorical", ()),
            numerical=channels.get("numerical", ()),
            label=labels[0],
            display=displays[0] if displays else None,
            sources=sources,
            metadata=_mapping(sections.get("metadata") or {}, where, "metadata"),
            path=path,
        )

    def _error(self, message: str) -> InputError:
        return InputError(f"{self.path or 'feature specification'}: {message}")

    def _validate(self) -> None:
        channel_of: dict[str, str] = {}
        groups = {
            "onehot_categorical": self.onehot,
            "multihot_categorical": self.multihot,
            "numerical": self.numerical,
            "label": (self.label,),
            "map": () if self.display is None else (self.display,),
        }
        for channel, names in groups.items():
            for name in names:
                if name in channel_of:
                    raise self._error(f"feature '{name}' is in two channels: {channel_of[name]} and {channel}")
                channel_of[name] = channel
                if name not in self.features:
                    raise self._error(f"channel_spec.{channel} names '{name}', which feature_spec does not describe")
        if not self.categorical and not self.numerical:
            raise self._error("channel_spec names no categorical and no numerical feature: nothing to learn from")
        for name in self.categorical:
            cardinality = self.features[name].cardinality
            if cardinality is None or cardinality < 1:
                raise self._error(f"feature '{name}' needs a cardinality of at least 1, got {cardinality}")
        for name in self.multihot:
            if self.features[name].max_hotness < 1:
                raise self._error(
                    f"feature '{name}' needs a max_hotness of at least 1, got {self.features[name].max_hotness}"
                )
        for name in self.onehot:
            if self.features[name].max_hotness != 1:
                raise self._error(
                    f"feature '{name}' has max_hotness {self.features[name].max_hotness} but is in "
                    "onehot_categorical; move it to multihot_categorical"
                )


def _mapping(value: Any, where: str, what: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise InputError(f"{where}: {what} must be a mapping, got {type(value).__name__} {str(value)[:60]!r}")
    return value


def _names(value: Any, where: str, what: str) -> tuple[str, ...]:
    if not isinstance(value, list | tuple | type(None)) or any(not isinstance(name, str) for name in value or ()):
        raise InputError(f"{where}: {what} must be a list of names, got {str(value)[:60]!r}")
    return tuple(value or ())


def _integer(value: Any, where: str, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(f"{where}: {what} must be an integer, got {value!r}")
    return value


def _feature(name: str, entry: Mapping[str, Any], where: str) -> Feature:
    cardinality, hotness = entry.get("cardinality"), entry.get("max_hotness")
    return Feature(
        name=name,
        cardinality=None if cardinality is None else _integer(cardinality, where, f"feature_spec.{name}.cardinality"),
        max_hotness=1 if hotness is None else _integer(hotness, where, f"feature_spec.{name}.max_hotness"),
        dtype=None if entry.get("dtype") is None else str(entry["dtype"]),
    )


def _chunks(value: Any, where: str, what: str) -> tuple[Chunk, ...]:
    if not isinstance(value, list | tuple | type(None)):
        raise InputError(f"{where}: {what} must be a list of chunks, got {str(value)[:60]!r}")
    return tuple(_chunk(chunk, where, what) for chunk in value or ())


def _chunk(value: Any, where: str, what: str) -> Chunk:
    entry = _mapping(value, where, what)
    for key in ("type", "features", "files"):
        if key not in entry:
            raise InputError(f"{where}: a chunk of {what} lacks '{key}'")
    return Chunk(
        type=str(entry["type"]),
        features=_names(entry["features"], where, f"{what}.features"),
        files=_names(entry["files"], where, f"{what}.files"),
    )


if __name__ == "__main__":
    # Imported here: it reads specifications itself.
    from data.dataset_check import main

    sys.exit(main())
