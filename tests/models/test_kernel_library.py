"""What custom_ops builds is what those without TensorFlow find; the key itself is tested in test_custom_ops.py."""

import tensorflow as tf

from models import custom_ops, kernel_library


def test_both_ask_for_the_same_library():
    assert kernel_library.library_path(tf.__version__) == custom_ops.library_path()


def test_every_source_counts(tmp_path):
    (tmp_path / "a.cc").write_text("one")
    before = kernel_library.library_path("1.2", tmp_path)
    (tmp_path / "b.cc").write_text("two")
    (tmp_path / "notes.txt").write_text("no source")
    with_two = kernel_library.library_path("1.2", tmp_path)
    (tmp_path / "shared.h").write_text("three")
    assert [path.name for path in kernel_library.sources(tmp_path)] == ["a.cc", "b.cc"]
    assert len({before, with_two, kernel_library.library_path("1.2", tmp_path)}) == 3
    assert "tf1.2-" in before.name
