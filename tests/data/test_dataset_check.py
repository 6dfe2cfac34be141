import json
import math
import shutil
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data import dataset_check
from data.feature_spec import FeatureSpec

COLUMNS = {
    "clicked": pa.array([1, 0, 0, 1, 0, 1], pa.int8()),
    "display": pa.array([4, 4, 7, 7, 7, 9]),
    "ad": pa.array([0, 9, -1, None, 3, 4]),
    "topics": pa.array([[1, 2], [], None, [4, -1], [0], [3]]),
    "price": pa.array([0.5, -1.0, 3.0, 0.0, 2.0, 1.0], pa.float32()),
}


def write(folder, files=(("train/a.parquet", {}), ("valid/a.parquet", {})), **feature_changes):
    """A dataset of six rows a file in row groups of two; a file's changes replace columns (None: left out)."""
    sources = {"train": [], "test": []}
    for name, changes in files:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        columns = {key: value for key, value in {**COLUMNS, **changes}.items() if value is not None}
        pq.write_table(pa.table(columns), path, row_group_size=2)
        sources["train" if name.startswith("train") else "test"].append(name)
    features = {"clicked": {}, "display": {}, "price": {}, "ad": {"cardinality": 10}}
    features["topics"] = {"cardinality": 5, "max_hotness": 2}
    document = {
        "channel_spec": {
            "label": ["clicked"],
            "map": ["display"],
            "onehot_categorical": ["ad"],
            "multihot_categorical": ["topics"],
            "numerical": ["price"],
        },
        "feature_spec": {**features, **feature_changes},
        "source_spec": {
            source: [{"type": "parquet", "features": list(COLUMNS), "files": names}]
            for source, names in sources.items()
            if names
        },
    }
    (folder / "feature_spec.yaml").write_text(json.dumps(document))
    return FeatureSpec.from_yaml(str(folder / "feature_spec.yaml"))


def test_a_dataset_without_faults(tmp_path):
    report = dataset_check.check(write(tmp_path))
    assert report.problems == [] and report.notes == []
    assert report.rows == {"train": 6, "test": 6} and report.displays == {"train": 3, "test": 3}
    lines = dataset_check.render(report, "DIR").splitlines()
    assert lines == ["train: 6 rows of 3 displays in 1 files", "test: 6 rows of 3 displays in 1 files", "DIR: OK"]


OUT_OF_AD, OUT_OF_TOPICS = "id(s) out of 0..9 (-1: absent), the first", "id(s) out of 0..4 (-1: absent), the first"
FIXED = pa.list_(pa.int64(), 2)
FLOATS, LABELS = "number(s) beyond 32-bit floats, the first", "label(s) other than 0 and 1, the first"
KINDS = {"ad": "one-hot", "topics": "multi-hot", "price": "numerical", "clicked": "label", "display": "display"}


@pytest.mark.parametrize(
    ("name", "array", "found", "row"),
    [
        ("ad", pa.array([0, 1, 10, 2, 99, -2]), f"3 {OUT_OF_AD} 10", 2),
        ("topics", pa.array([[0], [1], [4, 4], [2, 5], [6], None]), f"2 {OUT_OF_TOPICS} 5", 3),
        ("topics", pa.array([[0, 1], [4, 9]] * 3, FIXED), f"3 {OUT_OF_TOPICS} 9", 1),
        ("price", pa.array([0, None, 1, None, 1, 1.0]), "2 null(s)", 1),
        ("price", pa.array([0, 1.0, 1, math.nan, 1, math.nan]), "2 NaN(s)", 3),
        ("price", pa.array([0, 1.0, 1, 2, -math.inf, math.inf]), f"2 {FLOATS} -inf", 4),
        ("price", pa.array([0, 1.0, 1, 2, 1e39, 0]), f"1 {FLOATS} 1e+39", 4),
        ("clicked", pa.array([0, 2, 1, 0, -1, 0]), f"2 {LABELS} 2.0", 1),
        ("clicked", pa.array([0, 1, None, 0, 1, 0]), "1 null(s)", 2),
        ("clicked", pa.array([0, 1, math.nan, 0, 1, 0]), f"1 {LABELS} nan", 2),
        ("display", pa.array([4, 4, None, 5, 5, 5]), "1 null(s)", 2),
        (
            *("display", pa.array([4, 4, 5, 5, 5, 2**63], pa.uint64())),
            *("1 display id(s) from 2^63 on, the first 9223372036854775808", 5),
        ),
    ],
)
def test_each_problem_by_column_value_count_and_file(tmp_path, name, array, found, row):
    spec = write(tmp_path, [("train/a.parquet", {}), ("train/b.parquet", {name: array}), ("valid/a.parquet", {})])
    line = f"train: column '{name}' ({KINDS[name]}): {found}, in {tmp_path}/train/b.parquet, row {row}"
    assert dataset_check.check(spec).problems == [line]


@pytest.mark.parametrize(
    ("array", "problem"),
    [(None, "is missing; the file has ['clicked',"), (pa.array([1.0] * 6), "is of type double; write ids as integers")],
)
def test_columns_that_cannot_be_used(tmp_path, array, problem):
    spec = write(tmp_path, [("train/a.parquet", {}), ("train/b.parquet", {"ad": array}), ("valid/a.parquet", {})])
    (line,) = dataset_check.check(spec).problems
    assert line.startswith(f"train: {tmp_path}/train/b.parquet: column 'ad' (one-hot) {problem}")


def test_all_problems_are_collected_over_files_and_sources(tmp_path):
    bad = {"ad": pa.array([50] * 6), "price": pa.array([math.nan] * 6)}
    spec = write(tmp_path, [("train/a.parquet", bad), ("train/b.parquet", bad), ("valid/a.parquet", bad)])
    report = dataset_check.check(spec)
    assert len(report.problems) == 4
    assert report.problems[0].startswith("train: column 'ad' (one-hot): 12 id(s)")
    assert report.problems[0].endswith(f"in {tmp_path}/train/a.parquet, row 0 and in 1 more file(s)")
    assert dataset_check.render(report, "DIR").endswith("DIR: 4 problems")


def test_what_evaluation_needs_is_asked_for(tmp_path):
    (problem,) = dataset_check.check(write(tmp_path, [("train/a.parquet", {})])).problems
    assert (
        problem
        == f"{tmp_path}/feature_spec.yaml: source_spec.test has 0 chunks; exactly one chunk of parquet files is read"
    )
    spec = write(tmp_path / "b", [("train/a.parquet", {"display": None}), ("valid/a.parquet", {"display": None})])
    document = spec.to_dict()
    for (chunk,) in document["source_spec"].values():
        chunk["features"].remove("display")
    (problem,) = dataset_check.check(FeatureSpec.from_dict(document, path=spec.path)).problems
    assert problem.startswith(f"test: {tmp_path}/b/valid/a.parquet: column 'display' (display) is missing")


def test_a_folder_that_cannot_be_listed_is_no_end(tmp_path):
    spec = write(tmp_path)
    shutil.rmtree(tmp_path / "train")
    (problem, rows) = dataset_check.check(spec).problems
    assert "train/a.parquet: no such file" in problem and rows == "train: its 1 file(s) hold no rows"


def test_files_that_are_missing_junk_cut_or_empty(tmp_path):
    spec = write(tmp_path, [(f"train/{name}.parquet", {}) for name in "abcd"])
    content = (tmp_path / "train/b.parquet").read_bytes()
    (tmp_path / "train/a.parquet").unlink()
    (tmp_path / "train/b.parquet").write_bytes(content[: len(content) // 2])
    (tmp_path / "train/c.parquet").write_text("not parquet")
    pq.write_table(pa.table(COLUMNS).slice(0, 0), tmp_path / "train/d.parquet")
    report = dataset_check.check(spec)
    shown = "\n".join(report.problems)
    assert "a.parquet: no such file" in shown and "its 4 file(s) hold no rows" in shown
    for name in "bc":
        assert f"{name}.parquet: not a readable parquet file" in shown
    assert [note for note in report.notes if "d.parquet: holds no rows" in note]


def test_a_damaged_page_is_one_problem(tmp_path):
    spec = write(tmp_path)
    path = tmp_path / "train/a.parquet"
    content = bytearray(path.read_bytes())
    content[8:60] = bytes(52)
    path.write_bytes(bytes(content))
    (problem,) = dataset_check.check(spec).problems
    assert problem.startswith(f"train: {path}: cannot be decoded")


def test_what_is_only_worth_a_note(tmp_path):
    changes = {
        "topics": pa.array([[1, 2, 3, 4], [0, 1, 2], [1], [], None, [0]]),
        "ad": pa.array([1, 2, 3, 4, 5, 6], pa.int32()),
        "clicked": pa.array([0, 0, 1, 1, 0, 1]),
    }
    spec = write(tmp_path, [("train/a.parquet", {}), ("valid/a.parquet", {}), ("valid/b.parquet", changes)])
    shutil.copy(tmp_path / "train/a.parquet", tmp_path / "train/other.parquet")
    changed = COLUMNS | changes | {"display": pa.array([14, 14, 17, 17, 17, 19])}
    pq.write_table(pa.table(changed), tmp_path / "valid/b.parquet", row_group_size=2)
    report = dataset_check.check(spec)
    assert report.problems == []
    notes = "\n".join(report.notes)
    assert f"{tmp_path}/train has 1 parquet file(s) that the specification does not name" in notes
    cut = "2 list(s) beyond max_hotness 2, which training cuts, the longest holds 4"
    assert f"column 'topics' (multi-hot): {cut}, in {tmp_path}/valid/b.parquet, row 0" in notes
    assert "column 'ad' (one-hot) is int64 in 1 file(s)" in notes and "int32 in 1 file(s)" in notes
    assert "test: 1 displays have no click" in notes and "test: 1 displays have several clicks" in notes
    assert report.displays["test"] == 6


def test_displays_are_counted_across_row_groups_and_not_where_they_are_scattered(tmp_path):
    rng = np.random.default_rng(0)
    sizes = rng.integers(1, 8, 40)
    ids = np.repeat(np.arange(40), sizes)
    clicks = (rng.random(len(ids)) < 0.25).astype(np.int64)
    table = {"clicked": pa.array(clicks), "display": pa.array(ids)}
    table |= {"ad": pa.array([1] * len(ids)), "topics": pa.array([[1]] * len(ids)), "price": pa.array([1.0] * len(ids))}
    spec = write(tmp_path, [("train/a.parquet", {}), ("valid/a.parquet", table)])
    report = dataset_check.check(spec)
    sums = np.bincount(ids, clicks)
    assert report.displays["test"] == 40
    assert f"test: {(sums == 0).sum()} displays have no click" in report.notes
    assert f"test: {(sums > 1).sum()} displays have several clicks" in report.notes
    scattered = {"display": pa.array([4, 7, 4, 7, 7, 9])}
    report = dataset_check.check(write(tmp_path / "other", [("train/a.parquet", {}), ("valid/a.parquet", scattered)]))
    assert "test" not in report.displays and report.problems == []


def test_counts_and_rows_are_the_same_however_many_rows_are_read_at_a_time(tmp_path, monkeypatch):
    changes = {
        "ad": pa.array([0, 1, 10, 2, 99, -2]),
        "topics": pa.array([[1], [1, 2, 3], [1], [0] * 5, None, [0] * 4]),
        "display": pa.array([4, 4, 4, 7, 7, 7]),
    }
    spec = write(tmp_path, [("train/a.parquet", {}), ("valid/a.parquet", changes)])
    reports = []
    for rows in (1, 4, 100):
        monkeypatch.setattr(dataset_check, "_BATCH_ROWS", rows)
        reports.append(dataset_check.check(spec))
    assert reports[0] == reports[1] == reports[2]
    assert f"3 {OUT_OF_AD} 10, in {tmp_path}/valid/a.parquet, row 2" in reports[0].problems[0]
    assert reports[0].displays["test"] == 2
    assert "3 list(s) beyond max_hotness 2, which training cuts, the longest holds 5" in reports[0].notes[0]


def test_long_verdicts_are_cut_and_say_so():
    report = dataset_check.Report(problems=[f"p{i}" for i in range(60)])
    lines = dataset_check.render(report, "DIR").splitlines()
    assert (
        lines[49] == "problem: p49"
        and lines[50] == "10 more problems are not shown"
        and lines[-1] == "DIR: 60 problems"
    )


def command(*arguments):
    return subprocess.run([sys.executable, "-m", "data.feature_spec", *arguments], capture_output=True, text=True)


def test_the_command(tmp_path, capsys):
    write(tmp_path)
    done = command("check", str(tmp_path))
    assert done.returncode == 0 and done.stdout.endswith("feature_spec.yaml: OK\n") and done.stderr == ""
    assert dataset_check.main(["check", f"fsspec+file://{tmp_path}/feature_spec.yaml"]) == 0
    write(tmp_path, [("train/a.parquet", {"ad": pa.array([77] * 6)}), ("valid/a.parquet", {})])
    assert dataset_check.main(["check", str(tmp_path)]) == 2
    out = capsys.readouterr().out
    assert "6 id(s) out of 0..9 (-1: absent), the first 77" in out and out.endswith(": 1 problem\n")
    assert dataset_check.main(["check", str(tmp_path / "nowhere")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
