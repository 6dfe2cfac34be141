import shutil
import tracemalloc

import numpy as np
import pytest
from checkpoint_states import DIGEST, ArrayTable, holds, make_state, names, specs

from data.errors import InputError
from trainer import checkpoint_folders
from trainer.checkpoint import State, latest, restore, save
from trainer.checkpoint_manifest import MANIFEST


@pytest.mark.parametrize("row_block", [None, 1, 3])
def test_a_state_comes_back_bit_for_bit(tmp_path, row_block):
    state = make_state(step=123)
    path = save(tmp_path / "new" / "dir", state, run_id="a", row_block=row_block)
    assert path == tmp_path / "new" / "dir" / "step-000000123"
    assert names(path) == [
        "dense.npz", MANIFEST, "table.ad%2Fid%20%C3%BC.npz", "table.narrow.npz",
    ]  # fmt: skip
    assert holds(path, state) and holds(str(path), state) and holds(latest(path.parent), state)
    assert not holds(path, make_state(step=123, seed=1))
    found = latest(path.parent)
    assert (found.step, found.run_id, found.spec_digest, found.scalars) == (123, "a", DIGEST, state.scalars)


def test_numpy_reads_the_same_numbers(tmp_path):
    state = make_state()
    path = save(tmp_path, state, run_id="a", row_block=2)
    with np.load(path / "table.ad%2Fid%20%C3%BC.npz") as archive:
        assert sorted(archive.files) == ["last_step", "rms", "weights"]
        for name, values in state.tables[0].values.items():
            np.testing.assert_array_equal(archive[name], values)
    with np.load(path / "dense.npz") as archive:
        np.testing.assert_array_equal(archive["top/kernel"], state.dense["top/kernel"])


def test_tables_pass_through_memory_in_blocks(tmp_path):
    class Generated(ArrayTable):
        """40 MiB whose values are a function of the row."""

        def __init__(self):
            self.name, self.rows, self.errors = "big", 10 << 18, 0
            self.first_row, self.stop_row, self.first_column, self.stop_column = 0, self.rows, 0, 4
            self.arrays = {"weights": ((4,), np.dtype("f4"))}

        def read(self, array, start, stop):
            return np.arange(start * 4, stop * 4, dtype="i4").view("f4").reshape(-1, 4)

        def write(self, array, start, stop, values, first_column):
            self.errors += values.tobytes() != self.read(array, start, stop).tobytes()

    table = Generated()
    state = State(1, [table], {}, {}, DIGEST)
    tracemalloc.start()
    try:
        path = save(tmp_path, state, run_id="a")
        saving = tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()
        restore(path, tables=[table], dense={}, spec_digest=DIGEST)
        restoring = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (path / "table.big.npz").stat().st_size > 40 << 20
    assert saving < 14 << 20 and restoring < 20 << 20
    assert table.errors == 0


def test_the_newest_is_by_creation_and_other_runs_are_left_alone(tmp_path):
    assert latest(tmp_path / "absent") is None and latest(tmp_path) is None
    states = {}
    for number, (run, step) in enumerate([("a", 1), ("b", 9), ("a", 2), ("b", 10), ("a", 3), ("b", 11), ("a", 4)]):
        states[run, step] = make_state(step, seed=number)
        path = save(tmp_path, states[run, step], run_id=run, keep=2)
        assert latest(tmp_path).path == path
    assert names(tmp_path) == [f"step-{step:09d}" for step in (3, 4, 10, 11)]
    assert latest(tmp_path).step == 4
    for run, step in [("a", 3), ("a", 4), ("b", 10), ("b", 11)]:
        assert holds(tmp_path / f"step-{step:09d}", states[run, step])


def test_a_clock_that_is_set_back_does_not_delete_the_newest(tmp_path, monkeypatch):
    for step, now in [(1, 5000), (2, 3000), (3, 10)]:
        monkeypatch.setattr(checkpoint_folders.time, "time_ns", lambda now=now: now)
        save(tmp_path, make_state(step), run_id="a", keep=2)
    assert latest(tmp_path).step == 3 and names(tmp_path) == ["step-000000002", "step-000000003"]


def test_the_same_step_of_a_run_is_replaced_and_of_another_run_kept(tmp_path):
    first, second, third = (make_state(5, seed) for seed in range(3))
    save(tmp_path, first, run_id="a")
    other = save(tmp_path, second, run_id="b/1")
    assert other.name == "step-000000005-b%2F1"
    save(tmp_path, third, run_id="a")
    assert save(tmp_path, first, run_id="b/1") == other
    assert names(tmp_path) == ["step-000000005", "step-000000005-b%2F1"]
    assert holds(tmp_path / "step-000000005", third) and holds(other, first)


def test_unfinished_folders_are_ignored_and_a_damaged_manifest_is_reported(tmp_path):
    state = make_state(1)
    save(tmp_path, state, run_id="a")
    path = save(tmp_path, make_state(2), run_id="a")
    manifest = (path / MANIFEST).read_bytes()
    (path / MANIFEST).unlink()
    assert holds(latest(tmp_path), state)
    with pytest.raises(InputError, match=r"no complete checkpoint here, manifest\.json is missing"):
        restore(path, tables=[], dense={}, spec_digest=DIGEST)
    (path / MANIFEST).write_bytes(manifest[:-30])
    with pytest.raises(InputError, match=f"delete the folder {path} to use the checkpoint before it"):
        latest(tmp_path)
    save(tmp_path, make_state(3), run_id="a", keep=1)  # is not stopped by it, and leaves it to the user
    assert names(tmp_path) == ["step-000000002", "step-000000003"]


DAMAGE = {
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"\0"),
    "missing": lambda path: path.unlink(),
    "of another checkpoint": lambda path: shutil.copy(path.parents[1] / "step-000000009" / path.name, path),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
@pytest.mark.parametrize("name", ["dense.npz", "table.narrow.npz"])
def test_a_damaged_file_is_found_before_the_first_row_is_written(tmp_path, damage, name):
    state = make_state()
    save(tmp_path, make_state(9, seed=9), run_id="b")
    path = save(tmp_path, state, run_id="a")
    damage(path / name)
    tables = [table.empty() for table in state.tables]
    with pytest.raises(InputError) as caught:
        restore(path, tables=tables, dense=specs(state.dense), spec_digest=DIGEST)
    assert str(path / name) in str(caught.value) and f"delete the folder {path}" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not any(table.written for table in tables)


def test_a_mismatch_is_found_before_the_first_row_is_written(tmp_path):
    state = make_state()
    path = save(tmp_path, state, run_id="a")
    tables = [table.empty() for table in state.tables]
    tables[-1] = ArrayTable("narrow", weights=np.zeros((6, 1), "f2"), seen=np.zeros(6, bool))
    with pytest.raises(InputError, match="table 'narrow' has 5 rows in the checkpoint and 6 in the model"):
        restore(path, tables=tables, dense=specs(state.dense), spec_digest=DIGEST)
    assert not any(table.written for table in tables)


def test_an_altered_value_is_found(tmp_path):
    state = make_state()
    path = save(tmp_path, state, run_id="a")
    file = path / "table.ad%2Fid%20%C3%BC.npz"
    content = file.read_bytes()
    position = content.index(state.tables[0].values["rms"].tobytes()) + 50
    file.write_bytes(content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :])
    with pytest.raises(InputError, match=r"damaged.*Bad CRC-32.*delete the folder"):
        holds(path, state)


def test_evaluation_reads_the_weights_alone(tmp_path):
    state = make_state()
    path = save(tmp_path, state, run_id="a")
    tables = [table.empty("weights") for table in state.tables]
    wanted = specs({"top/kernel": state.dense["top/kernel"]})
    dense, _, _ = restore(path, tables=tables, dense=wanted, spec_digest=DIGEST, partial=True)
    assert list(dense) == ["top/kernel"]
    for table, stored in zip(tables, state.tables, strict=True):
        assert table.values["weights"].tobytes() == stored.values["weights"].tobytes()
    with pytest.raises(InputError, match="made with other optimizer slots"):
        restore(path, tables=tables, dense=specs(state.dense), spec_digest=DIGEST)
