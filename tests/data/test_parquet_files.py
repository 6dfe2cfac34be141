import math

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data.errors import InputError
from data.feature_spec import FeatureSpec
from data.parquet_files import Column, Kind, open_parquet_files, spec_columns

SPEC = FeatureSpec.from_dict(
    {
        "feature_spec": {
            "wide": {"cardinality": 9},
            "list": {"cardinality": 9, "max_hotness": 3},
            "x": {},
            "y": {},
            "clicked": {},
            "display": {},
        },
        "channel_spec": {
            "onehot_categorical": ["wide"],
            "multihot_categorical": ["list"],
            "numerical": ["x", "y"],
            "label": ["clicked"],
            "map": ["display"],
        },
        "source_spec": {},
    }
)


def columns_of(rows=4, **changes):
    columns = {
        "wide": pa.array(range(rows)),
        "list": pa.array([[1, 2]] * rows),
        "x": pa.array([0.5] * rows),
        "y": pa.array([0.5] * rows),
        "clicked": pa.array([0] * rows),
        "display": pa.array(range(rows)),
    }
    columns.update(changes)
    return {name: column for name, column in columns.items() if column is not None}


def test_columns_have_their_place_in_the_packed_tensors():
    columns = spec_columns(SPEC, with_display=True)
    places = [(c.name, c.kind, c.tensor, c.position, c.hotness) for c in columns]
    assert places == [
        ("wide", Kind.ONEHOT, "ids", 0, 1),
        ("list", Kind.MULTIHOT, "ids", 1, 3),
        ("x", Kind.NUMERICAL, "numerical", 0, 1),
        ("y", Kind.NUMERICAL, "numerical", 1, 1),
        ("clicked", Kind.LABEL, "labels", 0, 1),
        ("display", Kind.DISPLAY, "group_ids", 0, 1),
    ]
    assert [c.name for c in spec_columns(SPEC, with_display=False)] == ["wide", "list", "x", "y", "clicked"]


def test_row_groups_are_in_file_order_and_files_without_rows_are_allowed(tmp_path):
    paths = [str(tmp_path / f"{name}.parquet") for name in "abc"]
    for path, rows in zip(paths, (5, 0, 3), strict=True):
        pq.write_table(pa.table(columns_of(rows)), path, row_group_size=2)
    files = open_parquet_files(paths, spec_columns(SPEC, with_display=True), threads=2)
    assert files.num_rows == 8
    held = [(f, i, n) for f, i, n in zip(files.group_file, files.group_index, files.group_rows, strict=True) if n]
    assert held == [(0, 0, 2), (0, 1, 2), (0, 2, 1), (2, 0, 2), (2, 1, 1)]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"wide": None}, r"column 'wide' \(one-hot\) is missing; the file has \['list', .*write the column"),
        ({"display": None}, r"column 'display' \(display\) is missing"),
        ({"wide": pa.array([1.0, 2.0])}, r"column 'wide' \(one-hot\) is of type double; write ids as integers"),
        ({"wide": pa.array([[1], [2]])}, r"'wide' .* is of type list<.*; list it under multihot_categorical"),
        ({"wide": pa.array([True, False])}, r"'wide' .* is of type bool"),
        ({"list": pa.array([[1.0], [2.0]])}, r"'list' \(multi-hot\) is of type list<.*double"),
        ({"list": pa.array(["a", "b"])}, r"'list' \(multi-hot\) is of type string; write ids as integers"),
        ({"x": pa.array(["a", "b"])}, r"'x' \(numerical\) is of type string; write it as integers, floats or booleans"),
        ({"clicked": pa.array(["0", "1"])}, r"'clicked' \(label\) is of type string"),
        ({"display": pa.array([1.0, 2.0])}, r"'display' \(display\) is of type double; write display ids as integers"),
    ],
)
def test_columns_that_cannot_be_used_are_refused(tmp_path, changes, message):
    path = str(tmp_path / "bad.parquet")
    pq.write_table(pa.table(columns_of(2, **changes)), path)
    with pytest.raises(InputError, match=message) as error:
        open_parquet_files([path], spec_columns(SPEC, with_display=True), threads=1)
    assert str(error.value).startswith(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"wide": pa.array([0, 1, 7, 10])}, r"'wide' \(one-hot\), row group 1: the ids are 7\.\.10; ids are 0\.\.8 "),
        ({"wide": pa.array([0, -2, 1, 1])}, r"'wide' \(one-hot\), row group 0: the ids are -2\.\.0"),
        ({"wide": pa.array([0, 1, 1, 2**63], pa.uint64())}, r"row group 1: the ids are 1\.\.9223372036854775808"),
        ({"list": pa.array([[0], [], [3, 99], None])}, r"'list' \(multi-hot\), row group 1: the ids are 3\.\.99"),
        (
            {"x": pa.array([0.0, None, None, 1.0])},
            r"'x' \(numerical\), row group 0: 1 value\(s\) are null; fill",
        ),
        (
            {"x": pa.array([0.0, 0.0, math.inf, 1.0])},
            r"'x' \(numerical\), row group 1: the values are 1\.0\.\.inf",
        ),
        ({"x": pa.array([0.0, -1e39, 0.0, 1.0])}, r"'x' \(numerical\), row group 0: the values are -1e\+39\.\."),
        (
            {"clicked": pa.array([0, 1, 1, 2])},
            r"'clicked' \(label\), row group 1: the labels are 1\.\.2",
        ),
        ({"clicked": pa.array([0, 1, None, 1])}, r"'clicked' \(label\), row group 1: 1 value\(s\) are null; every"),
        (
            {"display": pa.array([0, 1, None, 1])},
            r"'display' \(display\), row group 1: 1 value\(s\) are null; every",
        ),
    ],
)
def test_values_that_the_footer_shows_to_be_bad_are_refused_at_once(tmp_path, changes, message):
    path = str(tmp_path / "bad.parquet")
    pq.write_table(pa.table(columns_of(4, **changes)), path, row_group_size=2)
    with pytest.raises(InputError, match=message) as error:
        open_parquet_files([path], spec_columns(SPEC, with_display=True), threads=1)
    assert str(error.value).startswith(path)
    # Nothing is claimed where the writer kept no statistics: decoding finds these values.
    pq.write_table(pa.table(columns_of(4, **changes)), path, row_group_size=2, write_statistics=False)
    assert open_parquet_files([path], spec_columns(SPEC, with_display=True), threads=1).num_rows == 4


def test_statistics_are_those_of_the_column_and_not_of_one_whose_name_begins_alike(tmp_path):
    path = str(tmp_path / "dots.parquet")
    others = {
        "wide.far": pa.array([99] * 4),
        "list.list.element.x": pa.array([99] * 4),
        "x.y": pa.array([None, 1, 1, 1]),
    }
    pq.write_table(pa.table(columns_of(4, **others)), path)
    assert open_parquet_files([path], spec_columns(SPEC, with_display=True), threads=1).num_rows == 4
    dotted = Column("wide.far", Kind.ONEHOT, "ids", 0, 1, 9)
    with pytest.raises(InputError, match=r"column 'wide\.far' \(one-hot\), row group 0: the ids are 99\.\.99"):
        open_parquet_files([path], [dotted], threads=1)


@pytest.mark.parametrize("content", [b"", b"PAR1", b"not parquet at all, but quite long", None])
def test_files_that_are_not_parquet_are_refused(tmp_path, content):
    path = tmp_path / "junk.parquet"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match="no such file" if content is None else "not a readable parquet file") as error:
        open_parquet_files([str(path)], spec_columns(SPEC, with_display=False), threads=1)
    assert str(error.value).startswith(str(path))


def test_a_directory_and_no_rows_at_all_are_refused(tmp_path):
    with pytest.raises(InputError, match="not a readable parquet file"):
        open_parquet_files([str(tmp_path)], spec_columns(SPEC, with_display=False), threads=1)
    path = str(tmp_path / "none.parquet")
    pq.write_table(pa.table(columns_of(0, wide=pa.array([], pa.int64()))), path)
    with pytest.raises(InputError, match=r"1 parquet file\(s\) hold no rows"):
        open_parquet_files([path], spec_columns(SPEC, with_display=False)[3:], threads=1)
