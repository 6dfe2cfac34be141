"""What is looked at before a study touches its folder: the machine, its device sets, and the data."""

import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import study_cases
import yaml

from benchmarks.study import __main__ as study
from benchmarks.study import readiness
from data.errors import InputError
from trainer import machine

FACTS = {"allowed_cpus": 2, "gpus": [], "versions": {"horovod": "1"}}
PARQUET = {"num_epochs": 1}
SPEC = {
    "channel_spec": {"label": ["clicked"], "onehot_categorical": ["ad"]},
    "feature_spec": {"clicked": {}, "ad": {"cardinality": 5}},
    "source_spec": {
        name: [{"type": "parquet", "features": ["clicked", "ad"], "files": [f"{name}.parquet"]}]
        for name in ("train", "test")
    },
    "metadata": {},
}


@pytest.fixture(autouse=True)
def programs(monkeypatch):
    """horovodrun and taskset are there, wherever the tests run."""
    monkeypatch.setattr(readiness.launcher, "command", lambda ranks, job, devices: [])


@pytest.mark.parametrize(
    ("changed", "facts", "said"),
    [
        ({"world_sizes": [1, 64]}, {}, "world_sizes: 64: 64 ranks on a machine with 2 CPUs: take it out of the plan"),
        ({"world_sizes": [3]}, {"gpus": ["G"] * 2}, "world_sizes: 3: 3 ranks on a machine with 2 GPUs"),
        (
            {"world_sizes": [2]},
            {"versions": {"horovod": machine.ABSENT}},
            "2 ranks need Horovod, which is not installed",
        ),
        ({"world_sizes": [2], "device_sets": [{"cpus": "0-1"}, {"cpus": "1"}]}, {}, "2 ranks on a machine with 1 CPUs"),
        (
            {"device_sets": [{"cpus": "0,2"}]},
            {},
            "device_sets: cpus: 0,2: this process may use 0,1: name some of those",
        ),
        ({"device_sets": [{"cpus": "1-99999999999"}]}, {}, "this process may use 0,1"),
        ({"device_sets": [{"cpus": "1-0"}]}, {}, "this process may use 0,1"),
        ({"device_sets": [{"gpus": "0"}]}, {}, "device_sets: gpus: 0: there are 0 GPUs here"),
        ({"device_sets": [{"gpus": "0,2"}]}, {"gpus": ["G"] * 2}, "device_sets: gpus: 0,2: there are 2 GPUs here"),
    ],
)
def test_a_machine_without_room_is_one_line(changed, facts, said):
    with pytest.raises(InputError) as caught:
        readiness.check_machine(study_cases.plan(**changed), FACTS | facts, {0, 1})
    assert said in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changed", "facts"),
    [
        ({"world_sizes": [1, 2]}, {}),
        ({"world_sizes": [2], "device_sets": [{"cpus": "0-1"}]}, {}),
        ({"world_sizes": [1, 2], "device_sets": [{"gpus": "0,1", "cpus": "0"}, {"gpus": "2"}]}, {"gpus": ["G"] * 3}),
        ({"world_sizes": [1]}, {"versions": {"horovod": machine.ABSENT}}),
    ],
)
def test_a_machine_with_room_is_taken(changed, facts):
    readiness.check_machine(study_cases.plan(**changed), FACTS | facts, {0, 1})


def run(tmp_path, **changed):
    """Exit code of a study in a folder that is not there yet."""
    path = tmp_path / "plan.yaml"
    path.write_text(yaml.safe_dump(study_cases.mapping(**changed)))
    return study.main(["run", str(path), "--results_dir", str(tmp_path / "study")])


def dataset(tmp_path, *, without=""):
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "feature_spec.yaml").write_text(yaml.safe_dump(SPEC))
    for name in ("train", "test"):
        if name != without:
            pq.write_table(pa.table({"clicked": [0, 1], "ad": [1, 2]}), folder / f"{name}.parquet")
    return {"flags": PARQUET | {"dataset_path": str(folder)}}


@pytest.mark.parametrize("case", ["ranks", "no dataset", "no file", "no sample", "no clicks", "no specification"])
def test_what_cannot_run_is_one_line_and_leaves_nothing(tmp_path, capsys, monkeypatch, case):
    monkeypatch.setattr(readiness.session, "run", lambda *_, **__: pytest.fail("it was started"))
    monkeypatch.delenv("CLICKS", raising=False)
    generated = study_cases.mapping()["flags"] | {"synthetic_feature_spec": str(tmp_path / "gone.yaml")}
    changed, said = {
        "ranks": ({"world_sizes": [2**12], "global_batch_sizes": [2**12]}, "world_sizes: 4096: "),
        "no dataset": (
            {"flags": PARQUET | {"dataset_path": str(tmp_path / "gone")}},
            f"{tmp_path}/gone/feature_spec.yaml: no dataset there",
        ),
        "no file": (dataset(tmp_path, without="test"), f"{tmp_path}/data/test.parquet"),
        "no sample": ({"flags": {}, "folds": 2, "sample_path": "$CLICKS"}, "$CLICKS: the variable is not set"),
        "no clicks": ({"flags": {}, "folds": 2, "sample_path": str(tmp_path)}, f"{tmp_path}: has no clicks_train.csv"),
        "no specification": ({"flags": generated}, f"{tmp_path}/gone.yaml: cannot read the feature specification"),
    }[case]
    assert run(tmp_path, **changed) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line and not (tmp_path / "study").exists()


def test_data_that_are_there_are_taken(tmp_path, monkeypatch):
    monkeypatch.setattr(readiness.session, "run", lambda *_, **__: [])
    assert run(tmp_path, **dataset(tmp_path)) == 0


def test_a_relative_path_counts_from_where_runs_are_started(tmp_path, monkeypatch):
    monkeypatch.setattr(readiness.session, "run", lambda *_, **__: [])
    changed = dataset(tmp_path)
    changed["flags"]["dataset_path"] = os.path.relpath(tmp_path / "data", readiness.commands.ROOT)
    monkeypatch.chdir(tmp_path)
    assert run(tmp_path, **changed) == 0
