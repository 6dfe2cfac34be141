import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data.part_writer import PartWriter

LISTS = pa.list_(pa.int64())


def write(root, cuts, rows=23, **sizes):
    """Writes rows 0..22 in tables that end at `cuts`."""
    writer = PartWriter(str(root), "part", **sizes)
    for start, end in zip([0, *cuts], [*cuts, rows], strict=True):
        numbers = range(start, end)
        writer.add(
            pa.table({"n": pa.array(numbers, pa.int64()), "l": pa.array([[n] * (n % 3) for n in numbers], LISTS)})
        )
    writer.close()
    assert writer.rows == rows
    return [os.path.join(root, name) for name in writer.files]


@pytest.mark.parametrize("cuts", [[], [1, 2, 3], [4, 4, 16], [5, 10, 15, 20]])
def test_files_hold_the_rows_in_groups_of_one_size_however_they_came(tmp_path, cuts):
    paths = write(tmp_path, cuts, rows_per_group=5, rows_per_file=10)
    assert [os.path.basename(path) for path in paths] == [f"part-0000{n}.parquet" for n in range(3)]
    metadata = [pq.read_metadata(path) for path in paths]
    groups = [[part.row_group(n).num_rows for n in range(part.num_row_groups)] for part in metadata]
    assert groups == [[5, 5], [5, 5], [3]]
    rows = [row for path in paths for row in pq.read_table(path).to_pylist()]
    assert rows == [{"n": n, "l": [n] * (n % 3)} for n in range(23)]


def test_a_row_group_larger_than_a_file_gets_its_own(tmp_path):
    assert len(write(tmp_path, [], rows_per_group=10, rows_per_file=3)) == 3


def test_without_rows_there_is_no_file(tmp_path):
    writer = PartWriter(str(tmp_path), "part", rows_per_group=5, rows_per_file=10)
    writer.add(pa.table({"n": pa.array([], pa.int64())}))
    writer.close()
    assert (writer.rows, writer.files, os.listdir(tmp_path / "part")) == (0, [], [])
