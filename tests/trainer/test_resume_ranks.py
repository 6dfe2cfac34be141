"""Checkpoints of runs of several ranks, each of which holds parts of tables."""

import types

import numpy as np
import pytest
import tensorflow as tf
from checkpoint_states import DIGEST, ArrayTable, names, run_ranks

from data.errors import InputError
from trainer import checkpoint, resume
from trainer.resume import Checkpoints

POSITION = {"seed": 3, "global_batch_size": 64}
TWO = [(0, 9, 0, 2), (0, 9, 2, 4)]
THREE = [(0, 2, 0, 4), (2, 6, 0, 4), (6, 9, 0, 4)]
INITIAL_SCALE = 2.0**15


def whole(name, seed):
    rng = np.random.default_rng(seed)
    return ArrayTable(name, weights=rng.random((9, 4), "f4"), last_step=rng.integers(0, 99, 9).astype("i4"))


class RankState:
    """What resume asks of trainer.state.TrainState: one rank's part of a sharded table, and what every rank has."""

    def __init__(self, rank, split, *, filled):
        self.loss_scale = tf.Variable(64.0 if filled else INITIAL_SCALE)
        self.good_steps = tf.Variable(7 if filled else 0)
        self.kernel = tf.Variable(tf.fill((2, 2), 5.0 + rank if filled else 0.0))
        self.sharded = whole("sharded", 0).part(*split[rank])
        self.replicated = whole("replicated", 1)
        self.rank = rank
        if not filled:
            self.sharded, self.replicated = self.sharded.empty(), self.replicated.empty()

    def checkpoint_tables(self):
        return [self.sharded] + ([self.replicated] if self.rank == 0 else [])

    def dense_variables(self):
        return {
            "top/kernel": self.kernel,
            "optimizer/loss_scale": self.loss_scale,
            "optimizer/good_steps": self.good_steps,
        }


def open_checkpoints(directory, comm, precision="mixed_float16"):
    return Checkpoints(str(directory), comm, spec_digest=DIGEST, precision=precision)


def save(directory, split=TWO, steps=(5,)):
    """Saves after each of the steps, on a rank for each part."""

    def run(comm):
        checkpoints = open_checkpoints(directory, comm)
        checkpoints.check_writable(by_every_rank=True)
        state = RankState(comm.rank, split, filled=True)
        for step in steps:
            checkpoints.save(state, step, POSITION)

    assert run_ranks(len(split), run) == [None] * len(split)


def resume_ranks(directory, split, *, precision="mixed_float16", position=POSITION):
    """(the step, the state, the run) of each rank, or what it raised."""

    def run(comm):
        checkpoints = open_checkpoints(directory, comm, precision)
        state = RankState(comm.rank, split, filled=False)
        return checkpoints.resume(state, position), state, checkpoints._run_id

    return run_ranks(len(split), run)


@pytest.mark.parametrize("split", [TWO, THREE, [(0, 9, 0, 4)]], ids=["the same", "rows instead", "whole"])
def test_each_rank_gets_its_parts_and_rank_0_what_all_have(tmp_path, capsys, split):
    save(tmp_path)
    outcomes = resume_ranks(tmp_path, split)
    for rank, (step, state, _) in enumerate(outcomes):
        assert step == 5
        assert state.sharded.same(whole("sharded", 0).part(*split[rank]))
        read = rank == 0  # the broadcast does the rest
        assert state.replicated.same(whole("replicated", 1)) == read
        assert float(state.loss_scale) == (64.0 if read else INITIAL_SCALE)
        assert np.all(state.kernel.numpy() == (5.0 if read else 0.0))
    assert len({run_id for _, _, run_id in outcomes}) == 1
    assert capsys.readouterr().out == f"restored {tmp_path}/step-000000005: training goes on at step 5\n"


def test_a_run_that_goes_on_prunes_its_own_checkpoints_at_another_number_of_ranks(tmp_path):
    save(tmp_path, steps=(1, 2))

    def run(comm):
        checkpoints = open_checkpoints(tmp_path, comm)
        state = RankState(comm.rank, THREE, filled=False)
        step = checkpoints.resume(state, POSITION)
        checkpoints.save(state, step + 1, POSITION)

    assert run_ranks(3, run) == [None] * 3
    assert names(tmp_path) == ["step-000000002", "step-000000003"]
    assert checkpoint.latest(tmp_path).scalars == {**POSITION, "world_size": 3, "precision": "mixed_float16"}
    (again,) = resume_ranks(tmp_path, [(0, 9, 0, 4)])
    assert again[1].sharded.same(whole("sharded", 0)) and again[1].replicated.same(whole("replicated", 1))


def test_another_precision_begins_with_the_initial_loss_scale(tmp_path):
    save(tmp_path)
    for _, state, _ in resume_ranks(tmp_path, THREE, precision="float32"):
        assert float(state.loss_scale) == INITIAL_SCALE and int(state.good_steps) == 0


def test_without_a_checkpoint_all_begin_as_one_run(tmp_path, capsys):
    outcomes = resume_ranks(tmp_path, TWO)
    assert [step for step, _, _ in outcomes] == [0, 0] and outcomes[0][2] == outcomes[1][2]
    assert capsys.readouterr().out == f"no checkpoint in {tmp_path}: training begins at step 0\n"


def test_what_rank_0_refuses_stops_every_rank(tmp_path):
    save(tmp_path)
    first, second = resume_ranks(tmp_path, TWO, position={**POSITION, "seed": 4})
    assert isinstance(first, InputError) and "was trained with seed 3 and this run has 4" in str(first)
    assert str(second) == f"stopped because of rank 0: {first}"


def test_a_model_gets_the_weights_alone(tmp_path, monkeypatch):
    save(tmp_path)
    monkeypatch.setattr(resume, "table_views", lambda model, rank: model.views(rank))
    monkeypatch.setattr(resume, "dense_weights", lambda model: {"top/kernel": model.kernel})

    def run(comm):
        tables = RankState(comm.rank, THREE, filled=False).checkpoint_tables()
        weights = [table.empty("weights") for table in tables]
        model = types.SimpleNamespace(kernel=tf.Variable(tf.zeros((2, 2))), views=lambda rank: weights)
        open_checkpoints(tmp_path, comm).restore_weights(model)
        return model.kernel.numpy(), weights

    for rank, (kernel, weights) in enumerate(run_ranks(3, run)):
        assert np.all(kernel == (5.0 if rank == 0 else 0.0)) and len(weights) == (2 if rank == 0 else 1)
        expected = whole("sharded", 0).part(*THREE[rank]).values["weights"]
        np.testing.assert_array_equal(weights[0].values["weights"], expected)
    (tmp_path / "other").mkdir()
    refused = run_ranks(2, lambda comm: open_checkpoints(tmp_path / "other", comm).restore_weights(None))
    assert all("other: no checkpoint to evaluate" in str(error) for error in refused)


# Whether checkpoints can be written is found out before training.


def check_writable(directories, **options):
    """As ranks whose file systems differ; rank 1 finds what rank 0 made at a place of its own."""

    def run(comm):
        gather = comm.allgather_object

        def translated(value):
            here, there = map(str, (directories[0], directories[comm.rank]))
            return [type(v)(str(v).replace(here, there)) if "probe" in str(v) else v for v in gather(value)]

        comm.allgather_object = translated
        open_checkpoints(directories[comm.rank], comm).check_writable(**options)

    return run_ranks(len(directories), run)


def test_a_folder_that_a_writing_rank_does_not_see_is_found_before_training(tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    there.mkdir()
    assert check_writable([here, here], by_every_rank=True) == [None, None]
    assert check_writable([here, there]) == [None, None]  # rank 1 will not write
    first, second = check_writable([here, there], by_every_rank=True)
    assert f"{there}/.probe-" in str(second) and "rank 1 holds parts of tables and does not see this" in str(second)
    assert str(first).startswith("stopped because of rank 1: ")
    assert not list(here.iterdir()) and not list(there.iterdir())


def test_a_folder_that_one_rank_cannot_write_to_is_found_before_training(tmp_path, monkeypatch):
    opened = resume.tempfile.TemporaryFile

    def refuse(*, dir):
        if next(refusals):
            raise PermissionError(13, "Permission denied", str(dir))
        return opened(dir=dir)

    monkeypatch.setattr(resume.tempfile, "TemporaryFile", refuse)
    refusals = iter([False, True])
    errors = [str(error) for error in check_writable([tmp_path, tmp_path], by_every_rank=True)]
    said = f"{tmp_path}: checkpoints cannot be written there: Permission denied; name a writable --model_dir"
    assert said in errors and all(said in error for error in errors)
    assert not list(tmp_path.iterdir())
