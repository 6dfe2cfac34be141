"""Speed-up and efficiency of several ranks."""

import pytest
from report_cases import repeats

from benchmarks.report.rows import summarise
from benchmarks.report.scaling import scaling_steps


def steps(*results):
    return scaling_steps(summarise([one for some in results for one in some], "here").rows)


def test_strong_scaling_compares_the_same_global_batch():
    (step,) = steps(repeats(100), repeats(60, batch_size=32), repeats(150, world_size=2, scaling="strong"))
    assert (step.base_score, step.speed_up, step.efficiency) == (100, 1.5, 0.75)


def test_weak_scaling_compares_the_same_batch_of_each_rank():
    (step,) = steps(repeats(100), repeats(60, batch_size=32), repeats(108, world_size=2, scaling="weak"))
    assert (step.base_batch, step.base_score, step.speed_up, step.efficiency) == (32, 60, 1.8, 0.9)


@pytest.mark.parametrize(
    "other", [{"precision": "bf16"}, {"version": "2"}, {"implementation": "ootb"}, {"batch_size": 8}]
)
def test_nothing_else_is_taken_for_the_base(other):
    (step,) = steps(repeats(100, **other), repeats(150, world_size=2, scaling="strong"))
    assert (step.base_score, step.speed_up, step.efficiency) == (None, None, None)


def test_collectives_and_single_ranks_have_none():
    assert (
        steps(repeats(1, model="allreduce", implementation="micro", world_size=2, scaling="strong"), repeats(2)) == []
    )
