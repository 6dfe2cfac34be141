"""Which rows make up which batch: pure functions of counts, seed and epoch, without files or threads.

Training. K = N // B batches an epoch; the last N - K*B rows in file order are left out, so every epoch reads the same
rows. An epoch puts the row groups in a random order and cuts that sequence of rows in windows of whole batches. A
window of n batches is B strata of n adjacent rows, and each stratum deals one row to each of its batches, in a random
order. So a batch holds one row from each of B places of the window, which is what makes it mix row groups, and its rows
depend on (rows of the files, B, seed, epoch) alone. A rank owns adjacent strata, hence an adjacent part of the window,
and reads nothing else.

Evaluation. A rank reads an adjacent range of rows in file order, once, and pads its last batch.
"""

import bisect
import dataclasses
import functools
import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from data.errors import InputError
from data.hashing import WEYL_STEP, mix

MIN_GROUPS_PER_BATCH = 8
EVALUATION_WINDOW_ROWS = 131_072

_BLOCK_ROWS = 8192
_ORDER_OF_GROUPS, _ORDER_OF_ROWS = 0, 1  # domains of the random keys


@dataclasses.dataclass(frozen=True)
class Segment:
    """`rows` adjacent rows of a row group, from its row `first` on."""

    group: int
    first: int
    rows: int


@dataclasses.dataclass(frozen=True)
class Deal:
    """How the rows of a window are dealt to its batches: strata [first, last) of `batches` rows each."""

    key: tuple[int, ...]
    first: int
    last: int
    batches: int

    def row_indices(self) -> np.ndarray:
        """(batches, last - first) int32: for each batch its rows, counted from the first row of stratum `first`."""
        rows = (self.last - self.first) * self.batches
        indices = np.empty((self.batches, self.last - self.first), np.int32 if rows <= 2**31 else np.int64)
        block = max(1, _BLOCK_ROWS // self.batches)
        for low in range(self.first, self.last, block):  # in blocks, so that what is sorted stays in the cache
            high = min(low + block, self.last)
            counter = np.arange(low * self.batches, high * self.batches, dtype=np.uint64)
            order = np.argsort(_random_bits(self.key, counter).reshape(-1, self.batches), axis=1)
            order += np.arange(low - self.first, high - self.first)[:, None] * self.batches
            indices[:, low - self.first : high - self.first] = order.T
        return indices


@dataclasses.dataclass(frozen=True)
class Window:
    """Rows that one rank reads together, and the batches that it makes of them.

    Attributes:
      segments: what to read; one after the other they are the rows of the window.
      num_batches: local batches in the window.
      skip_batches: how many of them a resumed run has already seen.
      local_batch_size: rows of a batch; only the last rows of an evaluation are fewer.
      deal: the rows of each batch; None: batch b is the b-th run of `local_batch_size` rows.
      continues: the next window of the pass begins in the row group in which this one ends.
    """

    segments: tuple[Segment, ...]
    num_batches: int
    skip_batches: int
    local_batch_size: int
    deal: Deal | None
    continues: bool

    @functools.cached_property
    def rows(self) -> int:
        return sum(segment.rows for segment in self.segments)


def shard_strata(global_batch_size: int, data_shards: int, rank: int, world_size: int) -> tuple[int, int]:
    """Strata [first, last) of `rank`, that is which of the `global_batch_size` rows of each batch it reads.

    Shard s of V gives rows floor(s*B/V) .. floor((s+1)*B/V)-1 of a batch of B; rank r of n owns shards
    floor(r*V/n) .. floor((r+1)*V/n)-1. They are adjacent so that a rank decodes only its own part of a window.

    Raises:
      InputError: more ranks than shards or rows, or a rank would get no row.
    """
    if global_batch_size < 1 or data_shards < 1:
        raise InputError(
            f"global_batch_size and data_shards must be at least 1, got {global_batch_size} and {data_shards}"
        )
    if not 0 <= rank < world_size:
        raise ValueError(f"rank {rank} is not in 0..{world_size - 1}")
    if world_size > data_shards:
        raise InputError(
            f"{world_size} ranks for {data_shards} data shards: every rank needs one; start at most {data_shards} "
            f"ranks or raise data_shards to a multiple of {world_size}"
        )
    if world_size > global_batch_size:
        raise InputError(
            f"{world_size} ranks for a global batch of {global_batch_size} rows: every rank needs a row; raise "
            f"global_batch_size to at least {world_size} or start fewer ranks"
        )
    bounds = [r * data_shards // world_size * global_batch_size // data_shards for r in range(world_size + 1)]
    for other, (first, last) in enumerate(itertools.pairwise(bounds)):
        if first == last:  # said on every rank, not only on the empty one
            raise InputError(
                f"rank {other} of {world_size} gets no row of a global batch of {global_batch_size} rows cut in "
                f"{data_shards} data shards; make data_shards a multiple of {world_size}, or raise global_batch_size"
            )
    return bounds[rank], bounds[rank + 1]


class TrainingPlan:
    """The batches of training: the same for every number of ranks.

    Args:
      group_rows: rows of each row group, in file order.
      min_window_rows: rows that a window holds at least, where there are so many. It is made larger until every batch
        is certain to mix `MIN_GROUPS_PER_BATCH` row groups, up to `max_window_rows`, beyond which uneven row groups
        do not allow it.
      shuffle: False: file order.

    Attributes:
      steps_per_epoch, dropped_rows, max_window_rows.

    Raises:
      InputError: there are fewer rows than one batch needs.
    """

    def __init__(
        self,
        group_rows: Sequence[int],
        *,
        global_batch_size: int,
        seed: int,
        min_window_rows: int,
        shuffle: bool = True,
    ):
        rows = np.asarray(group_rows, dtype=np.int64)
        total = int(rows.sum())
        if total < global_batch_size:
            raise InputError(
                f"{total} training rows are fewer than one global batch of {global_batch_size}; lower "
                "global_batch_size or give more rows"
            )
        if min_window_rows < 1:
            raise InputError(f"shuffle_buffer_rows must be at least 1, got {min_window_rows}")
        self.global_batch_size = global_batch_size
        self.shuffle = shuffle
        self.steps_per_epoch = total // global_batch_size
        used = self.steps_per_epoch * global_batch_size
        self.dropped_rows = total - used
        self._seed = seed
        self._latest_epoch: tuple[int, tuple[np.ndarray, list[int], int]] | None = None
        before = np.cumsum(rows) - rows
        self._rows = np.clip(used - before, 0, rows)
        self._groups = np.flatnonzero(self._rows)
        self._min_steps = -(-min_window_rows // global_batch_size)
        largest = int(self._rows.max())
        wanted = max(2 * self._min_steps * global_batch_size, 2 * MIN_GROUPS_PER_BATCH * largest if shuffle else 0)
        self.max_window_rows = min(used, wanted + global_batch_size)

    def _epoch(self, epoch: int) -> tuple[np.ndarray, list[int], int]:
        """Row groups in the order of the epoch, the row at which each ends, and the number of windows."""
        if self._latest_epoch is None or self._latest_epoch[0] != epoch:
            self._latest_epoch = (epoch, self._plan_epoch(epoch))
        return self._latest_epoch[1]

    def _plan_epoch(self, epoch: int) -> tuple[np.ndarray, list[int], int]:
        order = self._groups
        if self.shuffle:
            key = (self._seed, epoch, _ORDER_OF_GROUPS)
            order = order[np.argsort(_random_bits(key, order.astype(np.uint64)), kind="stable")]
        ends = np.cumsum(self._rows[order]).tolist()
        windows = max(1, self.steps_per_epoch // self._min_steps)
        if self.shuffle:
            windows = self._mixing_windows(ends, windows)
        return order, ends, windows

    def _mixing_windows(self, ends: list[int], windows: int) -> int:
        """The most windows, not above `windows`, of which each batch mixes enough row groups."""
        steps, size = self.steps_per_epoch, self.global_batch_size
        target = min(MIN_GROUPS_PER_BATCH, len(ends), size)
        windows = min(windows, max(1, len(ends) // target))

        def mixes(count: int) -> bool:
            cuts = [w * steps // count for w in range(count + 1)]
            return all(
                groups_per_batch(ends, low * size, high - low, size, target) >= target
                for low, high in itertools.pairwise(cuts)
            )

        while windows > 1 and not mixes(windows):
            fewer = max(1, min(windows - 1, windows * 9 // 10))
            if -(-steps // fewer) * size > self.max_window_rows:
                break
            windows = fewer
        return windows

    def windows(self, first: int, last: int, *, start_step: int = 0) -> Iterator[Window]:
        """Endless windows of the rank that owns strata [first, last), from global step `start_step` on."""
        epoch, step = divmod(start_step, self.steps_per_epoch)
        while True:
            _, _, count = self._epoch(epoch)
            start = ((step + 1) * count - 1) // self.steps_per_epoch  # the window that holds `step`
            cuts = [w * self.steps_per_epoch // count for w in range(count + 1)]
            for index in range(start, count):
                yield self._window(epoch, cuts, index, first, last, max(step - cuts[index], 0))
            epoch, step = epoch + 1, 0

    def _ranges(self, low: int, high: int, first: int, last: int) -> list[tuple[int, int]]:
        """Rows, in the order of the epoch, of strata [first, last) of the window of steps [low, high)."""
        size, batches = self.global_batch_size, high - low
        if self.shuffle:
            return [(low * size + first * batches, low * size + last * batches)]
        return [(step * size + first, step * size + last) for step in range(low, high)]

    def _window(self, epoch: int, cuts: list[int], index: int, first: int, last: int, skip: int) -> Window:
        order, ends, count = self._epoch(epoch)
        low, high = cuts[index : index + 2]
        ranges = self._ranges(low, high, first, last)
        segments = [segment for begin, end in ranges for segment in _segments(order, ends, begin, end)]
        continues = False
        if index + 1 < count:
            next_begin = self._ranges(*cuts[index + 1 : index + 3], first, last)[0][0]
            continues = next_begin < _end_of_group(ends, ranges[-1][1])
        deal = Deal((self._seed, epoch, _ORDER_OF_ROWS, low), first, last, high - low) if self.shuffle else None
        return Window(tuple(segments), high - low, skip, last - first, deal, continues)


class EvaluationPlan:
    """Rank r of n scores rows floor(r*N/n) .. floor((r+1)*N/n)-1 in file order, in as many steps as any other rank.

    Attributes:
      first_row, last_row: the range [first_row, last_row) of this rank.
      local_batch_size: rows of a batch of this rank, padding included.
      steps: batches of every rank; a rank that has no rows left gets padding.

    Raises:
      InputError: there are no rows, or fewer rows in a global batch than ranks.
    """

    def __init__(self, group_rows: Sequence[int], *, global_batch_size: int, rank: int, world_size: int):
        if not 0 <= rank < world_size:
            raise ValueError(f"rank {rank} is not in 0..{world_size - 1}")
        if global_batch_size < world_size:
            raise InputError(
                f"{world_size} ranks for an evaluation batch of {global_batch_size} rows: every rank needs a row; "
                f"raise the evaluation batch size to at least {world_size} or start fewer ranks"
            )
        self._ends = np.cumsum(np.asarray(group_rows, dtype=np.int64)).tolist()
        total = self._ends[-1]
        rows = [r * total // world_size for r in range(world_size + 1)]
        sizes = [r * global_batch_size // world_size for r in range(world_size + 1)]
        self.first_row, self.last_row = rows[rank], rows[rank + 1]
        self.local_batch_size = sizes[rank + 1] - sizes[rank]
        self.steps = max(-(-(rows[r + 1] - rows[r]) // (sizes[r + 1] - sizes[r])) for r in range(world_size))
        self._window_steps = max(1, EVALUATION_WINDOW_ROWS // self.local_batch_size)
        self.max_window_rows = min(self.last_row - self.first_row, self._window_steps * self.local_batch_size)

    def windows(self) -> Iterator[Window]:
        """The windows of one pass."""
        order = np.arange(len(self._ends))
        for low in range(0, self.steps, self._window_steps):
            batches = min(self._window_steps, self.steps - low)
            begin = min(self.first_row + low * self.local_batch_size, self.last_row)
            end = min(begin + batches * self.local_batch_size, self.last_row)
            segments = tuple(_segments(order, self._ends, begin, end))
            continues = end < self.last_row and end < _end_of_group(self._ends, end)
            yield Window(segments, batches, 0, self.local_batch_size, None, continues)

    def segments(self) -> list[Segment]:
        """All rows of this rank."""
        return list(_segments(np.arange(len(self._ends)), self._ends, self.first_row, self.last_row))


def groups_per_batch(ends: Sequence[int], start: int, batches: int, global_batch_size: int, enough: int) -> int:
    """Number of row groups that every batch of a window is certain to mix, counted up to `enough`.

    It is the number of strata of which no two share a row group: each gives a row to each batch. (The greedy choice,
    always the next stratum that begins after the row group in which the last one ended, is the largest.)

    Args:
      ends: the row at which each row group ends, in the order of the epoch.
      start: first row of the window.
    """
    count = stratum = 0
    while stratum < global_batch_size and count < enough:
        count += 1
        group_end = _end_of_group(ends, start + (stratum + 1) * batches)
        stratum = -(-(group_end - start) // batches)
    return count


def _end_of_group(ends: Sequence[int], end: int) -> int:
    """Where the row group ends that holds row `end - 1`."""
    return ends[bisect.bisect_left(ends, end)]


def _segments(order: np.ndarray, ends: Sequence[int], begin: int, end: int) -> Iterator[Segment]:
    """Rows [begin, end) of the row groups laid end to end."""
    position = bisect.bisect_right(ends, begin)
    while begin < end:
        stop = min(end, ends[position])
        start = ends[position - 1] if position else 0
        if stop > begin:
            yield Segment(int(order[position]), begin - start, stop - begin)
        begin, position = stop, position + 1


def _random_bits(key: tuple[int, ...], counter: np.ndarray) -> np.ndarray:
    """64 random bits for each counter: SplitMix64 from a state that the key gives.

    A function of (key, counter) and not a stream, so that a rank draws the bits of its own rows only.
    """
    words = [word % 2**64 for word in key]
    start = np.random.SeedSequence(words).generate_state(1, np.uint64)[0]
    return mix(counter * WEYL_STEP + start)
