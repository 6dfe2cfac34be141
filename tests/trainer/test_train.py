import math
import os
import signal

import numpy as np
import pytest
from loop_cases import FIGURES, Loop

from data.errors import InputError
from trainer.distributed import SingleProcess
from trainer.evaluate import Figures
from trainer.steps import FAILED, STOP
from trainer.train import SignalledBatches, StopSignal, validation_figures

# When things happen.


def test_after_every_epoch_and_at_the_end():
    loop = Loop()
    outcome = loop.run()
    assert loop.events == [(event, step) for step in (4, 8, 10) for event in ("evaluate", "save")]
    assert loop.writer.steps == len(loop.seen) == outcome.steps == outcome.step == 10
    assert outcome.figures is FIGURES and not outcome.stopped and outcome.loss == pytest.approx(0.1)


def test_the_end_of_the_last_epoch_is_the_end_once():
    loop = Loop()
    loop.run(last_step=8)
    assert loop.events == [(event, step) for step in (4, 8) for event in ("evaluate", "save")]


def test_checkpoints_in_between():
    loop = Loop()
    loop.run(checkpoint_every_steps=3, last_step=7)
    assert [step for event, step in loop.events if event == "save"] == [3, 4, 6, 7]
    assert [step for event, step in loop.events if event == "evaluate"] == [4, 7]


def test_log_points_hold_the_loss_and_the_pace_since_the_last_one():
    loop = Loop()
    loop.run(log_every_steps=3)
    pace = pytest.approx(6 / 2.0)  # evaluations and checkpoints took 100 s each and are no part of it
    validation = {"loss_val": 0.3, "auc_roc": 0.7, "streaming_map_val": 0.6}
    assert loop.writer.written == [
        (3, {"loss": pytest.approx(1 / 3), "batch_samplesps": pace}),
        (4, {"loss": pytest.approx(1 / 4), "batch_samplesps": pace}),
        (4, validation),
        (6, {"loss": pytest.approx(1 / 6), "batch_samplesps": pace}),
        (8, {"loss": pytest.approx(1 / 8), "batch_samplesps": pace}),
        (8, validation),
        (9, {"loss": pytest.approx(1 / 9), "batch_samplesps": pace}),
        (10, {"loss": pytest.approx(1 / 10), "batch_samplesps": pace}),
        (10, validation),
    ]


def test_time_is_that_of_steps_alone_and_not_of_the_first():
    outcome = Loop().run()
    assert (outcome.seconds, outcome.timed_steps, outcome.steps) == (pytest.approx(18.0), 9, 10)
    only = Loop().run(last_step=1)
    assert (only.seconds, only.timed_steps) == (pytest.approx(2.0), 1)


def test_a_resumed_run_keeps_to_the_points_of_the_whole_one():
    whole, rest = Loop(), Loop()
    whole.run(log_every_steps=3, checkpoint_every_steps=5)
    outcome = rest.run(log_every_steps=3, checkpoint_every_steps=5, first_step=5)
    assert rest.events == [event for event in whole.events if event[1] > 5]
    steps = [step for step, _ in rest.writer.written]
    assert steps == [step for step, _ in whole.writer.written if step > 5]
    assert outcome.steps == 5 and outcome.step == 10


def test_nothing_left_to_do_is_still_evaluated():
    loop = Loop()
    outcome = loop.run(first_step=12)
    assert loop.events == [("evaluate", 12)] and math.isnan(outcome.loss) and outcome.steps == 0
    assert outcome.figures is FIGURES and not loop.seen


# Ending early.


def test_a_stop_is_seen_one_step_later_and_saved_without_evaluation():
    loop = Loop(stop_from=1, ranks=2)
    outcome = loop.run()
    # Asked after step 1, told to the ranks in step 2, read after step 3: nobody waits for the device in step 2.
    assert outcome.stopped and outcome.step == 3 and loop.events == [("save", 3)] and outcome.figures is None
    assert outcome.loss == pytest.approx(1 / 3)


@pytest.mark.parametrize("settings", [{"log_every_steps": 2}, {"checkpoint_every_steps": 2}, {"steps_per_epoch": 2}])
def test_a_stop_is_seen_at_once_where_the_loop_waits_anyway(settings):
    loop = Loop(stop_from=1, ranks=2)
    outcome = loop.run(**settings)
    assert outcome.stopped and outcome.step == 2 and loop.events == [("save", 2)]


@pytest.mark.parametrize("stop_from", [1, 3])
def test_a_rank_that_is_alone_stops_after_the_step(stop_from):
    loop = Loop(stop_from=stop_from)
    outcome = loop.run()
    assert outcome.stopped and outcome.step == stop_from and loop.events == [("save", stop_from)]
    # No division by the time of no steps, whatever was asked of the first one.
    assert outcome.timed_steps > 0 and outcome.seconds > 0


def test_another_rank_can_ask_for_the_stop():
    others = {5: tuple(float(place == STOP) for place in range(2))}
    loop = Loop(others=others)
    assert loop.run().step == 6
    assert loop.events == [("evaluate", 4), ("save", 4), ("save", 6)]


def test_bad_rows_end_the_loop_with_their_error_and_save_nothing():
    loop = Loop(fails_at=6)
    with pytest.raises(InputError, match="row 5 holds nonsense"):
        loop.run()
    # The rank took part in a step or two more, with nothing to give, so that no other waits for it.
    assert [(step, labels, signals[FAILED]) for step, labels, signals in loop.seen[4:]] == [
        (5, [1.0] * 3, 0.0),
        (6, [0.0] * 3, 1.0),
        (7, [0.0] * 3, 1.0),
    ]
    assert loop.events == [("evaluate", 4), ("save", 4)]


@pytest.mark.parametrize("fails_at", [1, 4, 10])
def test_bad_rows_before_a_checkpoint_are_seen_before_it(fails_at):
    loop = Loop(fails_at=fails_at)
    with pytest.raises(InputError, match="nonsense"):
        loop.run()
    assert len(loop.seen) == fails_at and ("save", fails_at) not in loop.events


def test_another_ranks_failure_ends_this_rank_too():
    class TwoRanks(SingleProcess):
        def allgather_object(self, value):
            return [value, "file x is damaged"]

    batches = SignalledBatches(Loop())
    batches.raise_together(np.zeros(2), TwoRanks())
    with pytest.raises(InputError, match="stopped because of rank 1: file x is damaged"):
        batches.raise_together(np.array([0.0, 1.0]), TwoRanks())


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_ends_training_a_step_later_with_what_its_batch_holds(loss):
    loop = Loop(losses=dict.fromkeys(range(2, 11), loss))
    said = f"the loss of step 2 is {loss}: lower --the_rate.*rows of step 1: labels.*rows of step 2: labels"
    with pytest.raises(InputError, match=said):
        loop.run()
    assert loop.events == [] and len(loop.seen) == 3


@pytest.mark.parametrize("settings", [{"checkpoint_every_steps": 3}, {"steps_per_epoch": 3}, {"last_step": 3}])
@pytest.mark.parametrize("first", [2, 3])
def test_no_checkpoint_is_made_of_a_model_that_has_diverged(first, settings):
    loop = Loop(losses=dict.fromkeys(range(first, 11), math.nan))
    with pytest.raises(InputError, match=f"the loss of step {first} is nan"):
        loop.run(**settings)
    assert loop.events == [] and len(loop.seen) == 3


def test_a_loss_that_overflowed_in_a_skipped_step_is_forgiven():
    loop = Loop(losses={4: math.inf}, skipped={4})
    assert loop.run().step == 10
    assert loop.writer.written[0] == (4, {"loss": math.inf, "batch_samplesps": pytest.approx(3.0)})


# Pieces.


def test_sigterm_is_a_request_while_it_is_watched_for():
    before = signal.getsignal(signal.SIGTERM)
    with StopSignal() as stop:
        assert not stop.requested()
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.requested()
    assert signal.getsignal(signal.SIGTERM) == before


def test_validation_figures_leave_out_what_was_not_asked_for():
    assert validation_figures(FIGURES) == {"loss_val": 0.3, "auc_roc": 0.7, "streaming_map_val": 0.6}
    without = Figures(0.3, 0.9, 1.1, 0.7, None, None, None, 20)
    assert validation_figures(without) == {"loss_val": 0.3, "auc_roc": 0.7}


def test_another_kind_of_error_is_not_held_back():
    class Broken:
        dataset = Loop.dataset

        def __iter__(self):
            raise ZeroDivisionError("a bug")
            yield

    with pytest.raises(ZeroDivisionError):
        SignalledBatches(Broken()).next()
