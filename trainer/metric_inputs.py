"""What goes into the metrics: checked columns of a batch, and the group of ranks that adds them up."""

from collections.abc import Iterator
from typing import Protocol

import numpy as np

from data.errors import InputError

# Large inputs are worked through in slices of this many rows, so that temporaries stay small beside the input.
_SLICE_ROWS = 1 << 16


class Communicator(Protocol):
    """What metrics need of a group of ranks. Every method is collective: all ranks call it in the same order."""

    rank: int
    size: int

    def allreduce_sum(self, values: np.ndarray) -> np.ndarray: ...

    def allgather_object(self, value: object) -> list: ...

    def alltoall_arrays(self, arrays: list[np.ndarray]) -> list[np.ndarray]: ...

    def broadcast_array(self, array: np.ndarray | None, root: int) -> np.ndarray: ...


class SingleProcess:
    """The communicator of a process that is alone."""

    rank = 0
    size = 1

    def allreduce_sum(self, values: np.ndarray) -> np.ndarray:
        return values

    def allgather_object(self, value: object) -> list:
        return [value]

    def alltoall_arrays(self, arrays: list[np.ndarray]) -> list[np.ndarray]:
        return arrays

    def broadcast_array(self, array: np.ndarray | None, root: int) -> np.ndarray:
        return array


def slices(n: int) -> Iterator[slice]:
    """Consecutive slices that cover range(n)."""
    for start in range(0, n, _SLICE_ROWS):
        yield slice(start, min(start + _SLICE_ROWS, n))


def checked_columns(**arrays: np.ndarray) -> list[np.ndarray]:
    """The arrays, each of shape (N,) or (N, 1), as 1-D views.

    Raises:
      ValueError: another shape, or lengths that differ; the message names the arrays.
    """
    columns = []
    for name, array in arrays.items():
        array = np.asarray(array)
        if array.ndim != 1 and array.shape[1:] != (1,):
            raise ValueError(f"{name} must be of shape (N,) or (N, 1), got {array.shape}")
        columns.append(array.reshape(-1))
    if len({len(column) for column in columns}) > 1:
        lengths = ", ".join(f"{name} has {len(column)}" for name, column in zip(arrays, columns, strict=True))
        raise ValueError(f"all columns of a batch need the same number of rows: {lengths}")
    return columns


def clicked_rows(labels: np.ndarray) -> np.ndarray:
    """Which labels are 1, as bool.

    Raises:
      ValueError: labels are not numbers or bool.
      InputError: a label is not 0 or 1, which only the data can cause.
    """
    if labels.dtype.kind not in "biuf":
        raise ValueError(f"labels must be numbers or bool, got {labels.dtype}")
    clicked = labels == 1
    wrong = labels[~clicked & (labels != 0)]
    if len(wrong):
        raise InputError(f"labels must be 0 or 1, got {wrong[0]}; correct the label column of the evaluation files")
    return clicked


def id_column(display_ids: np.ndarray) -> np.ndarray:
    """A copy as int64.

    Raises:
      ValueError: ids are not integers (a float would merge large ones) or do not fit.
    """
    if display_ids.dtype.kind not in "iu":
        raise ValueError(f"display_ids must be integers, got {display_ids.dtype}")
    if display_ids.dtype == np.uint64 and display_ids.max(initial=0) > np.iinfo(np.int64).max:
        raise ValueError(f"display_ids must be at most 2**63 - 1, got {display_ids.max()}")
    return display_ids.astype(np.int64)


def score_column(scores: np.ndarray) -> np.ndarray:
    """A copy as float32 or float64, the narrower of those that hold every value exactly.

    Raises:
      ValueError: scores are not numbers, or integers so large that float64 would make ties of them.
    """
    kind, width = scores.dtype.kind, scores.dtype.itemsize
    if (kind == "f" and width <= 4) or scores.dtype.name == "bfloat16":
        return scores.astype(np.float32)
    if kind in "iu" and width == 8 and len(scores) and max(int(scores.max()), -int(scores.min())) > 2**53:
        raise ValueError(f"integer scores must lie within +-2**53, got {scores.min()} to {scores.max()}")
    if kind in "biu" or (kind == "f" and width == 8):
        return scores.astype(np.float64)
    raise ValueError(f"scores must be floats of at most 64 bits or integers, got {scores.dtype}")
