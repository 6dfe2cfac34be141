"""Both directions: logs made by hand are read, and what is written is what FAMBench's summary looks for."""

import json
import re

import pytest
from report_cases import log, repeats, result, whole_log

from benchmarks.report.fambench_logs import content, is_ours, logs, read
from benchmarks.report.rows import summarise


def test_a_log_made_by_hand(tmp_path):
    found = read(log(tmp_path / "x.log", *whole_log()))
    assert found.score == 12
    assert found.step_ms == (500, 600, 900)
    assert found.p95_ms == pytest.approx(870)
    cell = found.cell
    assert (cell.model, cell.implementation, cell.mode, cell.config) == ("dlrm", "ootb", "train", "A.1dev-embed32-fp32")
    assert (cell.batch_size, cell.world_size, cell.precision, cell.version) == (8, 1, "", "")


@pytest.mark.parametrize("nest", ["value", "data", "metadata"])
def test_nested_values(tmp_path, nest):
    entries = [{"key": entry.pop("key"), nest: entry} for entry in whole_log()]
    found = read(log(tmp_path / "x.log", *entries))
    assert (found.score, found.step_ms) == (12, (500, 600, 900))


def test_sizes_on_lines_of_their_own_and_no_batches(tmp_path):
    header, start, *_, stop = whole_log()
    for name in ("num_batches", "batch_size"):
        del stop[name]
    lines = [{"key": "batch_size", "batch_size": 8}, {"key": "num_batches", "value": 3}]
    found = read(log(tmp_path / "x.log", header, start, "\n", *lines, stop))
    assert (found.score, found.step_ms, found.p95_ms) == (12, (), None)


def test_an_old_header_has_no_metric(tmp_path):
    entries = whole_log()
    del entries[0]["score_metric"]
    assert read(log(tmp_path / "x.log", *entries)).units == "samples/s"


@pytest.mark.parametrize(("metric", "units"), [("tfps", "TF/s"), ("gbps", "GB/s")])
def test_other_metrics(tmp_path, metric, units):
    entries = whole_log(score_metric=metric)
    entries[-1]["extra_metadata"] = {units: 7.08}
    found = read(log(tmp_path / "x.log", *entries))
    assert (found.score, found.units, found.cell.batch_size) == (7.08, units, 8)


def changed(key, **changes):
    """A whole log with fields of its first entry of a key changed, or taken out by None."""
    entries = whole_log()
    entry = next(entry for entry in entries if entry["key"] == key)
    entry.update(changes)
    for name in [name for name, value in changes.items() if value is None]:
        del entry[name]
    return entries


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        (whole_log()[1:], "no header: not a whole log"),
        ([entry for entry in whole_log() if entry["key"] != "run_start"], "no run_start"),
        ([entry for entry in whole_log() if entry["key"] != "batch_stop"], "a batch has no end"),
        ([*whole_log()[:-2], whole_log()[-1]], "a batch has no end"),
        ([entry for entry in whole_log() if entry["key"] != "batch_start"], "without its batch_start"),
        (changed("batch_stop", time_ms=900), "ends 100 ms before it starts"),
        (changed("run_stop", time_ms=1000), "run_stop is not after run_start"),
        (changed("run_stop", time_ms="late"), "time_ms must be a number, got 'late'"),
        (changed("run_stop", time_ms=float("nan")), "time_ms must be a number"),
        (changed("run_stop", time_ms=None), "run_stop has no time_ms"),
        (changed("run_stop", num_batches=None), "no num_batches"),
        (changed("run_stop", batch_size=None), "no batch_size"),
        (changed("run_stop", num_batches=0), "did nothing"),
        (changed("header", score_metric="furlongs"), "score_metric must be one of exps, tfps, gbps, got 'furlongs'"),
        (changed("header", score_metric="tfps"), "run_stop has no TF/s"),
        (changed("header", config=None), "header has no config"),
        (changed("run_stop", status="failed"), "the run failed"),
        ([*whole_log(), {"no": "key"}], "line 10 has no key"),
        ([*whole_log(), "Traceback\n"], "line 10 is not JSON"),
        ([*whole_log(), whole_log()[-1]], "several runs in one file: run_stop stands 2 times"),
    ],
)
def test_bad_logs(tmp_path, entries, reason):
    with pytest.raises(ValueError, match=re.escape(reason)):
        read(log(tmp_path / "x.log", *entries))


def theirs(text, key):
    """The line of a key, found as FAMBench's summary does: by the text of its JSON, blanks included."""
    return json.loads(next(line for line in text.splitlines() if f'"key": "{key}"' in line))


def test_what_is_written_has_the_score_that_their_summary_computes():
    text = content(result(3210.0, step_ms=[20.5, 19.5], start_time="2026-01-01T00:00:00+00:00"), "tiny-b64")
    header, start, stop = (theirs(text, key) for key in ("header", "run_start", "run_stop"))
    assert header == {
        **{"benchmark": "dlrm", "implementation": "optimized", "mode": "training", "config": "tiny-b64"},
        **{"score_metric": "exps", "key": "header"},
    }
    seconds = (stop["time_ms"] - start["time_ms"]) / 1000
    assert stop["num_batches"] * stop["batch_size"] / seconds == pytest.approx(3210.0, rel=1e-4)
    assert start["time_ms"] == 1767225600000
    keys = [json.loads(line)["key"] for line in text.splitlines()]
    assert keys == ["header", "run_start", *["batch_start", "batch_stop"] * 2, "run_stop"]


@pytest.mark.parametrize("units", ["TF/s", "GB/s"])
def test_other_scores_stand_where_their_summary_looks(units):
    assert theirs(content(result(0.158, units=units), "x"), "run_stop")["extra_metadata"][units] == 0.158


@pytest.mark.parametrize("step_ms", [(), (20.0, 22.0)])
@pytest.mark.parametrize(("score", "units"), [(3210.5, "samples/s"), (0.158, "TF/s"), (9.1, "GB/s")])
def test_what_is_written_is_read_again(tmp_path, units, score, step_ms):
    given = {"world_size": 2, "scaling": "weak", "precision": "bf16", "config": "odd / name", "latency_limit_ms": 30.0}
    written = result(score, units=units, step_ms=step_ms, repeat=2, **given)
    ((name, text),) = logs(summarise([written], "here").rows).items()
    assert name == "dlrm_optimized_training_odd - name-b64-r2-weak-bf16.log"
    (tmp_path / name).write_text(text)
    found = read(tmp_path / name)
    assert found.cell == written.cell
    assert found.score == pytest.approx(score, rel=1e-6)
    assert found.step_ms == pytest.approx(step_ms, abs=1e-3)
    assert (found.units, found.repeat, found.latency_limit_ms) == (units, 2, 30.0)
    assert is_ours(str(tmp_path / name))


def test_each_cell_has_a_file_and_the_median_repeat_is_in_it():
    found = logs(
        summarise([*repeats(10, 30, 20), *repeats(5, batch_size=128), *repeats(6, implementation="ootb")], "here").rows
    )
    assert list(found) == [
        "dlrm_ootb_training_tiny-b64.log",
        "dlrm_optimized_training_tiny-b64.log",
        "dlrm_optimized_training_tiny-b128.log",
    ]
    assert theirs(found["dlrm_optimized_training_tiny-b64.log"], "run_stop")["extra_metadata"]["repeat"] == 3


def test_versions_are_told_apart_where_there_are_several():
    found = logs(summarise([*repeats(1, version="1"), *repeats(1, version="2")], "here").rows)
    assert list(found) == ["dlrm_optimized_training_tiny-b64-v1.log", "dlrm_optimized_training_tiny-b64-v2.log"]


def test_files_of_two_cells_are_not_written_over_each_other():
    rows = summarise([*repeats(1, config="a/b"), *repeats(1, config="a-b")], "here").rows
    with pytest.raises(ValueError, match="two cells"):
        logs(rows)
