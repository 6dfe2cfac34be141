"""Generated click data in the format of real data: parquet files and a feature specification.

    python -m data.synthetic --output DIR --rows N --seed S [--feature_spec F] [--exponent A] [--pooling P]

The columns are those of a given specification, by default Outbrain's; `data.id_draw` has the law of their ids. Displays
show 2 to 12 ads (`data.displays`) and a planted teacher (`data.teacher`) chooses the one that is clicked. What the
teacher scores on the evaluation rows, which no model that sees one row at a time can beat but by sampling noise, is
written to `metadata.teacher`.

A dataset is a function of its arguments, to the byte for one version of pyarrow. Rows are drawn and written chunk by
chunk, so that memory does not grow with the dataset, but for some 60 bytes per evaluation row while AUC is computed.
"""

import argparse
import contextlib
import dataclasses
import fcntl
import glob
import os
import shutil
import sys
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from data import command_line
from data.errors import InputError
from data.feature_spec import SPEC_FILE, TEST, TRAIN, Chunk, FeatureSpec
from data.id_draw import DEFAULT_DRAW, POOLINGS, IdDraw
from data.part_writer import PartWriter
from data.synthetic_recipe import (
    DEFAULT_ROWS_PER_GROUP,
    DEFAULT_VALID_FRACTION,
    GENERATOR_VERSION,
    Recipe,
    default_rows_per_group,
)
from data.synthetic_rows import TeacherScore, column_dtype, draw_chunks, plant_teacher, to_table

# For row groups of the default size; files of shorter ones hold less, too.
ROWS_PER_FILE = 32 * DEFAULT_ROWS_PER_GROUP

_FOLDERS = {TRAIN: "train", TEST: "valid"}


def generate(
    output_dir: str,
    *,
    rows: int,
    seed: int,
    spec: FeatureSpec | None = None,
    valid_fraction: float = DEFAULT_VALID_FRACTION,
    rows_per_group: int | None = None,
    draw: IdDraw = DEFAULT_DRAW,
) -> FeatureSpec:
    """Writes `train/*.parquet`, `valid/*.parquet` and `feature_spec.yaml` under `output_dir`, all of it or nothing.

    Both sources are sorted by display. Where `spec` has no `map` channel the display id is added as `display_id`
    (with underscores in front if a feature has that name). Id columns are int64, numericals float32, the label int8,
    multi-hot columns lists of ids, whatever dtypes `spec` declares.

    Args:
      output_dir: a folder that does not exist or is empty; the finished dataset of the same arguments is left as it is.
      rows: rows of both sources together.
      seed: a non-negative integer.
      spec: the features; its files and metadata are ignored. Outbrain's by default.
      valid_fraction: share of the displays that go to the evaluation source `test` (folder `valid`).
      rows_per_group: rows of each parquet row group, but for the last of a source. By default 16384, or as many as
        take 8 MiB where those take more.
      draw: the law of ids, and how many multi-hot rows hold.

    Returns:
      The specification as read back from the folder.

    Raises:
      InputError: an argument is out of range, or the folder holds something else or cannot be written.
    """
    output = os.path.abspath(output_dir)
    recipe = Recipe.checked(rows, seed, spec, valid_fraction, rows_per_group, draw)
    try:
        return _generate(output, recipe)
    except OSError as error:
        raise InputError(
            f"{output}: cannot write the generated dataset: {error.strerror or error}; "
            "name a new folder below one that can be written"
        ) from error


def cached_dataset(
    *,
    rows: int,
    seed: int,
    spec: FeatureSpec | None = None,
    cache_dir: str | None = None,
    draw: IdDraw = DEFAULT_DRAW,
) -> str:
    """Path of the specification of a generated dataset, made at the first call on this machine.

    The folder is named after a hash of all that determines the content. Processes that ask at the same time wait for
    the one that makes it; what a killed one has left is removed by the next.

    Args:
      rows, seed, spec, draw: as `generate` takes them.
      cache_dir: by default `recsys-harness` in $XDG_CACHE_HOME or ~/.cache.

    Raises:
      InputError: an argument is out of range, or the folder cannot be written.
    """
    recipe = Recipe.checked(rows, seed, spec, DEFAULT_VALID_FRACTION, None, draw)
    folder = os.path.join(os.path.abspath(cache_dir or _default_cache_dir()), "synthetic")
    dataset = os.path.join(folder, recipe.key)
    path = os.path.join(dataset, SPEC_FILE)
    if os.path.exists(path):
        return path
    try:
        os.makedirs(folder, exist_ok=True)
        with _exclusive(f"{dataset}.lock"):
            for leftover in glob.glob(f"{glob.escape(dataset)}.*.partial"):
                shutil.rmtree(leftover)
            _generate(dataset, recipe)
    except OSError as error:
        raise InputError(
            f"{folder}: cannot keep generated data there: {error.strerror or error}; "
            "name another folder with --synthetic_cache_dir"
        ) from error
    return path


def summary(spec: FeatureSpec) -> str:
    """What `generate` wrote, for people."""
    figures, counts = spec.metadata["teacher"], spec.metadata["synthetic"]
    return (
        f"{spec.path}: {counts['train_rows']} rows of {counts['train_displays']} displays to train, "
        f"{figures['rows']} rows of {figures['displays']} displays to evaluate\n"
        f"teacher on the evaluation rows: AUC {figures['auc']:.5f}, MAP@12 {figures['map_at_12']:.5f} "
        f"(chance {figures['chance_map_at_12']:.5f}), log loss {figures['log_loss']:.5f} "
        f"(base rate {figures['base_rate_log_loss']:.5f})"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code."""
    parser = command_line.Parser(
        prog="python -m data.synthetic", description="Generates click data with a planted teacher."
    )
    parser.add_argument("--output", required=True, metavar="DIR", help="folder to write; must not exist or be empty")
    parser.add_argument("--rows", required=True, type=int, metavar="N", help="rows of both sources together")
    parser.add_argument("--seed", required=True, type=int, metavar="S", help="non-negative integer")
    parser.add_argument("--feature_spec", metavar="F", help="features to generate, a YAML file; Outbrain's by default")
    parser.add_argument(
        "--exponent",
        type=float,
        default=DEFAULT_DRAW.exponent,
        metavar="A",
        help="of the power law that ids follow; 0 makes all ids as likely (default: %(default)s)",
    )
    parser.add_argument(
        "--pooling",
        default=DEFAULT_DRAW.pooling,
        metavar="P",
        help=f"ids of a multi-hot row, one of {', '.join(POOLINGS)}: 0 to max_hotness with repeats, 1 to max_hotness "
        "different ones, or just max_hotness different ones (default: %(default)s)",
    )

    def work(options: argparse.Namespace) -> str:
        spec = FeatureSpec.from_yaml(options.feature_spec) if options.feature_spec else None
        draw = IdDraw(options.exponent, options.pooling)
        return summary(generate(options.output, rows=options.rows, seed=options.seed, spec=spec, draw=draw))

    return command_line.run(parser, work, arguments)


def _generate(output: str, recipe: Recipe) -> FeatureSpec:
    if os.path.isdir(output) and os.listdir(output):
        return _same_dataset(output, recipe.key)
    partial = f"{output}.{os.getpid()}.partial"
    os.makedirs(partial)
    try:
        _write_dataset(partial, recipe)
        os.rename(partial, output)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return FeatureSpec.from_yaml(os.path.join(output, SPEC_FILE))


def _write_dataset(folder: str, recipe: Recipe) -> None:
    spec = recipe.spec
    teacher = plant_teacher(spec, recipe.draw)
    score = TeacherScore(teacher)
    rows_per_file = ROWS_PER_FILE * default_rows_per_group(spec) // DEFAULT_ROWS_PER_GROUP
    writers = {
        source: PartWriter(folder, name, rows_per_group=recipe.rows_per_group, rows_per_file=rows_per_file)
        for source, name in _FOLDERS.items()
    }
    displays = 0
    for chunk in draw_chunks(
        spec, teacher, rows=recipe.rows, seed=recipe.seed, valid_fraction=recipe.valid_fraction, draw=recipe.draw
    ):
        table = to_table(spec, chunk)
        evaluated = np.repeat(chunk.evaluated, chunk.displays.sizes)
        writers[TRAIN].add(table.filter(pa.array(~evaluated)))
        writers[TEST].add(table.filter(pa.array(evaluated)))
        score.add(chunk)
        displays += len(chunk.evaluated)
    for writer in writers.values():
        writer.close()
    if not all(writer.rows for writer in writers.values()):
        raise InputError(
            f"rows={recipe.rows}: too few for a display to train on and one to evaluate with "
            f"valid_fraction={recipe.valid_fraction}; ask for more rows"
        )
    figures = score.figures()
    metadata = {
        "synthetic": {
            "content_key": recipe.key,
            "generator_version": GENERATOR_VERSION,
            "seed": recipe.seed,
            "rows": recipe.rows,
            "train_rows": writers[TRAIN].rows,
            "train_displays": displays - figures["displays"],
            **recipe.uncommon_draw,
        },
        "teacher": figures,
    }
    columns = spec.columns(with_display=True)
    sources = {
        source: (Chunk(type="parquet", features=columns, files=tuple(writer.files)),)
        for source, writer in writers.items()
    }
    dataclasses.replace(
        spec,
        features={name: dataclasses.replace(spec.features[name], dtype=column_dtype(spec, name)) for name in columns},
        sources=sources,
        metadata=metadata,
        path="",
    ).to_yaml(os.path.join(folder, SPEC_FILE))


def _same_dataset(output: str, key: str) -> FeatureSpec:
    path = os.path.join(output, SPEC_FILE)
    if os.path.exists(path):
        spec = FeatureSpec.from_yaml(path)
        if (spec.metadata.get("synthetic") or {}).get("content_key") == key:
            return spec
    raise InputError(
        f"{output}: holds files that are not the dataset of these arguments; remove it or name another folder"
    )


def _default_cache_dir() -> str:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "recsys-harness")


@contextlib.contextmanager
def _exclusive(path: str) -> Iterator[None]:
    """Holds a lock between processes; the system frees it when its holder dies."""
    with open(path, "a", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    sys.exit(main())
