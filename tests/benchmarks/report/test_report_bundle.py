"""What is packed can be checked, and packing again gives the same bytes."""

import gzip
import hashlib
import io
import json
import os
import tarfile

import pytest
from report_cases import MACHINE, folder, repeats

from benchmarks.report import bundle
from data.errors import InputError
from trainer import machine


@pytest.fixture
def results(tmp_path):
    """A folder of results with what belongs into a bundle, and with what does not."""
    path = folder(tmp_path / "results", repeats(1, 2, fingerprint={**MACHINE, "commit": "abc", "dirty": True}))
    (path / "table.md").write_text("table\n")
    (path / "logs").mkdir()
    (path / "logs" / "a run.log").write_text("é\n")
    (path / "model.npz").write_bytes(b"\0" * 100)
    (path / ".hidden.json").write_text("{}")
    os.symlink("/etc", path / "link")
    os.symlink("/etc/passwd", path / "passwd.txt")
    return path


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A source tree with a configuration, at a known commit."""
    configs = tmp_path / "tree" / "benchmarks" / "configs"
    configs.mkdir(parents=True)
    (configs / "tiny.yaml").write_text("model: dlrm\n")
    monkeypatch.setattr(machine, "git_state", lambda _: ("def", False))
    return tmp_path / "tree"


def members(path):
    with tarfile.open(path) as archive:
        return {member.name: archive.extractfile(member).read() for member in archive}


def test_what_is_in_it(results, root, tmp_path):
    said = bundle.pack(str(results), str(tmp_path / "b.tar.gz"), root=root)
    found = members(tmp_path / "b.tar.gz")
    assert list(found) == [
        "MANIFEST.json", "configs/tiny.yaml", "results/logs/a run.log", "results/records.jsonl", "results/table.md",
    ]  # fmt: skip
    assert found["results/records.jsonl"] == (results / "records.jsonl").read_bytes()
    manifest = json.loads(found["MANIFEST.json"])
    assert (manifest["commit"], manifest["dirty"]) == ("def", False)
    assert manifest["measured_at"] == ["abc with changes"]
    assert manifest["left_out"] == [
        "results/.hidden.json", "results/link", "results/model.npz", "results/passwd.txt",
    ]  # fmt: skip
    assert manifest["files"]["results/table.md"] == hashlib.sha256(b"table\n").hexdigest()
    assert said == f"{tmp_path}/b.tar.gz: 4 files, 4 left out; measured at abc with changes; packed at def"


def test_a_tree_with_changes_is_marked(results, root, tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "git_state", lambda _: ("def", True))
    assert bundle.pack(str(results), str(tmp_path / "b.tar.gz"), root=root).endswith("packed at def WITH CHANGES")
    monkeypatch.setattr(machine, "git_state", lambda _: (None, None))
    assert bundle.pack(str(results), str(tmp_path / "b.tar.gz"), root=root).endswith("packed at no commit")


def test_it_is_the_same_each_time(results, root, tmp_path):
    bundle.pack(str(results), str(tmp_path / "1.tar.gz"), root=root)
    for path in results.rglob("*.*"):
        if not path.is_symlink():
            os.utime(path, (1, 1))
            path.chmod(0o600)
    bundle.pack(str(results), str(tmp_path / "2.tar.gz"), root=root)
    assert (tmp_path / "1.tar.gz").read_bytes() == (tmp_path / "2.tar.gz").read_bytes()


def test_it_does_not_pack_itself(results, root):
    for _ in range(2):
        bundle.pack(str(results), str(results / "bundle.json"), root=root)
    assert "results/bundle.json" not in members(results / "bundle.json")


def test_a_whole_one_is_verified(results, root, tmp_path):
    bundle.pack(str(results), str(tmp_path / "b.tar.gz"), root=root)
    said, problems = bundle.verify(str(tmp_path / "b.tar.gz"))
    assert problems == []
    assert "4 of 4 files are what the manifest says; measured at abc with changes; packed at def" in said


def repacked(path, files):
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def test_each_change_is_found(results, root, tmp_path):
    path = tmp_path / "b.tar.gz"
    bundle.pack(str(results), str(path), root=root)
    files = members(path)
    records = files["results/records.jsonl"]
    files["results/records.jsonl"] = records.replace(b'"score": 1', b'"score": 9', 1)
    assert files["results/records.jsonl"] != records
    del files["configs/tiny.yaml"]
    repacked(path, [*files.items(), ("results/more.md", b"x"), ("results/table.md", b"table\n")])
    said, problems = bundle.verify(str(path))
    assert "2 of 4 files" in said
    assert problems == [
        f"{path}: results/table.md is in it twice",
        f"{path}: configs/tiny.yaml is missing",
        f"{path}: results/more.md is not in the manifest",
        f"{path}: results/records.jsonl has another SHA-256 than the manifest says",
    ]


def test_what_is_no_bundle(results, root, tmp_path):
    path = tmp_path / "b.tar.gz"
    with pytest.raises(InputError, match="No such file"):
        bundle.verify(str(path))
    path.write_text("text")
    with pytest.raises(InputError, match="not a whole bundle"):
        bundle.verify(str(path))
    repacked(path, [("a", b"x")])
    with pytest.raises(InputError, match=r"no readable MANIFEST\.json"):
        bundle.verify(str(path))
    repacked(path, [("MANIFEST.json", b'{"format": 99, "files": {}}')])
    with pytest.raises(InputError, match="format 99"):
        bundle.verify(str(path))
    bundle.pack(str(results), str(path), root=root)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(InputError, match="not a whole bundle"):
        bundle.verify(str(path))
    path.write_bytes(gzip.compress(b"\0" * 10))
    with pytest.raises(InputError):
        bundle.verify(str(path))


def test_what_cannot_be_packed(tmp_path, root):
    (tmp_path / "empty").mkdir()
    for name in ("empty", "gone"):
        with pytest.raises(InputError, match=name):
            bundle.pack(str(tmp_path / name), str(tmp_path / "b.tar.gz"), root=root)
    mixed = folder(tmp_path / "mixed", [*repeats(1), *repeats(1, fingerprint={**MACHINE, "cpus": 9}, batch_size=8)])
    with pytest.raises(InputError, match="several machines"):
        bundle.pack(str(mixed), str(tmp_path / "b.tar.gz"), root=root)
    assert not (tmp_path / "b.tar.gz").exists()
