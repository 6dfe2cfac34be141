"""How cells and figures are called."""

import pytest
from study_cases import cell, plan

from benchmarks.study.report import wording


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({}, "float32, 1 x 64"),
        ({"precision": "mixed_float16", "xla": True, "world_size": 2}, "mixed float16, XLA, 2 x 32"),
        ({"world_size": 3, "global_batch_size": 4096}, "float32, 3 x 1,365 or 1,366"),
        ({"label": "degraded", "learning_rate_factor": 0.1}, "float32, degraded (rates x 0.1), 1 x 64"),
    ],
)
def test_configuration(changed, name):
    assert wording.configuration(cell(**changed), plan()) == name
    assert wording.configuration(cell(**changed), plan(models=["wide_deep", "dlrm"])) == f"wide_deep, {name}"


def test_cells_that_differ_in_precision_alone_stand_together():
    full, mixed, other = cell(), cell(precision="mixed_float16"), cell(xla=True, precision="mixed_float16")
    assert wording.without_precision([full, other, mixed]) == {
        full: {"float32": full, "mixed_float16": mixed},
        other: {"mixed_float16": other},
    }


@pytest.mark.parametrize(
    ("call", "value", "text"),
    [
        (wording.mean_figure, 0.123456, "0.12346"),
        (wording.signed, -0.001, "-0.00100"),
        (wording.share, 0.8125, "81.2 %"),
        (wording.seconds, 9.876, "9.88"),
        (wording.seconds, 123.45, "123.5"),
        (wording.seconds, 12345.6, "12,346"),
        (wording.rate, 12345.6, "12,346"),
        (wording.times, 3.27, "3.27"),
        (wording.p_value, 0.0005, "< 0.001"),
        (wording.p_value, 0.0015, "0.002"),
    ],
)
def test_figures(call, value, text):
    assert call(value) == text
    assert call(None) == ""


def test_counts():
    assert wording.runs(1) == "1 run"
    assert wording.runs(20) == "20 runs"
    assert wording.runs([3, 3]) == "3"
    assert wording.runs([5, 2, 4]) == "2 to 5"
    assert wording.percent(0.95) == "95 %"
    assert wording.percent(1 - 0.95) == "5 %"
