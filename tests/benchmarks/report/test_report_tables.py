"""The table in its forms."""

import csv
import io
import json

import pytest
from report_cases import MACHINE, repeats, result

from benchmarks.report import tables
from benchmarks.report.rows import summarise
from benchmarks.suite.results import FAILED, SKIPPED


@pytest.fixture
def summary():
    return summarise(
        [
            *repeats(4829.91, 4700.0, 5300.0, latency_limit_ms=15.0),
            *repeats(0.158312, model="gemm", implementation="micro", mode="forward", units="TF/s", step_ms=[3.5]),
            result(status=FAILED, reason="ended with\ncode 1", batch_size=4096, repeat=2),
            result(status=SKIPPED, reason="needs 54 GiB", config="criteo", batch_size=65536),
        ],
        "here",
    )


def test_text(summary):
    assert tables.text(summary, ["records.jsonl:7: cut off"]) == (
        "Machine\n"
        "  cpu_model: Abacus\n"
        "  cpus: 2\n"
        "  memory: 16.0 GiB\n"
        "  gpus: none\n"
        "  versions.tensorflow: 2.21.0\n"
        "\n"
        "Model  Implementation  Mode      Config  Batch Size      Score  Units      p95 latency (ms)  "
        "95 % interval       Repeats\n"
        "-----  --------------  --------  ------  ----------  ---------  ---------  ----------------  "
        "------------------  -------\n"
        "dlrm   optimized       training  tiny            64  4,829.9*~  samples/s             19.50  "
        "4,221.7 to 5,772.9        3\n"
        "gemm   micro           forward   tiny            64     0.1583  TF/s                   3.50  "
        "no interval               1\n"
        "\n"
        "Score: median over repeats, each a process of its own. 95 % interval: Student's t of the "
        "logarithms of the repeats'\n"
        "scores; of one repeat there is none. p95 latency: median over repeats.\n"
        "* p95 latency is above the benchmark's limit (15 ms).\n"
        "~ Repeats are further apart than 10 % of the score (highest less lowest).\n"
        "\n"
        "Without a score\n"
        "Status   Model  Implementation  Mode      Config  Batch Size  Ranks  Precision  Repeats  Reason\n"
        "-------  -----  --------------  --------  ------  ----------  -----  ---------  -------  -----------------\n"
        "skipped  dlrm   optimized       training  criteo      65,536      1  fp32       1        needs 54 GiB\n"
        "failed   dlrm   optimized       training  tiny         4,096      1  fp32       2        ended with code 1\n"
        "\n"
        "Could not be read\n"
        "  records.jsonl:7: cut off\n"
    )


def test_a_plain_table_has_no_marks_to_explain():
    assert "*" not in tables.text(summarise(repeats(1), "here"))
    assert "~" not in tables.text(summarise(repeats(1), "here"))
    assert "No scores" in tables.text(summarise([], "here"))


@pytest.mark.parametrize(
    ("heading", "given"),
    [
        ("Ranks", {"world_size": 2}),
        ("Precision", {"precision": "bf16"}),
        ("Version", {"version": "2"}),
        ("Scaling", {"world_size": 2, "scaling": "weak"}),
    ],
)
def test_what_differs_has_a_column(heading, given):
    assert heading in tables.score_grid(summarise([*repeats(1), *repeats(1, **given)], "here")).headings
    assert heading not in tables.score_grid(summarise(repeats(1, **given), "here")).headings


def test_no_line_ends_in_a_blank(summary):
    assert not any(line.endswith(" ") for line in tables.text(summary).splitlines())


def test_markdown_takes_no_name_for_markup():
    text = tables.markdown(summarise(repeats(1, config="a|b <i> *c* `d`\n[e]"), "here"), ["bad | line"])
    (row,) = [line for line in text.splitlines() if line.startswith("| dlrm")]
    assert row == (
        r"| dlrm | optimized | training | a\|b &lt;i&gt; \*c\* \`d\` \[e\] | 64 | 1 | samples/s | 19.50 "
        "| no interval | 1 |"
    )
    assert r"- bad \| line" in text
    assert "| ---: |" in text


def test_csv_has_every_column_and_every_row(summary):
    rows = list(csv.DictReader(io.StringIO(tables.csv_text(summary))))
    assert len(rows) == 4
    first = rows[0]
    assert (float(first["score"]), first["units"], first["missed_limit"], first["noisy"]) == (
        4829.91,
        "samples/s",
        "True",
        "True",
    )
    assert (first["batch_size"], first["world_size"], first["precision"], first["version"]) == ("64", "1", "fp32", "1")
    assert [(row["status"], row["reason"]) for row in rows[2:]] == [
        ("skipped", "needs 54 GiB"),
        ("failed", "ended with\ncode 1"),
    ]
    assert rows[2]["score"] == ""


def test_json(summary):
    found = json.loads(tables.json_text(summary, ["bad"]))
    assert found["machine"] == MACHINE
    assert found["problems"] == ["bad"]
    assert [row["status"] for row in found["rows"]] == ["ok", "ok", "skipped", "failed"]
    assert found["rows"][0]["spread"] == pytest.approx(600 / 4829.91)


def test_scaling_has_a_table_of_its_own():
    text = tables.text(summarise([*repeats(100), *repeats(150, world_size=2, scaling="strong")], "here"))
    assert "Scaling\nModel" in text
    assert "1.50         75%" in text


@pytest.mark.parametrize(
    ("value", "shown"), [(1234567.89, "1,234,567.9"), (100, "100.0"), (61.854, "61.85"), (0.15831, "0.1583")]
)
def test_numbers(value, shown):
    assert tables.number(value) == shown
