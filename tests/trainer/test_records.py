"""Records: strict JSON by other readers' rules, atomic files, and tables read as a person reads them."""

import dataclasses
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest

from data.errors import InputError
from trainer.records import Identity, Record, jsonable, render_table

BENCHMARK = Record(
    identity=Identity("wide_deep", "training"),
    environment={"cpus": 2, "versions": {"numpy": "1.26.4"}},
    config={"deep_hidden_units": (1024, 1024), "results_dir": Path("/results"), "amp": False},
    world_size=2,
    device="CPU",
    precision="float32",
    global_batch_size=131072,
    samples_per_sec=np.float64(1234567.89),
    step_ms={"mean": 106.17, "p50": 105.0, "p90": 110.25, "p95": 120.5, "p99": 1306.75},
    rank_step_ms=(104.0, 105.5),
    input_wait_share=0.0345,
    warmup_steps=5,
    measured_steps=15,
    requested_steps=20,
    distinct_rows=1000000,
    passes=2.5,
    data_source="generated",
    loss=np.float32(0.5),
    peak_memory_bytes=(3 * 2**30, 5 * 2**30),
)
EVALUATION = Record(
    identity=Identity("wide_deep", "inference", "full", version="2.0"),
    log_loss=0.41,
    auc=0.7123456789,
    map_at_12=0.65729,
    normalized_entropy=0.9,
    calibration=1.01,
    displays=12345,
    displays_without_click=67,
)


def refuse(constant):
    raise AssertionError(f"{constant} is not JSON")


def parse(text):
    return json.loads(text, parse_constant=refuse)


def table_rows(record):
    """Cells of the lines between the rules, which columns of two or more spaces separate."""
    lines = render_table(record).splitlines()
    first, last = (i for i, line in enumerate(lines) if set(line) == {"-"})
    return {cells[0]: cells[1:] for cells in (re.split(r" {2,}", line) for line in lines[first + 1 : last])}


def test_json_has_the_promised_names_and_plain_values():
    found = parse(BENCHMARK.to_json())
    assert found["samples_per_sec"] == 1234567.89
    assert found["step_ms"] == {"mean": 106.17, "p50": 105.0, "p90": 110.25, "p95": 120.5, "p99": 1306.75}
    assert found["identity"] == {
        "model": "wide_deep", "mode": "training", "config": "default", "implementation": "optimized", "version": "1.0",
    }  # fmt: skip
    assert found["config"] == {"deep_hidden_units": [1024, 1024], "results_dir": "/results", "amp": False}
    assert found["environment"] == BENCHMARK.environment
    assert (found["rank_step_ms"], found["peak_memory_bytes"]) == ([104.0, 105.5], [3221225472, 5368709120])
    assert (found["loss"], found["notes"]) == (0.5, [])
    promised = (
        "samples_per_sec step_ms input_wait_share warmup_steps measured_steps loss log_loss auc map_at_12 displays "
        "displays_without_click identity environment config requested_steps distinct_rows passes data_source "
        "normalized_entropy calibration world_size"
    )
    assert set(promised.split()) <= set(found)
    assert found["map_at_12"] is None


def test_jsonable_makes_strict_json_of_everything_a_record_meets():
    value = {
        "nan": math.nan, "infinity": [math.inf, -np.inf, np.float32("nan")], 3: np.int64(2**63 - 1),
        "array": np.array([[1.5, math.nan]]), "flag": np.bool_(True), "set": frozenset({3, 1}), "none": None,
        "path": Path("a/b"), "identity": Identity("m", "training"), "scalar": np.float16(0.5),
    }  # fmt: skip
    assert parse(json.dumps(jsonable(value))) == {
        "nan": None, "infinity": [None, None, None], "3": 2**63 - 1,
        "array": [[1.5, None]], "flag": True, "set": [1, 3], "none": None,
        "path": "a/b", "scalar": 0.5,
        "identity": {"model": "m", "mode": "training", "config": "default", "implementation": "optimized",
                     "version": "1.0"},
    }  # fmt: skip
    with pytest.raises(TypeError, match="object"):
        jsonable({"x": [object()]})


def test_file_is_whole_and_replaces_the_old_one(tmp_path, monkeypatch):
    path = tmp_path / "results" / "result.json"
    BENCHMARK.write_json(path)
    assert path.read_text() == BENCHMARK.to_json()
    assert path.stat().st_mode & 0o444 == 0o444 & ~_umask()
    EVALUATION.write_json(path)
    assert path.read_text() == EVALUATION.to_json()

    def crash(*_):
        raise OSError(28, "No space left on device")

    for step in ("os.fsync", "os.replace"):
        with monkeypatch.context() as patch:
            patch.setattr(step, crash)
            with pytest.raises(InputError, match=r"result\.json.*No space left.*results_dir"):
                BENCHMARK.write_json(path)
        assert path.read_text() == EVALUATION.to_json()
    assert [entry.name for entry in path.parent.iterdir()] == ["result.json"]


def _umask():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1], 8) for line in file if line.startswith("Umask"))


def test_benchmark_table():
    assert table_rows(BENCHMARK) == {
        "device": ["CPU"], "precision": ["float32"], "ranks": ["2"], "global batch": ["131,072", "rows"],
        "throughput": ["1,234,567.9", "samples/s"],
        "step time, mean": ["106.17", "ms"], "step time, p50": ["105.00", "ms"], "step time, p90": ["110.25", "ms"],
        "step time, p95": ["120.50", "ms"], "step time, p99": ["1,306.75", "ms"],
        "rank medians, lowest": ["104.00", "ms"], "rank medians, highest": ["105.50", "ms"],
        "waiting for input": ["3.5", "%"], "warm-up": ["5", "steps"], "measured": ["15", "steps"],
        "data source": ["generated"], "distinct rows": ["1,000,000", "rows"], "passes over the data": ["2.50"],
        "loss": ["0.500000"], "peak memory, highest rank": ["5,120", "MiB"],
    }  # fmt: skip
    assert "Shorter" not in render_table(BENCHMARK)


def test_evaluation_table():
    assert table_rows(EVALUATION) == {
        "ranks": ["1"], "MAP@12": ["0.657290"], "AUC": ["0.712346"], "log loss": ["0.410000"],
        "normalized entropy": ["0.900000"], "calibration": ["1.010000"],
        "displays with a click": ["12,345"], "displays without a click": ["67"],
    }  # fmt: skip
    title = render_table(EVALUATION).splitlines()[0]
    assert title == "wide_deep inference, optimized, configuration full, version 2.0"


def test_shares_are_shown_as_percentages():
    record = dataclasses.replace(EVALUATION, auc_margin_share=0.9788, map_margin_share=0.5)
    rows = table_rows(record)
    assert rows["AUC above 0.5, of teacher's"] == ["97.9", "%"] and rows["MAP@12 above chance, of teacher's"] == [
        "50.0",
        "%",
    ]


def test_table_is_aligned():
    lines = render_table(BENCHMARK).splitlines()
    ends = {re.match(r"\S+(?: \S+)*  +\S+", line).end() for line in lines[2:-1]}
    assert len(ends) == 1
    assert len(lines[1]) == max(map(len, lines)) and lines[1] == lines[-1]
    assert all(line == line.rstrip() for line in lines)


def test_undefined_is_shown_and_unmeasured_is_not():
    record = Record(identity=Identity("m", "inference"), auc=math.nan, loss=math.inf, displays=0)
    assert table_rows(record) == {
        "ranks": ["1"], "AUC": ["undefined"], "loss": ["inf"], "displays with a click": ["0"],
    }  # fmt: skip


def test_a_shorter_run_and_notes_are_told():
    record = Record(
        identity=Identity("m", "training"), warmup_steps=500, measured_steps=700, requested_steps=2000,
        notes=("Ended by SIGTERM.", "Data was generated."),
    )  # fmt: skip
    assert record.missing_steps == 800
    assert render_table(record).splitlines()[-3:] == [
        "Shorter than asked: 1,200 of 2,000 steps were run.", "Ended by SIGTERM.", "Data was generated.",
    ]  # fmt: skip


def test_wrong_names_are_refused():
    with pytest.raises(ValueError, match="got 'train'"):
        Identity("m", "train")
    with pytest.raises(ValueError, match="got 'synthetic'"):
        Record(identity=Identity("m", "training"), data_source="synthetic")
