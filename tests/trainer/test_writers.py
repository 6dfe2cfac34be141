"""Writers. The log is read back by a reader that was written from the format's description alone."""

import datetime
import io
import json
import math
import re
import sys

import numpy as np
import pytest

from data.errors import InputError
from trainer import writers
from trainer.writers import ConsoleWriter, DLLoggerWriter, MultiWriter, NullWriter, line_writer, make_writer

BEGIN = 1_700_000_000.25


class Clock:
    """Seconds since the epoch; every reading is a quarter of a second after the one before."""

    def __init__(self):
        self.now = BEGIN - 0.25

    def __call__(self):
        self.now += 0.25
        return self.now


class Terminal(io.StringIO):
    def isatty(self):
        return True


def read_dllogger(path):
    """(units by metric, parameters, [(step, data)], final data) of a DLLogger JSON stream; checks every line's form."""

    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    units, parameters, points, final = {}, None, [], None
    text = path.read_text()
    assert text.endswith("\n")
    for line in text.splitlines():
        match = re.fullmatch(r"DLLL (\{.*\})", line)
        assert match, line
        entry = json.loads(match[1], parse_constant=refuse)
        assert set(entry) - {"metric", "metadata", "step", "data"} == {
            "timestamp", "datetime", "elapsedtime", "type",
        }  # fmt: skip
        assert re.fullmatch(r"\d{13}\.\d+", entry["timestamp"])
        assert re.fullmatch(r"\d+\.\d+", entry["elapsedtime"])
        moment = datetime.datetime.fromisoformat(entry["datetime"])
        assert moment.timestamp() * 1000 == pytest.approx(float(entry["timestamp"]), abs=0.01)
        if entry["type"] == "METADATA":
            units[entry["metric"]] = entry["metadata"]["unit"]
            continue
        assert entry["type"] == "LOG" and isinstance(entry["data"], dict)
        if entry["step"] == "PARAMETER":
            parameters = entry["data"]
        elif entry["step"] == []:
            final = entry["data"]
        else:
            points.append((entry["step"], entry["data"]))
    return units, parameters, points, final


def test_log_is_a_dllogger_stream(tmp_path):
    path = tmp_path / "results" / "log.json"
    with DLLoggerWriter(path, clock=Clock()) as log:
        log.write_parameters({"global_batch_size": 64, "deep_hidden_units": (8, 4), "deep_dropout": 0.1})
        log.write(10, {"loss": np.float32(0.5), "batch_samplesps": 1000})
        log.step_done()
        log.write((1, 20), {"loss": math.nan, "auc_roc": np.float64(0.75)})
        log.write_final({"train_throughput": 123.5, "streaming_map_val": 0.6})
    units, parameters, points, final = read_dllogger(path)
    assert units == {
        "loss": None, "loss_val": None, "streaming_map_val": None, "auc_roc": None, "batch_samplesps": "samples/s",
        "train_throughput": "samples/s", "validation_throughput": "samples/s",
    }  # fmt: skip
    assert parameters == {"global_batch_size": 64, "deep_hidden_units": [8, 4], "deep_dropout": 0.1}
    assert points == [(10, {"loss": 0.5, "batch_samplesps": 1000}), ([1, 20], {"loss": None, "auc_roc": 0.75})]
    assert final == {"train_throughput": 123.5, "streaming_map_val": 0.6}


def test_times_are_milliseconds_and_seconds_since_opening(tmp_path):
    path = tmp_path / "log.json"
    with DLLoggerWriter(path, clock=Clock()):
        pass
    entries = [json.loads(line.removeprefix("DLLL ")) for line in path.read_text().splitlines()]
    assert [float(entry["timestamp"]) for entry in entries[:2]] == [1_700_000_000_500, 1_700_000_000_750]
    assert [float(entry["elapsedtime"]) for entry in entries[:2]] == [0.25, 0.5]


def test_log_is_emptied_when_opened_and_written_line_by_line(tmp_path):
    path = tmp_path / "log.json"
    path.write_text("an old run\n")
    log = DLLoggerWriter(path, clock=Clock())
    assert read_dllogger(path)[1:] == (None, [], None)
    log.write(1, {"loss": 1.0})
    assert read_dllogger(path)[2] == [(1, {"loss": 1.0})]  # While it is still open.
    log.close()


def test_log_that_cannot_be_written(tmp_path):
    with pytest.raises(InputError, match=r"log .*results_dir"):
        DLLoggerWriter(tmp_path)


def test_console_lines():
    stream = io.StringIO()
    console = ConsoleWriter(line_writer(stream))
    console.write_parameters({"amp": True})
    console.write(1200, {"loss": np.float32(0.25), "batch_samplesps": 12345.678, "skipped": 3})
    console.write((2, 79), {"auc_roc": math.nan})
    console.step_done()
    console.write_final({"streaming_map_val": 0.65729, "train_throughput": 1234567.0})
    assert stream.getvalue().splitlines() == [
        "step 1,200  loss 0.25  batch_samplesps 12,345.7 samples/s  skipped 3",
        "step 2/79  auc_roc nan",
        "final  streaming_map_val 0.65729  train_throughput 1,234,567.0 samples/s",
    ]


class Spy(NullWriter):
    def __init__(self, calls, name):
        self.calls, self.name = calls, name

    def write_parameters(self, config):
        self.calls.append((self.name, "parameters", config))

    def write(self, step, values):
        self.calls.append((self.name, step, values))

    def write_final(self, values):
        self.calls.append((self.name, "final", values))

    def step_done(self):
        self.calls.append((self.name, "step"))

    def close(self):
        self.calls.append((self.name, "close"))


def use_everything(writer):
    with writer:
        writer.write_parameters({"a": 1})
        writer.step_done()
        writer.write(1, {"loss": 2.0})
        writer.write_final({"loss": 3.0})


def test_multi_writer_passes_everything_on_in_order():
    calls = []
    use_everything(MultiWriter([Spy(calls, "x"), Spy(calls, "y")]))
    one = [("parameters", {"a": 1}), ("step",), (1, {"loss": 2.0}), ("final", {"loss": 3.0}), ("close",)]
    assert calls == [(name, *call) for call in one for name in "xy"]


def test_other_ranks_write_nothing(tmp_path):
    stream = Terminal()
    use_everything(make_writer(False, log_path=tmp_path / "log.json", stream=stream, total_steps=1))
    assert stream.getvalue() == "" and list(tmp_path.iterdir()) == []


def test_chief_writes_log_and_lines_but_no_bar_into_a_pipe(tmp_path):
    stream = io.StringIO()
    use_everything(make_writer(True, log_path=tmp_path / "log.json", stream=stream, total_steps=1, clock=Clock()))
    assert stream.getvalue() == "step 1  loss 2\nfinal  loss 3\n"
    assert read_dllogger(tmp_path / "log.json")[1:] == ({"a": 1}, [(1, {"loss": 2.0})], {"loss": 3.0})


def test_bar_moves_on_a_terminal_and_stays_out_of_other_streams(tmp_path):
    stream, terminal = io.StringIO(), Terminal()
    writer = make_writer(True, log_path=tmp_path / "log.json", stream=stream, terminal=terminal, total_steps=4)
    writer.step_done()
    writer.write(1, {"loss": 2.0})
    bar = terminal.getvalue()
    assert "/4" in bar and "\r" in bar
    assert stream.getvalue() == "step 1  loss 2\n"
    writer.close()


def test_bar_counts_steps():
    bar = writers.progress_bar(4, Terminal())
    for _ in range(3):
        bar.step_done()
    assert bar._bar.n == 3
    bar.close()


def test_no_bar_without_a_terminal_or_without_tqdm(monkeypatch):
    assert writers.progress_bar(4, io.StringIO()) is None
    monkeypatch.setitem(sys.modules, "tqdm", None)
    assert writers.progress_bar(4, Terminal()) is None
