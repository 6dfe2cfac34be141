"""Evaluations within an epoch, the time until each, and training that ends at a target."""

import dataclasses
import math

import pytest
from loop_cases import FIGURES, Loop

from data.errors import InputError
from trainer.distributed import SingleProcess
from trainer.train import check_evaluations, evaluates_after, reaches


@pytest.mark.parametrize(("number", "steps"), [(1, [7]), (2, [4, 7]), (3, [3, 5, 7]), (7, [1, 2, 3, 4, 5, 6, 7])])
def test_evaluations_are_spread_over_an_epoch_and_the_last_is_at_its_end(number, steps):
    found = [step for step in range(1, 15) if evaluates_after(step, steps_per_epoch=7, evals_per_epoch=number)]
    assert found == steps + [step + 7 for step in steps]


def test_more_evaluations_than_steps_are_refused():
    check_evaluations(4, 4)
    with pytest.raises(InputError, match="--evals_per_epoch=5 with 4 steps in an epoch: give at most 4"):
        check_evaluations(5, 4)


def test_evaluations_within_an_epoch_save_nothing():
    loop = Loop()
    outcome = loop.run(evals_per_epoch=2, last_step=7)
    assert loop.events == [("evaluate", 2), ("evaluate", 4), ("save", 4), ("evaluate", 6), ("evaluate", 7), ("save", 7)]
    assert [e.step for e in outcome.evaluations] == [2, 4, 6, 7] and outcome.evaluations[0].figures is FIGURES


def test_a_resumed_run_evaluates_where_the_whole_one_does():
    loop = Loop()
    assert [e.step for e in loop.run(evals_per_epoch=2, first_step=5).evaluations] == [6, 8, 10]


def test_training_time_until_an_evaluation_has_all_steps_and_neither_evaluations_nor_checkpoints():
    outcome = Loop().run(evals_per_epoch=2, last_step=8)
    # Steps take 2 s, evaluations and checkpoints 100 s; the first step is out of the throughput, but not of this.
    assert [e.train_seconds for e in outcome.evaluations] == [pytest.approx(2.0 * step) for step in (2, 4, 6, 8)]
    assert outcome.train_seconds == pytest.approx(16.0) and outcome.seconds == pytest.approx(14.0)
    assert outcome.evaluations[-1].seconds == pytest.approx(100.0)
    assert outcome.evaluations[-1].samples_per_sec == pytest.approx(FIGURES.rows / 100.0)


def test_an_evaluation_after_the_first_step_counts_it():
    outcome = Loop().run(steps_per_epoch=1, last_step=2)
    assert [e.train_seconds for e in outcome.evaluations] == [pytest.approx(2.0), pytest.approx(4.0)]


@pytest.mark.parametrize("target", [0.6, 0.55])
def test_a_target_that_is_reached_ends_training_with_a_checkpoint(target):
    loop = Loop()
    outcome = loop.run(evals_per_epoch=2, target_map12=target)
    assert loop.events == [("evaluate", 2), ("save", 2)]
    assert (outcome.ended_by, outcome.step, outcome.stopped) == ("target", 2, False)


def test_a_target_that_is_not_reached_changes_nothing():
    loop, without = Loop(), Loop()
    outcome = loop.run(target_map12=0.61)
    without.run()
    assert loop.events == without.events and (outcome.ended_by, outcome.step) == ("steps", 10)


def test_ranks_that_disagree_on_the_figure_do_not_part_ways():
    class Disagreeing(SingleProcess):
        def allgather_object(self, value):
            return [value, value + 0.001]

    with pytest.raises(RuntimeError, match=r"ranks disagree on MAP@12: \[0.6, 0.601\]"):
        reaches(FIGURES, 0.5, Disagreeing())
    assert reaches(FIGURES, 0.6, SingleProcess()) and not reaches(FIGURES, 0.601, SingleProcess())
    assert not reaches(dataclasses.replace(FIGURES, map_at_12=math.nan), 0.1, SingleProcess())
