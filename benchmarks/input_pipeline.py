"""Rows per second of the input pipeline, beside pyarrow's own decoding and Merlin's dataloader.

    python -m benchmarks.input_pipeline [--rows N] [--batch_size B] [--threads T] [--passes P] [--json FILE]

All read the same files, every feature and the label of generated rows with Outbrain's columns (ids int64):
  pyarrow     decodes the columns into Arrow's arrays, with as many threads; nothing is checked, shuffled or packed
  pipeline    `ParquetInput`: checked, shuffled and packed into the batches of a `tf.data.Dataset`
  Merlin      `merlin.dataloader.tensorflow.Loader`, shuffled; of the first rows alone, since it takes long
Then the pipeline reads the same rows in other layouts: row groups of 1,000 rows, one row group, 500 files.

In a pass each reads all rows once, one after the other; the first pass is left out, and figures are medians over the
others. A pass of the pipeline is epochs 2 to 5 of a stream: it begins and ends with its buffers full.
"""

import argparse
import dataclasses
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import merlin_loader
from benchmarks.comparison import Row, measure, render, write_json
from data import command_line, synthetic
from data.errors import InputError
from data.feature_spec import TRAIN, Chunk, FeatureSpec
from data.input_pipeline import ParquetInput

PYARROW, PIPELINE, MERLIN = "pyarrow decode", "pipeline", "Merlin loader"
SMALL_GROUPS, ONE_GROUP, MANY_FILES = "row groups of 1,000 rows", "one row group", "500 files"
LEAST_OF_PYARROW, LEAST_OF_MERLIN, MOST_OF_BEST = 0.5, 25.0, 3.0
_FILES = 500
_EPOCHS = 4  # of a pass of the pipeline: it works some hundred thousand rows ahead, which are not to show
_MERLIN_SHARE = 10  # Merlin reads that part of the rows: it takes some hundred times as long


def table(speeds: Mapping[str, Sequence[float]], layouts: Sequence[str]) -> list[Row]:
    """The result: a row for each reader, with the ratios that have targets."""
    medians = {name: statistics.median(values) for name, values in speeds.items()}

    def row(name: str, **ratio) -> Row:
        if name not in speeds:
            return Row(name, None, "rows/s", note="not installed", **ratio)
        return Row(name, medians[name], "rows/s", min(speeds[name]), max(speeds[name]), **ratio)

    best = max(medians[name] for name in layouts)
    rows = [
        row(PYARROW),
        row(PIPELINE, ratio=medians[PIPELINE] / medians[PYARROW], ratio_is="of pyarrow", target=LEAST_OF_PYARROW),
        row(
            MERLIN,
            ratio=medians[PIPELINE] / medians[MERLIN] if MERLIN in medians else None,
            ratio_is="times as fast: the pipeline",
            target=LEAST_OF_MERLIN,
        ),
    ]
    for name in layouts:
        slower = {"ratio": best / medians[name], "ratio_is": "times slower than the best layout"}
        rows.append(row(name, **slower, target=MOST_OF_BEST, at_most=True))
    return rows


def run(
    *, rows: int, batch_size: int, threads: int, passes: int, say: Callable[[str], None] = lambda _: None
) -> list[Row]:
    """Generates the rows (kept in the cache of `data.synthetic`), writes the layouts to a temporary folder, measures.

    Raises:
      InputError: an argument is out of range.
    """
    if passes < 1 or threads < 1 or not 1 <= batch_size <= rows // 2:
        raise InputError(
            f"--passes={passes} --threads={threads} --batch_size={batch_size}: give at least 1 each, and batches of at "
            f"most half of --rows={rows}"
        )
    say(f"{rows:,} rows, batches of {batch_size:,}, {threads} threads")
    spec = FeatureSpec.from_yaml(synthetic.cached_dataset(rows=rows, seed=1))
    columns = list(spec.columns(with_display=False))
    generated = [path for source in spec.sources for path in spec.source_files(source)]
    with tempfile.TemporaryDirectory(prefix="recsys-harness-layouts.") as folder:
        layouts = {PIPELINE: generated, **_write_layouts(generated, columns, rows, folder)}
        streams = {name: _pipeline_reader(spec, paths, batch_size, threads) for name, paths in layouts.items()}
        readers = {PYARROW: _pyarrow_reader(generated, columns, threads), PIPELINE: streams.pop(PIPELINE)}
        if merlin_loader.is_installed():
            few = os.path.join(folder, "few.parquet")
            merlin_rows = min(rows, max(batch_size, rows // _MERLIN_SHARE))
            pq.write_table(_read_all(generated, columns).slice(0, merlin_rows), few, row_group_size=16384)
            say(f"Merlin loader: of {merlin_rows:,} rows")
            readers[MERLIN] = _timed(merlin_loader.epoch_reader([few], columns, spec.label, batch_size))
        speeds = measure(readers | streams, passes, say)
    return table(speeds, [SMALL_GROUPS, ONE_GROUP, MANY_FILES])


def _write_layouts(paths: Sequence[str], columns: Sequence[str], rows: int, folder: str) -> dict[str, list[str]]:
    whole = _read_all(paths, columns)
    layouts = {SMALL_GROUPS: [os.path.join(folder, "small.parquet")], ONE_GROUP: [os.path.join(folder, "one.parquet")]}
    pq.write_table(whole, layouts[SMALL_GROUPS][0], row_group_size=1000)
    pq.write_table(whole, layouts[ONE_GROUP][0], row_group_size=rows)
    layouts[MANY_FILES] = [os.path.join(folder, f"part-{number:03d}.parquet") for number in range(_FILES)]
    for number, path in enumerate(layouts[MANY_FILES]):
        first = number * rows // _FILES
        pq.write_table(whole.slice(first, (number + 1) * rows // _FILES - first), path)
    return layouts


def _read_all(paths: Sequence[str], columns: Sequence[str]) -> pa.Table:
    return pa.concat_tables(pq.read_table(path, columns=list(columns)) for path in paths)


def _pyarrow_reader(paths: Sequence[str], columns: Sequence[str], threads: int) -> Callable[[], tuple[int, float]]:
    def read() -> int:
        before = pa.cpu_count()
        pa.set_cpu_count(threads)
        try:
            return sum(pq.ParquetFile(path).read(columns=list(columns), use_threads=True).num_rows for path in paths)
        finally:
            pa.set_cpu_count(before)

    return _timed(read)


def _pipeline_reader(
    spec: FeatureSpec, paths: Sequence[str], batch_size: int, threads: int
) -> Callable[[], tuple[int, float]]:
    chunk = Chunk(type="parquet", features=spec.columns(with_display=False), files=tuple(map(os.path.abspath, paths)))
    spec = dataclasses.replace(spec, sources={TRAIN: (chunk,)})
    source = ParquetInput(spec, TRAIN, with_display=False, decode_threads=threads)

    def read() -> tuple[int, float]:
        with source.train_stream(global_batch_size=batch_size) as stream:
            batches = iter(stream.dataset)
            for _ in range(stream.steps_per_epoch):
                next(batches)
            steps = _EPOCHS * stream.steps_per_epoch
            started = time.perf_counter()
            for _ in range(steps):
                next(batches)
            return steps * batch_size, time.perf_counter() - started

    return read


def _timed(read: Callable[[], int]) -> Callable[[], tuple[int, float]]:
    def timed() -> tuple[int, float]:
        started = time.perf_counter()
        rows = read()
        return rows, time.perf_counter() - started

    return timed


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code, 0 also where a target is missed."""
    parser = command_line.Parser(prog="python -m benchmarks.input_pipeline", description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--rows", type=int, default=1_000_000, metavar="N", help="generated rows (default: %(default)s)")
    add("--batch_size", type=int, default=65_536, metavar="B", help="rows of a batch (default: %(default)s)")
    add("--threads", type=int, default=2, metavar="T", help="threads that decode (default: %(default)s)")
    add("--passes", type=int, default=7, metavar="P", help="measured passes (default: %(default)s)")
    add("--json", metavar="FILE", help="writes the result there: a list of rows")

    def work(given: argparse.Namespace) -> str:
        rows = run(
            rows=given.rows,
            batch_size=given.batch_size,
            threads=given.threads,
            passes=given.passes,
            say=lambda line: print(line, file=sys.stderr),
        )
        if given.json:
            write_json(rows, given.json)
        return render(rows)

    return command_line.run(parser, work, arguments)


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    sys.exit(main())
