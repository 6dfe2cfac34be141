"""Fixtures of the tests that start several ranks: small datasets, and one job for each number of ranks."""

import importlib.util
import json
import pathlib
import pickle
import shutil
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rank_processes import FOLDER, Finished, run_ranks

from data import synthetic
from data.feature_spec import Feature, FeatureSpec

ROWS = 4000
ROWS_PER_GROUP = 250


@pytest.fixture(scope="session", autouse=True)
def _horovod():
    if importlib.util.find_spec("horovod") is None:
        pytest.skip("Horovod is not installed (HOROVOD=0)")


@pytest.fixture(scope="session")
def dataset(tmp_path_factory) -> pathlib.Path:
    """Six features, small tables, nearly 800 evaluation rows sorted by display; 2 and 3 ranks part inside displays."""
    features = [
        Feature("ad", 30),
        Feature("site", 2000),
        Feature("place", 300),
        Feature("topics", 200, max_hotness=3),
        Feature("age"),
        Feature("similarity"),
        Feature("clicked"),
    ]
    spec = FeatureSpec(
        features={feature.name: feature for feature in features},
        onehot=("ad", "site", "place"),
        multihot=("topics",),
        numerical=("age", "similarity"),
        label="clicked",
    )
    folder = tmp_path_factory.mktemp("datasets") / "plain"
    synthetic.generate(str(folder), rows=ROWS, seed=5, spec=spec, rows_per_group=ROWS_PER_GROUP)
    return folder


@pytest.fixture(scope="session")
def changed_dataset(dataset, tmp_path_factory):
    """changed_dataset(source, change): a copy whose file of `source` ("train", "valid") is change(its table)."""

    def copy(source: str, change, rows_per_group: int = ROWS_PER_GROUP) -> pathlib.Path:
        folder = tmp_path_factory.mktemp("datasets") / "changed"
        shutil.copytree(dataset, folder)
        (path,) = (folder / source).glob("*.parquet")
        # Without statistics: a bad value is then met while rows are read, and not in the footers before.
        pq.write_table(change(pq.read_table(path)), path, row_group_size=rows_per_group, write_statistics=False)
        return folder

    return copy


class Job:
    """What the ranks of a finished job left behind."""

    def __init__(self, ranks: int, finished: Finished):
        self._ranks = ranks
        self._finished = finished

    @property
    def folder(self) -> pathlib.Path:
        return self._finished.folder

    def results(self, case: str) -> list:
        """What the case returned, by rank; fails with the ranks' traces where it did not return."""
        paths = [self._finished.folder / f"{case}.{rank}.pickle" for rank in range(self._ranks)]
        if not all(path.exists() for path in paths):
            traces = [path.read_text() for path in sorted(self._finished.folder.glob("*.error"))]
            pytest.fail("\n".join([f"case {case} did not finish", *traces] if traces else [self._finished.text]))
        return [pickle.loads(path.read_bytes()) for path in paths]


@pytest.fixture(scope="session")
def start_job(dataset, changed_dataset, tmp_path_factory):
    """start_job(ranks, name=folder): runs all cases meant for so many ranks, which find the folders by name."""

    def shuffled(table: pa.Table) -> pa.Table:
        return table.take(np.random.default_rng(0).permutation(table.num_rows))

    datasets = {"plain": str(dataset), "unsorted": str(changed_dataset("valid", shuffled))}

    def start(ranks: int, **folders: str) -> Job:
        folder = tmp_path_factory.mktemp(f"job-of-{ranks}")
        command = [sys.executable, FOLDER / "rank_worker.py", folder, json.dumps(datasets | folders)]
        return Job(ranks, run_ranks(ranks, command, folder=folder, timeout_s=600))

    return start


@pytest.fixture(scope="session")
def two_ranks(start_job) -> Job:
    return start_job(2)


@pytest.fixture(scope="session")
def half_trained(two_ranks) -> str:
    """Checkpoints of two ranks with tables of their own, after half of the steps."""
    two_ranks.results("sharded_checkpoint")  # or the trace of what went wrong
    return str(two_ranks.folder / "sharded_checkpoint-files" / "half" / "checkpoints")


@pytest.fixture(scope="session")
def three_ranks(start_job, half_trained) -> Job:
    return start_job(3, half=half_trained)


@pytest.fixture(scope="session")
def four_ranks(start_job, half_trained) -> Job:
    return start_job(4, half=half_trained)
