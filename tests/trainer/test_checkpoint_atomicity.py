import errno
import fcntl
import os
import pathlib
import resource
import shutil
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from checkpoint_states import DIGEST, ArrayTable, holds, make_state, names

from data.errors import InputError
from trainer import checkpoint_folders
from trainer.checkpoint import State, latest, save
from trainer.checkpoint_manifest import MANIFEST

ROOT = pathlib.Path(__file__).parents[2]


def make_small_state(step, seed):
    state = make_state(step, seed)
    del state.tables[1:]
    return state


KILLED_SAVES = """
    import os, signal, sys
    from trainer.checkpoint import save
    from test_checkpoint_atomicity import make_small_state

    directory, run_id, step, moments = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    left = 0
    def count(event, arguments):
        # Every access to the file system passes here just before it happens.
        global left
        if event in ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "fcntl.flock"):
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(count)
    for moment in range(1, moments):
        child = os.fork()
        if child == 0:
            left = moment
            save(f"{directory}/{moment}", make_small_state(step, seed=2), run_id=run_id, keep=1)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):
            print(moment)  # the first save that ended
            sys.exit(os.waitstatus_to_exitcode(status))
"""


def run_python(code, *arguments):
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{pathlib.Path(__file__).parent}", "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("step", [1, 2])
def test_a_save_that_is_killed_at_any_moment_leaves_a_complete_checkpoint(tmp_path, step):
    """The process is killed before its first, second, ... access to the file system; with step 1, it replaces one."""
    moments = 80
    before, after = make_small_state(1, seed=1), make_small_state(step, seed=2)
    save(tmp_path / "1", make_small_state(7, seed=3), run_id="b")
    save(tmp_path / "1", before, run_id="a")
    for moment in range(2, moments):
        shutil.copytree(tmp_path / "1", tmp_path / str(moment))
    result = run_python(KILLED_SAVES, tmp_path, "a", step, moments)
    assert result.returncode == 0, result.stderr
    ended = int(result.stdout)
    assert 15 < ended < moments
    outcomes = []
    for moment in range(1, ended + 1):
        directory = tmp_path / str(moment)
        for manifest in checkpoint_folders.checkpoints(directory):
            if manifest.run_id == "a":
                held = "before" if holds(manifest, before) else "after"
                assert held == "before" or holds(manifest, after)
        assert latest(directory).run_id == "a"
        outcomes.append("before" if holds(latest(directory), before) else "after")
        last = make_small_state(3, seed=4)
        save(directory, last, run_id="a", keep=1)
        assert names(directory) == ["step-000000003", "step-000000007"]
        assert holds(latest(directory), last)
    assert outcomes == sorted(outcomes, reverse=True) and set(outcomes) == {"before", "after"}


def test_a_save_that_is_killed_while_a_table_is_read_leaves_the_previous_checkpoint(tmp_path):
    state = make_state(1)
    save(tmp_path, state, run_id="a")
    code = """
        import os, signal, sys
        from trainer.checkpoint import save
        from checkpoint_states import make_state

        state = make_state(2)
        table = state.tables[0]
        read = table.read
        def kill(array, start, stop):
            if start == 4:
                os.kill(os.getpid(), signal.SIGKILL)
            return read(array, start, stop)
        table.read = kill
        save(sys.argv[1], state, run_id="a", row_block=2)
    """
    assert run_python(code, tmp_path).returncode == -signal.SIGKILL
    assert [name.split("-")[0] for name in names(tmp_path)] == [".step", "step"]
    assert holds(latest(tmp_path), state)
    save(tmp_path, make_state(2), run_id="a")
    assert names(tmp_path) == ["step-000000001", "step-000000002"]


def test_the_partial_folder_of_a_living_writer_is_left_alone(tmp_path):
    living = tmp_path / ".step-000000007.partial-1-1"
    living.mkdir()
    with open(tmp_path / ".lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        save(tmp_path, make_state(1), run_id="a")
        assert living.exists()
    save(tmp_path, make_state(2), run_id="a")
    assert names(tmp_path) == ["step-000000001", "step-000000002"]


def test_two_runs_that_save_at_the_same_time_both_succeed(tmp_path):
    """The second saves, step and all, while the first reads its table."""
    first, second = make_state(1, seed=1), make_state(1, seed=2)
    read = first.tables[0].read

    def interrupted(array, start, stop):
        if (array, start) == ("rms", 2):
            save(tmp_path, second, run_id="b", keep=1)
        return read(array, start, stop)

    first.tables[0].read = interrupted
    path = save(tmp_path, first, run_id="a", keep=1, row_block=2)
    assert len(names(tmp_path)) == 2
    runs = {manifest.run_id: manifest for manifest in checkpoint_folders.checkpoints(tmp_path)}
    assert runs["a"].path == path and holds(path, first) and holds(runs["b"], second)


def test_a_file_system_without_locks_is_saved_to(tmp_path, monkeypatch):
    def unsupported(file, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(checkpoint_folders.fcntl, "flock", unsupported)
    (tmp_path / ".step-000000007.partial-1-1").mkdir()  # whose it is cannot be known
    state = make_state()
    assert holds(save(tmp_path, state, run_id="a"), state)
    assert len(names(tmp_path)) == 2


def test_a_full_disk_is_reported_and_nothing_half_written_is_left(tmp_path):
    state = make_state(1)
    save(tmp_path, state, run_id="a")
    large = ArrayTable("large", weights=np.ones((1000, 1000), "f4"))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))  # the kernel then refuses to write more
    try:
        with pytest.raises(InputError, match=f"{tmp_path}.*cannot write the checkpoint of step 2: .*: free disk space"):
            save(tmp_path, State(2, [*state.tables, large], state.dense, {}, DIGEST), run_id="a")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert names(tmp_path) == ["step-000000001"] and holds(latest(tmp_path), state)


def test_a_folder_that_cannot_be_made_is_reported(tmp_path):
    (tmp_path / "file").write_text("")
    for directory in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(InputError, match=rf"{directory}: cannot write the checkpoint of step 1: .*--model_dir"):
            save(directory, make_state(), run_id="a")


def test_an_error_of_a_table_passes_through_and_leaves_nothing(tmp_path):
    state = make_state()

    def read(array, start, stop):
        raise KeyboardInterrupt

    state.tables[1].read = state.tables[0].read = read
    with pytest.raises(KeyboardInterrupt):
        save(tmp_path, state, run_id="a")
    assert names(tmp_path) == []


def test_what_no_checkpoint_can_hold_is_refused_before_anything_is_written(tmp_path):
    state = make_state()
    with pytest.raises(InputError, match="checkpoints to keep: 0"):
        save(tmp_path, state, run_id="a", keep=0)
    with pytest.raises(ValueError, match=r"table 'ad/id ü' of 7 rows is not held exactly once: .* overlap"):
        save(tmp_path, State(1, state.tables * 2, {}, {}, DIGEST), run_id="a")
    odd = make_state(loss_scale=np.float32(1))
    odd.tables[0].read = None  # may not even be called
    with pytest.raises(TypeError, match="float32 is not JSON serializable"):
        save(tmp_path, odd, run_id="a")
    assert names(tmp_path) == []


def test_files_are_on_the_disk_before_the_folder_gets_its_name(tmp_path, monkeypatch):
    events = []
    fsync, rename = os.fsync, os.rename

    def note_fsync(descriptor):
        events.append(pathlib.Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        fsync(descriptor)

    def note_rename(source, target):
        events.append(("rename", pathlib.Path(target).name))
        rename(source, target)

    monkeypatch.setattr(checkpoint_folders.os, "fsync", note_fsync)
    monkeypatch.setattr(checkpoint_folders.os, "rename", note_rename)
    path = save(tmp_path, make_state(), run_id="a")
    data = [name for name in names(path) if name.endswith(".npz")]
    assert sorted(events[: len(data)]) == data
    assert events[len(data)] == MANIFEST
    assert events[len(data) + 1].startswith(".step-000000001.partial-")
    assert events[len(data) + 2 :] == [("rename", "step-000000001"), tmp_path.name]
