"""From the decisions on a table's columns to their encoders, and from those to the specification and the report."""

import dataclasses
import urllib.parse
from collections.abc import Mapping, Sequence

from data.column_encoders import (
    ColumnEncoder,
    DisplayEncoder,
    IdEncoder,
    IdOptions,
    LabelEncoder,
    NumericalEncoder,
)
from data.column_inference import ColumnObserver, Decision, Kind, Role
from data.feature_spec import Chunk, Feature, FeatureSpec
from data.row_split import RowSplit
from data.transcode_options import ColumnOptions
from data.transcode_passes import Survey
from data.transcode_report import ColumnReport

VOCABULARY_FOLDER = "vocabulary"


def specification(
    features: Mapping[str, Sequence[Feature]],
    decisions: Mapping[str, Decision],
    files: Mapping[str, tuple[str, ...]],
    metadata: Mapping[str, object],
) -> FeatureSpec:
    """The specification of `files` (source -> paths), which hold `features` (input column -> what it became)."""

    def named(role: Role) -> tuple[str, ...]:
        return tuple(one.name for name, made in features.items() if decisions[name].role is role for one in made)

    described = {one.name: one for made in features.values() for one in made}
    return FeatureSpec(
        features=described,
        onehot=named(Role.CATEGORICAL),
        multihot=named(Role.MULTIHOT),
        numerical=named(Role.NUMERICAL),
        label=named(Role.LABEL)[0],
        display=next(iter(named(Role.DISPLAY)), None),
        sources={source: (Chunk("parquet", tuple(described), paths),) for source, paths in files.items()},
        metadata={"transcode": dict(metadata)},
    )


def make_encoders(
    decisions: Mapping[str, Decision], survey: Survey, options: ColumnOptions, columns: Sequence[str]
) -> dict[str, ColumnEncoder]:
    """An encoder for every column that is not ignored, in the order of the input."""
    taken = set(columns)
    encoders: dict[str, ColumnEncoder] = {}
    for name, decision in decisions.items():
        observer = survey.observers[name]
        if decision.role is Role.LABEL:
            encoders[name] = LabelEncoder(name)
        elif decision.role is Role.DISPLAY:
            encoders[name] = DisplayEncoder(name, hashed=not observer.integers_only)
        elif decision.role is Role.NUMERICAL:
            missing_name = f"{name}_missing"
            while missing_name in taken:
                missing_name += "_"
            taken.add(missing_name)
            encoders[name] = NumericalEncoder(
                name, missing_name=missing_name, log_standardize=options.log_standardize, fill=options.fill
            )
        elif decision.role in (Role.CATEGORICAL, Role.MULTIHOT):
            wanted = IdOptions(
                cardinality=options.cardinality.get(name),
                hotness=options.hotness.get(name),
                min_count=options.min_count,
                vocabulary=name in options.vocabulary,
                whole=observer.kind is Kind.WHOLE,
            )
            encoders[name] = IdEncoder(name, wanted, multihot=decision.role is Role.MULTIHOT)
    return encoders


def describe(encoders: Mapping[str, ColumnEncoder], survey: Survey, split: RowSplit) -> dict[str, object]:
    """What a user needs to know, or to apply to new rows, in plain values: the specification's metadata.

    numerical      column -> log1p, mean, std, fill, missing: see `data.numerical_transform`
    vocabularies   column -> file in the dataset: see `data.vocabulary`
    """
    metadata: dict[str, object] = {
        "rows": dict(survey.rows),
        "rows_of_label_1": dict(survey.ones),
        "split": split.describe(),
        "numerical": {name: e.transform.to_dict() for name, e in encoders.items() if isinstance(e, NumericalEncoder)},
        "vocabularies": {
            name: f"{VOCABULARY_FOLDER}/{urllib.parse.quote(name, safe=' ')}.parquet"
            for name, e in encoders.items()
            if isinstance(e, IdEncoder) and e.vocabulary is not None
        },
    }
    for encoder in encoders.values():
        if isinstance(encoder, DisplayEncoder):
            metadata["display_ids"] = (
                "63 bits of a hash of the text (blake2b of 8 bytes, as a little-endian integer, halved)"
                if encoder.hashed
                else "of the input"
            )
    return metadata


def report(
    name: str, decision: Decision, observer: ColumnObserver | None, encoder: ColumnEncoder | None
) -> ColumnReport:
    """The line of a column; `encoder` is finished, and None for a column that is ignored."""
    line = ColumnReport(name, decision.role.value, decision.rule)
    if observer is not None:
        nan = 0 if observer.kind is Kind.TEXT else observer.nan
        line = dataclasses.replace(line, missing=observer.missing + nan)
    if isinstance(encoder, IdEncoder):
        (feature,) = encoder.features
        hotness = feature.max_hotness if encoder.multihot else None
        line = dataclasses.replace(
            line, cardinality=feature.cardinality, kept=encoder.vocabulary is None, hotness=hotness
        )
    if isinstance(encoder, NumericalEncoder) and encoder.transform.missing is not None:
        line = dataclasses.replace(line, fill=encoder.transform.fill)
    return line
