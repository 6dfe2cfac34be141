"""Whole or not at all."""

import os

import pytest

from data.errors import InputError
from data.whole_files import write


def test_text_and_bytes(tmp_path):
    write(str(tmp_path / "a"), "é\n")
    write(str(tmp_path / "a"), b"\xff")
    assert (tmp_path / "a").read_bytes() == b"\xff"
    assert os.listdir(tmp_path) == ["a"]


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    write(str(tmp_path / "a"), "old")

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match="No space left"):
        write(str(tmp_path / "a"), "new")
    assert (tmp_path / "a").read_text() == "old"
    assert os.listdir(tmp_path) == ["a"]


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(InputError, match="cannot be written"):
        write(str(tmp_path / "gone" / "a"), "x")
