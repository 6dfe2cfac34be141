import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data.errors import InputError
from data.parquet_decode import Copy, PackedLayout, copy_rows, decode_row_groups
from data.parquet_files import Column, Kind, open_parquet_files

ONEHOT = Column("c", Kind.ONEHOT, "ids", 0, 1, 100)
TRIPLE = Column("c", Kind.MULTIHOT, "ids", 0, 3, 100)
NUMERICAL = Column("c", Kind.NUMERICAL, "numerical")
LABEL = Column("c", Kind.LABEL, "labels")
DISPLAY = Column("c", Kind.DISPLAY, "group_ids")


def decode(tmp_path, column, array, *, row_group_size=None, groups=None, **options):
    """The dense column of a file with that one column."""
    path = str(tmp_path / "file.parquet")
    pq.write_table(pa.table({column.name: array}), path, row_group_size=row_group_size or len(array), **options)
    files = open_parquet_files([path], [column], threads=1)
    (dense,) = decode_row_groups(files, range(len(files.group_rows)) if groups is None else groups, [column])
    return dense


@pytest.mark.parametrize("name", ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"])
def test_integers_of_any_width_with_and_without_nulls(tmp_path, name):
    kind = pa.type_for_alias(name)
    np.testing.assert_array_equal(decode(tmp_path, ONEHOT, pa.array([3, 0, 99], kind)).values, [3, 0, 99])
    np.testing.assert_array_equal(decode(tmp_path, ONEHOT, pa.array([3, None, 99], kind)).values, [3, -1, 99])
    lists = pa.array([[3, None, 99], [], [1]], pa.list_(kind))
    np.testing.assert_array_equal(decode(tmp_path, TRIPLE, lists).values, [[3, -1, 99], [-1] * 3, [1, -1, -1]])
    np.testing.assert_array_equal(decode(tmp_path, DISPLAY, pa.array([3, 0, 99], kind)).values, [3, 0, 99])


def test_absent_ids(tmp_path):
    np.testing.assert_array_equal(decode(tmp_path, ONEHOT, pa.array([-1, 5], pa.int32())).values, [-1, 5])
    np.testing.assert_array_equal(decode(tmp_path, ONEHOT, pa.nulls(2)).values, [-1, -1])
    np.testing.assert_array_equal(decode(tmp_path, ONEHOT, pa.nulls(2, pa.uint64())).values, [-1, -1])


def test_dictionary_encoded_ids(tmp_path):
    array = pa.array([7, 7, None, 9, 7]).dictionary_encode()
    assert pa.types.is_dictionary(array.type)
    np.testing.assert_array_equal(decode(tmp_path, ONEHOT, array).values, [7, 7, -1, 9, 7])


@pytest.mark.parametrize("make", [pa.list_, pa.large_list])
def test_ragged_lists_null_lists_and_lists_that_are_too_long(tmp_path, make):
    rows = [[1, 2, 3], None, [], [4], [5, None], [6, 7, 8, 9, 10], [None, 11, 12, 13], [14, 15, 16]]
    expected = [
        [1, 2, 3],
        [-1, -1, -1],
        [-1, -1, -1],
        [4, -1, -1],
        [5, -1, -1],
        [6, 7, 8],
        [-1, 11, 12],
        [14, 15, 16],
    ]
    for size in (1, 3, 8):
        dense = decode(tmp_path, TRIPLE, pa.array(rows, make(pa.int64())), row_group_size=size)
        np.testing.assert_array_equal(dense.values, expected)
        np.testing.assert_array_equal(dense.cut, [0, 0, 0, 0, 0, 2, 1, 0])


@pytest.mark.parametrize("rows", [[[1, 2, 3], [4, 5, 6]], [[1, None, 3], [4, 5, 6]], [[1, 2, 3]]])
@pytest.mark.parametrize("make", [pa.list_, lambda kind: pa.list_(kind, 3)])
def test_lists_of_the_full_length(tmp_path, rows, make):
    dense = decode(tmp_path, TRIPLE, pa.array(rows, make(pa.int32())))
    expected = [[-1 if i is None else i for i in row] for row in rows]
    np.testing.assert_array_equal(dense.values, expected)
    assert dense.cut is None


@pytest.mark.parametrize("size", [1, 2, 5])
def test_fixed_size_lists_of_another_length(tmp_path, size):
    dense = decode(tmp_path, TRIPLE, pa.array([list(range(size))] * 3, pa.list_(pa.int64(), size)))
    np.testing.assert_array_equal(dense.values, [(list(range(size)) + [-1] * 3)[:3]] * 3)
    assert (dense.cut is None) == (size <= 3)


def test_null_among_fixed_size_lists_is_what_pyarrow_cannot_read(tmp_path):
    with pytest.raises(InputError, match="row group 0 cannot be decoded"):
        decode(tmp_path, TRIPLE, pa.array([[1, 2, 3], None], pa.list_(pa.int32(), 3)))


def test_plain_integers_are_a_multihot_column_of_one_id(tmp_path):
    dense = decode(tmp_path, TRIPLE, pa.array([1, None, 3]))
    np.testing.assert_array_equal(dense.values, [[1, -1, -1], [-1, -1, -1], [3, -1, -1]])


def test_a_multihot_column_of_hotness_one(tmp_path):
    column = Column("c", Kind.MULTIHOT, "ids", 0, 1, 100)
    for array in (pa.array([1, 2]), pa.array([[1], [2]]), pa.array([[1, 9], [2]])):
        dense = decode(tmp_path, column, array)
        packed = PackedLayout([column]).empty(2)
        copy_rows([dense], [Copy(0, 0, 2)], packed)
        np.testing.assert_array_equal(packed["ids"], [[1], [2]])


@pytest.mark.parametrize("kind", ["int8", "uint64", "float16", "float32", "float64", "bool"])
def test_numericals_and_labels_of_any_number_type(tmp_path, kind):
    array = pa.array(np.array([0, 1, 1]).astype(kind))
    for column in (NUMERICAL, LABEL):
        np.testing.assert_array_equal(decode(tmp_path, column, array).values.astype(np.float32), [0, 1, 1])


@pytest.mark.parametrize("codec", ["none", "snappy", "gzip", "zstd", "lz4", "brotli"])
@pytest.mark.parametrize("use_dictionary", [False, True])
def test_codecs(tmp_path, codec, use_dictionary):
    ids = np.arange(50) % 7
    dense = decode(tmp_path, ONEHOT, pa.array(ids), row_group_size=9, compression=codec, use_dictionary=use_dictionary)
    np.testing.assert_array_equal(dense.values, ids)


@pytest.mark.parametrize(
    ("column", "array", "message"),
    [
        (ONEHOT, pa.array([1, 2, 3, 100, 101, 5]), r"row group 1: 2 bad value.* first is 100; ids are 0..99 .*y 100"),
        (ONEHOT, pa.array([1, -2, 3, None]), r"row group 0: 1 bad value.* first is -2"),
        (ONEHOT, pa.array([1, 2, 3, 2**40]), r"row group 1: 1 bad value.* first is 1099511627776"),
        (ONEHOT, pa.array([1, 2, 3, 2**63 + 1], pa.uint64()), r"first is 9223372036854775809"),
        (ONEHOT, pa.array([1, 2, None, 2**63 + 1], pa.uint64()), r"column 'c' .* 9223372036854775809"),
        (TRIPLE, pa.array([[1, 2, 3]] * 3 + [[1, 200, 2]]), r"row group 1: 1 bad value.* first is 200"),
        (TRIPLE, pa.array([[1], [], [], None, [1, 2, 3, 300], [-5]]), r"row group 1: 2 bad value.* first is 300"),
        (NUMERICAL, pa.array([1.0, None, None]), r"row group 0: 2 bad value.* is null; fill the gaps when"),
        (NUMERICAL, pa.array([1.0, 2.0, 3.0, np.nan]), r"row group 1: 1 bad value.* first is nan; numericals must be"),
        (NUMERICAL, pa.array([np.inf, -np.inf, 1.0, np.inf]), r"row group 0: 2 bad value.* first is inf"),
        (NUMERICAL, pa.array([1.0, -1e39]), r"1 bad value.* first is -1e\+39"),
        (LABEL, pa.array([0, 1, 1, 2]), r"row group 1: 1 bad value.* first is 2; labels are 0 or 1"),
        (LABEL, pa.array([0, 1, -1]), r"first is -1"),
        (LABEL, pa.array([0.0, 0.5]), r"first is 0.5"),
        (LABEL, pa.array([0.0, np.nan]), r"first is nan"),
        (LABEL, pa.array([0, None]), r"first is null; every row needs a label"),
        (DISPLAY, pa.array([0, None]), r"first is null; every row needs a display id"),
        (DISPLAY, pa.array([0, 2**63], pa.uint64()), r"first is 9223372036854775808; display ids must be below 2\^63"),
    ],
)  # fmt: skip
def test_values_that_cannot_be_used_are_refused(tmp_path, column, array, message):
    with pytest.raises(InputError, match=message) as error:
        decode(tmp_path, column, array, row_group_size=3, write_statistics=False)
    assert str(error.value).startswith(str(tmp_path / "file.parquet"))
    assert "column 'c'" in str(error.value)


def test_a_damaged_page_is_refused(tmp_path):
    path = tmp_path / "file.parquet"
    ids = np.random.default_rng(0).integers(0, 100, 2000)
    pq.write_table(pa.table({"c": ids}), path, compression="gzip", use_dictionary=False)
    content = bytearray(path.read_bytes())
    content[200:400] = bytes(200)
    path.write_bytes(content)
    files = open_parquet_files([str(path)], [ONEHOT], threads=1)
    with pytest.raises(InputError, match=r"row group 0 cannot be decoded .*write the file again") as error:
        decode_row_groups(files, [0], [ONEHOT])
    assert str(error.value).startswith(str(path))


def test_row_groups_come_in_the_order_asked_for(tmp_path):
    dense = decode(tmp_path, ONEHOT, pa.array(range(10)), row_group_size=3, groups=[2, 0, 3])
    np.testing.assert_array_equal(dense.values, [6, 7, 8, 0, 1, 2, 9])


def test_copies_fill_the_places_of_a_column(tmp_path, monkeypatch):
    monkeypatch.setattr("data.parquet_decode._BLOCK_ROWS", 2)
    column = Column("c", Kind.MULTIHOT, "ids", 1, 2, 100)
    dense = decode(tmp_path, column, pa.array([[i, i + 1, i + 2] if i % 2 else [i] for i in range(9)]))
    packed = {"ids": np.full((8, 4), 77, np.int32)}
    lost = copy_rows([dense], [Copy(1, 4, 4), Copy(6, 0, 1)], packed)
    expected = np.full((8, 4), 77)
    expected[4:, 1:3] = [[1, 2], [2, -1], [3, 4], [4, -1]]
    expected[0, 1:3] = [6, -1]
    np.testing.assert_array_equal(packed["ids"], expected)
    assert lost == {"c": 2}


@pytest.mark.parametrize(
    ("cardinalities", "dtype"),
    [
        ([100], np.int32),
        ([2**31 - 1], np.int32),
        ([2**31], np.int64),
        ([2**30, 2**30 - 1], np.int32),
        ([2**30, 2**30], np.int64),
        ([2**40], np.int64),
    ],
)
def test_ids_are_wide_where_the_sum_of_the_cardinalities_needs_it(cardinalities, dtype):
    ids = [Column(f"c{n}", Kind.ONEHOT, "ids", n, 1, cardinality) for n, cardinality in enumerate(cardinalities)]
    layout = PackedLayout([*ids, NUMERICAL, LABEL])
    assert layout.tensors["ids"] == ((len(ids),), dtype)
    assert layout.empty(2)["ids"].dtype == layout.padding(2)["ids"].dtype == dtype


def test_layout_counts_the_bytes_of_a_row():
    layout = PackedLayout([ONEHOT, TRIPLE, NUMERICAL, LABEL])
    assert layout.row_bytes == 4 * (4 + 1 + 1)
    assert sum(array.nbytes for array in layout.empty(10).values()) == 240


def write_files(tmp_path, arrays, **options):
    paths = []
    for number, array in enumerate(arrays):
        paths.append(str(tmp_path / f"file-{number}.parquet"))
        pq.write_table(pa.table({"c": array}), paths[-1], row_group_size=2, **options)
    return paths


@pytest.mark.parametrize("kinds", [("int64", "int64", "int64"), ("int64", "int32", "uint8")])
def test_row_groups_of_several_files(tmp_path, kinds):
    arrays = [pa.array([10 * n, 10 * n + 1, 10 * n + 2], kind) for n, kind in enumerate(kinds)]
    files = open_parquet_files(write_files(tmp_path, arrays), [ONEHOT], threads=1)
    (dense,) = decode_row_groups(files, [1, 2, 3, 5], [ONEHOT])
    assert dense.values.tolist() == [2, 10, 11, 12, 22]


def test_lists_of_several_files_and_what_is_cut_of_them(tmp_path):
    arrays = [pa.array([[1], [2, 3, 4, 5]]), pa.array([7, None], pa.int32()), pa.array([[8, 9]], pa.list_(pa.int32()))]
    files = open_parquet_files(write_files(tmp_path, arrays), [TRIPLE], threads=1)
    (dense,) = decode_row_groups(files, [0, 1, 2], [TRIPLE])
    assert dense.values.tolist() == [[1, -1, -1], [2, 3, 4], [7, -1, -1], [-1, -1, -1], [8, 9, -1]]
    assert dense.cut.tolist() == [0, 1, 0, 0, 0]


@pytest.mark.parametrize("kinds", [("int64", "int64"), ("int64", "int32")])
def test_a_bad_value_in_one_of_several_files_is_told_by_its_file(tmp_path, kinds):
    arrays = [pa.array([1, 2, 3], kinds[0]), pa.array([4, 5, 200, 201], kinds[1])]
    files = open_parquet_files(write_files(tmp_path, arrays, write_statistics=False), [ONEHOT], threads=1)
    with pytest.raises(InputError, match=r"file-1\.parquet: column 'c' .*row group 1: 2 bad value.* first is 200"):
        decode_row_groups(files, [0, 1, 2, 3], [ONEHOT])


@pytest.mark.parametrize("rows", [0, 1, 7, 4096])
def test_packed_arrays_are_aligned_for_tensorflow(rows):
    layout = PackedLayout([ONEHOT, TRIPLE, NUMERICAL, LABEL])
    for name, array in layout.empty(rows).items():
        shape, dtype = layout.tensors[name]
        assert array.shape == (rows, *shape) and array.dtype == dtype and array.flags.c_contiguous
        assert array.ctypes.data % 64 == 0 or not array.size
