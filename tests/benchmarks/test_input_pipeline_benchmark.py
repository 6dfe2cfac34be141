import json
import subprocess
import sys

import pytest

from benchmarks import input_pipeline as benchmark
from benchmarks import merlin_loader
from benchmarks.input_pipeline import MERLIN, PIPELINE, PYARROW
from data.errors import InputError

SPEEDS = {PYARROW: [4.0, 10.0, 6.0], PIPELINE: [3.0, 3.0, 2.0], MERLIN: [0.1, 0.3, 0.2], "a": [8.0] * 3, "b": [2.0] * 3}


def test_passes_take_turns_and_the_first_is_left_out():
    turns = []

    def reader(name, seconds):
        return lambda: turns.append(name) or (12, seconds.pop(0))

    said = []
    readers = {"one": reader("one", [100, 2, 3]), "two": reader("two", [100, 4, 6])}
    speeds = benchmark.measure(readers, 2, said.append)
    assert turns == ["one", "two"] * 3
    assert speeds == {"one": [6, 4], "two": [3, 2]}
    assert said[0] == "pass 0 of 2: one: 0 rows/s (left out)" and said[-1] == "pass 2 of 2: two: 2 rows/s"


def test_ratios_of_medians_and_whether_targets_are_met():
    rows = {row.name: row for row in benchmark.table(SPEEDS, ["a", "b"])}
    assert (rows[PYARROW].figure, rows[PYARROW].lowest, rows[PYARROW].highest) == (6, 4, 10)
    assert rows[PYARROW].ratio is None and rows[PYARROW].met is None
    assert rows[PIPELINE].ratio == 0.5 and rows[PIPELINE].met is True
    assert rows[MERLIN].ratio == pytest.approx(15) and rows[MERLIN].met is False
    assert rows["a"].ratio == 1 and rows["a"].met is True
    assert rows["b"].ratio == 4 and rows["b"].met is False
    text = benchmark.render(list(rows.values())).splitlines()
    assert "0.50 of pyarrow" in text[1] and text[1].endswith("target: at least 0.5, met")
    assert text[2].endswith("target: at least 25, MISSED") and text[4].endswith("target: at most 3, MISSED")


def test_without_merlin():
    speeds = {name: values for name, values in SPEEDS.items() if name != MERLIN}
    rows = benchmark.table(speeds, ["a", "b"])
    (merlin,) = (row for row in rows if row.name == MERLIN)
    assert merlin.figure is None and merlin.ratio is None and merlin.met is None
    assert "not installed" in benchmark.render(rows)


@pytest.fixture
def small(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(benchmark, "_FILES", 5)
    monkeypatch.setattr(merlin_loader, "is_installed", lambda: False)
    return {"rows": 4000, "batch_size": 500, "threads": 2, "passes": 1}


def test_the_whole_of_it_on_few_rows(small):
    said = []
    rows = benchmark.run(**small, say=said.append)
    assert [row.name for row in rows] == [
        *(PYARROW, PIPELINE, MERLIN, benchmark.SMALL_GROUPS, benchmark.ONE_GROUP, benchmark.MANY_FILES)
    ]
    assert all(row.figure > 0 for row in rows if row.name != MERLIN) and len(said) == 1 + 2 * 5


def test_the_command_writes_json(small, tmp_path, capsys):
    arguments = [f"--{name}={value}" for name, value in small.items()]
    assert benchmark.main([*arguments, "--json", str(tmp_path / "rows.json")]) == 0
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert all({"name", "figure", "unit", "ratio", "target", "met"} <= row.keys() for row in rows)
    assert {row["unit"] for row in rows} == {"rows/s"} and len(capsys.readouterr().out.splitlines()) == len(rows)
    assert benchmark.main([*arguments, "--json", str(tmp_path / "none" / "rows.json")]) == 2
    assert "cannot be written" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("change", [{"passes": 0}, {"threads": 0}, {"batch_size": 0}, {"batch_size": 3000}])
def test_sizes_that_cannot_be(small, change):
    with pytest.raises(InputError, match="give at least 1 each, and batches of at most half of --rows=4000"):
        benchmark.run(**{**small, **change})


MERLIN_READS = """
import sys
from benchmarks import merlin_loader
from data import synthetic
spec = synthetic.generate(sys.argv[1], rows=3000, seed=1)
columns = list(spec.columns(with_display=False))
read = merlin_loader.epoch_reader(spec.source_files("train"), columns, spec.label, 500)
assert read() == read()
print(read(), spec.metadata["synthetic"]["train_rows"])
"""


@pytest.mark.skipif(not merlin_loader.is_installed(), reason="Merlin is not installed")
def test_merlins_loader_reads_every_row(tmp_path, pytestconfig):
    # In a process of its own: what the tests of preprocessing import first decides what Merlin thinks there is.
    command = [sys.executable, "-c", MERLIN_READS, str(tmp_path / "data")]
    done = subprocess.run(command, cwd=pytestconfig.rootpath, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    read, there = done.stdout.split()
    assert read == there
