"""Roofs from the microbenchmarks, and what is placed below them."""

import pytest
from report_cases import repeats

from benchmarks.report.roofline import rooflines
from benchmarks.report.rows import summarise


def gemm(score, **given):
    return repeats(score, model="gemm", implementation="micro", mode="forward", units="TF/s", **given)


def bag(score, **given):
    return repeats(score, model="embedding_bag", implementation="micro", mode="forward", units="GB/s", **given)


def lines(*results):
    return rooflines(summarise([one for some in results for one in some], "here").rows)


def test_the_best_of_each_is_the_roof():
    (found,) = lines(gemm(0.1), gemm(0.2, batch_size=512), bag(5), bag(10, batch_size=8))
    assert (found.compute.score, found.memory.score) == (0.2, 10)
    # 20 operations a byte are where 10 GB/s feed 0.2 TF/s.
    assert [found.roof(intensity) for intensity in (10, 20, 40)] == pytest.approx([0.1, 0.2, 0.2])


def test_a_row_is_placed_by_its_work_and_its_time():
    figures = {"gflop_per_step": 2.0, "bytes_per_step": 1e8}
    (found,) = lines(
        gemm(0.2), bag(10), repeats(1, figures=figures, step_ms=[19.0, 20.0, 30.0]), repeats(1, batch_size=8)
    )
    (point,) = found.points
    assert (point.intensity, point.tflops) == (pytest.approx(20), pytest.approx(0.1))
    assert found.left_out == ["gemm-micro-forward-tiny", "dlrm-optimized-training-tiny"][::-1]


def test_a_score_in_tflops_is_taken_as_it_is():
    (found,) = lines(gemm(0.2, figures={"gflop_per_step": 2.0, "bytes_per_step": 1e8}), bag(10))
    assert found.points[0].tflops == 0.2


def test_there_is_none_without_both_roofs_at_one_rank_and_one_precision():
    assert lines(gemm(1)) == lines(bag(1)) == lines(gemm(1), bag(1, precision="bf16")) == []
    assert lines(gemm(1), bag(1, world_size=2)) == []


def test_each_precision_has_its_own():
    found = lines(gemm(1), bag(1), gemm(2, precision="bf16"), bag(3, precision="bf16"))
    assert [(line.precision, line.compute.score) for line in found] == [("bf16", 2), ("fp32", 1)]
