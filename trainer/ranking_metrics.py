"""MAP@k as a mergeable state, and the row store that lets every display be ranked once, against all its ads.

`trainer.metrics` is the public face, and says what all metrics have in common.
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from data.hashing import mix
from trainer.metric_inputs import (
    Communicator,
    SingleProcess,
    checked_columns,
    clicked_rows,
    id_column,
    score_column,
    slices,
)

# Rows (display ids int64, scores float32 or float64, labels int8), three 1-D arrays of one length.
Rows = tuple[np.ndarray, np.ndarray, np.ndarray]

# Rows are kept in blocks, each ordered by hash bucket; a bucket holds whole displays, so that buckets can be ranked
# one after another and the temporaries of ranking are those of 1/BUCKETS of the rows.
BUCKET_BITS = 7
BUCKETS = 1 << BUCKET_BITS
BLOCK_ROWS = 1 << 16
BLOCK_PIECES = 1 << 10  # tiny batches are joined before their array headers outweigh their rows
ROUND_ROWS = 1 << 15


@dataclasses.dataclass(frozen=True)
class MapResult:
    """MAP@k (NaN where no display has a click or a score is not finite) and the displays behind it.

    Attributes:
      map: mean average precision at k over the `displays`.
      displays: displays with at least one click.
      displays_without_click: displays that were left out for want of a click.
      nonfinite_scores: rows whose score is NaN or infinite.
    """

    map: float
    displays: int
    displays_without_click: int
    nonfinite_scores: int


class MapState:
    """MAP@k of rows that come in batches, from any number of ranks; see `map_at_k`.

    Without an order, a rank keeps its rows: 13 bytes each with float32 scores, 17 with float64, and some 20 at the
    peak of `compute`. With `sorted_by_display` it keeps only those displays that others may continue: the first and
    the last.

    Args:
      k: positions that count.
      sorted_by_display: the rows of this rank come with display ids that never decrease, and no id of rank r is
        greater than one of rank r + 1 (which the caller has made sure of), so that ranks share displays only at their
        ends. All ranks must agree.

    Raises:
      ValueError: k is not a positive integer.
    """

    def __init__(self, k: int = 12, sorted_by_display: bool = False):
        if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1:
            raise ValueError(f"k must be a positive integer, got {k!r}")
        self._k = int(k)
        self._sorted = bool(sorted_by_display)
        self._nonfinite = 0
        self._rows = DisplayRows()
        self._closed = PrecisionSums()
        self._head: list[Rows] = []  # rows of the first display
        self._tail: list[Rows] = []  # rows of the last display, if it is another one
        self._last_id: int | None = None

    def update(self, display_ids: np.ndarray, labels: np.ndarray, scores: np.ndarray) -> None:
        """Adds the rows of a batch: three arrays of shape (N,) or (N, 1), N may be 0.

        Raises:
          ValueError: as `map_at_k`, or with `sorted_by_display` an id is smaller than one before it.
        """
        display_ids, labels, scores = checked_columns(display_ids=display_ids, labels=labels, scores=scores)
        for part in slices(len(labels)):
            # Copies: the caller may reuse its buffers.
            rows = (
                id_column(display_ids[part]),
                score_column(scores[part]),
                clicked_rows(labels[part]).astype(np.int8),
            )
            self._nonfinite += np.count_nonzero(~np.isfinite(rows[1]))
            if self._sorted:
                self._append_sorted(rows)
            else:
                self._rows.append(rows)

    def merge(self, other: "MapState") -> None:
        """Adds the rows of `other`, which stays as it is.

        Raises:
          ValueError: `other` has another k or another order; or both are sorted, and neither comes after the other.
        """
        if (self._k, self._sorted) != (other._k, other._sorted):
            raise ValueError(
                f"cannot merge MapState(k={self._k}, sorted_by_display={self._sorted}) with "
                f"MapState(k={other._k}, sorted_by_display={other._sorted})"
            )
        if other._head:
            self._merge_sorted(other)
        self._closed += other._closed
        self._rows.extend(other._rows)
        self._nonfinite += other._nonfinite

    def compute(self, comm: Communicator | None = None) -> MapResult:
        """The figure over all ranks; collective, repeatable, and further updates may follow."""
        comm = comm or SingleProcess()
        rows = self._rows
        if self._sorted:
            rows = DisplayRows()
            for piece in self._head + self._tail:
                rows.append(piece)
        sums = self._closed + rows.sums(self._k, comm)
        (total,) = comm.allreduce_sum(np.array([sums.average_precision], np.float64)).tolist()
        displays, without_click, nonfinite = comm.allreduce_sum(
            np.array([sums.displays, sums.displays_without_click, self._nonfinite], np.int64)
        ).tolist()
        defined = displays > 0 and nonfinite == 0
        return MapResult(total / displays if defined else math.nan, displays, without_click, nonfinite)

    def _span(self) -> tuple[int, int]:
        """First and last display id of a sorted state that has rows."""
        return int(self._head[0][0][0]), self._last_id

    def _merge_sorted(self, other: "MapState") -> None:
        first, second = (self, other) if not self._head or self._span() <= other._span() else (other, self)
        if first._head and second._span()[0] < first._span()[1]:
            raise ValueError(
                f"cannot merge sorted states that overlap: displays {first._span()[0]} to {first._span()[1]} and "
                f"{second._span()[0]} to {second._span()[1]}"
            )
        later = [pieces for pieces in (second._head, second._tail) if pieces]
        self._head, self._tail, self._last_id = list(first._head), list(first._tail), first._last_id
        for pieces in later:
            self._append_sorted(concatenate_rows(pieces))

    def _append_sorted(self, rows: Rows) -> None:
        ids = rows[0]
        falls = np.flatnonzero(ids[1:] < ids[:-1]) + 1
        if self._last_id is not None and ids[0] < self._last_id:
            falls = [0]
        if len(falls):
            raise ValueError(
                f"display id {ids[falls[0]]} comes after a greater one, but sorted_by_display promises that ids never "
                "decrease"
            )
        first_end = np.searchsorted(ids, ids[0], side="right")
        last_start = np.searchsorted(ids, ids[-1], side="left")
        if self._last_id not in (None, ids[0]):
            self._close_tail()
            current = self._tail
        else:
            current = self._tail or self._head
        current.append(_cut(rows, 0, first_end))
        if first_end < len(ids):
            self._close_tail()
            self._closed += average_precision_sums(_cut(rows, first_end, last_start), self._k)
            self._tail.append(_cut(rows, last_start, len(ids)))
        self._last_id = int(ids[-1])

    def _close_tail(self) -> None:
        self._closed += average_precision_sums(concatenate_rows(self._tail), self._k)
        self._tail = []


@dataclasses.dataclass(frozen=True)
class PrecisionSums:
    """Sum of average precision, displays with a click (its divisor), displays without one."""

    average_precision: float = 0.0
    displays: int = 0
    displays_without_click: int = 0

    def __add__(self, other: "PrecisionSums") -> "PrecisionSums":
        return PrecisionSums(
            self.average_precision + other.average_precision,
            self.displays + other.displays,
            self.displays_without_click + other.displays_without_click,
        )


def average_precision_sums(rows: Rows, k: int) -> PrecisionSums:
    """Average precision at k, summed over displays whose rows are all here, in any order.

    Equal scores of a display form a tie group, which contributes its expectation over random orders of its members.
    With `a` items and `A` clicks above a group of `t` items and `c` clicks, position i of the group (a < i <= a + t)
    is a click with probability c/t, and then sees on average A + 1 + (i - a - 1) (c - 1)/(t - 1) clicks up to and
    including itself. The sum of that over i, times 1/i, up to h = min(a + t, k), is

      c/t [(A + 1 - (a + 1) q) (H_h - H_a) + (h - a) q],   q = (c - 1)/(t - 1), 0 for t = 1,

    H being harmonic numbers; a display's average precision is the sum over its groups over min(clicks, k).

    Args:
      rows: display ids, scores and labels (0 or 1), each of shape (N,).
      k: number of top positions that count, at least 1.
    """
    display_ids, scores, labels = rows
    n = len(display_ids)
    if n == 0:
        return PrecisionSums()
    order = np.lexsort((scores, display_ids))[::-1]  # displays together, best score first
    display_ids, scores, labels = display_ids[order], scores[order], labels[order]
    starts_display = np.concatenate(([True], display_ids[1:] != display_ids[:-1]))
    starts_group = starts_display | np.concatenate(([True], scores[1:] != scores[:-1]))

    display_start = np.flatnonzero(starts_display)
    display_clicks = np.add.reduceat(labels, display_start, dtype=np.int64)
    displays = np.count_nonzero(display_clicks)

    group_start = np.flatnonzero(starts_group)
    group_display = np.cumsum(starts_display[group_start]) - 1
    clicks = np.add.reduceat(labels, group_start, dtype=np.int64)
    above = group_start - display_start[group_display]
    counts = np.flatnonzero((clicks > 0) & (above < k))  # the other groups contribute nothing
    clicks_before = np.concatenate(([0], np.cumsum(clicks)))
    clicks_before_display = np.concatenate(([0], np.cumsum(display_clicks)))
    tied = np.diff(np.append(group_start, n))[counts]
    clicks, above, group_display = clicks[counts], above[counts], group_display[counts]
    clicks_above = clicks_before[counts] - clicks_before_display[group_display]

    last = np.minimum(above + tied, k)
    harmonic = np.concatenate(([0.0], np.cumsum(1.0 / np.arange(1, last.max(initial=0) + 1))))
    q = (clicks - 1) / np.maximum(tied - 1, 1)
    expected = (clicks_above + 1 - (above + 1) * q) * (harmonic[last] - harmonic[above]) + (last - above) * q
    expected *= clicks / tied / np.minimum(display_clicks[group_display], k)
    return PrecisionSums(float(expected.sum()), displays, len(display_clicks) - displays)


def concatenate_rows(pieces: Sequence[Rows]) -> Rows:
    """Joins rows; scores take the wider type."""
    if not pieces:
        return np.empty(0, np.int64), np.empty(0, np.float32), np.empty(0, np.int8)
    return tuple(np.concatenate(column) for column in zip(*pieces, strict=True))


class DisplayRows:
    """Rows kept until their displays are complete: 13 bytes a row with float32 scores, 17 with float64."""

    def __init__(self):
        self.has_float64 = False
        self._staged: list[Rows] = []
        self._staged_rows = 0
        self._blocks: list[tuple[Rows, np.ndarray]] = []

    @property
    def size(self) -> int:
        return self._staged_rows + sum(int(bounds[-1]) for _, bounds in self._blocks)

    def append(self, rows: Rows) -> None:
        """Takes over `rows`, which must not share memory with anything that changes."""
        self._staged.append(rows)
        self._staged_rows += len(rows[0])
        self.has_float64 |= rows[1].dtype == np.float64
        if self._staged_rows >= BLOCK_ROWS or len(self._staged) >= BLOCK_PIECES:
            self._pack()

    def extend(self, other: "DisplayRows") -> None:
        """Adds the rows of `other`. Blocks are never written to again, so both may hold them."""
        self._blocks += other._blocks
        self.has_float64 |= other.has_float64
        for rows in list(other._staged):
            self.append(rows)

    def _pack(self) -> None:
        rows = concatenate_rows(self._staged)
        bucket = (mix(rows[0].view(np.uint64)) >> np.uint64(64 - BUCKET_BITS)).astype(np.uint8)
        order = np.argsort(bucket, kind="stable")
        bounds = np.concatenate(([0], np.cumsum(np.bincount(bucket, minlength=BUCKETS))))
        self._blocks.append((tuple(column[order] for column in rows), bounds))
        self._staged, self._staged_rows = [], 0

    def sums(self, k: int, comm: Communicator) -> PrecisionSums:
        """Sums over the displays that fall to this rank, out of the rows of all ranks; collective.

        Bucket by bucket, rows go to the rank that a hash of their display id names, which ranks whole displays. A
        display with a large share of all rows makes its bucket, and so the temporaries, that large.
        """
        if self._staged:
            self._pack()
        total, float64_ranks = comm.allreduce_sum(np.array([self.size, self.has_float64], np.int64)).tolist()
        score_type = np.float64 if float64_ranks else np.float32
        rounds = min(math.ceil(total / ROUND_ROWS), BUCKETS)
        sums = PrecisionSums()
        for turn in range(rounds):
            first, last = turn * BUCKETS // rounds, (turn + 1) * BUCKETS // rounds
            rows = concatenate_rows([_cut(columns, bounds[first], bounds[last]) for columns, bounds in self._blocks])
            if comm.size > 1:
                rows = _exchange(rows, score_type, comm)
            sums += average_precision_sums(rows, k)
        return sums


def _cut(rows: Rows, start: int, stop: int) -> Rows:
    """A copy, so that a few rows do not keep their whole batch in memory."""
    return tuple(column[start:stop].copy() for column in rows)


def _exchange(rows: Rows, score_type: type, comm: Communicator) -> Rows:
    """Sends each row to the rank that its display's hash names; returns the rows that came to this one."""
    # The low bits: the high ones chose the bucket and are the same for many of these rows.
    destination = (mix(rows[0].view(np.uint64)) & np.uint64(0xFFFFFFFF)) % np.uint64(comm.size)
    order = np.argsort(destination.astype(np.int32), kind="stable")
    bounds = np.cumsum(np.bincount(destination.astype(np.int64), minlength=comm.size))[:-1]
    # One message of bytes per pair of ranks instead of one per column.
    packed = np.empty(len(order), [("id", np.int64), ("score", score_type), ("label", np.int8)])
    for name, column in zip(packed.dtype.names, rows, strict=True):
        packed[name] = column[order]
    sent = [part.view(np.uint8) for part in np.split(packed, bounds)]
    received = np.concatenate(comm.alltoall_arrays(sent)).view(packed.dtype)
    return tuple(np.ascontiguousarray(received[name]) for name in packed.dtype.names)
