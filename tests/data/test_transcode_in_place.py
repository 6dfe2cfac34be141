"""A specification alone: what fits is described as it is, what does not is refused with its column and file."""

import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from transcode_cases import contents

from data import transcode as command
from data.errors import InputError
from data.feature_spec import FeatureSpec
from data.input_pipeline import ParquetInput
from data.transcode_in_place import describe_in_place
from data.transcode_options import ColumnOptions

OPTIONS = ColumnOptions("y", "d", categorical=("c",))


def columns(rows=30, **others):
    numbers = np.arange(rows)
    table = {
        "y": pa.array(numbers % 2, pa.int8()),
        "d": pa.array(numbers // 2, pa.uint64()),
        "c": pa.array([None if n == 3 else n % 7 - 1 for n in range(rows)], pa.int32()),
        "user_id": pa.array(numbers % 11),
        "t": pa.array([None if n == 5 else list(range(n % 4)) for n in range(rows)], pa.list_(pa.int16())),
        "x": pa.array(numbers / 4),
        "b": pa.array(numbers % 3 == 0),
        "when": pa.array(numbers, pa.timestamp("s")),
    }
    return table | others


@pytest.fixture
def write(tmp_path):
    """write(train=..., valid=...): a part for each; columns that change."""

    def to(train=None, valid=None, folder="in/{}"):
        for name, others in (("train", train), ("valid", valid)):
            place = tmp_path / folder.format(name)
            place.mkdir(parents=True, exist_ok=True)
            table = {key: value for key, value in columns(**(others or {})).items() if value is not None}
            pq.write_table(pa.table(table), place / "part.parquet", row_group_size=8)
        return str(tmp_path / "in")

    return to


def test_what_fits_is_described_and_left_alone(write, tmp_path):
    path = write(valid={"user_id": pa.array(np.arange(30) + 70)})
    before = contents(tmp_path / "in")
    made = describe_in_place(path, str(tmp_path / "out"), OPTIONS)
    assert contents(tmp_path / "in") == before and os.listdir(tmp_path / "out") == ["feature_spec.yaml"]
    spec = made.spec
    assert (spec.label, spec.display, spec.onehot, spec.multihot) == ("y", "d", ("c", "user_id"), ("t",))
    assert spec.numerical == ("x", "b")
    assert {name: spec.features[name].cardinality for name in spec.categorical} == {"c": 6, "user_id": 100, "t": 3}
    assert spec.features["t"].max_hotness == 3 and spec.features["t"].dtype == "int16"
    assert spec.source_files("train") == (f"{path}/train/part.parquet",)
    assert spec.metadata["transcode"] == {
        "rows": {"train": 30, "test": 30},
        "rows_of_label_1": {"train": 15, "test": 15},
        "in_place": True,
    }
    lines = {line.column: line for line in made.columns}
    assert lines["when"].role == "ignored" and (lines["c"].missing, lines["t"].hotness) == (2, 3)
    with ParquetInput(spec, "test", with_display=True).eval_stream(global_batch_size=30) as stream:
        (batch,) = stream
    assert batch["ids"].numpy()[:4].tolist() == [
        [-1, 70, -1, -1, -1],
        [0, 71, 0, -1, -1],
        [1, 72, 0, 1, -1],
        [-1, 73, 0, 1, 2],
    ]


def test_given_sizes_and_places(write, tmp_path, capsys):
    path = write(folder="in/{}/day=1")
    arguments = ["--input", path, "--output", str(tmp_path / "out"), "--in_place", "--label=y", "--display_id=d"]
    arguments += ["--cardinality=user_id=50000000", "--hotness=t=9", "--ignore=c", "--test_files", f"{path}/train"]
    assert command.main(arguments) == 0
    out = capsys.readouterr().out
    assert "in the folders' names, not in the files" in out and "30 rows to train" in out
    spec = FeatureSpec.from_yaml(str(tmp_path / "out" / "feature_spec.yaml"))
    assert spec.features["user_id"].cardinality == 50_000_000 and spec.features["t"].max_hotness == 9
    assert spec.source_files("test") == spec.source_files("train") == (f"{path}/train/day=1/part.parquet",)
    assert command.main(arguments) == 2
    assert command.main([*arguments, "--overwrite"]) == 0


def test_addresses_stay_addresses(write, tmp_path):
    path = write()
    made = describe_in_place(f"fsspec+file://{path}", str(tmp_path / "out"), OPTIONS)
    assert made.spec.sources["test"][0].files == (f"fsspec+file://{path}/valid/part.parquet",)


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("user_id", pa.array(["a"] * 30), "row 1: column 'user_id': 'a': the type string does not fit the role"),
        ("c", pa.array(np.arange(30) / 2), "row 1: column 'c': 0.0: the type double does not fit"),
        ("c", pa.array([0] * 20 + [-2] * 10), "row 21: column 'c': -2: ids are 0 to 9999999 (unless --cardinality"),
        ("user_id", pa.array([10**9] * 30), "row 1: column 'user_id': 1000000000: ids are 0 to 9999999 (unless"),
        (
            "user_id",
            pa.array([5, 2**64 - 1] * 15, pa.uint64()),
            "row 2: column 'user_id': 18446744073709551615: ids are 0",
        ),
        ("t", pa.array([[1]] * 9 + [[2, -5]] * 21), "row 10: column 't': -5: ids are"),
        ("t", pa.array([["a"]] * 30), "row 1: column 't': ['a']: the type list<"),
        ("x", pa.array([1.0] * 29 + [None]), "row 30: column 'x': missing: every row needs a value"),
        ("x", pa.array([1.0] * 29 + [np.nan]), "row 30: column 'x': nan: numericals are finite as 32-bit"),
        ("x", pa.array([1.0] * 29 + [np.inf]), "row 30: column 'x': inf: a numerical value is finite"),
        ("x", pa.array([1.0] * 29 + [1e39]), "row 30: column 'x': 1e+39: numericals are finite as 32-bit"),
        ("y", pa.array([0, 1, 2] * 10), "row 3: column 'y': 2: a label is 0 or 1"),
        ("y", pa.array(["0", "1"] * 15), "row 1: column 'y': '0': the type string does not fit the role"),
        ("d", pa.array([None, 1] * 15), "row 1: column 'd': missing: every row needs a value"),
        ("d", pa.array([1, 2**63] * 15, pa.uint64()), "row 2: column 'd': 9223372036854775808: display ids are below"),
        ("d", pa.array(["a"] * 30), "row 1: column 'd': 'a': the type string does not fit the role"),
    ],
)
@pytest.mark.parametrize("source", ["train", "valid"])
def test_what_does_not_fit_is_refused(write, tmp_path, source, name, values, message):
    path = write(**{source: {name: values}})
    with pytest.raises(InputError) as error:
        describe_in_place(path, str(tmp_path / "out"), OPTIONS)
    assert str(error.value).startswith(f"{path}/{source}/part.parquet {message}")
    assert os.listdir(tmp_path) == ["in"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ColumnOptions("y", ignore=("c",), cardinality={"user_id": 10}),
            "column 'user_id': 10: ids are 0 to 9 (as given)",
        ),
        (
            ColumnOptions("y", ignore=("c",), hotness={"t": 2}),
            "row 4: column 't': [0, 1, 2]: has 3 ids, more than --hotness t=2",
        ),
        (ColumnOptions("y", categorical=("day",)), "column 'day' is in the folders' names and not in the files"),
        (ColumnOptions("y", "day"), "column 'day' is in the folders' names and not in the files"),
        (ColumnOptions("y", categorical=("t",)), "column 't' holds lists and cannot be categorical"),
        (ColumnOptions("z"), "has no column 'z', which --label names"),
    ],
)
def test_options_that_do_not_suit(write, tmp_path, options, message):
    path = write(folder="in/{}/day=1")
    with pytest.raises(InputError) as error:
        describe_in_place(path, str(tmp_path / "out"), options)
    assert message in str(error.value) and os.listdir(tmp_path) == ["in"]


def test_sources_that_are_not_there_or_not_alike(write, tmp_path):
    path = write(valid={"b": None})
    with pytest.raises(InputError, match="make them the same"):
        describe_in_place(path, str(tmp_path / "out"), OPTIONS)
    with pytest.raises(InputError, match="in/test: no such file or folder"):
        describe_in_place(path, str(tmp_path / "out"), OPTIONS, test_files="test")
    (tmp_path / "in" / "t.csv").write_text("y,x\n1,2\n")
    with pytest.raises(InputError, match=r"in/t\.csv: is not parquet"):
        describe_in_place(path, str(tmp_path / "out"), OPTIONS, test_files="t.csv")
