"""AUC and losses by hand and against scikit-learn, and what all metrics accept; MAP is in test_ranking_metrics."""

import dataclasses
import math
import tracemalloc

import numpy as np
import pytest
from sklearn.metrics import log_loss, roc_auc_score

from data.errors import InputError
from trainer.metrics import AucState, LossState, MapState, map_at_k, roc_auc

LABEL_TYPES = [bool, np.int8, np.uint8, np.int32, np.int64, np.float16, np.float32, np.float64]


def test_auc_takes_logits_of_any_size():
    labels = np.array([0, 1] * 500)
    saturated = np.where(labels == 1, 40.0, 20.0).astype(np.float32)  # both sigmoids are 1 in float32
    assert roc_auc(labels, saturated) == 1.0
    close = np.where(labels == 1, 0.5, np.nextafter(np.float32(0.5), np.float32(0)))  # no threshold lies between
    assert roc_auc(labels, close) == 1.0


def test_auc_worked_by_hand():
    # Pairs of (1: 3 and 1) with (0: 2 and 1): 3>2, 3>1, 1<2, 1=1.
    assert roc_auc([1, 0, 1, 0], [3, 2, 1, 1]) == 2.5 / 4
    assert roc_auc([1, 0], [0.0, -0.0]) == 0.5
    assert roc_auc([1, 0, 0, 1, 0], np.full(5, -3.5)) == 0.5


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("decimals", [0, 1, 9])
def test_auc_equals_scikit_learn(dtype, decimals):
    rng = np.random.default_rng(3)
    labels = (rng.random(3000) < 0.2).astype(np.int8)
    scores = (rng.normal(size=3000) + labels).round(decimals).astype(dtype)
    assert roc_auc(labels, scores) == pytest.approx(roc_auc_score(labels, scores), abs=1e-9)


@pytest.mark.parametrize("labels", [[], [0, 0], [1, 1]])
def test_auc_of_one_class_is_nan(labels):
    assert math.isnan(roc_auc(labels, np.arange(len(labels))))


def split(size, batch):
    return [slice(start, start + batch) for start in range(0, size, batch)]


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("batch", [7, 64, 4096])
@pytest.mark.parametrize("layout", ["in turn", "one class a rank", "last rank empty"])
def test_auc_and_losses_do_not_depend_on_ranks_and_batches(run_ranks, ranks, batch, layout):
    rng = np.random.default_rng(4)
    labels = (rng.random(1500) < 0.3).astype(np.int8)
    logits = (rng.normal(size=1500) + labels).round(2).astype(np.float32)
    order = np.argsort(labels, kind="stable") if layout == "one class a rank" else rng.permutation(1500)
    shares = [*np.array_split(order, max(ranks - (layout == "last rank empty"), 1)), order[:0]]

    def work(comm):
        auc, loss = AucState(), LossState()
        for cut in split(len(shares[comm.rank]), batch):
            rows = shares[comm.rank][cut]
            auc.update(labels[rows], logits[rows])
            loss.update(labels[rows], logits[rows])
        return auc.compute(comm), loss.compute(comm)

    probabilities = 1 / (1 + np.exp(-logits.astype(np.float64)))
    for auc, loss in run_ranks(ranks, work):
        assert auc == pytest.approx(roc_auc_score(labels, logits), abs=1e-12)
        assert loss.log_loss == pytest.approx(log_loss(labels, probabilities), abs=1e-12)
        assert loss.calibration == pytest.approx(probabilities.sum() / labels.sum(), abs=1e-12)
        assert loss.rows == 1500


def test_auc_of_ranks_with_different_score_types(run_ranks):
    labels, scores = np.array([1, 0, 1, 0]), np.array([0.1, np.float32(0.1), 0.3, 0.2])

    def work(comm):
        state = AucState()
        half = slice(2 * comm.rank, 2 * comm.rank + 2)
        state.update(labels[half], scores[half].astype([np.float64, np.float32][comm.rank]))
        return state.compute(comm)

    assert run_ranks(2, work) == [0.5, 0.5]  # 0.1 < float32(0.1) < 0.2 < 0.3


def test_auc_slices_of_clicked_scores_all_count(run_ranks):
    rng = np.random.default_rng(5)
    labels = rng.random(300_000) < 0.5  # more clicks than one slice on rank 0
    scores = rng.integers(0, 1000, 300_000).astype(np.float32) + labels * 50

    def work(comm):
        state = AucState()
        part = slice(0, 200_000) if comm.rank == 0 else slice(200_000, None)
        state.update(labels[part], scores[part])
        return state.compute(comm)

    assert run_ranks(2, work) == [pytest.approx(roc_auc_score(labels, scores), abs=1e-9)] * 2


def test_auc_and_loss_states_merge():
    rng = np.random.default_rng(6)
    labels, logits = rng.integers(0, 2, 900), rng.normal(size=900).astype(np.float32)
    whole, pieces = (AucState(), LossState()), [(AucState(), LossState()) for _ in range(3)]
    for state in whole:
        state.update(labels, logits)
    for (auc, loss), rows in zip(pieces, np.array_split(np.arange(900), 3), strict=True):
        auc.update(labels[rows], logits[rows])
        loss.update(labels[rows], logits[rows])
    third = pieces[2][0].compute()
    for auc, loss in pieces[1:]:
        pieces[0][0].merge(auc)
        pieces[0][1].merge(loss)
    assert pieces[0][0].compute() == whole[0].compute()
    figures = dataclasses.astuple(pieces[0][1].compute())
    assert figures == pytest.approx(dataclasses.astuple(whole[1].compute()), abs=1e-12)
    assert pieces[2][0].compute() == third  # what was merged stays as it was
    pieces[2][0].merge(pieces[2][0])
    assert pieces[2][0].compute() == third  # every pair four times


def test_nonfinite_scores_are_merged():
    bad = np.array([math.nan, 1.0], np.float32)
    ranking, auc, loss = MapState(), AucState(), LossState()
    for state, columns in ((ranking, ([1, 1], [1, 0])), (auc, ([1, 0],)), (loss, ([1, 0],))):
        state.update(*columns, np.array([2.0, 1.0], np.float32))
        other = type(state)()
        other.update(*columns, bad)
        state.merge(other)
    assert ranking.compute().nonfinite_scores == loss.compute().nonfinite_scores == 1
    assert math.isnan(auc.compute())


def test_auc_continues_after_a_figure_was_read():
    state = AucState()
    state.update([1, 0], [1.0, 2.0])
    assert state.compute() == 0.0
    state.update([1], [3.0])
    assert state.compute() == 0.5


def test_log_loss_weighs_rows_and_not_batches():
    state = LossState()
    state.update([1], [2.0])
    state.update([0, 0, 1], [1.0, -1.0, 0.0])
    terms = [math.log1p(math.exp(-2)), math.log1p(math.exp(1)), math.log1p(math.exp(-1)), math.log(2)]
    assert state.compute().log_loss == pytest.approx(sum(terms) / 4, abs=1e-15)


def test_log_loss_of_extreme_logits_is_exact():
    state = LossState()
    state.update([1, 0, 1, 0], np.array([-1000.0, 1000.0, 1000.0, -1000.0], np.float32))
    assert state.compute().log_loss == 500.0
    assert state.compute().calibration == 1.0
    state = LossState()
    state.update([1], [40.0])
    assert state.compute().log_loss == pytest.approx(math.exp(-40), rel=1e-12)


def test_normalized_entropy_and_calibration():
    labels = np.array([1, 0, 0, 0, 0])
    base_rate = LossState()
    base_rate.update(labels, np.full(5, math.log(0.25)))  # sigmoid: 1/5
    result = base_rate.compute()
    assert result.normalized_entropy == pytest.approx(1.0, abs=1e-12)
    assert result.calibration == pytest.approx(1.0, abs=1e-12)
    doubting = LossState()
    doubting.update(labels, np.zeros(5))
    entropy = -(0.2 * math.log(0.2) + 0.8 * math.log(0.8))
    assert doubting.compute().normalized_entropy == pytest.approx(math.log(2) / entropy, abs=1e-12)
    assert doubting.compute().calibration == pytest.approx(2.5, abs=1e-12)


@pytest.mark.parametrize(("labels", "calibration"), [([0, 0], math.nan), ([1, 1], 0.5)])
def test_normalized_entropy_of_one_class_is_nan(labels, calibration):
    state = LossState()
    state.update(labels, [0.0, 0.0])
    result = state.compute()
    assert result.log_loss == pytest.approx(math.log(2))
    assert math.isnan(result.normalized_entropy)
    assert result.calibration == pytest.approx(calibration, nan_ok=True)


def test_losses_of_no_rows_are_nan():
    result = LossState().compute()
    assert result.rows == 0
    assert all(math.isnan(figure) for figure in (result.log_loss, result.normalized_entropy, result.calibration))


# What comes in.


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_nonfinite_score_on_any_rank_makes_figures_nan(run_ranks, bad):
    def work(comm):
        scores = np.array([1.0, bad if comm.rank == 1 else 0.0, 2.0], np.float32)
        map_state, auc, loss = MapState(), AucState(), LossState()
        map_state.update(np.full(3, comm.rank), [1, 0, 0], scores)
        auc.update([1, 0, 0], scores)
        loss.update([1, 0, 0], scores)
        return map_state.compute(comm), auc.compute(comm), loss.compute(comm)

    for ranking, auc, loss in run_ranks(2, work):
        assert math.isnan(ranking.map)
        assert (ranking.displays, ranking.nonfinite_scores) == (2, 1)
        assert math.isnan(auc)
        assert math.isnan(loss.log_loss)
        assert math.isnan(loss.normalized_entropy)
        assert math.isnan(loss.calibration)
        assert (loss.rows, loss.nonfinite_scores) == (6, 1)


@pytest.mark.parametrize("dtype", LABEL_TYPES)
def test_labels_of_any_type(dtype):
    labels = np.array([0, 1, 0], dtype)
    scores = np.array([3.0, 2.0, 1.0], np.float32)
    state = LossState()
    state.update(labels, np.zeros(3))
    assert map_at_k([1, 1, 1], labels, scores) == 0.5
    assert roc_auc(labels, scores) == 0.5
    assert state.compute().calibration == pytest.approx(1.5)


def test_columns_of_one_are_taken_as_rows():
    column = np.array([[3.0], [2.0]], np.float32)
    assert map_at_k([[1], [1]], [[0], [1]], column) == 0.5
    with pytest.raises(ValueError, match=r"scores must be of shape \(N,\) or \(N, 1\), got \(1, 2\)"):
        roc_auc([0, 1], column.T)


@pytest.mark.parametrize("label", [2, -1, 0.5, math.nan])
def test_other_labels_are_refused(label):
    labels = np.array([1, 0, label])
    for use in (
        lambda: map_at_k([1, 1, 1], labels, np.zeros(3)),
        lambda: roc_auc(labels, np.zeros(3)),
        lambda: LossState().update(labels, np.zeros(3)),
    ):
        with pytest.raises(InputError, match=f"labels must be 0 or 1, got {float(label)}|got {label};"):
            use()
    with pytest.raises(ValueError, match="labels must be numbers or bool"):
        roc_auc(np.array(["0", "1", "1"]), np.zeros(3))


def test_different_lengths_are_refused_by_name():
    with pytest.raises(ValueError, match="display_ids has 2, labels has 3, scores has 4"):
        map_at_k([1, 2], [1, 0, 1], [1.0, 2.0, 3.0, 4.0])
    with pytest.raises(ValueError, match="labels has 2, scores has 1"):
        roc_auc([1, 0], [1.0])
    with pytest.raises(ValueError, match="labels has 1, logits has 2"):
        LossState().update([1], [1.0, 2.0])


@pytest.mark.parametrize("k", [0, -1, 1.5, True, None])
def test_k_must_be_a_positive_integer(k):
    with pytest.raises(ValueError, match=f"k must be a positive integer, got {k}"):
        map_at_k([1], [1], [1.0], k)


def test_integer_scores_that_would_tie_are_refused():
    assert map_at_k([1, 1], [1, 0], [2**53, 2**53 - 1]) == 1.0
    with pytest.raises(ValueError, match="within"):
        map_at_k([1, 1], [1, 0], [2**53 + 1, 2**53])
    with pytest.raises(ValueError, match="scores must be floats"):
        roc_auc([1, 0], np.array([1j, 2j]))


def test_scores_keep_their_precision():
    close = np.array([1.0, 1.0 + 1e-12])
    assert map_at_k([1, 1], [0, 1], close) == 1.0
    assert map_at_k([1, 1], [0, 1], close.astype(np.float32)) == 0.75
    mixed = AucState()
    mixed.update([0], np.array([1.0], np.float32))
    mixed.update([1], np.array([1.0 + 1e-12]))
    assert mixed.compute() == 1.0


@pytest.mark.parametrize(("dtype", "bytes_a_row"), [(np.float32, 5), (np.float64, 8.8)])
def test_auc_memory_per_row(dtype, bytes_a_row):
    # Beside 4 or 8 bytes a row there is a constant part, which weighs 0.6 bytes a row here.
    rng = np.random.default_rng(7)
    rows, batch = 1_000_000, 4096
    labels, scores = rng.random(batch) < 0.2, rng.normal(size=batch).astype(dtype)
    tracemalloc.start()
    try:
        state = AucState()
        for _ in range(rows // batch):
            state.update(labels, scores)
        state.compute()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak / rows < bytes_a_row
