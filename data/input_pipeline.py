"""Parquet -> tf.data: the batches of a dataset that a feature specification describes.

A batch is a dictionary of tensors, one row an example:
  ids        (rows, spec.total_hotness) int32, or int64 where the sum of the cardinalities needs it; -1 = absent
  numerical  (rows, numerical features) float32
  labels     (rows,) float32
and in evaluation also
  mask       (rows,) float32: 1, or 0 for a row that only fills up the batch
  group_ids  (rows,) int64: the display, if asked for and the specification has one
"""

import concurrent.futures
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from data.errors import InputError
from data.feature_spec import FeatureSpec
from data.freed_memory import keep_freed_memory
from data.parquet_decode import PackedLayout, decode_row_groups
from data.parquet_files import Kind, open_parquet_files, spec_columns
from data.row_plan import EvaluationPlan, TrainingPlan, Window, shard_strata
from data.window_loader import LoadedWindow, WindowLoader, task_bytes

SHUFFLE_BUFFER_ROWS = 524_288
DATA_SHARDS = 96
_PREFETCH_BATCHES = 2
_RUN_ROWS = 32768  # small batches are made so many rows at a time: a call into Python costs as much as 1000 rows


class ParquetInput:
    """The rows of one source of a feature specification.

    Args:
      spec: the specification; its files are opened here.
      source: "train" or "test".
      with_display: whether evaluation batches carry `group_ids`.
      decode_threads: threads of a stream that decode. They do not change what it yields.

    Attributes:
      files: paths.
      num_rows, num_row_groups: totals over the files.

    Raises:
      InputError: a file is missing, is not parquet or holds no rows; a column is missing or of a type that can't be
        used. Values are checked when they are read.
    """

    def __init__(self, spec: FeatureSpec, source: str, *, with_display: bool, decode_threads: int = 2):
        if decode_threads < 1:
            raise InputError(f"decode_threads must be at least 1, got {decode_threads}")
        columns = spec_columns(spec, with_display=with_display)
        self._files = open_parquet_files(spec.source_files(source), columns, threads=max(4, decode_threads))
        self._layout = PackedLayout(columns)
        self._training_layout = PackedLayout([column for column in columns if column.kind is not Kind.DISPLAY])
        self._display = next((column for column in columns if column.kind is Kind.DISPLAY), None)
        self._threads = decode_threads
        self._displays_sorted: dict[tuple[int, int], tuple[bool, int | None, int | None]] = {}
        self.files = self._files.paths
        self.num_rows = self._files.num_rows
        self.num_row_groups = len(self._files.group_rows)

    def train_stream(
        self,
        *,
        global_batch_size: int,
        rank: int = 0,
        world_size: int = 1,
        seed: int = 0,
        start_step: int = 0,
        shuffle: bool = True,
        data_shards: int = DATA_SHARDS,
        shuffle_buffer_rows: int = SHUFFLE_BUFFER_ROWS,
    ) -> "BatchStream":
        """Endless training batches of this rank, epoch after epoch; see `data.row_plan` for which rows they hold.

        The union of the ranks' batches at a step depends on the files, `global_batch_size`, `seed` and
        `shuffle_buffer_rows`, not on the number of ranks or shards. Local batch sizes can differ by rank.

        Args:
          start_step: global step of the first batch; the windows before it are not read.
          data_shards: parts of a batch that ranks share out.
          shuffle_buffer_rows: rows of all ranks that are shuffled together at least.

        Raises:
          InputError: fewer rows than a batch, or more ranks than shards or rows of a batch.
        """
        first, last = shard_strata(global_batch_size, data_shards, rank, world_size)
        plan = TrainingPlan(
            self._files.group_rows,
            global_batch_size=global_batch_size,
            seed=seed,
            min_window_rows=shuffle_buffer_rows,
            shuffle=shuffle,
        )
        return BatchStream(
            lambda: plan.windows(first, last, start_step=start_step),
            self._loader(self._training_layout),
            self._training_layout,
            evaluation=False,
            threads=self._threads,
            local_batch_size=last - first,
            steps_per_epoch=plan.steps_per_epoch,
            dropped_rows=plan.dropped_rows,
            window_rows=-(-plan.max_window_rows // global_batch_size) * (last - first),
            largest_group=int(self._files.group_rows.max()),
        )

    def evaluation_plan(self, *, global_batch_size: int, rank: int = 0, world_size: int = 1) -> EvaluationPlan:
        """Which rows a rank scores in how many steps."""
        return EvaluationPlan(
            self._files.group_rows, global_batch_size=global_batch_size, rank=rank, world_size=world_size
        )

    def eval_stream(
        self, *, global_batch_size: int, rank: int = 0, world_size: int = 1, repeat: bool = False
    ) -> "BatchStream":
        """Evaluation batches of this rank: each row of the source once over all ranks, in file order.

        All ranks get `steps_per_epoch` batches of one static shape; where rows are short, `mask` is 0.

        Args:
          repeat: start again after the last batch, endlessly.

        Raises:
          InputError: fewer rows in a batch than ranks.
        """
        plan = self.evaluation_plan(global_batch_size=global_batch_size, rank=rank, world_size=world_size)

        def windows() -> Iterator[Window]:
            yield from plan.windows()
            while repeat:
                yield from plan.windows()

        return BatchStream(
            windows,
            self._loader(self._layout),
            self._layout,
            evaluation=True,
            threads=self._threads,
            local_batch_size=plan.local_batch_size,
            steps_per_epoch=plan.steps,
            dropped_rows=0,
            window_rows=plan.max_window_rows,
            largest_group=int(self._files.group_rows.max()),
        )

    def displays_sorted(self, rank: int = 0, world_size: int = 1) -> tuple[bool, int | None, int | None]:
        """Whether the display ids of the rank's evaluation rows never fall, and its first and last display id.

        Reads that column alone, row group by row group, once per (rank, world_size). The ids are None without rows.
        """
        if self._display is None:
            raise ValueError("displays_sorted needs with_display=True and a specification with a map channel")
        key = (rank, world_size)
        if key not in self._displays_sorted:
            ordered, first, last = True, None, None
            plan = self.evaluation_plan(global_batch_size=world_size, rank=rank, world_size=world_size)
            for segment in plan.segments():
                (dense,) = decode_row_groups(self._files, [segment.group], [self._display])
                ids = dense.values[segment.first : segment.first + segment.rows]
                ordered = ordered and bool((ids[1:] >= ids[:-1]).all()) and (last is None or last <= int(ids[0]))
                first, last = int(ids[0]) if first is None else first, int(ids[-1])
            self._displays_sorted[key] = (ordered, first, last)
        return self._displays_sorted[key]

    def _loader(self, layout: PackedLayout) -> Callable[[concurrent.futures.Executor], WindowLoader]:
        return lambda executor: WindowLoader(self._files, layout, executor)


class BatchStream:
    """Batches of one rank; made by `ParquetInput`.

    Iterate over it, or over `.dataset`; each iteration starts at the stream's first batch. Iterating the stream raises
    the error that stopped it, an InputError say, as it is; iterating `.dataset` raises TensorFlow's own error, and
    `.error` holds the cause. Use as a context manager, or call `close`.

    Attributes:
      local_batch_size: rows of every batch of this rank.
      steps_per_epoch: batches of one pass.
      dropped_rows: rows at the end of the source that training leaves out.
      buffer_bytes: bound on what the stream holds: two windows of rows, one decoded row group that two windows share,
        the tasks that are decoding, and the batches made ahead. Lists longer than max_hotness come on top while they
        are decoded.
      counts: so far yielded, those made ahead included: "rows", "batches", and "ids_cut": feature -> ids beyond its
        max_hotness, counted when their window is reached.
      error: what stopped the stream, or None.
    """

    def __init__(
        self,
        windows: Callable[[], Iterator[Window]],
        loader: Callable[[concurrent.futures.Executor], WindowLoader],
        layout: PackedLayout,
        *,
        evaluation: bool,
        threads: int,
        local_batch_size: int,
        steps_per_epoch: int,
        dropped_rows: int,
        window_rows: int,
        largest_group: int,
    ):
        self._windows = windows
        self._layout = layout
        self._evaluation = evaluation
        self._executor = concurrent.futures.ThreadPoolExecutor(threads, thread_name_prefix="parquet-decode")
        self._loader = loader(self._executor)
        self._closed = threading.Event()
        self._dataset: Any = None
        self._run_batches = max(1, min(_RUN_ROWS, window_rows // 4) // local_batch_size)
        self.local_batch_size = local_batch_size
        self.steps_per_epoch = steps_per_epoch
        self.dropped_rows = dropped_rows
        self.counts: dict[str, Any] = {"rows": 0, "batches": 0, "ids_cut": {}}
        self.error: BaseException | None = None
        values = sum(column.hotness for column in layout.columns)
        self.buffer_bytes = (
            2 * window_rows * (layout.row_bytes + (0 if evaluation else 4))  # 4: which batch the row is in
            + largest_group * 8 * values
            + threads * task_bytes(layout)
            + (2 * self._run_batches + _PREFETCH_BATCHES + 2) * local_batch_size * (layout.row_bytes + 4)
        )

    def arrays(self) -> Iterator[dict[str, np.ndarray]]:
        """The batches as numpy arrays, without TensorFlow.

        Raises:
          InputError: a row group can't be decoded or holds a value that can't be used.
        """
        for run in self._runs():
            for step in range(len(run["labels"])):
                yield {name: array[step].copy() for name, array in run.items()}

    @property
    def dataset(self):
        """The batches as a `tf.data.Dataset` with static shapes, two made ahead."""
        if self._dataset is None:
            self._dataset = self._make_dataset(self._runs)
        return self._dataset

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """The batches as tensors; raises the error that stopped the stream itself."""
        failed: list[Exception] = []

        def quiet() -> Iterator[dict[str, np.ndarray]]:
            # TensorFlow prints the trace of an error that passes through it and wraps it; so it doesn't get to see it.
            try:
                yield from self._runs()
            except Exception as error:
                failed.append(error)

        yield from self._make_dataset(quiet)
        if failed:
            raise failed[0]

    def close(self) -> None:
        """Ends the stream and its threads; iterations that are under way end."""
        self._closed.set()
        self._executor.shutdown(wait=True, cancel_futures=True)

    def __enter__(self) -> "BatchStream":
        return self

    def __exit__(self, *exception) -> None:
        self.close()

    def _runs(self) -> Iterator[dict[str, np.ndarray]]:
        """Runs of adjacent batches: arrays (batches, rows, ...), valid until the next run is asked for."""
        if self._closed.is_set():
            raise ValueError("the stream is closed")
        try:
            keep_freed_memory()  # here: TensorFlow has made its generator, which sets the opposite, by now
            buffers = self._layout.empty(self._run_batches * self.local_batch_size)
            for loaded in self._loader.load(self._windows()):
                for name, count in loaded.lost.items():
                    self.counts["ids_cut"][name] = self.counts["ids_cut"].get(name, 0) + count
                window = loaded.window
                for first in range(window.skip_batches, window.num_batches, self._run_batches):
                    if self._closed.is_set():
                        return
                    batches = min(self._run_batches, window.num_batches - first)
                    run, rows = self._run(loaded, first, batches, buffers)
                    self.counts["rows"] += rows
                    self.counts["batches"] += batches
                    yield run
        except (concurrent.futures.CancelledError, RuntimeError) as error:
            if not self._closed.is_set():  # else: the pool was shut down while a window was on its way
                self.error = error
                raise
        except Exception as error:
            self.error = error
            raise

    def _run(
        self, loaded: LoadedWindow, first: int, batches: int, buffers: dict[str, np.ndarray]
    ) -> tuple[dict[str, np.ndarray], int]:
        """`batches` batches of a window from batch `first` on, and how many of their rows are real."""
        size = self.local_batch_size
        if loaded.row_indices is not None:
            indices = loaded.row_indices[first : first + batches].ravel()
            run = {}
            for name, array in loaded.packed.items():
                taken = array.take(
                    indices, axis=0, out=buffers[name][: len(indices)], mode="clip"
                )  # fills `out` itself
                run[name] = taken.reshape(batches, size, *array.shape[1:])
            return run, len(indices)
        run = {name: array[first * size : (first + batches) * size] for name, array in loaded.packed.items()}
        rows = len(run["labels"])
        if rows < batches * size:
            padding = self._layout.padding(batches * size - rows)
            run = {name: np.concatenate([array, padding[name]]) for name, array in run.items()}
        if self._evaluation:
            run["mask"] = (np.arange(batches * size) < rows).astype(np.float32)
        return {name: array.reshape(batches, size, *array.shape[1:]) for name, array in run.items()}, rows

    def _make_dataset(self, runs: Callable[[], Iterator[dict[str, np.ndarray]]]):
        import tensorflow as tf  # here, because only what makes tensors needs it

        shapes = dict(self._layout.tensors)
        if self._evaluation:
            shapes["mask"] = ((), np.dtype(np.float32))
        # unbatch crashes on tensors without elements: those of a kind of feature that there is none of come later.
        empty = [name for name, (shape, _) in shapes.items() if 0 in shape]
        size = self.local_batch_size

        def generate() -> Iterator[dict[str, np.ndarray]]:
            for run in runs():
                yield {name: array for name, array in run.items() if name not in empty}

        def add_empty(batch):
            return batch | {name: tf.zeros((size, *shapes[name][0]), shapes[name][1]) for name in empty}

        signature = {
            name: tf.TensorSpec((None, size, *shape), tf.as_dtype(dtype))
            for name, (shape, dtype) in shapes.items()
            if name not in empty
        }
        # unbatch copies each batch out of the run, all of them before it asks for the next run, whose arrays are the
        # same memory (fresh memory for each would cost more than all else here). Nothing may read ahead in between.
        dataset = tf.data.Dataset.from_generator(generate, output_signature=signature).unbatch()
        options = tf.data.Options()
        options.experimental_optimization.inject_prefetch = False
        if empty:
            dataset = dataset.map(add_empty)
        return dataset.prefetch(_PREFETCH_BATCHES).with_options(options)


def blank_batch(stream: BatchStream) -> dict[str, Any]:
    """Tensors of the shapes of a batch, all zero: for a rank that has no more batches where others still do."""
    import tensorflow as tf

    return {name: tf.zeros(spec.shape, spec.dtype) for name, spec in stream.dataset.element_spec.items()}
