"""Tables to datasets, value for value against a plain computation; splits, faults, and what is left behind."""

import collections
import csv
import gzip
import hashlib
import itertools
import json
import math
import os
import pathlib
import random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from transcode_cases import TABLE, contents, simple

from data.column_inference import Role
from data.csv_text import CsvFormat
from data.input_pipeline import ParquetInput
from data.row_split import HashSplit, TimeSplit
from data.transcode import transcode
from data.transcode_options import ColumnOptions
from data.vocabulary import Vocabulary

OPTIONS = ColumnOptions("clicked", "session", log_standardize=True)
SPLIT = TimeSplit("time", "2024-01-20")


def make_rows(count=700, seed=3):
    """Rows of Python values, None where missing; every kind of column, most of them with gaps."""
    rng = random.Random(seed)
    rows = []
    for number in range(count):
        day = rng.randint(1, 25)
        new = "new " if day >= 20 else ""  # values that training rows never have
        rows.append(
            {
                "clicked": rng.randint(0, 1),
                "session": number // 3,
                "time": f"2024-01-{day:02d}T{rng.randint(0, 23):02d}:00:00",
                "site": rng.choice([None, "a", "b", "c d", 'e"f', "g,h", "zwei\nZeilen", f"{new}x"]),
                "user_id": rng.choice([rng.randint(0, 60), rng.randint(0, 60), None]),
                "ad_id": 2**63 + rng.randint(0, 40) ** 2,
                "postcode": f"{rng.randint(0, 99):05d}",
                "tags": rng.choice([None, [], [f"t{rng.randint(0, 9)}" for _ in range(rng.randint(1, 4))]]),
                "topic_ids": [rng.randint(0, 20) for _ in range(rng.randint(0, 3))],
                "price": rng.choice([None, rng.uniform(-5, 500), float(rng.randint(0, 9))]),
                "count": rng.randint(-1, 1000),
                "constant": 0.1,
            }
        )
    return rows


def write_csv(path, rows, lists=lambda items: "|".join(items), **options):
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, **options)
        writer.writerow(rows[0])
        for row in rows:
            cells = dict(row)
            # An empty list has no form of its own in a|b: brackets for one column, the other has none that is empty.
            cells["topic_ids"] = json.dumps(row["topic_ids"])
            cells["tags"] = "[]" if row["tags"] == [] else None if row["tags"] is None else lists(row["tags"])
            writer.writerow(["" if value is None else value for value in cells.values()])
    return str(path)


def as_parquet(rows):
    types = {"ad_id": pa.uint64(), "user_id": pa.int32(), "session": pa.int64(), "clicked": pa.bool_()}
    types |= {"tags": pa.list_(pa.string()), "topic_ids": pa.large_list(pa.int16())}
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    columns["clicked"] = list(map(bool, columns["clicked"]))
    return pa.table({name: pa.array(values, types.get(name)) for name, values in columns.items()})


def vocabulary_of(values):
    counts = collections.Counter(values)
    return {v: n for n, v in enumerate(sorted(counts, key=lambda v: (-counts[v], v)), start=1)}


def expected_tables(rows):
    """What the dataset should hold with OPTIONS and SPLIT, by dictionaries and exact sums."""
    held_out = [row["time"] >= "2024-01-20" for row in rows]
    train = [row for row, held in zip(rows, held_out, strict=True) if not held]
    ids = {}
    for name in ("site", "ad_id", "postcode"):
        ids[name] = vocabulary_of(str(row[name]) for row in train if row[name] is not None)
    ids["tags"] = vocabulary_of(tag for row in train for tag in row["tags"] or [])

    def log(value):
        return math.copysign(math.log1p(abs(value)), value)

    figures = {}
    for name in ("price", "count", "constant"):
        logs = [log(row[name]) for row in train if row[name] is not None]
        mean = math.fsum(logs) / len(logs)
        std = math.sqrt(math.fsum((value - mean) ** 2 for value in logs) / len(logs))
        figures[name] = (mean, 1.0 if name == "constant" else std)
    tables = {False: [], True: []}
    for row, held in zip(rows, held_out, strict=True):
        made = {"clicked": row["clicked"], "session": row["session"]}
        for name in ("site", "ad_id", "postcode"):
            made[name] = None if row[name] is None else ids[name].get(str(row[name]), 0)
        made["user_id"], made["topic_ids"] = row["user_id"], row["topic_ids"]
        made["tags"] = None if row["tags"] is None else [ids["tags"].get(tag, 0) for tag in row["tags"]]
        for name, (mean, std) in figures.items():
            made[name] = 0.0 if row[name] is None else (log(row[name]) - mean) / std
        made["price_missing"] = float(row["price"] is None)
        tables[held].append(made)
    return tables, ids, figures


def read(spec, source):
    return pq.read_table(list(spec.source_files(source))).to_pylist()


def assert_equal(rows, expected):
    assert len(rows) == len(expected)
    for row, wanted in zip(rows, expected, strict=True):
        assert row.keys() == wanted.keys()
        for name, value in wanted.items():
            if isinstance(value, float):
                assert row[name] == pytest.approx(value, rel=2e-7, abs=1e-7), name
            else:
                assert row[name] == value, name


def contents_beside(made):
    return contents(pathlib.Path(made.spec.path).parent)


@pytest.fixture(scope="module")
def rows():
    return make_rows()


@pytest.fixture(scope="module")
def table(rows, tmp_path_factory):
    return write_csv(tmp_path_factory.mktemp("csv") / "t.csv", rows)


@pytest.fixture(scope="module")
def made(table, tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    return transcode(table, str(folder / "out"), OPTIONS, split=SPLIT, rows_per_group=100)


def test_every_value(rows, made):
    tables, _, _ = expected_tables(rows)
    assert len(tables[False]) > 400 and len(tables[True]) > 100
    assert_equal(read(made.spec, "train"), tables[False])
    assert_equal(read(made.spec, "test"), tables[True])
    unseen = [row["site"] for row in tables[True] if row["site"] == 0]
    assert len(unseen) > 5


def test_the_specification(rows, made):
    spec = made.spec
    _, ids, figures = expected_tables(rows)
    assert (spec.label, spec.display) == ("clicked", "session")
    assert spec.onehot == ("site", "user_id", "ad_id", "postcode") and spec.multihot == ("tags", "topic_ids")
    assert spec.numerical == ("price", "price_missing", "count", "constant")
    cardinality = {name: len(known) + 1 for name, known in ids.items()} | {
        name: max(i for row in rows for i in (row[name] if name == "topic_ids" else [row[name] or 0])) + 1
        for name in ("user_id", "topic_ids")
    }
    assert {name: spec.features[name].cardinality for name in spec.categorical} == cardinality
    assert {name: spec.features[name].max_hotness for name in spec.multihot} == {"tags": 4, "topic_ids": 3}
    metadata = spec.metadata["transcode"]
    for name, (mean, std) in figures.items():
        entry = metadata["numerical"][name]
        assert (entry["mean"], entry["std"]) == pytest.approx((mean, std), rel=1e-12)
        assert entry["log1p"] is True and entry["fill"] == 0.0
        assert entry["missing"] == ("price_missing" if name == "price" else None)
    assert metadata["split"] == {"time_column": "time", "at": "2024-01-20"}
    assert metadata["display_ids"] == "of the input"
    for name, path in metadata["vocabularies"].items():
        vocabulary = Vocabulary.load(os.path.join(os.path.dirname(spec.path), path))
        assert vocabulary.values.to_pylist() == list(ids[name])
    assert set(metadata["vocabularies"]) == {"site", "ad_id", "postcode", "tags"}


def test_the_files_have_even_row_groups_and_the_declared_types(made):
    for source in ("train", "test"):
        groups = []
        for path in made.spec.source_files(source):
            footer = pq.read_metadata(path)
            groups += [footer.row_group(i).num_rows for i in range(footer.num_row_groups)]
            for field in pq.read_schema(path):
                kind = field.type.value_type if pa.types.is_list(field.type) else field.type
                declared = {"float32": pa.float32()}.get(made.spec.features[field.name].dtype)
                assert kind == (declared or getattr(pa, made.spec.features[field.name].dtype)())
        assert set(groups[:-1]) == {100} and 0 < groups[-1] <= 100


def test_the_input_pipeline_reads_it(made):
    with ParquetInput(made.spec, "test", with_display=True).eval_stream(global_batch_size=64) as stream:
        batches = list(stream)
    displays = [row["session"] for row in read(made.spec, "test")]
    assert np.concatenate([batch["group_ids"] for batch in batches])[: len(displays)].tolist() == displays
    assert batches[0]["ids"].shape == (64, 4 + 4 + 3) and batches[0]["numerical"].shape == (64, 4)


def test_the_report(made):
    lines = {line.column: line for line in made.columns}
    assert [line.column for line in made.columns][:3] == ["clicked", "session", "time"]
    assert lines["time"].role == Role.IGNORED.value and "splits the rows" in lines["time"].rule
    assert (lines["user_id"].rule, lines["user_id"].kept) == ("whole numbers, id by name", True)
    assert (lines["ad_id"].rule, lines["ad_id"].kept) == ("whole numbers, id by name", False)
    assert (lines["tags"].hotness, lines["price"].fill, lines["count"].fill) == (4, 0.0, None)
    text = made.summary()
    assert "price" in text and "vocabulary)" in text and "rows to train" in text.splitlines()[-1]


@pytest.mark.parametrize("block_bytes", [1500, 20_000])
def test_the_size_of_the_batches_does_not_matter(table, made, tmp_path, block_bytes):
    out = tmp_path / "out"
    transcode(table, str(out), OPTIONS, split=SPLIT, rows_per_group=100, block_bytes=block_bytes)
    assert contents(out) == contents_beside(made)


def test_one_parquet_file_gives_the_same_dataset(rows, made, tmp_path):
    path = str(tmp_path / "t.parquet")
    pq.write_table(as_parquet(rows), path, row_group_size=150)
    transcode(path, str(tmp_path / "out"), OPTIONS, split=SPLIT, rows_per_group=100, block_bytes=4000)
    assert contents(tmp_path / "out") == contents_beside(made)


def test_many_files_and_stand_in_filesystems_give_the_same_dataset(rows, made, tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    bounds = [0, 10, 11, 300, 700]
    for number, (first, last) in enumerate(itertools.pairwise(bounds)):
        # Lists of the first file are brackets: what one file has does not decide for the others.
        write_csv(folder / f"{number}.csv", rows[first:last], lists=json.dumps if number == 0 else "|".join)
    for name in ("1", "3"):
        (folder / f"{name}.csv.gz").write_bytes(gzip.compress((folder / f"{name}.csv").read_bytes()))
        (folder / f"{name}.csv").unlink()
    for number, place in enumerate((f"{folder}", f"file://{folder}", f"fsspec+file://{folder}")):
        out = tmp_path / f"out{number}"
        transcode(place, str(out), OPTIONS, split=SPLIT, rows_per_group=100)
        assert contents(out) == contents_beside(made)


def test_partitioned_parquet(rows, tmp_path):
    """A column of the folders' names is a column like others; the rows are in the order of the folders."""
    root = tmp_path / "in"
    whole = as_parquet(rows)
    site = [row["site"] for row in rows]
    for folder, value in (("__HIVE_DEFAULT_PARTITION__", None), ("a", "a"), ("c%20d", "c d")):
        (root / f"site={folder}").mkdir(parents=True)
        part = whole.filter(pa.array([one == value for one in site])).drop_columns(["site"])
        pq.write_table(part, root / f"site={folder}" / "part.parquet")
    made = transcode(str(root), str(tmp_path / "out"), OPTIONS, split=SPLIT)
    ordered = [row for value in (None, "a", "c d") for row in rows if row["site"] == value]
    tables, _, _ = expected_tables(ordered)
    names = list(made.spec.sources["train"][0].features)
    assert names[-1] == "site"
    assert_equal(read(made.spec, "train"), [{name: row[name] for name in names} for row in tables[False]])
    assert_equal(read(made.spec, "test"), [{name: row[name] for name in names} for row in tables[True]])


def test_gaps_without_log_standardize(tmp_path):
    text = "y,x,w,z,x_missing\n" + "".join(f"{i % 2},{'' if i % 5 == 0 else i},{i},nan,7\n" for i in range(50))
    made = transcode(simple(tmp_path, text), str(tmp_path / "out"), ColumnOptions("y", numerical=("z",)))
    train, test = read(made.spec, "train"), read(made.spec, "test")
    given = [row["x"] for row in train if not row["x_missing_"]]
    assert given == [row["w"] for row in train if not row["x_missing_"]] and test
    mean = math.fsum(given) / len(given)
    gaps = [row for row in train + test if row["x_missing_"]]
    assert len(gaps) == 10 and all(row["x"] == pytest.approx(mean, rel=1e-6) and row["w"] % 5 == 0 for row in gaps)
    assert {(row["z"], row["z_missing"], row["x_missing"]) for row in train} == {(0.0, 1.0, 7.0)}
    assert made.spec.numerical == ("x", "x_missing_", "w", "z", "z_missing", "x_missing")
    assert made.spec.metadata["transcode"]["numerical"]["x"] == {
        "log1p": False,
        "mean": 0.0,
        "std": 1.0,
        "fill": pytest.approx(mean),
        "missing": "x_missing_",
    }


def test_a_given_fill_is_in_the_columns_own_units(tmp_path):
    text = "y,x\n" + "".join(f"{i % 2},{'' if i % 5 == 0 else i}\n" for i in range(50))
    path = simple(tmp_path, text)
    plain = transcode(path, str(tmp_path / "a"), ColumnOptions("y", fill=-3.0))
    assert {row["x"] for row in read(plain.spec, "train") if row["x_missing"]} == {-3.0}
    logs = transcode(path, str(tmp_path / "b"), ColumnOptions("y", fill=-3.0, log_standardize=True))
    figures = logs.spec.metadata["transcode"]["numerical"]["x"]
    expected = (-math.log(4) - figures["mean"]) / figures["std"]
    filled = {row["x"] for row in read(logs.spec, "train") if row["x_missing"]}
    assert filled == {np.float32(expected)} and figures["fill"] == pytest.approx(expected)


def test_the_default_split_is_by_display_or_row(tmp_path):
    text = "y,d,x\n" + "".join(f"{i % 2},s{i // 4},{i}\n" for i in range(400))
    path = simple(tmp_path, text)
    made = transcode(path, str(tmp_path / "a"), ColumnOptions("y", "d"))
    train, test = ({row["d"] for row in read(made.spec, source)} for source in ("train", "test"))
    assert train.isdisjoint(test) and len(train | test) == 100 and 8 <= len(test) <= 35
    assert made.spec.metadata["transcode"]["split"] == {"key": "d", "test_fraction": 0.2, "seed": 0}
    by_row = transcode(path, str(tmp_path / "b"), ColumnOptions("y", ignore=("d",)))
    rows = read(by_row.spec, "train") + read(by_row.spec, "test")
    assert sorted(row["x"] for row in rows) == list(range(400)) and 50 <= len(read(by_row.spec, "test")) <= 110
    kept = [row["x"] for row in read(by_row.spec, "train")]
    assert kept == sorted(kept)
    transcode(path, str(tmp_path / "c"), ColumnOptions("y", ignore=("d",)), block_bytes=200)
    assert contents(tmp_path / "c") == contents(tmp_path / "b")


@pytest.mark.parametrize("displays", [["5", "-7", "05", "x"], ["18446744073709551616", "5"], ["1.5", "2"]])
def test_text_displays_become_distinct_integers(tmp_path, displays):
    text = "y,d,x\n" + "".join(f"{i % 2},{displays[i % len(displays)]},{i}\n" for i in range(40))
    made = transcode(simple(tmp_path, text), str(tmp_path / "out"), ColumnOptions("y", "d"), split=HashSplit(None))
    groups = collections.defaultdict(set)
    for row in read(made.spec, "train"):
        groups[row["d"]].add(int(row["x"]) % len(displays))
        text = displays[int(row["x"]) % len(displays)]
        digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
        assert row["d"] == int.from_bytes(digest, "little") >> 1
    assert sorted(map(sorted, groups.values())) == [[n] for n in range(len(displays))]


def test_ids_that_pandas_made_floats_of_are_ids(tmp_path):
    """A gap in an integer column makes 5.0 of 5; the file of a day without gaps has 5."""
    text = "y,a_id\n" + "".join(f"{i % 2},{['nan', '', f'{i % 5}.0', f'{i % 5}'][i % 4]}\n" for i in range(200))
    made = transcode(simple(tmp_path, text), str(tmp_path / "out"), ColumnOptions("y"))
    assert made.spec.features["a_id"].cardinality == 5
    assert {row["a_id"] for row in read(made.spec, "train")} == {None, 0, 1, 2, 3, 4}


def test_integer_displays_stay(tmp_path):
    text = "y,d,x\n" + "".join(f"{i % 2},{i - 20}{'.0' * (i % 3 == 0)},{i}\n" for i in range(40))
    made = transcode(simple(tmp_path, text), str(tmp_path / "out"), ColumnOptions("y", "d"))
    assert all(row["d"] == row["x"] - 20 for row in read(made.spec, "train"))


def test_min_count_and_forced_vocabularies(tmp_path):
    text = "y,c,item_id\n" + "".join(f"{i % 2},{'ab'[i % 2] if i else 'rare'},{i % 3 + 1}\n" for i in range(60))
    path = simple(tmp_path, text)
    made = transcode(path, str(tmp_path / "a"), ColumnOptions("y", min_count=2), split=HashSplit(None, 0.1))
    assert made.spec.features["c"].cardinality == 3 and made.spec.features["item_id"].cardinality == 4
    assert "item_id" not in made.spec.metadata["transcode"]["vocabularies"]
    forced = transcode(path, str(tmp_path / "b"), ColumnOptions("y", vocabulary=("item_id",)))
    assert forced.spec.metadata["transcode"]["vocabularies"]["item_id"] == "vocabulary/item_id.parquet"


@pytest.mark.parametrize(
    ("ids", "kept"),
    [
        (range(50), True),
        (range(0, 500, 10), True),
        (range(0, 2000, 40), False),  # a fortieth of the table would be in use
        (range(-1, 49), False),
        (range(10**9, 10**9 + 50), False),
    ],
)
def test_whole_numbers_stay_ids_where_they_are_dense(tmp_path, ids, kept):
    text = "y,a_id\n" + "".join(f"{i % 2},{ids[i % 50]}\n" for i in range(300))
    made = transcode(simple(tmp_path, text), str(tmp_path / "out"), ColumnOptions("y"))
    assert made.spec.features["a_id"].cardinality == (ids[-1] + 1 if kept else 51)
    stored = {row["a_id"] for row in read(made.spec, "train")}
    assert stored == (set(ids) if kept else set(range(1, 51)))


def test_given_cardinality_and_hotness(tmp_path):
    text = "y,a,t\n" + "".join(f"{i % 2},{i % 9 - 1},{i % 3}|{i % 4}\n" for i in range(60))
    options = ColumnOptions("y", categorical=("a",), cardinality={"a": 3_000_000_000, "t": 9}, hotness={"t": 5})
    made = transcode(simple(tmp_path, text), str(tmp_path / "out"), options)
    assert made.spec.features["a"].cardinality == 3_000_000_000 and made.spec.features["a"].dtype == "int64"
    assert (made.spec.features["t"].cardinality, made.spec.features["t"].max_hotness) == (9, 5)
    assert {row["a"] for row in read(made.spec, "train")} == set(range(-1, 8))  # -1: an absent id, as in any dataset


def test_names_that_are_no_file_names(tmp_path):
    path = simple(tmp_path, TABLE.replace("y,c,n,t", "y,../a/b c,.,\u00fc"))
    made = transcode(path, str(tmp_path / "out"), ColumnOptions("y"))
    paths = made.spec.metadata["transcode"]["vocabularies"]
    assert paths == {"../a/b c": "vocabulary/..%2Fa%2Fb c.parquet"}
    assert Vocabulary.load(str(tmp_path / "out" / paths["../a/b c"])).size == 3
    assert sorted(os.listdir(tmp_path)) == ["out", "t.csv"]


def test_unnamed_columns_are_left_out(tmp_path):
    made = transcode(simple(tmp_path, TABLE.replace("y,c,n,t", "y,,n,")), str(tmp_path / "out"), ColumnOptions("y"))
    assert made.spec.numerical == ("n",) and made.spec.categorical == ()
    assert [line.role for line in made.columns] == ["label", "ignored", "numerical", "ignored"]


def test_the_specification_is_plain_yaml(made):
    with open(made.spec.path, encoding="utf-8") as file:
        document = yaml.safe_load(file)
    assert document["metadata"]["transcode"]["rows"]["train"] > 0
    assert document["source_spec"]["train"][0]["files"] == [f"train/part-{i:05d}.parquet" for i in range(1)]


def test_an_own_form(tmp_path):
    path = simple(tmp_path, "1;x\n0;y\n" * 30)
    made = transcode(path, str(tmp_path / "out"), ColumnOptions("c0"), form=CsvFormat(delimiter=";", header=False))
    assert made.spec.onehot == ("c1",)
