"""The preprocessed dataset, every value of it, beside an independent computation (independent_outbrain)."""

import csv
import json
import math
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys

import numpy as np
import pyarrow.parquet as pq
import pytest

pytest.importorskip("nvtabular")

import hand_written_raw
from independent_outbrain import Outbrain

from data.click_ranking import average_precision, chance_average_precision
from data.errors import InputError
from data.feature_spec import FeatureSpec
from data.input_pipeline import ParquetInput
from data.outbrain import preprocess as module
from data.outbrain import raw
from data.outbrain.preprocess import Options, preprocess

ROOT = pathlib.Path(__file__).resolve().parents[3]
RATES = ("ad_id", "document_id_promo", "campaign_id", "advertiser_id", "source_id_promo", "publisher_id_promo")


def columns(dataset, source):
    """Column -> values of the rows in order, -1 for null."""
    spec = FeatureSpec.from_yaml(f"{dataset}/feature_spec.yaml")
    return pq.ParquetDataset(list(spec.source_files(source))).read().to_pydict()


def assert_equal(dataset, expected):
    """Every column of both sources: numericals to 1e-6, all else exactly."""
    for source, values in (("train", expected.train), ("test", expected.valid)):
        found = columns(dataset, source)
        assert sorted(found) == sorted(values)
        for name, column in values.items():
            if isinstance(column[0], float):
                np.testing.assert_allclose(found[name], column, rtol=1e-6, atol=1e-6, err_msg=f"{source}: {name}")
            else:
                assert found[name] == column, f"{source}: {name}"


def assert_report(report, expected):
    for name, value in expected.report.items():
        assert report[name] == value, name


@pytest.fixture(scope="module")
def generated(tmp_path_factory):
    folder = tmp_path_factory.mktemp("generated") / "raw"
    raw.generate(str(folder), rows=3000, seed=3)
    return folder


@pytest.fixture(scope="module")
def expected(generated):
    return Outbrain(generated)


@pytest.fixture(scope="module")
def dataset(generated, tmp_path_factory):
    """The generated files, preprocessed in several buckets and parts, joined rows kept."""
    folder = tmp_path_factory.mktemp("dataset") / "out"
    options = Options(rows_per_part=700, rows_per_group=128, keep_joined=True)
    report = preprocess(str(generated), str(folder), options)
    return folder, report


def test_every_value_of_generated_files(dataset, expected):
    folder, report = dataset
    assert_equal(folder, expected)
    assert_report(report, expected)
    assert json.loads((folder / "report.json").read_text()) == report
    similarities = [c for n, c in expected.train.items() if "_sim_" in n]
    assert len(similarities) == 3 and np.count_nonzero(similarities) >= 0.3 * np.size(similarities)
    assert all(np.count_nonzero(c) >= 0.2 * len(c) for c in similarities)
    assert set(expected.split.values()) == {"early", "held out", "late"}


def test_every_value_of_files_written_by_hand(tmp_path):
    folder = hand_written_raw.write(tmp_path / "raw")
    wanted = Outbrain(folder, seed=4)
    report = preprocess(str(folder), str(tmp_path / "out"), Options(seed=4, rows_per_part=60))
    assert_equal(tmp_path / "out", wanted)
    assert_report(report, wanted)
    assert set(wanted.split.values()) == {"early", "held out", "late"}
    days = {row["timestamp"] // hand_written_raw.DAY for row in wanted.rows}
    assert days == {-1, *range(15)}
    for values in (wanted.train, wanted.valid):
        for name in values:
            if "_sim_" in name:
                assert np.count_nonzero(values[name]) >= 0.3 * len(values[name])
    assert all(
        report["missing_joins"][name] for name in ("without_event", "without_promoted_content", "without_meta_of_ad")
    )
    # By hand: document 5 of day 0 (2016-06-14 03:59:59.998 UTC) was published on 2016-06-20, document 3 in 1999.
    assert wanted._days(0, None) is None and {row["days"] for row in wanted.rows} >= {None, 0, 3650}
    # Categories of documents 0 and 11 are {1000} and {1000..1003}; 1000 is on all of 19 documents, so ln(19/19) = 0.
    assert wanted.cosine("categories", 0, 11) == 0.0
    # Entities: 0 and 12 have the same two, in the same confidence; 1 shares neither with 12.
    assert wanted.cosine("entities", 0, 12) == pytest.approx(1.0) and wanted.cosine("entities", 1, 12) == 0.0


def test_every_value_of_the_real_sample(outbrain_sample, tmp_path):
    report = preprocess(str(outbrain_sample), str(tmp_path / "out"), Options(allow_missing_tables=True))
    wanted = Outbrain(outbrain_sample)
    assert_equal(tmp_path / "out", wanted)
    assert_report(report, wanted)


def test_rates_in_sample(generated, tmp_path):
    preprocess(str(generated), str(tmp_path / "out"), Options(ctr="in_sample", seed=8, test_fraction=0.4))
    assert_equal(tmp_path / "out", Outbrain(generated, seed=8, test_fraction=0.4, out_of_fold=False))


def test_nothing_depends_on_the_parts_nor_on_the_processes(generated, dataset, tmp_path):
    preprocess(str(generated), str(tmp_path / "whole"), Options(rows_per_group=128))
    preprocess(str(generated), str(tmp_path / "two"), Options(rows_per_part=400, rows_per_group=128), workers=2)
    for source in ("train", "test"):
        one = columns(dataset[0], source)
        assert columns(tmp_path / "whole", source) == one and columns(tmp_path / "two", source) == one


def test_a_cluster_that_runs_already(generated, dataset, tmp_path):
    from distributed import LocalCluster

    with LocalCluster(n_workers=1, threads_per_worker=1, processes=False, dashboard_address=":0") as cluster:
        options = Options(rows_per_part=700, rows_per_group=128)
        preprocess(str(generated), str(tmp_path / "out"), options, scheduler=cluster.scheduler_address)
    assert columns(tmp_path / "out", "test") == columns(dataset[0], "test")


RELOAD = """
import sys
sys.modules.setdefault("tensorflow", None)
import glob, warnings
warnings.simplefilter("ignore")
import nvtabular, pyarrow as pa, pyarrow.parquet as pq
rows = pa.concat_tables(pq.read_table(path) for path in sorted(glob.glob(f"{sys.argv[1]}/joined/valid/*.parquet")))
result = nvtabular.Workflow.load(f"{sys.argv[1]}/workflow").transform(rows.to_pandas())
pq.write_table(pa.Table.from_pandas(result, preserve_index=False), sys.argv[2])
"""


def test_the_saved_workflow_gives_the_rows_to_evaluate_again(dataset, tmp_path):
    command = [sys.executable, "-c", RELOAD, str(dataset[0]), str(tmp_path / "again.parquet")]
    subprocess.run(command, cwd=ROOT, check=True)
    again = pq.read_table(tmp_path / "again.parquet").to_pydict()
    valid = columns(dataset[0], "test")
    assert sorted(again) == sorted(valid)
    for name, values in valid.items():
        assert again[name] == values, name


def test_the_files_are_what_training_reads(dataset, expected):
    spec = FeatureSpec.from_yaml(f"{dataset[0]}/feature_spec.yaml")
    for source, rows in (("train", expected.report["train_rows"]), ("test", expected.report["test_rows"])):
        (path,) = spec.source_files(source)
        footer = pq.read_metadata(path)
        sizes = [footer.row_group(group).num_rows for group in range(footer.num_row_groups)]
        assert sum(sizes) == rows and set(sizes[:-1]) == {128} and sizes[-1] <= 128
    displays = columns(dataset[0], "test")["display_id"]
    assert displays == sorted(displays)
    with ParquetInput(spec, "test", with_display=True).eval_stream(global_batch_size=100) as stream:
        batches = [batch for batch, _ in zip(stream.arrays(), range(stream.steps_per_epoch), strict=False)]
    assert sum(batch["mask"].sum() for batch in batches) == len(displays)


def test_the_teachers_figures_are_of_the_displays_to_evaluate(dataset, generated, expected):
    spec = FeatureSpec.from_yaml(f"{dataset[0]}/feature_spec.yaml")
    assert spec.metadata["teacher"] == pytest.approx(expected.teacher(generated))


@pytest.fixture(scope="module")
def permuted(tmp_path_factory):
    """Generated clicks whose labels are dealt anew within each display: no ad is better than another."""
    folder = tmp_path_factory.mktemp("permuted") / "raw"
    raw.generate(str(folder), rows=20_000, seed=5)
    with open(folder / "clicks_train.csv", newline="") as file:
        rows = [list(map(int, row)) for row in list(csv.reader(file))[1:]]
    rng = np.random.default_rng(0)
    labels = np.array([row[2] for row in rows])
    displays = np.array([row[0] for row in rows])
    order = np.lexsort((rng.random(len(rows)), displays))
    assert (displays[order] == displays).all()
    with open(folder / "clicks_train.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["display_id", "ad_id", "clicked"])
        writer.writerows([row[0], row[1], label] for row, label in zip(rows, labels[order].tolist(), strict=True))
    return folder


@pytest.mark.parametrize("kind", ["out_of_fold", "in_sample"])
def test_rates_of_training_rows_know_nothing_of_their_labels(permuted, tmp_path, kind):
    preprocess(str(permuted), str(tmp_path / "out"), Options(ctr=kind))
    rows = columns(tmp_path / "out", "train")
    displays = np.array(rows["display_id"])
    order = np.argsort(displays, kind="stable")
    sizes = np.unique(displays, return_counts=True)[1]
    clicks = np.array(rows["clicked"])[order]
    chance = chance_average_precision(sizes)
    deviations = []
    for name in RATES:
        for sign in (1, -1):
            gain = average_precision(sign * np.array(rows[f"{name}_ctr"])[order], clicks, sizes) - chance
            deviations.append(gain.mean() / (gain.std() / math.sqrt(len(gain))))
    if kind == "out_of_fold":
        # In standard errors of the mean over some 2,300 displays.
        assert max(map(abs, deviations)) < 3.5
    else:
        assert deviations[0] > 6 and deviations[1] < -6


def listing(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_nothing_else_is_written_and_other_data_stays(generated, tmp_path, monkeypatch):
    work, out = tmp_path / "work", tmp_path / "place" / "out"
    work.mkdir()
    monkeypatch.chdir(work)
    preprocess(str(generated), str(out), Options())
    assert listing(work) == [] and os.listdir(tmp_path / "place") == ["out"]
    assert sorted(os.listdir(out)) == ["feature_spec.yaml", "report.json", "train", "valid", "workflow"]
    before = listing(out)
    with pytest.raises(InputError, match="holds other data"):
        preprocess(str(generated), str(out), Options())
    assert listing(out) == before
    (out / "mine").write_text("")
    preprocess(str(generated), str(out), Options(seed=1), overwrite=True)
    assert listing(out) == before
    assert FeatureSpec.from_yaml(f"{out}/feature_spec.yaml").metadata["outbrain"]["seed"] == 1


def remove(*tables):
    return lambda folder: [(folder / f"{table}.csv").unlink() for table in tables]


def put(table, text):
    return lambda folder: (folder / f"{table}.csv").write_text(text)


TOPICS, TEACHER = (
    "document_id,topic_id,confidence_level",
    "display_id,teacher_average_precision,chance_average_precision",
)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (remove("events"), r"lacks events\.csv; put them there \(unpacked\)$"),
        (
            remove("documents_meta", "documents_topics"),
            r"lacks documents_meta\.csv, documents_topics\.csv; .*--allow_missing_tables",
        ),
        (put("documents_topics", f"{TOPICS}\n1,2\n"), r"topics\.csv: .* line 2: Expected 3 columns, got 2"),
        (put("teacher", f"{TEACHER}\n1,0.5,0.5\n"), r"teacher\.csv: lacks display_id \d+"),
    ],
)
def test_bad_files_are_one_line_and_leave_nothing(generated, tmp_path, change, message, capsys):
    folder = tmp_path / "raw"
    shutil.copytree(generated, folder)
    change(folder)
    arguments = ["--data_path", str(folder), "--metadata_path", str(tmp_path / "out")]
    assert module.main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1
    assert re.search(message, captured.err.strip())
    assert os.listdir(tmp_path) == ["raw"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seed=-1"], "--seed=-1: a seed is an integer"),
        (["--test_fraction=1"], "--test_fraction=1.0: give a share between 0 and 1"),
        (["--ctr=none"], "--ctr=none: give one of out_of_fold, in_sample"),
        (["--workers=0"], "--workers=0: give at least 1"),
        (["--rows_per_part=0"], "--rows_per_part=0: give at least 1"),
        (["--workers=2", "--scheduler=tcp://x:1"], "give one of them"),
        (["--workers=100000"], "--workers=100000: this machine's CPUs are enough for "),
        (["--metadata_path=file:///somewhere"], "--metadata_path=file:///somewhere: is an address; give a folder of"),
        (["--data_path=s3://bucket/raw"], "--data_path=s3://bucket/raw: is an address; give a folder of this machine"),
    ],
)
def test_bad_options(generated, tmp_path, arguments, message, capsys):
    places = ["--data_path", str(generated), "--metadata_path", str(tmp_path / "out")]
    assert module.main([*places, *arguments]) == 2
    assert message in capsys.readouterr().err
    assert os.listdir(tmp_path) == []


def test_the_output_is_no_part_of_the_input(generated, capsys):
    for output in (generated / "out", generated.parent, generated):
        assert module.main(["--data_path", str(generated), "--metadata_path", str(output)]) == 2
        assert "lies in --data_path" in capsys.readouterr().err


def test_the_script_and_a_stop_in_the_middle(generated, tmp_path):
    command = ["bash", str(ROOT / "scripts/preproc.sh"), "--data_path", str(generated), "--metadata_path", "out"]
    environment = {**os.environ, "PATH": f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == ""
    assert done.stdout.startswith("out/feature_spec.yaml\nclicks_train.csv: 3,000 rows in\n")
    assert "peak memory" in done.stdout and os.listdir(tmp_path) == ["out"]


STOPPED = """
import sys
from data.outbrain import join, preprocess

def wait(plan, bucket):
    print("joining", flush=True)
    sys.stdin.read()

join.join_bucket = wait
sys.exit(preprocess.main(sys.argv[1:]))
"""


def test_a_signal_in_the_middle_leaves_nothing(generated, tmp_path):
    command = [sys.executable, "-c", STOPPED, "--data_path", str(generated), "--metadata_path", str(tmp_path / "out")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, cwd=ROOT, text=True, **pipes) as process:
        assert process.stdout.readline() == "joining\n"
        assert os.listdir(tmp_path) == ["out.partial"]
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 143 and errors.count("\n") == 1
    assert os.listdir(tmp_path) == []


def test_a_display_on_both_sides_never(expected, dataset):
    assert not set(columns(dataset[0], "train")["display_id"]) & set(columns(dataset[0], "test")["display_id"])
