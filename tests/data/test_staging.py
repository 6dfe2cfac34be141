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
