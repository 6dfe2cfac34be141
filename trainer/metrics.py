"""Metrics of click models: MAP@k over displays, ROC AUC, log loss and what derives from it. Exact, numpy only.

Each metric is a mergeable state: `update` with the rows of a batch, `merge` with another state, `compute` the figure.
`compute(comm)` is collective and gives the figure over the rows of all ranks; without a communicator the process is
alone. The same rows give the same figure (to rounding in the last digits) however they are split and ordered, as long
as no row is given twice: leave padding out.

Scores are the logits themselves, since a sigmoid makes ties of large ones. They are compared as given: float32 and
float64 keep their type, narrower floats become float32 (exact), integers float64. Equal bits tie, and so do -0.0 and
0.0. A diverged model has no ranking and no loss: if any score is NaN or infinite, the figures are NaN, and
`nonfinite_scores` says how many there are.
"""

import dataclasses
import math

import numpy as np

from trainer.metric_inputs import Communicator, SingleProcess, checked_columns, clicked_rows, score_column, slices
from trainer.ranking_metrics import MapResult, MapState

__all__ = ["AucState", "LossResult", "LossState", "MapResult", "MapState", "map_at_k", "roc_auc"]


@dataclasses.dataclass(frozen=True)
class LossResult:
    """Figures of the predicted probabilities; all NaN where there are no rows or a logit is not finite.

    Attributes:
      log_loss: mean binary cross-entropy in nats a row.
      normalized_entropy: log loss over the entropy of the base rate (He et al., "Practical Lessons from Predicting
        Clicks on Ads at Facebook", ADKDD 2014); below 1 is better than always predicting the base rate. NaN where all
        labels are equal.
      calibration: predicted over observed clicks; NaN where none was observed.
      rows: number of rows.
      nonfinite_scores: rows whose logit is NaN or infinite.
    """

    log_loss: float
    normalized_entropy: float
    calibration: float
    rows: int
    nonfinite_scores: int


def map_at_k(display_ids: np.ndarray, labels: np.ndarray, scores: np.ndarray, k: int = 12) -> float:
    """Mean average precision at k over displays with at least one click.

    Average precision of a display is the sum of the precision at each clicked position up to k, over
    min(clicks, k). Ties have their expected value over random orders, so a constant model gets chance.

    Args:
      display_ids: (N,) integers up to 2**63 - 1, negative ones too, in any order.
      labels: (N,) 0 or 1, of any numeric type or bool.
      scores: (N,) the higher, the earlier in the display.
      k: positions that count.

    Returns:
      The mean, or NaN if no display has a click or a score is not finite.

    Raises:
      ValueError: lengths differ, a label is not 0 or 1, ids are not integers, or k is not a positive integer.
    """
    state = MapState(k)
    state.update(display_ids, labels, scores)
    return state.compute().map


def roc_auc(labels: np.ndarray, scores: np.ndarray) -> float:
    """Area under the ROC curve: the share of (clicked, not clicked) pairs ranked right, a tie counting one half.

    Args:
      labels: (N,) 0 or 1, of any numeric type or bool.
      scores: (N,) of any scale.

    Returns:
      The exact area; NaN if one class is missing or a score is not finite.

    Raises:
      ValueError: lengths differ or a label is not 0 or 1.
    """
    state = AucState()
    state.update(labels, scores)
    return state.compute()


class AucState:
    """ROC AUC of rows that come in batches, from any number of ranks; see `roc_auc`.

    Keeps the scores alone, those of clicked rows apart: 4 bytes a row with float32 scores, 8 with float64, beside a
    constant of some MiB.
    """

    def __init__(self):
        self._positives = _ScoreBuffer()
        self._negatives = _ScoreBuffer()
        self._nonfinite = 0

    def update(self, labels: np.ndarray, scores: np.ndarray) -> None:
        """Adds the rows of a batch: two arrays of shape (N,) or (N, 1), N may be 0.

        Raises:
          ValueError: lengths differ or a label is not 0 or 1.
        """
        labels, scores = checked_columns(labels=labels, scores=scores)
        for part in slices(len(labels)):
            clicked, values = clicked_rows(labels[part]), score_column(scores[part])
            self._nonfinite += np.count_nonzero(~np.isfinite(values))
            self._positives.append(values[clicked])
            self._negatives.append(values[~clicked])

    def merge(self, other: "AucState") -> None:
        """Adds the rows of `other`, which stays as it is."""
        self._positives.extend(other._positives)
        self._negatives.extend(other._negatives)
        self._nonfinite += other._nonfinite

    def compute(self, comm: Communicator | None = None) -> float:
        """The area over all ranks, NaN where undefined; collective, repeatable, and further updates may follow.

        Each rank's clicked scores visit all ranks, slice by slice, and are counted against the others kept there.
        """
        comm = comm or SingleProcess()
        has_float64 = any(buffer.values().dtype == np.float64 for buffer in (self._positives, self._negatives))
        positives, negatives, nonfinite, float64_ranks = comm.allreduce_sum(
            np.array([self._positives.size, self._negatives.size, self._nonfinite, has_float64], np.int64)
        ).tolist()
        if positives == 0 or negatives == 0 or nonfinite:
            return math.nan
        if float64_ranks:  # searching one type in the other would convert all of it for every slice
            self._positives.widen()
            self._negatives.widen()
        clicked, others = self._positives.sorted_values(), self._negatives.sorted_values()
        half_wins = 0
        for root, size in enumerate(comm.allgather_object(len(clicked))):
            for part in slices(size):
                visiting = comm.broadcast_array(clicked[part] if root == comm.rank else None, root)
                for side in ("left", "right"):
                    half_wins += int(np.searchsorted(others, visiting, side=side).sum(dtype=np.int64))
        (half_wins,) = comm.allreduce_sum(np.array([half_wins], np.int64)).tolist()
        return half_wins / (2 * positives * negatives)


class LossState:
    """Row-weighted log loss, normalized entropy and calibration, from logits; float64 sums."""

    def __init__(self):
        self._rows = 0
        self._clicks = 0
        self._nonfinite = 0
        self._loss = 0.0
        self._predicted = 0.0

    def update(self, labels: np.ndarray, logits: np.ndarray) -> None:
        """Adds the rows of a batch: two arrays of shape (N,) or (N, 1), N may be 0.

        Raises:
          ValueError: lengths differ or a label is not 0 or 1.
        """
        labels, logits = checked_columns(labels=labels, logits=logits)
        for part in slices(len(labels)):
            clicked, x = clicked_rows(labels[part]), score_column(logits[part]).astype(np.float64)
            finite = np.isfinite(x)
            self._rows += len(x)
            self._clicks += np.count_nonzero(clicked)
            self._nonfinite += len(x) - np.count_nonzero(finite)
            x, clicked = x[finite], clicked[finite]
            # Cross-entropy is softplus(-x) for a click and softplus(x) otherwise: no sigmoid that rounds to 0 or 1.
            self._loss += float(np.logaddexp(0.0, np.where(clicked, -x, x)).sum())
            self._predicted += float(np.exp(-np.logaddexp(0.0, -x)).sum())

    def merge(self, other: "LossState") -> None:
        """Adds the rows of `other`, which stays as it is."""
        self._rows += other._rows
        self._clicks += other._clicks
        self._nonfinite += other._nonfinite
        self._loss += other._loss
        self._predicted += other._predicted

    def compute(self, comm: Communicator | None = None) -> LossResult:
        """The figures over all ranks; collective, repeatable, and further updates may follow."""
        comm = comm or SingleProcess()
        rows, clicks, nonfinite = comm.allreduce_sum(
            np.array([self._rows, self._clicks, self._nonfinite], np.int64)
        ).tolist()
        loss, predicted = comm.allreduce_sum(np.array([self._loss, self._predicted], np.float64)).tolist()
        if rows == 0 or nonfinite:
            return LossResult(math.nan, math.nan, math.nan, rows, nonfinite)
        base_rate, log_loss = clicks / rows, loss / rows
        entropy = 0.0
        if 0 < clicks < rows:
            entropy = -base_rate * math.log(base_rate) - (1 - base_rate) * math.log1p(-base_rate)
        return LossResult(
            log_loss=log_loss,
            normalized_entropy=log_loss / entropy if entropy else math.nan,
            calibration=predicted / clicks if clicks else math.nan,
            rows=rows,
            nonfinite_scores=0,
        )


class _ScoreBuffer:
    """A 1-D array of scores that grows without a second copy of itself."""

    def __init__(self):
        self.size = 0
        self._data = np.empty(0, np.float32)

    def append(self, values: np.ndarray) -> None:
        if values.dtype == np.float64:
            self.widen()
        end = self.size + len(values)
        if end > len(self._data):
            spare = min(max(end // 64, 1 << 10), 1 << 18)
            # Reallocation moves pages of a large array instead of copying it. No view outlives a method of a state.
            self._data.resize(end + spare, refcheck=False)
        self._data[self.size : end] = values
        self.size = end

    def extend(self, other: "_ScoreBuffer") -> None:
        for part in slices(other.size):
            self.append(other.values()[part].copy())  # a copy, for `other` may be this buffer

    def widen(self) -> None:
        self._data = self._data.astype(np.float64, copy=False)

    def values(self) -> np.ndarray:
        return self._data[: self.size]

    def sorted_values(self) -> np.ndarray:
        self.values().sort()
        return self.values()
