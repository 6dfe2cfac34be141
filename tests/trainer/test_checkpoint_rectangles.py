"""Tables that are written in rectangles by several owners and read in others."""

import shutil

import numpy as np
import pytest
from checkpoint_states import (
    DIGEST,
    SPLITS,
    Generated,
    dense_of,
    holds,
    names,
    restore_ranks,
    save_ranks,
    specs,
    states,
    whole_table,
)

from data.errors import InputError
from trainer import checkpoint_arrays
from trainer.checkpoint import State, restore, save
from trainer.checkpoint_manifest import MANIFEST
from trainer.checkpoint_tables import write_pieces


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """For each split, a checkpoint whose piece r was written by rank r, and a small table that rank 0 has whole."""
    folder = tmp_path_factory.mktemp("saved")
    found = {}
    for number, (split, pieces) in enumerate(SPLITS.items()):
        parts = [[whole_table().part(*piece)] for piece in pieces]
        parts[0].append(whole_table("small", seed=1))
        paths = save_ranks(folder, states(parts, step=number), keep=9, row_block=2)
        assert len(set(paths)) == 1
        found[split] = paths[0]
    return found


@pytest.mark.parametrize("after", SPLITS)
@pytest.mark.parametrize("before", SPLITS)
def test_every_split_is_restored_at_every_other(saved, before, after):
    wanted = [[whole_table().part(*piece)] for piece in SPLITS[after]]
    wanted[-1].append(whole_table("small", seed=1))
    tables = [[table.empty() for table in held] for held in wanted]
    outcomes = restore_ranks(saved[before], tables, row_block=2)
    for rank, outcome in enumerate(outcomes):
        dense, scalars, step = outcome
        assert (scalars, step) == ({"world_size": len(SPLITS[before])}, list(SPLITS).index(before))
        assert all(table.same(other) for table, other in zip(tables[rank], wanted[rank], strict=True))
        assert list(dense) == (["top/kernel"] if rank == 0 else [])
        # Every value once: what pieces side by side have in common is read from one.
        for table in tables[rank]:
            rows = sum(stop - start for array, start, stop, _ in table.written if array == "last_step")
            assert rows == table.stop_row - table.first_row
    np.testing.assert_array_equal(outcomes[0][0]["top/kernel"], dense_of()["top/kernel"])


def test_one_process_restores_what_ranks_wrote_and_ranks_what_one_process_wrote(saved, tmp_path):
    whole = [whole_table(), whole_table("small", seed=1)]
    state = State(list(SPLITS).index("grid"), whole, dense_of(), {"world_size": 4}, DIGEST)
    assert holds(saved["grid"], state)
    parts = [[whole[0].part(*piece).empty()] for piece in SPLITS["columns"]]
    parts[1].append(whole[1].empty())
    assert not any(isinstance(found, Exception) for found in restore_ranks(save(tmp_path, state, run_id="a"), parts))
    for held, piece in zip(parts, SPLITS["columns"], strict=True):
        assert held[0].same(whole[0].part(*piece))


def test_a_rank_may_hold_several_rectangles_of_a_table_or_none(tmp_path):
    whole = whole_table()
    grid = SPLITS["grid"]
    written = states([[], [whole.part(*grid[0]), whole.part(*grid[3])], [whole.part(*grid[1]), whole.part(*grid[2])]])
    path = save_ranks(tmp_path, written)[0]
    read = [[whole.part(*grid[3]).empty(), whole.part(*grid[1]).empty(), whole.part(5, 5, 0, 6)], []]
    assert restore_ranks(path, read)[1] == ({}, {"world_size": 3}, 1)
    assert read[0][0].same(whole.part(*grid[3])) and read[0][1].same(whole.part(*grid[1]))
    assert not read[0][2].written


def test_each_owner_has_a_file_of_its_own_that_numpy_reads(saved):
    whole = whole_table()
    name = "table.deep%2Fad%20id%20%C3%BC"
    parts = ["r0-4.c0-6", "r4-11.c0-2", "r4-9.c2-6", "r9-11.c2-6"]
    assert names(saved["uneven"]) == [
        "dense.npz",
        MANIFEST,
        *(f"{name}+{part}.npz" for part in parts),
        "table.small.npz",
    ]
    with np.load(saved["uneven"] / f"{name}+r4-9.c2-6.npz") as archive:
        assert sorted(archive.files) == ["last_step", "rms", "weights"]
        np.testing.assert_array_equal(archive["weights"], whole.values["weights"][4:9, 2:6])
        np.testing.assert_array_equal(archive["last_step"], whole.values["last_step"][4:9])
    assert f"{name}.npz" in names(saved["whole"]) and "table.small.npz" in names(saved["uneven"])


def test_a_part_is_not_called_as_a_whole_table_of_another_name_is(tmp_path):
    tables = [whole_table("x").part(*piece) for piece in SPLITS["columns"]]
    for name in ("x+r0-11.c0-1", "x.r0-11.c0-1", "x+r0-11.c1-4.npz"):
        tables.append(whole_table(name))
    path = save(tmp_path, State(1, tables, {}, {}, DIGEST), run_id="a")
    assert len(names(path)) == len(tables) + 2


def test_evaluation_reads_the_weights_alone_in_parts(saved):
    wanted = [[whole_table().part(*piece)] for piece in SPLITS["grid"]]
    wanted[0].append(whole_table("small", seed=1))
    tables = [[table.empty("weights") for table in held] for held in wanted]
    assert restore_ranks(saved["columns"], tables, partial=True)[3] == ({}, {"world_size": 3}, 3)
    for held, others in zip(tables, wanted, strict=True):
        for table, other in zip(held, others, strict=True):
            assert table.values["weights"].tobytes() == other.values["weights"].tobytes()
    refused = restore_ranks(saved["columns"], tables)
    assert "made with other optimizer slots" in str(refused[0])
    assert all(str(refused[0]) in str(error) for error in refused)


def test_parts_pass_through_memory_in_blocks(tmp_path):
    rows, columns = 3 << 17, 16  # 24 MiB of weights; a block is 4 MiB
    written = [Generated(rows, columns, 0, rows, first, first + 8) for first in (0, 8)]
    path = save(tmp_path, State(1, written, {}, {}, DIGEST), run_id="a")
    sizes = [(path / file).stat().st_size for file in names(path) if file.startswith("table")]
    assert len(sizes) == 2 and min(sizes) > 13 << 20
    read = [Generated(rows, columns, start, start + rows // 3, 4, 12) for start in range(0, rows, rows // 3)]
    read.append(Generated(rows, columns, 0, rows, 12, 16))
    read.append(Generated(rows, columns, 0, rows, 0, 4))
    restore(path, tables=read, dense={}, spec_digest=DIGEST)
    assert sum(table.values_written for table in read) == rows * columns + 3 * rows
    assert not any(table.errors for table in read)
    for table in written + read:
        assert 0 < table.largest <= checkpoint_arrays.BLOCK_BYTES


# What is refused.


def test_a_table_that_the_ranks_do_not_hold_exactly_once_is_a_bug_found_before_anything_is_written(tmp_path):
    whole = whole_table()
    for parts, said in [
        ([[whole.part(0, 5, 0, 6)], [whole.part(6, 11, 0, 6)]], "60 of 66 values are there"),
        ([[whole], [whole]], "overlap"),
        ([[whole.part(0, 11, 0, 4)], [whole.part(0, 11, 3, 6)]], "overlap"),
        ([[whole.part(0, 5, 0, 6)], []], "30 of 66 values"),
    ]:
        for error in save_ranks(tmp_path, states(parts)):
            assert isinstance(error, ValueError) and said in str(error)
    other = whole_table()
    other.rows = 12
    for error in save_ranks(tmp_path, states([[whole], [other]])):
        assert isinstance(error, ValueError) and "table 'deep/ad id ü' is (12, " in str(error)
    assert names(tmp_path) == []


def damage_all(path, action):
    """The folder with each file of table `deep` damaged in turn."""
    for file in sorted(path.glob("table.deep*")):
        content = file.read_bytes()
        action(file)
        yield file
        file.write_bytes(content)


@pytest.mark.parametrize(
    ("action", "said"),
    [
        (lambda file: file.unlink(), "No such file"),
        (lambda file: file.write_bytes(file.read_bytes()[:-1]), "bytes, recorded"),
    ],
    ids=["missing", "truncated"],
)
def test_a_damaged_piece_is_found_on_every_rank_before_the_first_row_is_written(saved, tmp_path, action, said):
    path = tmp_path / "copy"
    shutil.copytree(saved["grid"], path)
    for file in damage_all(path, action):
        tables = [[whole_table().part(*piece).empty()] for piece in SPLITS["2 row slices"]]
        tables[0].append(whole_table("small").empty())
        errors = restore_ranks(path, tables)
        for error in errors:
            assert isinstance(error, InputError) and "\n" not in str(error)
            assert str(file) in str(error) and said in str(error) and f"delete the folder {path}" in str(error)
        assert not any(table.written for held in tables for table in held)


def test_an_altered_value_is_found_by_whoever_reads_the_piece_and_reported_to_all(saved, tmp_path):
    path = tmp_path / "copy"
    shutil.copytree(saved["2 row slices"], path)
    file = path / "table.deep%2Fad%20id%20%C3%BC+r5-11.c0-6.npz"
    content = bytearray(file.read_bytes())
    content[content.index(whole_table().values["rms"][5:].tobytes()) + 70] ^= 1  # row 7
    file.write_bytes(content)
    for wanted in ([(0, 8, 0, 6), (8, 11, 0, 6)], SPLITS["columns"]):  # row 7 is another's, or only one of the columns'
        tables = [[whole_table().part(*piece).empty()] for piece in wanted]
        tables[0].append(whole_table("small").empty())
        for error in restore_ranks(path, tables):
            assert isinstance(error, InputError) and str(file) in str(error) and "Bad CRC-32" in str(error)


def test_a_piece_that_nobody_here_needs_is_not_read(saved, tmp_path):
    path = tmp_path / "copy"
    shutil.copytree(saved["2 row slices"], path)
    (path / "table.deep%2Fad%20id%20%C3%BC+r5-11.c0-6.npz").unlink()
    table, small = whole_table().part(1, 5, 2, 4), whole_table("small", seed=1)
    found = [table.empty(), small.empty()]
    restore(path, tables=found, dense=specs(dense_of()), spec_digest=DIGEST)
    assert found[0].same(table) and found[1].same(small)


def test_a_mismatch_is_reported_on_every_rank(saved):
    whole = whole_table()
    missing = restore_ranks(saved["grid"], [[whole.part(0, 5, 0, 6)], [whole.part(5, 11, 0, 6)]])
    assert "table 'small' of the checkpoint is not in the model" in str(missing[0])
    unknown = restore_ranks(saved["grid"], [[whole, whole_table("small")], [whole_table("other")]])
    assert "table 'other' of the model is not in the checkpoint" in str(unknown[0])
    for errors in (missing, unknown):
        assert str(errors[1]) == f"stopped because of rank 0: {errors[0]}"


def test_owners_write_without_a_communicator_too(tmp_path):
    tables = [whole_table().part(*piece) for piece in SPLITS["2 row slices"]]
    written = [write_pieces(tmp_path, [table], row_block=3) for table in tables]
    assert [(name, piece.first_row, piece.stop_row, piece.file.name) for ((name, piece),) in written] == [
        (tables[0].name, 0, 5, "table.deep%2Fad%20id%20%C3%BC+r0-5.c0-6.npz"),
        (tables[0].name, 5, 11, "table.deep%2Fad%20id%20%C3%BC+r5-11.c0-6.npz"),
    ]
    assert MANIFEST not in names(tmp_path)
