"""Real Criteo clicks through the whole program: the text file as it comes, a dataset, training, evaluation."""

import collections
import csv
import json
import math
import os
import pathlib

import pyarrow.parquet as pq
import pytest

import main
from data import transcode
from data.feature_spec import FeatureSpec
from data.vocabulary import Vocabulary
from trainer import flags
from trainer.distributed import SingleProcess
from trainer.runtime import Device, Surroundings

ROOT = pathlib.Path(__file__).resolve().parents[1]
INTEGERS = tuple(f"I{n}" for n in range(1, 14))
HASHES = tuple(f"C{n}" for n in range(1, 27))


@pytest.fixture(scope="module")
def sample():
    """The file that $CRITEO_SAMPLE names or, if it is not set, one beside the checkout."""
    named = os.environ.get("CRITEO_SAMPLE")
    beside = [folder / "shared" / "data" / "criteo_sample" / "criteo_sample.txt" for folder in (ROOT.parent, ROOT)]
    paths = [pathlib.Path(named)] if named else beside
    for path in paths:
        if path.is_file():
            return path
    pytest.skip(f"no Criteo sample: set CRITEO_SAMPLE to criteo_sample.txt (looked for {', '.join(map(str, paths))})")


@pytest.fixture(scope="module")
def raw(sample):
    with open(sample, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def dataset(sample, tmp_path_factory):
    folder = tmp_path_factory.mktemp("criteo") / "dataset"
    arguments = ["--input", str(sample), "--output", str(folder), "--label", "label", "--log_standardize"]
    assert transcode.main(arguments) == 0
    return FeatureSpec.from_yaml(str(folder / "feature_spec.yaml"))


def read(spec, source):
    """Rows, -1 for null."""
    rows = pq.read_table(list(spec.source_files(source))).to_pylist()
    return [{name: -1 if value is None else value for name, value in row.items()} for row in rows]


def log(text):
    return math.copysign(math.log1p(abs(float(text))), float(text))


def test_columns_are_what_the_data_set_says_they_are(dataset, raw):
    assert dataset.onehot == HASHES and dataset.multihot == () and dataset.label == "label"
    gaps = [f"{name}_missing" for name in INTEGERS if any(row[name] == "" for row in raw)]
    assert [name for name in dataset.numerical if name not in gaps] == list(INTEGERS)
    assert set(dataset.numerical) == {*INTEGERS, *gaps} and "I2_missing" not in gaps and len(gaps) == 11


def test_every_value_comes_from_its_raw_row(dataset, raw):
    """Rows keep their order on each side, so that a pointer into each finds them."""
    sides = {source: read(dataset, source) for source in ("train", "test")}
    assert sum(map(len, sides.values())) == len(raw) == 200
    figures = dataset.metadata["transcode"]["numerical"]
    folder = pathlib.Path(dataset.path).parent
    vocabularies = {}
    for name, path in dataset.metadata["transcode"]["vocabularies"].items():
        values = Vocabulary.load(str(folder / path)).values.to_pylist()
        vocabularies[name] = {value: number for number, value in enumerate(values, start=1)}

    def encoded(row):
        made = {"label": int(row["label"])}
        for name in INTEGERS:
            entry = figures[name]
            made[name] = 0.0 if row[name] == "" else (log(row[name]) - entry["mean"]) / entry["std"]
            if entry["missing"]:
                made[entry["missing"]] = float(row[name] == "")
        for name in HASHES:
            made[name] = -1 if row[name] == "" else vocabularies[name].get(row[name], 0)
        return made

    taken = {"train": [], "test": []}
    for row in raw:
        expected = encoded(row)
        for source, rows in sides.items():
            place = len(taken[source])
            if place < len(rows) and rows[place] == pytest.approx(expected, rel=1e-5, abs=1e-6):
                taken[source].append(row)
                break
        else:
            raise AssertionError(f"no row of the dataset is {row}")
    # The figures and vocabularies are those of the training rows alone.
    for name in INTEGERS:
        logs = [log(row[name]) for row in taken["train"] if row[name]]
        mean = math.fsum(logs) / len(logs)
        assert figures[name]["mean"] == pytest.approx(mean, rel=1e-12)
        std = math.sqrt(math.fsum((value - mean) ** 2 for value in logs) / len(logs))
        assert figures[name]["std"] == pytest.approx(std, rel=1e-12)
    for name in HASHES:
        counts = collections.Counter(row[name] for row in taken["train"] if row[name])
        assert list(vocabularies[name]) == sorted(counts, key=lambda value: (-counts[value], value))


def train(dataset, tmp_path, *more):
    """The losses that a training logged, and its record."""
    arguments = (
        f"--dataset_path={os.path.dirname(dataset.path)}",
        f"--model_dir={tmp_path}/checkpoints",
        f"--results_dir={tmp_path}/results",
        "--global_batch_size=32",
        "--eval_batch_size=64",
        "--log_every_steps=5",
        "--seed=1",
        *more,
    )
    record = main.run(flags.parse(arguments), SingleProcess(), Surroundings(Device(False, "CPU")))
    losses = []
    for line in (tmp_path / "results" / "log.json").read_text().splitlines():
        entry = json.loads(line.removeprefix("DLLL"))
        if entry["type"] == "LOG" and "loss" in entry["data"]:
            losses.append(entry["data"]["loss"])
    print(losses, record)
    assert len(losses) >= 10 and all(loss is not None and math.isfinite(loss) for loss in losses)
    assert math.isfinite(record.log_loss) and 0 <= record.auc <= 1 and record.data_source == "real"
    return losses, record


def test_wide_and_deep_learns_it(dataset, tmp_path):
    losses, _ = train(
        dataset,
        tmp_path,
        "--num_epochs=20",
        "--deep_hidden_units=32,16",
        "--deep_learning_rate=0.002",
        "--deep_warmup_epochs=1",
    )
    assert sum(losses[-3:]) / 3 < 0.7 * sum(losses[:3]) / 3


@pytest.mark.parametrize(
    ("model", "optimizer"),
    [
        ("dlrm", ("--optimizer=adagrad", "--learning_rate=0.2")),
        ("dcnv2", ("--optimizer=adam", "--learning_rate=0.01", "--cross_layer_projection_dim=32")),
    ],
)
def test_dlrm_and_dcnv2_learn_the_training_rows_by_heart(dataset, tmp_path, model, optimizer):
    shape = ("--embedding_dim=16", "--bottom_mlp_dims=32,16", "--top_mlp_dims=64,32,1")
    schedule = ("--num_epochs=20", "--warmup_steps=10", "--decay_steps=0")
    losses, _ = train(dataset, tmp_path, f"--model={model}", *shape, *schedule, *optimizer)
    assert max(losses[-3:]) < 0.1 < 0.4 < losses[0]
