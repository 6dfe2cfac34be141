"""A comparison in its forms."""

import csv
import io
import json

import pytest
from report_cases import MACHINE, repeats, turns

from benchmarks.report import compare_tables
from benchmarks.report.compare import compare, compare_implementations
from benchmarks.report.rows import summarise


@pytest.fixture
def comparison():
    a = [*repeats(100, 101, 99), *repeats(5, batch_size=8)]
    b = [*repeats(150, 151, 149, fingerprint={**MACHINE, "cpus": 64})]
    return compare(summarise(a, "a"), summarise(b, "b"), "a", "b")


def test_text(comparison):
    text = compare_tables.text(comparison)
    heading, _, row = text.splitlines()[:3]
    assert heading.split("  ")[0] == "Model"
    assert row.split() == [
        *("dlrm", "optimized", "training", "tiny", "64", "100.0", "150.0", "samples/s", "1.500"),
        *("1.470", "to", "1.531", "faster", "Welch", "t"),
    ]
    assert "The machines differ (A / B) in cpus (2 / 64)." in text
    assert "Not compared\n  dlrm-optimized-training-tiny, version 1, batch 8, fp32: a score in a, none in b" in text


def test_nothing_is_called_faster_without_an_interval():
    one = compare(summarise(repeats(1), "a"), summarise(repeats(9), "b"), "a", "b")
    row = compare_tables.text(one).splitlines()[2]
    assert "no interval" in row
    assert "faster" not in row


def test_marks_are_shown_and_explained():
    late = summarise(repeats(1, latency_limit_ms=1.0), "a")
    text = compare_tables.text(compare(late, summarise(repeats(2, 3), "b"), "a", "b"))
    assert "1*" in text.splitlines()[2] and "~" in text.splitlines()[2]
    assert "* p95 latency is above" in text and "~ Repeats are far apart" in text


def test_implementations_are_columns():
    summary = summarise(turns([1, 1.01, 1.02], [2, 2.01, 2.02]), "here")
    grid = compare_tables.grid(compare_implementations(summary, "ootb", "optimized"))
    assert "Implementation" not in grid.headings
    assert {"A: ootb", "B: optimized"} < set(grid.headings)
    (row,) = csv.DictReader(io.StringIO(compare_tables.csv_text(compare_implementations(summary, "ootb", "optimized"))))
    assert row["implementation"] == "optimized / ootb"


def test_markdown(comparison):
    text = compare_tables.markdown(comparison)
    assert text.startswith("| Model | Implementation |")
    assert "## Not compared" in text


def test_csv_and_json_have_the_figures(comparison):
    (row,) = csv.DictReader(io.StringIO(compare_tables.csv_text(comparison)))
    (same,) = json.loads(compare_tables.json_text(comparison))["rows"]
    assert float(row["ratio"]) == same["ratio"] == pytest.approx(1.5, rel=1e-3)
    assert row["verdict"] == same["verdict"] == "faster"
    assert (float(row["low"]), float(row["high"])) == (same["low"], same["high"])
