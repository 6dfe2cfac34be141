"""Figures over the rows of several ranks are the figures over all rows."""

import itertools
import math

import numpy as np
import pytest
from scored_rows import scored_rows
from sklearn.metrics import log_loss, roc_auc_score

from data.feature_spec import TEST, FeatureSpec
from data.input_pipeline import ParquetInput
from trainer.metrics import map_at_k

JOBS = ("two_ranks", "three_ranks")
FIGURES = ("map_at_12", "auc", "log_loss", "normalized_entropy", "calibration")


@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize("data", ["plain", "unsorted"])
@pytest.mark.parametrize("batch_size", [64, 4096])
def test_evaluation_does_not_depend_on_ranks_and_batches(request, two_ranks, job, data, batch_size):
    alone = two_ranks.results("evaluation")[0][data, "alone"]
    for found in request.getfixturevalue(job).results("evaluation"):
        assert found[data, "sorted"] == (data == "plain")
        figures = found[data, batch_size]
        for name in ("rows", "displays", "displays_without_click"):
            assert figures[name] == alone[name]
        assert {name: figures[name] for name in FIGURES} == pytest.approx(
            {name: alone[name] for name in FIGURES}, abs=1e-4
        )


def test_the_order_of_rows_does_not_matter(two_ranks):
    found = two_ranks.results("evaluation")[0]
    for name in FIGURES:
        assert found["unsorted", "alone"][name] == pytest.approx(found["plain", "alone"][name], abs=1e-6)


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_cut_displays(dataset, ranks):
    """Otherwise the comparisons above would not show that cut displays are put together again."""
    spec = FeatureSpec.from_yaml(str(dataset / "feature_spec.yaml"))
    rows = ParquetInput(spec, TEST, with_display=True)
    ends = [rows.displays_sorted(rank, ranks)[1:] for rank in range(ranks)]
    assert any(before[1] == after[0] for before, after in itertools.pairwise(ends))


@pytest.mark.parametrize("job", JOBS)
def test_the_same_scored_rows_give_the_same_figures(request, job):
    ids, labels, scores = scored_rows()
    probabilities = 1 / (1 + np.exp(-scores.astype(np.float64)))
    loss, rate = log_loss(labels, probabilities), labels.mean()
    expected = {
        "map": map_at_k(ids, labels, scores),
        "auc": roc_auc_score(labels, scores),
        "log_loss": loss,
        "normalized_entropy": loss / -(rate * math.log(rate) + (1 - rate) * math.log(1 - rate)),
        "calibration": probabilities.sum() / labels.sum(),
    }
    clicks = {i: labels[ids == i].sum() for i in np.unique(ids)}
    for found in request.getfixturevalue(job).results("metric_states"):
        assert len(found) == 6
        for deal, figures in found.items():
            assert {name: figures[name] for name in expected} == pytest.approx(expected, abs=1e-9), deal
            assert figures["rows"] == len(ids)
            assert figures["displays"] == sum(n > 0 for n in clicks.values())
            assert figures["displays_without_click"] == sum(n == 0 for n in clicks.values())
