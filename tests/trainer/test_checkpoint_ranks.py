"""Checkpoints that several ranks write: complete or absent, whoever fails, and on whatever file systems."""

import os
import pathlib
import resource
import signal
import subprocess
import sys
import textwrap

from checkpoint_states import (
    DIGEST,
    SPLITS,
    Generated,
    LostRank,
    dense_of,
    holds,
    names,
    run_ranks,
    save_ranks,
    specs,
    states,
    whole_table,
)

from data.errors import InputError
from trainer.checkpoint import State, latest, restore, save
from trainer.checkpoint_manifest import Manifest

ROOT = pathlib.Path(__file__).parents[2]


def halves(step, seed=0):
    return states([[whole_table(seed=seed).part(*piece)] for piece in SPLITS["2 row slices"]], step, seed)


def whole_state(step, seed=0):
    return State(step, [whole_table(seed=seed)], dense_of(seed), {"world_size": 2}, DIGEST)


def test_checkpoints_of_ranks_are_replaced_and_pruned(tmp_path):
    for step, seed in [(1, 0), (2, 1), (2, 2), (3, 3)]:
        paths = save_ranks(tmp_path, halves(step, seed), keep=2)
        assert paths == [tmp_path / f"step-{step:09d}"] * 2
        assert latest(tmp_path).run_id == "a"  # rank 0's
    assert names(tmp_path) == ["step-000000002", "step-000000003"]
    assert holds(tmp_path / "step-000000002", whole_state(2, 2)) and holds(
        tmp_path / "step-000000003", whole_state(3, 3)
    )


def test_an_owner_whose_disk_is_full_stops_all_and_nothing_half_written_is_left(tmp_path):
    save_ranks(tmp_path, halves(1))
    large = Generated(1 << 18, 8, 0, 1 << 18, 0, 8)  # 8 MiB
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))  # the kernel then refuses to write more
    try:
        errors = save_ranks(tmp_path, [halves(2)[0], State(2, [halves(2)[1].tables[0], large], {}, {}, DIGEST)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert all(isinstance(error, InputError) for error in errors)
    assert "cannot write the checkpoint of step 2: " in str(errors[1]) and ": free disk space" in str(errors[1])
    assert str(errors[0]) == f"stopped because of rank 1: {errors[1]}"
    assert names(tmp_path) == ["step-000000001"] and holds(latest(tmp_path), whole_state(1))


def test_rank_0_that_cannot_finish_stops_all_and_nothing_half_written_is_left(tmp_path, monkeypatch):
    save_ranks(tmp_path, halves(1))

    def refuse(self, path):
        raise OSError(28, "No space left on device", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(Manifest, "write", refuse)
        errors = save_ranks(tmp_path, halves(2))
    assert "manifest.json: cannot write the checkpoint of step 2: No space left on device" in str(errors[0])
    assert str(errors[1]) == f"stopped because of rank 0: {errors[0]}"
    (tmp_path / "file").write_text("")
    errors = save_ranks(tmp_path / "file", halves(2))
    assert all("/file: cannot write the checkpoint of step 2" in str(error) for error in errors)
    assert names(tmp_path) == ["file", "step-000000001"] and holds(latest(tmp_path), whole_state(1))


def test_an_owner_that_is_lost_leaves_nothing_half_written(tmp_path):
    save_ranks(tmp_path, halves(1))
    per_rank = halves(2)

    def read(array, start, stop):
        raise RuntimeError("gone")

    per_rank[1].tables[0].read = read
    lost = save_ranks(tmp_path, per_rank)
    assert isinstance(lost[0], LostRank) and str(lost[1]) == "gone"
    assert names(tmp_path) == ["step-000000001"] and holds(latest(tmp_path), whole_state(1))


def test_a_run_that_is_killed_while_an_owner_writes_leaves_the_previous_checkpoint(tmp_path):
    save_ranks(tmp_path, halves(1))
    code = """
        import os, signal, sys
        from checkpoint_states import save_ranks
        from test_checkpoint_ranks import halves

        per_rank = halves(2)
        table = per_rank[1].tables[0]
        read = table.read
        def kill(array, start, stop):
            if array == "last_step":
                os.kill(os.getpid(), signal.SIGKILL)
            return read(array, start, stop)
        table.read = kill
        save_ranks(sys.argv[1], per_rank)
    """
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{pathlib.Path(__file__).parent}", "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-c", textwrap.dedent(code), str(tmp_path)]
    assert subprocess.run(command, env=environment, timeout=120, check=False).returncode == -signal.SIGKILL
    assert [name.split("-")[0] for name in names(tmp_path)] == [".step", "step"]
    assert holds(latest(tmp_path), whole_state(1))
    save_ranks(tmp_path, halves(2))
    assert names(tmp_path) == ["step-000000001", "step-000000002"] and holds(latest(tmp_path), whole_state(2))


# File systems that not all ranks see.


def on_another_machine(comm, here, there):
    """The communicator of a rank that finds at `there` what the others find at `here`."""
    gather = comm.allgather_object

    def translated(value):
        found = gather(value)
        for each in found:
            if hasattr(each, "path"):
                object.__setattr__(each, "path", there / each.path.relative_to(here))
        return found

    comm.allgather_object = translated
    return comm


def with_rank_1_elsewhere(here, there, action):
    return run_ranks(2, lambda comm: action(on_another_machine(comm, here, there) if comm.rank == 1 else comm))


def test_an_owner_that_does_not_see_the_folder_stops_all_with_the_remedy(tmp_path):
    here, there = tmp_path / "a", tmp_path / "b"
    there.mkdir()
    per_rank = halves(1)
    errors = with_rank_1_elsewhere(here, there, lambda c: save(here, per_rank[c.rank], run_id="a", ranks=c))
    assert isinstance(errors[1], InputError) and "\n" not in str(errors[1])
    assert str(errors[1]).startswith(f"{there}/.step-000000001.partial-")
    assert "rank 1 holds parts of tables and does not see this folder of rank 0: name a --model_dir" in str(errors[1])
    assert str(errors[0]) == f"stopped because of rank 1: {errors[1]}"
    assert names(here) == [] and names(there) == []


def test_a_reader_that_does_not_see_the_checkpoint_stops_all_with_the_remedy(tmp_path):
    here, there = tmp_path / "a", tmp_path / "b"
    there.mkdir()
    save(here, whole_state(0), run_id="a")
    manifest = latest(here)

    def read(comm):
        own = [whole_table().part(*SPLITS["2 row slices"][comm.rank])]
        return restore(manifest, tables=own, dense=specs(dense_of()), spec_digest=DIGEST, ranks=comm)

    errors = with_rank_1_elsewhere(here, there, read)
    assert "does not see this folder of rank 0" in str(errors[1]) and str(errors[1]) in str(errors[0])
    # One of that name, but of another run.
    save(there, whole_state(0), run_id="b")
    errors = with_rank_1_elsewhere(here, there, read)
    assert "rank 1 sees the checkpoint of run b there and rank 0 that of run a" in str(errors[1])
    assert str(errors[1]) in str(errors[0])


def test_a_rank_without_tables_of_its_own_needs_no_shared_file_system(tmp_path):
    here, there = tmp_path / "a", tmp_path / "b"
    whole = whole_table()
    saves = states([[whole], []])
    outcomes = with_rank_1_elsewhere(here, there, lambda c: save(here, saves[c.rank], run_id="a", ranks=c))
    assert outcomes[0] == here / "step-000000001"
    found = whole.empty()

    def read(comm):
        own = [found] if comm.rank == 0 else []
        return restore(latest(here), tables=own, dense=specs(dense_of()), spec_digest=DIGEST, ranks=comm)

    assert [outcome[2] for outcome in with_rank_1_elsewhere(here, there, read)] == [1, 1]
    assert found.same(whole) and not there.exists()
