"""A specification alone, for parquet files whose types fit already: nothing is converted, nothing is copied."""

import os
from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from data import filesystem
from data.column_encoders import MAX_KEPT_ID
from data.column_inference import ColumnObserver, Decision, Role, decide
from data.column_values import BadValue, is_list, labels, numbers
from data.csv_text import CsvFormat
from data.errors import InputError
from data.feature_spec import SPEC_FILE, TEST, TRAIN, Feature, FeatureSpec
from data.staging import staged_folder
from data.transcode_columns import specification
from data.transcode_input import Batch, TableFiles, open_tables
from data.transcode_options import ColumnOptions
from data.transcode_passes import located, progress
from data.transcode_report import ColumnReport, Transcoded

DEFAULT_TRAIN_FILES, DEFAULT_TEST_FILES = "train", "valid"
_REMEDY = "convert the data without --in_place, or name the column in --ignore"
_PARTITION = Decision(Role.IGNORED, "in the folders' names, not in the files")


def describe_in_place(
    input_path: str,
    output_dir: str,
    options: ColumnOptions,
    *,
    train_files: str = DEFAULT_TRAIN_FILES,
    test_files: str = DEFAULT_TEST_FILES,
    overwrite: bool = False,
) -> Transcoded:
    """Writes `feature_spec.yaml`, which names the input's files by absolute paths or addresses.

    Every value is read once: labels must be 0 or 1, numericals finite and there, ids integers of at least -1. Roles are
    inferred as elsewhere (`data.column_inference`); columns of the folders' names (`day=3`) cannot have one.

    Args:
      input_path: a folder or its address.
      output_dir: a local folder that does not exist or is empty.
      train_files, test_files: a file or folder of parquet in `input_path`, or a path of its own.

    Raises:
      InputError: a type or value does not fit; names the column and the file.
    """
    sources: dict[str, TableFiles] = {}
    for source, name in ((TRAIN, train_files), (TEST, test_files)):
        sources[source] = open_tables(filesystem.join(input_path, name), form=CsvFormat())
        if not sources[source].is_parquet:
            raise InputError(f"{sources[source].paths[0]}: is not parquet; {_REMEDY.partition(',')[0]}")
    columns = sources[TRAIN].columns
    if sorted(columns) != sorted(sources[TEST].columns):
        raise InputError(
            f"{sources[TEST].paths[0]}: has the columns {list(sources[TEST].columns)}, while {sources[TRAIN].paths[0]} "
            f"has {list(columns)}; make them the same"
        )
    partitions = {*sources[TRAIN].partitions, *sources[TEST].partitions}
    flags = options.flags(columns, None, sources[TRAIN].paths[0])
    for name in partitions:
        if name in (options.label, options.display_id) or flags.roles.get(name, Role.IGNORED) is not Role.IGNORED:
            raise InputError(
                f"column '{name}' is in the folders' names and not in the files, so it cannot be read; {_REMEDY}"
            )
    with staged_folder(output_dir, overwrite=overwrite, marker=SPEC_FILE) as folder:
        read = [n for n in columns if n and n not in partitions and flags.roles.get(n) is not Role.IGNORED]
        observers = {name: ColumnObserver() for name in read}
        for _, tables, batch in _batches(sources, read, "1 of 2: what the columns are"):
            for name, observer in observers.items():
                with located(tables, batch, name):
                    observer.observe(batch.table.column(name).combine_chunks())
        decisions = {name: decide(name, observers[name], flags) for name in read}
        options.check_decisions(decisions)
        checks = {
            name: _Check(name, decision.role, options)
            for name, decision in decisions.items()
            if decision.role is not Role.IGNORED
        }
        rows, ones = {TRAIN: 0, TEST: 0}, {TRAIN: 0, TEST: 0}
        for source, tables, batch in _batches(sources, list(checks), "2 of 2: values"):
            for name, check in checks.items():
                with located(tables, batch, name):
                    check.take(batch.table.column(name).combine_chunks())
            rows[source] += batch.table.num_rows
            ones[source] += int(labels(batch.table.column(options.label)).sum())
        for source, count in rows.items():
            if not count:
                raise InputError(f"{sources[source].paths[0]}: {len(sources[source].paths)} file(s) hold no rows")
        features = {name: (check.feature,) for name, check in checks.items()}
        files = {source: _paths(tables) for source, tables in sources.items()}
        metadata = {"rows": rows, "rows_of_label_1": ones, "in_place": True}
        specification(features, decisions, files, metadata).to_yaml(os.path.join(folder, SPEC_FILE))
    lines = []
    for name in columns:
        other = _PARTITION if name in partitions else Decision(Role.IGNORED, "flag" if name else "no name")
        decision = decisions.get(name, other)
        missing = observers[name].missing if name in observers else None
        line = ColumnReport(name, decision.role.value, decision.rule, missing=missing)
        lines.append(checks[name].complete(line) if name in checks else line)
    return Transcoded(FeatureSpec.from_yaml(os.path.join(output_dir, SPEC_FILE)), tuple(lines))


class _Check:
    """Whether the values of a column can be read as they are, and how large they are."""

    def __init__(self, name: str, role: Role, options: ColumnOptions):
        self._name, self._role = name, role
        self._cardinality, self._hotness = options.cardinality.get(name), options.hotness.get(name)
        self._high, self._longest, self._type = -1, 1, ""

    @property
    def feature(self) -> Feature:
        if self._role not in (Role.CATEGORICAL, Role.MULTIHOT):
            return Feature(self._name, dtype=self._type)
        cardinality = self._cardinality or max(1, self._high + 1)
        hotness = (self._hotness or self._longest) if self._role is Role.MULTIHOT else 1
        return Feature(self._name, cardinality, hotness, self._type)

    def complete(self, line: ColumnReport) -> ColumnReport:
        feature, lists = self.feature, self._role is Role.MULTIHOT
        return ColumnReport(
            line.column,
            line.role,
            line.rule,
            feature.cardinality,
            True,
            feature.max_hotness if lists else None,
            line.missing,
        )

    def take(self, array: pa.Array) -> None:
        """Raises BadValue for a value, or all values, that do not fit."""
        kind = array.type.value_type if is_list(array.type) else array.type
        number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
        fits = number if self._role in (Role.LABEL, Role.NUMERICAL) else pa.types.is_integer(kind)
        if is_list(array.type) and self._role is not Role.MULTIHOT:
            fits = False
        if not fits and not (pa.types.is_null(kind) and self._role in (Role.CATEGORICAL, Role.MULTIHOT)):
            raise BadValue(0, array[0].as_py(), f"the type {array.type} does not fit the role; {_REMEDY}")
        self._type = str(kind) if fits else self._type
        if self._role in (Role.CATEGORICAL, Role.MULTIHOT):
            self._take_ids(array)
        elif self._role is Role.LABEL:
            labels(array)
        else:
            self._take_numbers(array)

    def _take_numbers(self, array: pa.Array) -> None:
        if array.null_count:
            bad = array.is_null().to_numpy(zero_copy_only=False)
            ids = "if these are ids, name it in --categorical; else " if self._role is Role.NUMERICAL else ""
            raise BadValue(bad.argmax(), None, f"every row needs a value; {ids}{_REMEDY}")
        if self._role is Role.DISPLAY:
            ids = array.to_numpy()
            if ids.max() >= 2**63:  # of uint64
                row = int((ids >= 2**63).argmax())
                raise BadValue(row, int(ids[row]), f"display ids are below 2^63; {_REMEDY}")
            return
        bad = ~(np.abs(numbers(array)) <= np.finfo(np.float32).max)
        if bad.any():
            row = int(bad.argmax())
            raise BadValue(row, array[row].as_py(), f"numericals are finite as 32-bit floats; {_REMEDY}")

    def _take_ids(self, array: pa.Array) -> None:
        flat, owner = array, None
        if is_list(array.type):
            lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
            longest = int(lengths.max(initial=0))
            if self._hotness is not None and longest > self._hotness:
                row = int((lengths > self._hotness).argmax())
                raise BadValue(
                    row,
                    array[row].as_py(),
                    f"has {lengths[row]} ids, more than --hotness {self._name}={self._hotness}: raise it",
                )
            self._longest = max(self._longest, longest)
            flat, owner = array.flatten(), np.repeat(np.arange(len(array)), lengths)
        if flat.null_count == len(flat):
            return
        ids = pc.fill_null(flat, 0).to_numpy(zero_copy_only=False)
        limit = self._cardinality or MAX_KEPT_ID
        if ids.min() < -1 or ids.max() >= limit:
            place = int(((ids < -1) | (ids >= limit)).argmax())
            limited = "as given" if self._cardinality else "unless --cardinality gives more"
            raise BadValue(
                place if owner is None else owner[place],
                int(ids[place]),
                f"ids are 0 to {limit - 1} ({limited}), -1 for none; {_REMEDY}",
            )
        self._high = max(self._high, int(ids.max()))


def _batches(
    sources: Mapping[str, TableFiles], names: list[str], title: str
) -> Iterator[tuple[str, TableFiles, Batch]]:
    with progress(f"pass {title}", None) as advance:
        for source, tables in sources.items():
            for batch in tables.batches(names):
                if batch.table.num_rows:
                    yield source, tables, batch
                    advance(batch.table.num_rows)


def _paths(tables: TableFiles) -> tuple[str, ...]:
    """Addresses and absolute paths, which hold wherever the specification lies."""
    return tuple(path if filesystem.is_address(path) else os.path.abspath(path) for path in tables.paths)
