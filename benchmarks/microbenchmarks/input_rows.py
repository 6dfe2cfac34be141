"""Rows that the input pipeline delivers: a step takes the next training batch, and does nothing with it.

Generated rows with Outbrain's columns (kept in the cache of `data.synthetic`), every feature and the label, shuffled,
from parquet files to tensors: what `benchmarks.input_pipeline` compares with others. The first epoch warms up, for the
pipeline works far ahead. Some batches are there at once and others wait for a window of rows, so the score is rows over
the time of all steps and not by the median.

Every row of the warm-up must be a row of the files, read by pyarrow alone, and none may come more often than it is
there; the same holds for the last batch. The files' ids of ads must be spread as the generator's law says.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.microbenchmarks import checks
from benchmarks.microbenchmarks.shapes import PROCESS_BYTES, Benchmark, Parameter, Settings
from benchmarks.microbenchmarks.timed import WARMUP_STEPS, Work
from data import power_law
from data.errors import InputError
from data.feature_spec import TRAIN, FeatureSpec

MODE = "read"
AD = "ad_id"  # drawn for each row by itself: features of the page are those of all rows of a display
_ROW_BYTES = 1000  # of a row in windows, buffers, batches and in what is checked


def row_hashes(batch: Mapping[str, np.ndarray]) -> np.ndarray:
    """A number for each row, (rows,) uint64, that depends on every bit of its ids, numericals and label.

    Args:
      batch: "ids" (rows, hotness), "numerical" (rows, n) float32, "labels" (rows,); see data.input_pipeline.
    """
    ids = np.asarray(batch["ids"], np.int64)
    bits = np.ascontiguousarray(batch["numerical"], np.float32).view(np.int32).astype(np.int64)
    labels = np.asarray(batch["labels"], np.float32).view(np.int32).astype(np.int64)[:, np.newaxis]
    hashes = np.zeros(len(ids), np.uint64)
    for column in np.concatenate([ids, bits, labels], axis=1).T:
        hashes = (hashes ^ column.view(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
        hashes ^= hashes >> np.uint64(29)
    return hashes


def rows_of_files(spec: FeatureSpec) -> dict[str, np.ndarray]:
    """The training rows as a batch of all of them, by pyarrow alone."""
    columns = list(spec.columns(with_display=False))
    table = pa.concat_tables(pq.read_table(path, columns=columns) for path in spec.source_files(TRAIN))
    ids = np.full((table.num_rows, spec.total_hotness), -1, np.int64)
    column = 0
    for name in spec.categorical:
        values, hotness = table[name].combine_chunks(), spec.features[name].max_hotness
        if pa.types.is_list(values.type) or pa.types.is_large_list(values.type):
            lengths = values.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
            ids[:, column : column + hotness][np.arange(hotness) < lengths[:, np.newaxis]] = values.flatten().to_numpy()
        else:
            ids[:, column] = values.fill_null(-1).to_numpy(zero_copy_only=False)
        column += hotness
    numerical = [table[name].to_numpy().astype(np.float32) for name in spec.numerical]
    return {"ids": ids, "numerical": np.stack(numerical, axis=1), "labels": table[spec.label].to_numpy()}


def predicted_bytes(settings: Settings, ranks: int) -> int:
    """Windows, batches made ahead, and all rows as they are checked."""
    del ranks
    return PROCESS_BYTES + _ROW_BYTES * (settings.parameters["rows"] + 4 * settings.batch)


def prepare(settings: Settings, comm: Any) -> Work:
    """Ranks share out every batch, as in training.

    Raises:
      InputError: a batch has more rows than there are, or fewer than ranks.
    """
    from data import synthetic
    from data.input_pipeline import ParquetInput

    rows = settings.parameters["rows"]
    if settings.batch > rows // 2:
        raise InputError(f"{settings.name}: --batch={settings.batch}: give at most half of the {rows} rows")
    spec = FeatureSpec.from_yaml(synthetic.cached_dataset(rows=rows, seed=1))
    there = rows_of_files(spec)
    known, copies = np.unique(row_hashes(there), return_counts=True)
    source = ParquetInput(spec, TRAIN, with_display=False, decode_threads=settings.parameters["threads"])
    stream = source.train_stream(global_batch_size=settings.batch, rank=comm.rank, world_size=comm.size)
    batches = iter(stream)

    def before() -> list[checks.Check]:
        ads = _columns_of(spec, there["ids"], AD)
        found = checks.follow_law(
            f"{len(ads):,} ids '{AD}'", ads, spec.features[AD].cardinality, power_law.DEFAULT_EXPONENT
        )
        epoch = [row_hashes(_arrays(batch)) for batch in itertools.islice(batches, stream.steps_per_epoch)]
        return [*found, _compare(f"{len(epoch):,} batches of the first epoch", epoch)]

    def _compare(what: str, hashes: Sequence[np.ndarray]) -> checks.Check:
        seen, times = np.unique(np.concatenate(hashes), return_counts=True)
        place = np.minimum(np.searchsorted(known, seen), len(known) - 1)
        strange = int(times[known[place] != seen].sum())
        again = int(np.maximum(0, times - copies[place])[known[place] == seen].sum())
        held = strange == again == 0
        said = "all of them rows of the files" if held else f"{strange:,} are NO ROWS of the files, {again:,} REPEATED"
        return checks.Check(f"{what}, {times.sum():,} rows: {said}", held)

    return Work(
        step=lambda: next(batches),
        wait=lambda batch: None,  # tensors that tf.data hands out are there
        read=_arrays,
        before=before,
        after=lambda batch: [_compare("after, the last batch", [row_hashes(_arrays(batch))])],
        amount=settings.batch,
        # What checking has let the pipeline make ahead in the meantime is used up.
        warmup_steps=max(WARMUP_STEPS, stream.steps_per_epoch),
        steady=False,
        figures={"distinct_rows": stream.steps_per_epoch * settings.batch},
        close=stream.close,
    )


def _arrays(batch: Mapping[str, Any]) -> dict[str, np.ndarray]:
    return {name: values.numpy() for name, values in batch.items()}


def _columns_of(spec: FeatureSpec, ids: np.ndarray, feature: str) -> np.ndarray:
    """Ids of a one-hot feature."""
    before = itertools.takewhile(lambda name: name != feature, spec.categorical)
    return ids[:, sum(spec.features[name].max_hotness for name in before)]


BENCHMARK = Benchmark(
    name="input_pipeline",
    units="samples/s",
    modes=(MODE,),
    default_batch=65_536,
    precisions=("fp32",),
    parameters={
        "rows": Parameter(1_000_000, "generated rows, a fifth of them not for training"),
        "threads": Parameter(2, "that decode"),
    },
    predicted_bytes=predicted_bytes,
    prepare=prepare,
)
