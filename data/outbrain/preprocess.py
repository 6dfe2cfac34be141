"""Outbrain's raw files -> parquet to train and evaluate on, a feature specification and the fitted NVTabular workflow.

    python -m data.outbrain.preprocess --data_path ORIG --metadata_path OUT [--workers N | --scheduler ADDRESS]

Clicks are joined with events, promoted content and document tables (`data.outbrain.join`), split by display, and
turned into features by one workflow (`data.outbrain.workflow`). OUT then holds:

  train/, valid/      parquet of even row groups: valid ascends by display, train by a hash of the display
  feature_spec.yaml   what main.py reads
  workflow/           the fitted workflow, for `nvtabular.Workflow.load`
  report.json         rows in and out, missing joins, unseen ids, seconds, peak memory
  joined/             with --keep_joined: what became train/ (files of Arrow's format) and valid/ (parquet)

OUT is there complete or not at all; till then all lies in OUT.partial, temporary files included.
"""

import argparse
import contextlib
import dataclasses
import functools
import importlib.util
import json
import os
import shutil
import sys
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
from tqdm import tqdm

from data import command_line, filesystem
from data.errors import InputError
from data.feature_spec import SPEC_FILE, TEST, TRAIN, Chunk, FeatureSpec
from data.outbrain import join, raw_tables
from data.outbrain.join import JoinedRows, JoinPlan
from data.outbrain.similarity import TagVectors
from data.part_writer import PartWriter
from data.process_memory import PeakMemory
from data.staging import check_output, staged_folder

REPORT_FILE = "report.json"
TEACHER_FILE = "teacher.csv"
CTR_KINDS = ("out_of_fold", "in_sample")
DEFAULT_TEST_FRACTION = 0.2
DEFAULT_ROWS_PER_PART = 250_000
DEFAULT_ROWS_PER_GROUP = 16384
ROWS_PER_FILE = 32 * DEFAULT_ROWS_PER_GROUP

_FOLDERS = {TRAIN: "train", TEST: "valid"}


@dataclasses.dataclass(frozen=True)
class Options:
    """What determines the content of the dataset, beside the raw files.

    Attributes:
      test_fraction: share of the displays of days 0 to 10 that is held out; all of later days is.
      ctr: "out_of_fold", or "in_sample" for rates of training rows that include the rows themselves.
      rows_per_part: click rows that are joined and transformed at a time; bounds memory, changes no value.
      allow_missing_tables: goes on without the features of document tables that are not there.
      keep_joined: keeps the joined rows.
    """

    seed: int = 0
    test_fraction: float = DEFAULT_TEST_FRACTION
    ctr: str = CTR_KINDS[0]
    rows_per_part: int = DEFAULT_ROWS_PER_PART
    rows_per_group: int = DEFAULT_ROWS_PER_GROUP
    allow_missing_tables: bool = False
    keep_joined: bool = False

    def __post_init__(self):
        if not 0 <= self.seed < 2**63:
            raise InputError(f"--seed={self.seed}: a seed is an integer from 0 to 2^63-1; give another")
        if not 0.0 < self.test_fraction < 1.0:
            raise InputError(f"--test_fraction={self.test_fraction}: give a share between 0 and 1, both excluded")
        if self.ctr not in CTR_KINDS:
            raise InputError(f"--ctr={self.ctr}: give one of {', '.join(CTR_KINDS)}")
        for name in ("rows_per_part", "rows_per_group"):
            if getattr(self, name) < 1:
                raise InputError(f"--{name}={getattr(self, name)}: give at least 1")


def preprocess(
    data_path: str,
    metadata_path: str,
    options: Options | None = None,
    *,
    workers: int = 1,
    scheduler: str | None = None,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Writes the dataset; returns the report as report.json holds it.

    Args:
      data_path: folder of the raw files (`data.outbrain.raw_tables`).
      metadata_path: OUT, a folder that does not exist or is empty; with `overwrite` an older dataset is replaced.
      workers: processes on this machine.
      scheduler: address of a dask cluster to use instead; its workers see both folders under the same paths.

    Raises:
      InputError: NVTabular is missing, an option is out of range, a raw file is missing or malformed, too few rows, or
        the output cannot be written.
    """
    options = options or Options()
    if workers < 1:
        raise InputError(f"--workers={workers}: give at least 1")
    if scheduler is not None and workers != 1:
        raise InputError(f"--workers={workers} and --scheduler={scheduler}: give one of them")
    most = max(4, len(os.sched_getaffinity(0)))
    if workers > most:
        raise InputError(f"--workers={workers}: this machine's CPUs are enough for {most}; give at most that")
    source = filesystem.local_path(data_path, "--data_path")
    output = filesystem.local_path(metadata_path, "--metadata_path")
    places = [os.path.realpath(source), os.path.realpath(output)]
    if os.path.commonpath(places) in places:
        raise InputError(f"{metadata_path}: lies in --data_path={data_path} or around it; name a folder beside it")
    tables = raw_tables.find_tables(data_path, allow_missing=options.allow_missing_tables)
    check_output(output, overwrite=overwrite, marker=SPEC_FILE)
    if importlib.util.find_spec("nvtabular") is None:
        raise InputError("NVTabular is not installed: run 'make setup' without PREPROC=0")
    # Here and not at the top: importing NVTabular takes seconds, and a wrong flag should be told at once.
    from data.outbrain.task_pool import task_pool

    with PeakMemory() as peak, staged_folder(output, overwrite=overwrite, marker=SPEC_FILE) as folder:
        # A name of its own: the processes of a pool, which can outlive this run, keep tables by their path.
        scratch = os.path.join(folder, f"temporary-{uuid.uuid4().hex}")
        os.makedirs(os.path.join(scratch, "dask"))
        with task_pool(workers=workers, scheduler=scheduler, scratch=os.path.join(scratch, "dask")) as pool:
            report = _Run(source, folder, scratch, tables, options, pool).report()
        report["peak_memory_bytes"] = peak.bytes
        os.rename(os.path.join(scratch, "workflow"), os.path.join(folder, "workflow"))
        if options.keep_joined:
            os.rename(os.path.join(scratch, "joined"), os.path.join(folder, "joined"))
        shutil.rmtree(scratch)
        with open(os.path.join(folder, REPORT_FILE), "w", encoding="utf-8") as file:
            json.dump(report, file, indent=2)
            file.write("\n")
    return report


class _Run:
    """One run, stage by stage."""

    def __init__(self, data_path: str, folder: str, scratch: str, tables: Sequence[str], options: Options, pool: Any):
        self._data_path, self._folder, self._scratch = data_path, folder, scratch
        self._tables, self._options, self._pool = tables, options, pool
        self._seconds: dict[str, float] = {}

    def report(self) -> dict[str, Any]:
        started = time.perf_counter()
        with self._stage("read"):
            plan, side_rows, events = self._read()
        with self._stage("join"):
            joined, counts = self._join(plan)
        with self._stage("fit"):
            self._fit(joined)
        with self._stage("transform"):
            writers, unseen = self._transform(joined)
        spec = self._specification(writers, joined)
        spec.to_yaml(os.path.join(self._folder, SPEC_FILE))
        self._seconds["all"] = time.perf_counter() - started
        return {
            "rows_in": {raw_tables.CLICKS: plan.rows, raw_tables.EVENTS: events, **side_rows},
            "missing_tables": [name for name in raw_tables.TABLES if name not in self._tables],
            "displays": counts.pop("displays"),
            "train_displays": counts.pop("train_displays"),
            "train_rows": writers[TRAIN].rows,
            "test_rows": writers[TEST].rows,
            "missing_joins": counts,
            "unseen_in_training": unseen,
            "options": dataclasses.asdict(self._options),
            "seconds": {name: round(seconds, 2) for name, seconds in self._seconds.items()},
        }

    @contextlib.contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self._seconds[name] = time.perf_counter() - started

    def _read(self) -> tuple[JoinPlan, dict[str, int], int]:
        options = self._options
        plan = join.plan_join(
            self._data_path,
            self._scratch,
            self._tables,
            seed=options.seed,
            test_fraction=options.test_fraction,
            rows_per_part=options.rows_per_part,
        )
        side_rows = join.keep_side_tables(plan)
        for _ in _progress("clicks", join.spool(plan, raw_tables.CLICKS)):
            pass
        events = sum(_progress("events", join.spool(plan, raw_tables.EVENTS)))
        return plan, side_rows, events

    def _join(self, plan: JoinPlan) -> tuple[JoinedRows, dict[str, int]]:
        buckets = range(plan.parts)
        results = self._pool.map(functools.partial(join.join_bucket, plan), buckets)
        counts = list(_progress("join", results, plan.parts))
        joined = JoinedRows(plan, tuple(c.pop("pieces") for c in counts), tuple(c.pop("evaluated") for c in counts))
        for name in (raw_tables.CLICKS, raw_tables.EVENTS):
            shutil.rmtree(os.path.join(self._scratch, name), ignore_errors=True)
        for source, side in ((TRAIN, "train on"), (TEST, "evaluate")):
            if not joined.parts(source):
                raise InputError(
                    f"{self._data_path}: no row is left to {side} with --test_fraction={plan.test_fraction} of "
                    f"{plan.rows} rows (days 0 to {join.LAST_TRAINING_DAY} train); take more clicks or another fraction"
                )
        names = dict.fromkeys(name for bucket in counts for name in bucket)
        return joined, {name: sum(bucket.get(name, 0) for bucket in counts) for name in names}

    def _fit(self, joined: JoinedRows) -> None:
        from data.outbrain import workflow

        vectors = {}
        for name, (_, tag) in join.LISTS.items():
            if name in self._tables:
                tags = join.read_tags(joined.plan, name)
                columns = (tags[column].to_numpy() for column in ("document_id", tag, "confidence_level"))
                vectors[name] = TagVectors.of_tags(*columns)
        fitted = workflow.build(
            self._tables,
            vectors,
            functools.partial(joined.read, TRAIN),
            [part for part, _ in joined.parts(TRAIN)],
            out_of_fold=self._options.ctr == "out_of_fold",
        )
        fitted.save(self._workflow_path)

    def _transform(self, joined: JoinedRows) -> tuple[dict[str, PartWriter], dict[str, int]]:
        from data.outbrain import workflow

        writers = {}
        unseen: dict[str, int] = {}
        for source, folder in _FOLDERS.items():
            writers[source] = writer = PartWriter(
                self._folder, folder, rows_per_group=self._options.rows_per_group, rows_per_file=ROWS_PER_FILE
            )
            parts = [part for part, _ in joined.parts(source)]
            task = functools.partial(workflow.transform_part, self._workflow_path, joined, source)
            for table, part_unseen in _progress(folder, self._pool.map(task, parts), len(parts)):
                writer.add(table)
                if source == TEST:
                    unseen = {name: unseen.get(name, 0) + rows for name, rows in part_unseen.items()}
            writer.close()
        return writers, unseen

    @property
    def _workflow_path(self) -> str:
        return os.path.join(self._scratch, "workflow")

    def _specification(self, writers: dict[str, PartWriter], joined: JoinedRows) -> FeatureSpec:
        from data.outbrain import workflow

        spec = workflow.features(self._tables)
        columns = spec.columns(with_display=True)
        sources = {
            source: (Chunk(type="parquet", features=columns, files=tuple(writer.files)),)
            for source, writer in writers.items()
        }
        metadata: dict[str, Any] = {"outbrain": {"seed": self._options.seed, "ctr": self._options.ctr}}
        path = os.path.join(self._data_path, TEACHER_FILE)
        if os.path.exists(path):
            metadata["teacher"] = _teacher_figures(path, joined)
        return dataclasses.replace(spec, sources=sources, metadata=metadata)


def _teacher_figures(path: str, joined: JoinedRows) -> dict[str, float]:
    """What `data.outbrain.raw` says that its teacher scores, averaged over the displays to evaluate."""
    columns = ("teacher_average_precision", "chance_average_precision")
    types = {"display_id": pa.int64(), **dict.fromkeys(columns, pa.float64())}
    convert = pa.csv.ConvertOptions(column_types=types, include_columns=list(types), null_values=[])
    try:
        table = pa.csv.read_csv(path, convert_options=convert)
    except pa.ArrowException as error:
        raise InputError(f"{path}: {error}; remove the file, or generate the data again") from error
    figures = join.KeyedTable.of_unsorted(table, "display_id", path)
    sums, displays = np.zeros(2), 0
    for part, _ in joined.parts(TEST):
        ids = np.unique(joined.read(TEST, part, ["display_id"])["display_id"].to_numpy())
        known, found = figures.look_up(ids)
        if not found.all():
            raise InputError(f"{path}: lacks display_id {ids[~found][0]}; remove the file, or generate the data again")
        sums += [known[name].to_numpy().sum() for name in columns]
        displays += len(ids)
    teacher, chance = (sums / displays).tolist()
    return {"map_at_12": teacher, "chance_map_at_12": chance, "displays": displays}


def _progress(title: str, items: Iterable, total: int | None = None) -> Iterable:
    """`items`, with a bar on stderr where that is a terminal."""
    return tqdm(items, desc=title, total=total, disable=None, leave=False)


def summary(report: dict[str, Any], metadata_path: str) -> str:
    """What `preprocess` did, for people."""
    seconds, rows = report["seconds"], report["rows_in"][raw_tables.CLICKS]
    lines = [f"{os.path.join(metadata_path, SPEC_FILE)}"]
    lines += [f"{name}.csv: {count:,} rows in" for name, count in report["rows_in"].items()]
    if report["missing_tables"]:
        lines.append(f"without {', '.join(report['missing_tables'])} and their features")
    lines.append(
        f"out: {report['train_rows']:,} rows of {report['train_displays']:,} displays to train, "
        f"{report['test_rows']:,} rows of {report['displays'] - report['train_displays']:,} displays to evaluate"
    )
    lines += [f"{name.replace('_', ' ')}: {count:,} rows" for name, count in report["missing_joins"].items()]
    lines += [
        f"to evaluate with a {name} that no training row has: {count:,} rows"
        for name, count in report["unseen_in_training"].items()
    ]
    stages = ", ".join(f"{name} {value:.1f}" for name, value in seconds.items() if name != "all")
    lines.append(
        f"{seconds['all']:.1f} s ({stages}), {rows / seconds['all']:,.0f} rows/s, peak memory "
        f"{report['peak_memory_bytes'] / 2**20:,.0f} MiB over all processes"
    )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code."""
    parser = command_line.Parser(
        prog="python -m data.outbrain.preprocess", description="Turns Outbrain's raw files into a dataset."
    )
    defaults = Options()
    add = parser.add_argument
    add("--data_path", required=True, metavar="ORIG", help="folder of the raw CSV files")
    add("--metadata_path", required=True, metavar="OUT", help="folder to write; must not exist or be empty")
    add(
        "--seed", type=int, default=defaults.seed, metavar="S", help="of the split and the folds (default: %(default)s)"
    )
    add(
        "--test_fraction",
        type=float,
        default=defaults.test_fraction,
        metavar="F",
        help="share of the displays of days 0 to 10 to evaluate on (default: %(default)s)",
    )
    add(
        "--ctr",
        default=defaults.ctr,
        metavar="KIND",
        help="out_of_fold (default), or in_sample: rates of training rows include their own clicks, as once usual",
    )
    add("--workers", type=int, default=1, metavar="N", help="processes on this machine (default: %(default)s)")
    add("--scheduler", metavar="ADDRESS", help="of a running dask cluster, to use instead")
    add(
        "--rows_per_part",
        type=int,
        default=defaults.rows_per_part,
        metavar="N",
        help="click rows held at a time by each process (default: %(default)s)",
    )
    add(
        "--rows_per_group",
        type=int,
        default=defaults.rows_per_group,
        metavar="N",
        help="rows of a parquet row group (default: %(default)s)",
    )
    add("--allow_missing_tables", action="store_true", help="go on without document tables and their features")
    add("--keep_joined", action="store_true", help="keep the joined rows in OUT/joined")
    add("--overwrite", action="store_true", help="replace an older dataset in OUT")

    def work(given: argparse.Namespace) -> str:
        options = Options(**{field.name: getattr(given, field.name) for field in dataclasses.fields(Options)})
        report = preprocess(
            given.data_path,
            given.metadata_path,
            options,
            workers=given.workers,
            scheduler=given.scheduler,
            overwrite=given.overwrite,
        )
        return summary(report, given.metadata_path)

    return command_line.run(parser, work, arguments)


if __name__ == "__main__":
    # Merlin imports TensorFlow where it is installed, only to know the names of its types: 500 MB and 3 s.
    sys.modules.setdefault("tensorflow", None)
    sys.exit(main())
