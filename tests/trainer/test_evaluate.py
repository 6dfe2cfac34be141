import contextlib

import numpy as np
import pytest
import tensorflow as tf
from sklearn.metrics import log_loss, roc_auc_score

from data.errors import InputError
from trainer import evaluate as evaluation
from trainer.distributed import SingleProcess
from trainer.evaluate import Scoreboard, displays_are_sorted, evaluate, sum_counts
from trainer.metrics import map_at_k


class Rows:
    """Rows in memory, as ParquetInput would give them: a part to each rank, the last batches filled up."""

    def __init__(self, displays, labels, scores, error=None):
        self.columns = {
            "group_ids": np.asarray(displays, np.int64),
            "labels": np.asarray(labels, np.float32),
            "score": np.asarray(scores, np.float32),
        }
        self.error = error

    def part(self, rank, world_size):
        size = len(self.columns["labels"])
        return slice(rank * size // world_size, (rank + 1) * size // world_size)

    def displays_sorted(self, rank, world_size):
        ids = self.columns["group_ids"][self.part(rank, world_size)]
        return (bool((np.diff(ids) >= 0).all()), *((int(ids[0]), int(ids[-1])) if len(ids) else (None, None)))

    @contextlib.contextmanager
    def eval_stream(self, *, global_batch_size, rank, world_size):
        part, local = self.part(rank, world_size), global_batch_size // world_size
        mine = {name: column[part] for name, column in self.columns.items()}
        yield _Stream(mine, local, self.error if rank == 1 or world_size == 1 else None)


class _Stream:
    def __init__(self, columns, local, error):
        self.columns, self.local, self.error = columns, local, error
        self.counts = {"ids_cut": {"topics": 3}}

    def __iter__(self):
        size = len(self.columns["labels"])
        # A batch more than there are rows for: other ranks may have more.
        for first in range(0, size + self.local, self.local):
            if self.error and first:
                raise InputError(self.error)
            rows = min(self.local, max(0, size - first))
            batch = {name: np.zeros(self.local, column.dtype) for name, column in self.columns.items()}
            for name, column in self.columns.items():
                batch[name][:rows] = column[first : first + rows]
            batch["score"][rows:] = 99.0  # what the model makes of padding must not count
            batch["labels"][rows:] = 1.0
            batch["mask"] = (np.arange(self.local) < rows).astype(np.float32)
            yield {name: tf.constant(values) for name, values in batch.items()}


def eval_step(batch):
    return batch["score"]


@pytest.fixture
def columns():
    rng = np.random.default_rng(5)
    displays = np.sort(rng.integers(0, 40, 230))
    labels = rng.integers(0, 2, 230)
    scores = np.round(rng.normal(size=230) + labels, 1).astype(np.float32)
    return displays, labels, scores


def check(figures, displays, labels, scores):
    probability = 1 / (1 + np.exp(-scores.astype(np.float64)))
    assert figures.rows == len(labels)
    assert figures.auc == pytest.approx(roc_auc_score(labels, scores), abs=1e-9)
    assert figures.log_loss == pytest.approx(log_loss(labels, probability), abs=1e-6)
    assert figures.map_at_12 == pytest.approx(map_at_k(displays, labels, scores), abs=1e-9)
    clicked = np.unique(displays[labels == 1])
    assert figures.displays == len(clicked)
    assert figures.displays_without_click == len(np.unique(displays)) - len(clicked)
    assert figures.calibration == pytest.approx(probability.sum() / labels.sum(), rel=1e-6)


@pytest.mark.parametrize("order", ["sorted", "shuffled"])
@pytest.mark.parametrize("batch_size", [1, 7, 64, 1000])
def test_figures_are_those_of_all_rows_and_of_no_padding(columns, order, batch_size):
    if order == "shuffled":
        permutation = np.random.default_rng(6).permutation(len(columns[0]))
        columns = [column[permutation] for column in columns]
    figures = evaluate(Rows(*columns), eval_step, SingleProcess(), global_batch_size=batch_size, with_map=True)
    check(figures, *columns)


@pytest.mark.parametrize("order", ["sorted", "shuffled", "rotated"])
def test_displays_that_ranks_share_are_ranked_once(columns, run_ranks, order):
    displays, labels, scores = columns
    if order == "shuffled":
        permutation = np.random.default_rng(7).permutation(len(labels))
        displays, labels, scores = (column[permutation] for column in columns)
    if order == "rotated":
        # Sorted on each rank but not from one to the next: the first display of one is the last of the other.
        displays, labels, scores = (np.roll(column, len(labels) // 2) for column in columns)
    rows = Rows(displays, labels, scores)
    results = run_ranks(2, lambda comm: evaluate(rows, eval_step, comm, global_batch_size=20, with_map=True))
    assert results[0] == results[1]
    check(results[0], displays, labels, scores)
    assert results[0].ids_cut == {"topics": 6}


def test_only_truly_sorted_displays_are_taken_for_sorted(columns, run_ranks):
    displays = columns[0]
    zeros = np.zeros(len(displays))

    def answers(ids, ranks):
        return set(run_ranks(ranks, lambda comm: displays_are_sorted(Rows(ids, zeros, zeros), comm)))

    assert answers(displays, 1) == answers(displays, 2) == {True}
    assert answers(displays[::-1], 1) == answers(displays[::-1], 2) == {False}
    assert answers(np.roll(displays, len(displays) // 2), 2) == {False}
    assert run_ranks(3, lambda comm: displays_are_sorted(Rows([4, 5], [0, 0], [0, 0]), comm)) == [True] * 3


def test_sorted_displays_are_ranked_in_little_memory(columns, monkeypatch):
    told = []
    real = evaluation.MapState

    def spy(k, *, sorted_by_display):
        told.append((k, sorted_by_display))
        return real(k, sorted_by_display=sorted_by_display)

    monkeypatch.setattr(evaluation, "MapState", spy)
    displays, labels, scores = columns
    for ids in (displays, displays[::-1]):
        evaluate(Rows(ids, labels, scores), eval_step, SingleProcess(), global_batch_size=50, with_map=True)
    assert told == [(12, True), (12, False)]


def test_without_map_no_display_is_looked_at(columns):
    rows = Rows(*columns)
    del rows.columns["group_ids"]
    rows.displays_sorted = None
    figures = evaluate(rows, eval_step, SingleProcess(), global_batch_size=50, with_map=False)
    assert figures.map_at_12 is figures.displays is figures.displays_without_click is None
    assert figures.auc == pytest.approx(roc_auc_score(columns[1], columns[2]), abs=1e-9)


def test_logits_are_ranked_where_their_probabilities_are_equal():
    # 1 in float32 for both, and yet not a tie.
    figures = evaluate(
        Rows([1, 1], [0, 1], [40.0, 60.0]), eval_step, SingleProcess(), global_batch_size=2, with_map=True
    )
    assert figures.map_at_12 == 1.0 and figures.auc == 1.0


def test_bad_rows_on_one_rank_end_the_evaluation_on_all(columns, run_ranks):
    rows = Rows(*columns, error="row 9 holds nonsense")

    def attempt(comm):
        with pytest.raises(InputError) as caught:
            evaluate(rows, eval_step, comm, global_batch_size=20, with_map=True)
        return str(caught.value)

    assert run_ranks(2, attempt) == ["stopped because of rank 1: row 9 holds nonsense", "row 9 holds nonsense"]


def test_a_batch_counts_its_real_rows():
    board = Scoreboard(with_map=False)
    batch = {"labels": tf.constant([1.0, 0, 1]), "mask": tf.constant([1.0, 1, 0])}
    assert board.update(batch, tf.constant([1.0, 2, 3])) == 2
    assert board.compute(SingleProcess()).rows == 2


def test_counts_are_added_up_by_name(run_ranks):
    counts = [{"a": 1}, {"a": 2, "b": 5}]
    assert run_ranks(2, lambda comm: sum_counts(counts[comm.rank], comm)) == [{"a": 3, "b": 5}] * 2
