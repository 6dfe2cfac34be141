"""Runs of preprocessing that follow others, fail, are stopped or have odd input: what they write, say and leave."""

import functools
import io
import os
import pathlib
import shutil
import signal
import subprocess
import sys

import hand_written_raw
import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("nvtabular")

from data.outbrain import preprocess as module
from data.outbrain.preprocess import Options, preprocess

ROOT = pathlib.Path(__file__).resolve().parents[3]
OPTIONS = Options(seed=4, rows_per_part=150)


@pytest.fixture
def folder(tmp_path):
    return hand_written_raw.write(tmp_path / "raw")


def change(folder, table, of_row):
    """Puts `of_row(fields)` in the place of every row of a raw file."""
    path = folder / f"{table}.csv"
    header, *rows = path.read_text().splitlines()
    path.write_text("\n".join([header, *(",".join(map(str, of_row(row.split(",")))) for row in rows)]) + "\n")


def read(dataset):
    return pa.concat_tables([pq.read_table(dataset / source) for source in ("train", "valid")])


def test_a_later_run_in_the_same_processes_knows_nothing_of_an_earlier_one(folder, tmp_path):
    """The same places and options, other content: what processes keep of a run must not be taken for the next one's."""
    from distributed import LocalCluster

    other = tmp_path / "other"
    shutil.copytree(folder, other)
    # All of it is as long as before, so that both runs have the same plan.
    change(other, "promoted_content", lambda row: [row[0], row[1], 5, row[3]])
    change(other, "documents_topics", lambda row: [row[0], 9 - int(row[1]), row[2]])
    change(other, "clicks_train", lambda row: [row[0], 70 if row[1] == "10" else row[1], row[2]])
    expected = []
    for source in (folder, other):
        preprocess(str(source), str(tmp_path / f"expected {source.name}"), OPTIONS)
        expected.append(read(tmp_path / f"expected {source.name}"))
    assert not expected[0]["campaign_id"].equals(expected[1]["campaign_id"])
    with LocalCluster(n_workers=1, threads_per_worker=1, processes=False, dashboard_address=":0") as cluster:
        for scheduler in (None, cluster.scheduler_address):
            out = tmp_path / ("here" if scheduler is None else "there")
            for source, wanted in zip((folder, other), expected, strict=True):
                shutil.copytree(source, tmp_path / "at", dirs_exist_ok=True)
                preprocess(str(tmp_path / "at"), str(out), OPTIONS, scheduler=scheduler, overwrite=True)
                assert read(out).equals(wanted), (scheduler, source)


def emptied(table, *columns):
    """A change of a raw file: nothing in some columns."""
    return functools.partial(
        change, table=table, of_row=lambda row: ["" if i in columns else v for i, v in enumerate(row)]
    )


def renumbered(table):
    return functools.partial(change, table=table, of_row=lambda row: [10**6 + int(row[0]), *row[1:]])


DAYS = ("publish_time_days_since_published", "publish_time_promo_days_since_published")


@pytest.mark.parametrize(
    ("changed", "constant"),
    [
        (emptied("documents_meta", 3), dict.fromkeys(DAYS, 0.0)),
        (emptied("documents_meta", 1, 2), {"source_id": -1, "publisher_id_promo": -1, "source_id_promo_ctr": 0.0}),
        (emptied("events", 2, 4, 5), {"document_id": -1, "platform": -1, "geo_location_country": -1, DAYS[0]: 0.0}),
        (
            renumbered("promoted_content"),
            {"document_id_promo": -1, "document_id_promo_count": 0.0, "topic_id_list": [], DAYS[1]: 0.0},
        ),
        (renumbered("documents_topics"), {"document_id_document_id_promo_sim_topics": 0.0, "topic_id_list": []}),
        (
            functools.partial(change, table="clicks_train", of_row=lambda row: [row[0], 60, row[2]]),
            {"campaign_id": -1, "campaign_id_ctr": 0.0, "document_id_promo_count": 0.0},
        ),
    ],
    ids=["no dates", "no sources", "events alone", "no ad is known", "no document has topics", "one ad of all"],
)
def test_columns_of_which_nothing_is_known(folder, tmp_path, changed, constant):
    changed(folder)
    preprocess(str(folder), str(tmp_path / "out"), OPTIONS)
    rows = read(tmp_path / "out")
    for name in rows.column_names:
        assert rows[name].null_count == 0
        assert not pa.types.is_floating(rows[name].type) or np.isfinite(rows[name].to_numpy()).all(), name
        if name in constant:
            assert all(value == constant[name] for value in rows[name].to_pylist()), name
    assert constant.keys() <= {*rows.column_names}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n", "Column 'display_id' in include_columns does not exist"),
        ("display_id,teacher_average_precision,chance_average_precision\n1,x,0.5\n", "invalid value 'x'"),
        ("display_id,teacher_average_precision,chance_average_precision\n1,,0.5\n", "invalid value ''"),
        ("", "Empty CSV file"),
    ],
)
def test_a_file_of_the_teacher_that_is_none(folder, tmp_path, capsys, text, message):
    (folder / "teacher.csv").write_text(text)
    assert module.main(["--data_path", str(folder), "--metadata_path", str(tmp_path / "out"), "--seed=4"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"{folder}/teacher.csv: ") and message in error and error.count("\n") == 1
    assert os.listdir(tmp_path) == ["raw"]


def test_places_that_cannot_be_written(folder, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(folder)
    (tmp_path / "other").symlink_to(tmp_path / "raw" / "..")
    before = sorted(os.listdir(folder))
    for place, message in (
        ("file/out", "Not a directory"),
        ("file", "is not a folder"),
        ("link/out", "lies in --data_path"),
        ("link", "lies in --data_path"),
        ("other", "lies in --data_path"),
        ("other/raw/out", "lies in --data_path"),
    ):
        assert module.main(["--data_path", str(folder), "--metadata_path", str(tmp_path / place)]) == 2
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1, place
    assert sorted(os.listdir(tmp_path)) == ["file", "link", "other", "raw"] and sorted(os.listdir(folder)) == before


def test_what_a_killed_run_has_left_goes(folder, tmp_path):
    left = tmp_path / "out.partial"
    for name in ("train/part-00000.parquet", "train/part-00001.parquet", "temporary-1/clicks_train/00000.parquet"):
        (left / name).parent.mkdir(parents=True, exist_ok=True)
        (left / name).write_bytes(b"of another run")
    preprocess(str(folder), str(tmp_path / "out"), OPTIONS)
    assert sorted(os.listdir(tmp_path)) == ["out", "raw"]
    assert sorted(os.listdir(tmp_path / "out")) == ["feature_spec.yaml", "report.json", "train", "valid", "workflow"]
    assert os.listdir(tmp_path / "out/train") == ["part-00000.parquet"]


@pytest.mark.parametrize(("fraction", "side"), [("0.9999999", "train on"), ("1e-9", "evaluate")])
def test_a_side_without_rows(folder, tmp_path, capsys, fraction, side):
    change(folder, "events", lambda row: [*row[:3], 61, *row[4:]])
    out = tmp_path / "out"
    arguments = ["--data_path", str(folder), "--metadata_path", str(out), f"--test_fraction={fraction}"]
    assert module.main(arguments) == 2
    error = capsys.readouterr().err
    assert f"no row is left to {side} with --test_fraction={float(fraction)}" in error and error.count("\n") == 1
    assert os.listdir(tmp_path) == ["raw"]


class Screen(io.StringIO):
    def __init__(self, is_terminal):
        super().__init__()
        self.is_terminal = is_terminal

    def isatty(self):
        return self.is_terminal


@pytest.mark.parametrize("is_terminal", [True, False])
def test_progress_shows_on_a_terminal_alone(folder, tmp_path, monkeypatch, is_terminal):
    screen = Screen(is_terminal)
    monkeypatch.setattr(sys, "stderr", screen)
    preprocess(str(folder), str(tmp_path / "out"), OPTIONS)
    shown = screen.getvalue()
    assert all((f"{stage}:" in shown) == is_terminal for stage in ("clicks", "events", "join", "train", "valid"))
    assert is_terminal or shown == ""


def command(folder, out, *arguments):
    places = ["--data_path", str(folder), "--metadata_path", str(out)]
    return [*places, "--workers=2", "--rows_per_part=60", *arguments]


def test_an_error_in_a_worker_is_one_line(folder, tmp_path):
    with open(folder / "events.csv", "a") as file:
        file.write("30,u,1,5,1,US\n")
    run = [sys.executable, "-m", "data.outbrain.preprocess", *command(folder, tmp_path / "out")]
    done = subprocess.run(run, cwd=ROOT, capture_output=True, text=True)
    line = f"{folder}/events.csv: display_id 30 is there twice; keep one row for each display_id\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", line)
    assert os.listdir(tmp_path) == ["raw"]


STOPPED = """
import sys

if __name__ == "__main__":
    # Not in the workers, which have to come by all they need as in a run that nobody stops.
    sys.modules.setdefault("tensorflow", None)
    from data.outbrain import preprocess, task_pool, workflow

    whole = task_pool.DaskTasks.map

    def stopping(self, function, *arguments):
        for number, result in enumerate(whole(self, function, *arguments)):
            yield result
            if function.func is workflow.transform_part and number == 1:
                print("stopping", flush=True)
                sys.stdin.read()

    task_pool.DaskTasks.map = stopping
    sys.exit(preprocess.main(sys.argv[1:]))
"""


def test_a_signal_ends_the_workers_too(folder, tmp_path):
    """At work in workers, which have said nothing till then either."""
    (tmp_path / "stopped.py").write_text(STOPPED)
    run = [sys.executable, str(tmp_path / "stopped.py"), *command(folder, tmp_path / "out")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(run, cwd=tmp_path, env=environment, text=True, **pipes) as process:
        assert process.stdout.readline() == "stopping\n"
        assert (tmp_path / "out.partial/train").is_dir()
        below = psutil.Process(process.pid).children(recursive=True)
        assert len(below) >= 2
        process.send_signal(signal.SIGTERM)
        printed, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM and printed == ""
    assert errors.count("\n") == 1 and "stopped by SIGTERM; nothing was written" in errors
    assert psutil.wait_procs(below, timeout=30)[1] == []
    assert sorted(os.listdir(tmp_path)) == ["raw", "stopped.py"]
