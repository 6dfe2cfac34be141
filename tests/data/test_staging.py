import errno
import multiprocessing
import os

import pytest

from data.errors import InputError
from data.staging import check_output, staged_folder


def fill(folder, text="new"):
    with open(os.path.join(folder, "spec"), "w") as file:
        file.write(text)


def names(folder):
    return sorted(os.listdir(folder))


def test_the_folder_appears_at_the_end(tmp_path):
    output = tmp_path / "out"
    with staged_folder(str(output), marker="spec") as folder:
        assert folder == f"{output}.partial" and os.listdir(folder) == []
        fill(folder)
        assert not output.exists()
    assert names(tmp_path) == ["out"] and (output / "spec").read_text() == "new"


def test_an_empty_folder_is_taken(tmp_path):
    (tmp_path / "out").mkdir()
    with staged_folder(str(tmp_path / "out"), marker="spec") as folder:
        fill(folder)
    assert names(tmp_path) == ["out"] and names(tmp_path / "out") == ["spec"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit, InputError("no")])
def test_nothing_is_left_by_a_block_that_fails(tmp_path, error):
    with (
        pytest.raises(error if isinstance(error, type) else InputError),
        staged_folder(str(tmp_path / "out"), marker="spec") as folder,
    ):
        fill(folder)
        raise error
    assert names(tmp_path) == []


def test_errors_of_the_disk_are_the_users(tmp_path):
    with (
        pytest.raises(InputError, match=r"x: cannot write .*out: No space left on device; make room"),
        staged_folder(str(tmp_path / "out"), marker="spec"),
    ):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "x")
    with (
        pytest.raises(InputError, match=r"no: cannot write .*out: No such file or directory"),
        staged_folder(str(tmp_path / "out"), marker="spec"),
        open(tmp_path / "no"),
    ):
        pass
    assert names(tmp_path) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot write"), staged_folder(str(tmp_path / "file/out"), marker="spec"):
        pass


def test_other_data_is_refused_and_stays(tmp_path):
    fill(tmp_path, "old")
    for overwrite, marker, message in (
        (False, "spec", r"holds other data \(spec, 1 entries in all\); .* --overwrite"),
        (True, "another", "holds spec and no another, so it is no dataset"),
    ):
        with pytest.raises(InputError, match=message), staged_folder(str(tmp_path), overwrite=overwrite, marker=marker):
            pytest.fail("entered")
    with pytest.raises(InputError, match="is not a folder"):
        check_output(str(tmp_path / "spec"), overwrite=True, marker="spec")
    assert names(tmp_path) == ["spec"] and (tmp_path / "spec").read_text() == "old"


def test_overwriting_happens_at_the_end(tmp_path):
    output = tmp_path / "out"
    output.mkdir()
    fill(output, "old")
    with staged_folder(str(output), overwrite=True, marker="spec") as folder:
        fill(folder)
        assert (output / "spec").read_text() == "old"
    assert names(tmp_path) == ["out"] and (output / "spec").read_text() == "new"
    with pytest.raises(ValueError), staged_folder(str(output), overwrite=True, marker="spec") as folder:
        raise ValueError
    assert names(tmp_path) == ["out"] and (output / "spec").read_text() == "new"


OLD = "out.partial.replaced"


def test_where_the_new_dataset_cannot_take_its_place_the_old_one_keeps_it(tmp_path, monkeypatch):
    output = tmp_path / "out"
    output.mkdir()
    fill(output, "old")
    rename = os.rename

    def failing(source, target):
        if source.endswith(".partial"):
            raise OSError(errno.EIO, os.strerror(errno.EIO), source)
        rename(source, target)

    monkeypatch.setattr(os, "rename", failing)
    with (
        pytest.raises(InputError, match=r"cannot write .*out: Input/output error"),
        staged_folder(str(output), overwrite=True, marker="spec") as folder,
    ):
        fill(folder)
    assert names(tmp_path) == ["out"] and (output / "spec").read_text() == "old"


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_dataset_whose_replacement_was_killed_is_put_back(tmp_path, overwrite):
    (tmp_path / OLD).mkdir()
    fill(tmp_path / OLD, "old")
    output = tmp_path / "out"
    if overwrite:
        with staged_folder(str(output), overwrite=True, marker="spec") as folder:
            assert (output / "spec").read_text() == "old"
            fill(folder)
    else:
        with pytest.raises(InputError, match="holds other data"), staged_folder(str(output), marker="spec"):
            pytest.fail("entered")
    assert names(tmp_path) == ["out"] and (output / "spec").read_text() == ("new" if overwrite else "old")


def test_what_is_left_of_a_replaced_dataset_is_removed_and_nothing_else(tmp_path):
    output = tmp_path / "out"
    for folder in (output, tmp_path / OLD):
        folder.mkdir()
        fill(folder, "old")
    with staged_folder(str(output), overwrite=True, marker="spec") as folder:
        assert names(tmp_path) == ["out", "out.partial"]
        fill(folder)
    (tmp_path / OLD).mkdir()
    (tmp_path / OLD / "letter").write_text("dear")
    with (
        pytest.raises(InputError, match=rf"{OLD}: holds letter and no spec, so it is left alone; move it away"),
        staged_folder(str(output), overwrite=True, marker="spec"),
    ):
        pytest.fail("entered")
    assert names(tmp_path) == ["out", OLD] and (tmp_path / OLD / "letter").read_text() == "dear"


def test_the_marker_of_a_replaced_dataset_is_removed_last(tmp_path, monkeypatch):
    output = tmp_path / "out"
    (output / "zz").mkdir(parents=True)
    for name in ("a", "spec", "z"):
        (output / name).write_text("old")
    removed, remove = [], os.remove
    monkeypatch.setattr(os, "remove", lambda path: (removed.append(os.path.basename(path)), remove(path)))
    with staged_folder(str(output), overwrite=True, marker="spec") as folder:
        fill(folder)
    assert removed == ["a", "z", "spec"] and names(tmp_path) == ["out"]


def test_a_folder_that_another_run_makes_after_the_rename_is_not_touched(tmp_path, monkeypatch):
    """Its name is the one that our folder has just given up."""
    output = tmp_path / "out"
    output.mkdir()
    fill(output, "old")
    rmdir = os.rmdir

    def busy(path, **options):
        (tmp_path / "out.partial").mkdir()
        fill(tmp_path / "out.partial", "another's")
        rmdir(path, **options)
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), path)

    monkeypatch.setattr(os, "rmdir", busy)
    with staged_folder(str(output), overwrite=True, marker="spec") as folder:
        fill(folder)
    assert (output / "spec").read_text() == "new"
    assert (tmp_path / "out.partial" / "spec").read_text() == "another's"


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "disk" / "real").mkdir(parents=True)
    fill(tmp_path / "disk" / "real", "old")
    (tmp_path / "out").symlink_to(tmp_path / "disk" / "real")
    with staged_folder(str(tmp_path / "out"), overwrite=True, marker="spec") as folder:
        assert folder == str(tmp_path / "disk" / "real.partial")
        fill(folder)
    assert (tmp_path / "out").is_symlink() and (tmp_path / "out" / "spec").read_text() == "new"
    assert names(tmp_path / "disk") == ["real"]


def test_where_a_disk_is_mounted_nothing_can_be_renamed(tmp_path, monkeypatch):
    monkeypatch.setattr(os.path, "ismount", lambda path: path == str(tmp_path / "out"))
    (tmp_path / "out").mkdir()
    with (
        pytest.raises(InputError, match=r"out: a disk is mounted there.*; name a new folder below it"),
        staged_folder(str(tmp_path / "out"), marker="spec"),
    ):
        pytest.fail("entered")
    assert names(tmp_path) == ["out"]


def test_what_appears_meanwhile_is_not_replaced(tmp_path):
    output = tmp_path / "out"
    with pytest.raises(InputError, match="holds other data"), staged_folder(str(output), marker="spec") as folder:
        fill(folder)
        output.mkdir()
        fill(output, "another's")
    assert names(tmp_path) == ["out"] and (output / "spec").read_text() == "another's"


def test_leftovers_of_a_killed_run_are_cleared(tmp_path):
    (tmp_path / "out.partial" / "deep").mkdir(parents=True)
    fill(tmp_path / "out.partial" / "deep", "half")
    with staged_folder(str(tmp_path / "out"), marker="spec") as folder:
        assert os.listdir(folder) == []
        fill(folder)
    assert names(tmp_path) == ["out"] and names(tmp_path / "out") == ["spec"]


def hold(output, entered, leave):
    with staged_folder(output, marker="spec") as folder:
        fill(folder, "first")
        entered.set()
        leave.wait(60)


def test_one_process_at_a_time(tmp_path):
    context = multiprocessing.get_context("spawn")
    entered, leave = context.Event(), context.Event()
    process = context.Process(target=hold, args=(str(tmp_path / "out"), entered, leave))
    process.start()
    try:
        assert entered.wait(60)
        with (
            pytest.raises(InputError, match=r"out\.partial: another process is writing there"),
            staged_folder(str(tmp_path / "out"), marker="spec"),
        ):
            pytest.fail("entered")
        assert names(tmp_path) == ["out.partial"] and names(tmp_path / "out.partial") == ["spec"]
    finally:
        leave.set()
        process.join(60)
    assert process.exitcode == 0 and (tmp_path / "out" / "spec").read_text() == "first"


def test_addresses_are_no_folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with (
        pytest.raises(InputError, match=r"^output folder=file:///x/out: is an address; give a folder of this machine"),
        staged_folder("file:///x/out", marker="spec"),
    ):
        pytest.fail("entered")
    assert names(tmp_path) == []
