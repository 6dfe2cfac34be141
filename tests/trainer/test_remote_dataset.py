"""Datasets at addresses: a folder of this machine stands in for the store."""

import os

import pyarrow.fs
import pytest
import small_runs
import yaml

import main
from data import filesystem
from data.errors import InputError
from trainer.distributed import SingleProcess


@pytest.fixture
def store(dataset, monkeypatch):
    """Address of the dataset in a bucket that pyarrow reaches through a filesystem of its own."""
    bucket = pyarrow.fs.SubTreeFileSystem(str(dataset.parent), pyarrow.fs.LocalFileSystem())

    def connect(address):
        if address != "s3://bucket/":
            raise OSError("no route to host")
        return bucket, ""

    monkeypatch.setattr(filesystem, "_remote", connect)
    return f"s3://bucket/{dataset.name}"


def test_a_real_training_whose_rows_are_in_a_store(store, dataset, tmp_path, default_precision):
    config = small_runs.configure(store, tmp_path, embedding_sizes_file=f"{dataset}/sizes.json", max_steps=3)
    record = main.run(config, SingleProcess(), small_runs.PLACE)
    assert record.requested_steps == 3 and record.missing_steps == 0
    assert len(small_runs.losses(config)) == 3 and 0 < record.auc < 1 and record.displays > 0
    assert record.config["dataset_path"] == store and record.data_source == "generated"
    assert os.listdir(tmp_path / "checkpoints") and not (tmp_path / "s3:").exists()


@pytest.mark.parametrize("scheme", ["file://", "fsspec+file://"])
def test_the_rows_are_the_same_by_path_and_address_and_a_run_goes_on_from_either(
    train, idle, dataset, tmp_path, scheme, capsys
):
    if scheme.startswith("fsspec"):
        pytest.importorskip("fsspec")
    first = train(num_epochs=1)
    local = [batch["ids"].tolist() for batch in idle.batches]
    second = train(
        num_epochs=1, dataset_path=f"{scheme}{dataset}", model_dir=f"{tmp_path}/other", results_dir=f"{tmp_path}/other"
    )
    assert [batch["ids"].tolist() for batch in idle.batches[len(local) :]] == local
    assert second.auc == first.auc
    train(num_epochs=2, dataset_path=f"{scheme}{dataset}", use_checkpoint=True)
    assert "training goes on at step 8" in capsys.readouterr().out


def test_files_may_be_relative_absolute_or_addresses_wherever_the_specification_is(
    train, idle, dataset, store, tmp_path
):
    document = yaml.safe_load((dataset / "feature_spec.yaml").read_text())
    sources = document["source_spec"]
    (name,) = sources["train"][0]["files"]
    spec = dataset.parent / "mixed" / "feature_spec.yaml"
    spec.parent.mkdir(exist_ok=True)
    for files in ([str(dataset / name)], [f"{store}/{name}"], [f"../{dataset.name}/{name}"]):
        sources["train"][0]["files"] = files
        sources["test"][0]["files"] = [f"{store}/{name}" for name in _names(dataset, "valid")]
        spec.write_text(yaml.safe_dump(document))
        # A store has no "..": a relative path with it is for local specifications.
        places = (
            [str(spec.parent)] if files[0].startswith("..") else [str(spec.parent), f"s3://bucket/{spec.parent.name}"]
        )
        for place in places:
            idle.batches.clear()
            train(num_epochs=1, dataset_path=place, embedding_sizes_file=f"{dataset}/sizes.json")
            assert len(idle.batches) == small_runs.STEPS_PER_EPOCH


def _names(dataset, folder):
    return [f"{folder}/{name}" for name in os.listdir(dataset / folder)]


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("s3://bucket/none", "^s3://bucket/none/feature_spec.yaml: no dataset there"),
        ("s3://elsewhere/d", "^s3://elsewhere/d/feature_spec.yaml: cannot reach that filesystem: no route to host"),
        ("fsspec+nothing://d", r"^fsspec\+nothing://d/feature_spec.yaml: cannot reach that filesystem"),
    ],
)
def test_addresses_without_a_dataset_are_one_line(train, idle, store, address, message):
    with pytest.raises(InputError, match=message) as error:
        train(dataset_path=address)
    assert "\n" not in str(error.value) and idle.batches == []


def test_an_unknown_scheme_is_one_line(train, idle):
    with pytest.raises(
        InputError, match=r"^nothing://d/feature_spec.yaml: cannot reach that filesystem: .*; give a lo"
    ):
        train(dataset_path="nothing://d")


def test_a_file_that_is_missing_in_the_store_is_named_by_its_address(train, idle, dataset, store):
    document = yaml.safe_load((dataset / "feature_spec.yaml").read_text())
    document["source_spec"]["train"][0]["files"] = ["train/none.parquet"]
    folder = dataset.parent / "gap"
    folder.mkdir(exist_ok=True)
    (folder / "feature_spec.yaml").write_text(yaml.safe_dump(document))
    with pytest.raises(InputError, match=r"^s3://bucket/gap/train/none.parquet: no such file; check source_spec"):
        train(dataset_path="s3://bucket/gap")
    assert idle.batches == []


def test_ids_that_a_footer_shows_to_be_out_of_range_end_a_run_before_its_first_step(train, idle, dataset):
    document = yaml.safe_load((dataset / "feature_spec.yaml").read_text())
    document["feature_spec"]["ad"]["cardinality"] = 5
    folder = dataset.parent / "narrow"
    folder.mkdir(exist_ok=True)
    for source in document["source_spec"].values():
        source[0]["files"] = [str(dataset / name) for name in source[0]["files"]]
    (folder / "feature_spec.yaml").write_text(yaml.safe_dump(document))
    with pytest.raises(InputError, match=rf"^{dataset}/train/.*: column 'ad' \(one-hot\), row group 0: the ids are "):
        train(dataset_path=str(folder))
    assert idle.batches == []
