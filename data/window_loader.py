"""Windows of rows, decoded ahead of their use by a pool of threads."""

import concurrent.futures
import dataclasses
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from data.parquet_decode import Copy, DenseColumn, PackedLayout, copy_rows, decode_row_groups
from data.parquet_files import Column, ParquetFiles
from data.row_plan import Segment, Window

# What one task decodes: small row groups together up to so many rows, a large one in parts of whole columns of about
# so many values.
_TASK_ROWS = 65_536
_TASK_VALUES = 4 * 2**20


@dataclasses.dataclass
class LoadedWindow:
    """A window, its packed rows, the rows of each batch (None: in order) and the ids its rows lost, by feature."""

    window: Window
    packed: dict[str, np.ndarray]
    row_indices: np.ndarray | None
    lost: dict[str, int]


@dataclasses.dataclass
class _Task:
    """Row groups of one file, the columns to decode, and where their rows go."""

    groups: list[int]
    columns: Sequence[Column]
    copies: list[Copy]
    keep: bool = False


class WindowLoader:
    """Decodes each window while the one before it is in use: at most two are held, in memory that is used again.

    A row group in which one window ends and the next begins stays decoded between the two, so that no row group is
    decoded twice in a pass.
    """

    def __init__(self, files: ParquetFiles, layout: PackedLayout, executor: concurrent.futures.Executor):
        self._files = files
        self._layout = layout
        self._executor = executor

    def load(self, windows: Iterator[Window]) -> Iterator[LoadedWindow]:
        """The windows, loaded, in order; one is valid until the next is asked for."""
        windows = iter(windows)
        free: list[dict[str, np.ndarray]] = []  # buffers of windows that are used up
        pending = self._start(next(windows), None, free)
        while pending is not None:
            loaded, buffers, kept = pending()
            following = next(windows, None)
            pending = None if following is None else self._start(following, kept, free)
            yield loaded
            free.append(buffers)

    def _start(
        self,
        window: Window,
        kept: tuple[int, list[list[DenseColumn]]] | None,
        free: list[dict[str, np.ndarray]],
    ) -> Callable:
        """Submits the decoding of a window; returns what waits for it."""
        buffers = free.pop() if free else self._layout.empty(window.rows)
        if len(buffers["labels"]) < window.rows:
            buffers = self._layout.empty(window.rows)
        packed = {name: array[: window.rows] for name, array in buffers.items()}
        submit = self._executor.submit
        futures = []
        if kept is not None:
            copies = _copies(window.segments).pop(kept[0], [])
            keep = window.continues and window.segments[-1].group == kept[0]
            futures += [submit(self._copy, part, copies, packed, keep) for part in kept[1]]
        tasks = _tasks(window, self._files, self._layout.columns, skip=None if kept is None else kept[0])
        futures += [submit(self._decode, task, packed) for task in tasks]
        index = None if window.deal is None else submit(window.deal.row_indices)

        def wait() -> tuple[LoadedWindow, dict[str, np.ndarray], tuple[int, list[list[DenseColumn]]] | None]:
            lost: dict[str, int] = {}
            parts = []
            for future in futures:
                counts, part = future.result()
                for name, count in counts.items():
                    lost[name] = lost.get(name, 0) + count
                if part is not None:
                    parts.append(part)
            loaded = LoadedWindow(window, packed, None if index is None else index.result(), lost)
            return loaded, buffers, (window.segments[-1].group, parts) if window.continues else None

        return wait

    def _decode(self, task: _Task, packed: dict[str, np.ndarray]) -> tuple[dict[str, int], list[DenseColumn] | None]:
        part = decode_row_groups(self._files, task.groups, task.columns)
        return self._copy(part, task.copies, packed, task.keep)

    @staticmethod
    def _copy(
        part: list[DenseColumn], copies: list[Copy], packed: dict[str, np.ndarray], keep: bool
    ) -> tuple[dict[str, int], list[DenseColumn] | None]:
        return copy_rows(part, copies, packed), part if keep else None


def task_bytes(layout: PackedLayout) -> int:
    """About what one task holds while it decodes: 8 bytes a value, as decoded and once more on the way."""
    widest = max(column.hotness for column in layout.columns)
    values = sum(column.hotness for column in layout.columns)
    return 2 * 8 * max(_TASK_VALUES, _TASK_ROWS * min(values, widest))


def _copies(segments: Sequence[Segment]) -> dict[int, list[Copy]]:
    """Row group -> where its rows go, counted from its own first row."""
    copies: dict[int, list[Copy]] = {}
    to = 0
    for segment in segments:
        copies.setdefault(segment.group, []).append(Copy(segment.first, to, segment.rows))
        to += segment.rows
    return copies


def _tasks(window: Window, files: ParquetFiles, columns: Sequence[Column], *, skip: int | None) -> list[_Task]:
    """Tasks that decode the row groups of a window, all but `skip`."""
    copies = _copies(window.segments)
    copies.pop(skip, None)
    last = window.segments[-1].group if window.continues else None
    width = sum(column.hotness for column in columns)
    tasks: list[_Task] = []
    small = []
    for group, places in copies.items():
        rows = int(files.group_rows[group])
        if group == last or rows * 2 > _TASK_ROWS or rows * width > _TASK_VALUES:
            parts = _column_parts(columns, max(1, _TASK_VALUES // rows))
            tasks += [_Task([group], part, places, keep=group == last) for part in parts]
        else:
            small.append(group)
    filled = None
    for group in sorted(small):  # in the order of the files, so that a task opens few of them
        rows = int(files.group_rows[group])
        if filled is None or filled + rows > _TASK_ROWS or (filled + rows) * width > _TASK_VALUES:
            tasks.append(_Task([], columns, []))
            filled = 0
        tasks[-1].groups.append(group)
        tasks[-1].copies += [Copy(place.first + filled, place.to, place.rows) for place in copies[group]]
        filled += rows
    return tasks


def _column_parts(columns: Sequence[Column], most_values: int) -> Iterator[Sequence[Column]]:
    """Adjacent columns, in parts of at most `most_values` values a row, or of one column that has more."""
    part: list[Column] = []
    for column in columns:
        if part and sum(other.hotness for other in part) + column.hotness > most_values:
            yield part
            part = []
        part.append(column)
    yield part
