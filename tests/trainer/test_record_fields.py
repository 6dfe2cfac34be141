"""Figures of an evaluation by the names of a record, on cases worked by hand."""

import dataclasses
import math

import pytest

from trainer.evaluate import Figures
from trainer.record_fields import evaluation_fields

FIGURES = Figures(
    log_loss=0.4, normalized_entropy=0.9, calibration=1.0, auc=0.625, map_at_12=0.6, displays=9,
    displays_without_click=1, rows=40, ids_cut={"ad": 3},
)  # fmt: skip
TEACHER = {"auc": 0.75, "map_at_12": 0.7, "chance_map_at_12": 0.5}


def test_figures_keep_their_names_and_rows_are_none_of_them():
    found = evaluation_fields(FIGURES, None)
    expected = dataclasses.asdict(FIGURES)
    del expected["rows"], expected["ids_cut"]
    assert found == expected


@pytest.mark.parametrize(("reached", "share"), [(0.5, 0.0), (0.75, 1.0), (0.625, 0.5), (0.45, -0.2)])
def test_share_of_the_teachers_margin(reached, share):
    found = evaluation_fields(dataclasses.replace(FIGURES, auc=reached), TEACHER)
    assert found["auc_margin_share"] == pytest.approx(share)
    assert found["map_margin_share"] == pytest.approx(0.5)


def test_a_teacher_that_is_no_better_than_chance_has_no_margin():
    teacher = {"auc": 0.5, "map_at_12": 0.5, "chance_map_at_12": 0.5}
    found = evaluation_fields(FIGURES, teacher)
    assert math.isnan(found["auc_margin_share"]) and math.isnan(found["map_margin_share"])


def test_figures_that_are_not_there_have_no_share():
    found = evaluation_fields(dataclasses.replace(FIGURES, map_at_12=None), {"auc": None})
    assert "auc_margin_share" not in found and "map_margin_share" not in found
