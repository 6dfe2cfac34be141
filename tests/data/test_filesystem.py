import fsspec
import pytest

from data import filesystem
from data.errors import InputError


@pytest.fixture
def tree(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "x.txt").write_text("x: é\n", encoding="utf-8")
    (tmp_path / "a" / "b" / "y.txt").write_text("y")
    for hidden in ("_SUCCESS", ".crc", "b/_temporary"):
        (tmp_path / "a" / hidden).write_text("")
    return tmp_path


@pytest.mark.parametrize("scheme", ["", "file://", "fsspec+file://"])
def test_the_same_files_by_path_and_address(tree, scheme):
    folder = f"{scheme}{tree}/a"
    assert filesystem.list_files(folder) == [f"{folder}/b/y.txt", f"{folder}/x.txt"]
    assert filesystem.list_files(folder, recursive=False) == [f"{folder}/x.txt"]
    assert filesystem.list_files(f"{folder}/x.txt") == []
    assert filesystem.read_bytes(f"{folder}/x.txt") == "x: é\n".encode()
    assert filesystem.exists(folder) and filesystem.exists(f"{folder}/x.txt") and not filesystem.exists(f"{folder}/z")
    assert filesystem.is_folder(folder) and not filesystem.is_folder(f"{folder}/x.txt")
    with filesystem.open_file(f"{folder}/b/y.txt") as file:
        assert file.size() == 1 and file.read() == b"y"
    with pytest.raises(InputError, match="no such folder"):
        filesystem.list_files(f"{folder}/z")
    with pytest.raises(FileNotFoundError):
        filesystem.open_file(f"{folder}/z")


@pytest.mark.parametrize(
    ("folder", "name", "joined"),
    [
        ("", "a", "a"),
        ("d", "a", "d/a"),
        ("d", "/a", "/a"),
        ("d", "s3://b/a", "s3://b/a"),
        ("s3://b/d", "e/a", "s3://b/d/e/a"),
        ("s3://b/d/", "a", "s3://b/d/a"),
        ("s3://b/d?region=x", "a", "s3://b/d/a?region=x"),
        ("file:///d", "a?b", "file:///d/a?b"),
    ],
)
def test_joining(folder, name, joined):
    assert filesystem.join(folder, name) == joined


@pytest.mark.parametrize(
    ("path", "parent"),
    [
        ("a", ""),
        ("/d/a", "/d"),
        ("s3://b/d/a", "s3://b/d"),
        ("s3://b/a?region=x", "s3://b/?region=x"),
        ("file:///d/a", "file:///d"),
        ("fsspec+memory://d/a", "fsspec+memory://d/"),
    ],
)
def test_parents(path, parent):
    assert filesystem.parent(path) == parent
    assert filesystem.join(filesystem.parent(path), "z").replace("z", "a") == path


def test_any_filesystem_that_fsspec_knows():
    fsspec.filesystem("memory").pipe("/standin/d/a.txt", b"held in memory")
    try:
        assert filesystem.list_files("fsspec+memory://standin/d") == ["fsspec+memory://standin/d/a.txt"]
        assert filesystem.read_bytes("fsspec+memory://standin/d/a.txt") == b"held in memory"
    finally:
        fsspec.filesystem("memory").rm("/standin", recursive=True)


@pytest.mark.parametrize("path", ["wasb://d/a", "fsspec+nothing://d/a", "nothing://"])
def test_unknown_filesystems(path):
    for function in (filesystem.resolve, filesystem.exists, filesystem.list_files, filesystem.read_bytes):
        with pytest.raises(InputError, match=f"^{path.replace('+', '.')}: cannot reach that filesystem"):
            function(path)


def test_one_connection_for_a_place(monkeypatch):
    asked = []

    class FileSystem:
        @staticmethod
        def from_uri(address):
            asked.append(address)
            return "connection", "bucket"

    monkeypatch.setattr(filesystem.pa.fs, "FileSystem", FileSystem)
    filesystem._remote.cache_clear()
    try:
        paths = [filesystem.resolve(f"s3://bucket/{name}?region=x") for name in ("a", "b/c", "")]
    finally:
        filesystem._remote.cache_clear()
    assert paths == [("connection", "bucket/a"), ("connection", "bucket/b/c"), ("connection", "bucket")]
    assert asked == ["s3://bucket/?region=x"]
