"""What a folder of results is given."""

import json
import os

import pytest
from report_cases import MACHINE, folder, log, repeats, result, whole_log

from benchmarks.report import write_all
from benchmarks.report.sources import load
from benchmarks.suite.results import FAILED
from data.errors import InputError

TABLES = {"table.md", "table.csv", "table.json", "report.html"}


def test_everything_is_written_and_says_the_same(tmp_path):
    folder(tmp_path, [*repeats(100, 101, 102), result(status=FAILED, reason="killed", batch_size=8)], "half a li\n")
    text = write_all(str(tmp_path))
    assert "101.0" in text and "killed" in text and "records.jsonl:5" in text
    assert set(os.listdir(tmp_path)) == TABLES | {"records.jsonl", "dlrm_optimized_training_tiny-b64.log"}
    for name in ("table.md", "report.html"):
        content = (tmp_path / name).read_text()
        assert "101.0" in content and "killed" in content and "records.jsonl:5" in content.replace("\\_", "_")
    assert ",101,samples/s," in (tmp_path / "table.csv").read_text()
    assert json.loads((tmp_path / "table.json").read_text())["rows"][0]["score"] == 101


def test_its_logs_are_read_as_what_they_were_written_from(tmp_path):
    folder(tmp_path, [*repeats(100), *repeats(9, batch_size=8, world_size=2, scaling="weak")])
    write_all(str(tmp_path))
    (tmp_path / "records.jsonl").unlink()
    loaded = load([str(tmp_path)])
    assert loaded.problems == []
    assert {found.cell.batch_size: found.score for found in loaded.results} == pytest.approx({64: 100, 8: 9})


def test_again_it_writes_the_same(tmp_path):
    folder(tmp_path, repeats(100, 101))
    texts = []
    for _ in range(2):
        write_all(str(tmp_path))
        texts.append({path.name: path.read_bytes() for path in tmp_path.iterdir()})
    assert texts[0] == texts[1]


def test_logs_of_what_no_longer_scores_go_and_those_of_others_stay(tmp_path):
    folder(tmp_path, [*repeats(100), *repeats(1, batch_size=8)])
    log(tmp_path / "theirs.log", *whole_log())
    (tmp_path / "output.log").write_text("some program's\n")
    write_all(str(tmp_path))
    (tmp_path / "records.jsonl").unlink()
    folder(tmp_path, repeats(100))
    write_all(str(tmp_path))
    assert {path.name for path in tmp_path.glob("*.log")} == {
        "theirs.log", "output.log", "dlrm_optimized_training_tiny-b64.log",
    }  # fmt: skip


def test_without_records_nothing_is_written(tmp_path):
    log(tmp_path / "theirs.log", *whole_log())
    with pytest.raises(InputError, match=r"records\.jsonl"):
        write_all(str(tmp_path))
    assert os.listdir(tmp_path) == ["theirs.log"]


def test_of_several_machines_nothing_is_written(tmp_path):
    folder(tmp_path, [*repeats(1), *repeats(1, fingerprint={**MACHINE, "cpus": 9}, batch_size=8)])
    with pytest.raises(InputError, match="several machines"):
        write_all(str(tmp_path))
    assert os.listdir(tmp_path) == ["records.jsonl"]
