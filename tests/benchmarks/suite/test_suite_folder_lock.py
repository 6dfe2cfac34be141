"""A folder has one writer; who comes second is told so in one line."""

import pytest

from benchmarks.suite import folder_lock
from data.errors import InputError


def test_the_second_is_refused_until_the_first_is_done(tmp_path):
    folder = str(tmp_path / "results")
    with folder_lock.held(folder, "a suite"):
        refused = pytest.raises(InputError, match=f"^{folder}: a suite runs there already")
        with refused, folder_lock.held(folder, "a suite"):
            pytest.fail("both hold it")
    with folder_lock.held(folder, "a suite"):
        pass


def test_a_folder_that_cannot_be_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    refused = pytest.raises(InputError, match=r"file: cannot be written: .*name another --results_dir")
    with refused, folder_lock.held(str(tmp_path / "file"), "a suite"):
        pytest.fail("nothing is held")
