import struct
import zipfile

import numpy as np
import pytest

from data.errors import InputError
from trainer import checkpoint_arrays
from trainer.checkpoint_arrays import DataFile, check_npz, read_array, read_blocks, safe_name, write_npz

F32 = np.dtype("f4")


def write(path, **arrays):
    return write_npz(path, [(name, a.shape, a.dtype, [a[:2], a[2:]]) for name, a in arrays.items()])


@pytest.mark.parametrize(
    "values",
    [
        np.array([[np.nan, -0.0], [np.inf, 1e-45], [3, 4]], "f4"),
        np.array([0x7E01, 0x7D55, 0xFC00, 0x8000], "u2").view("f2"),  # NaNs with payloads, -inf, -0.0
        np.array([-(2**31), 2**31 - 1, 0], "i4"),
        np.array([-(2**63), 2**63 - 1, 0], "i8"),
        np.arange(256, dtype="u1"),
        np.array([True, False, True]),
        np.arange(6, dtype=">f4"),
        np.zeros((0, 3), "f4"),
        np.zeros((5, 0), "f4"),
        np.arange(60, dtype="f8").reshape(5, 3, 4)[:, ::-1],
        np.asfortranarray(np.arange(12, dtype="i4").reshape(4, 3)),
    ],
    ids=lambda a: f"{a.dtype.str}{a.shape}",
)
def test_values_come_back_bit_for_bit_here_and_from_numpy(tmp_path, values):
    file = write(tmp_path / "a.npz", **{"x/y ü": values})
    blocks = list(read_blocks(tmp_path, file, "x/y ü", values.shape, values.dtype, 2))
    assert [start for start, _ in blocks] == list(range(0, len(values), 2))
    read = (
        np.concatenate([block for _, block in blocks], dtype=values.dtype)
        if blocks
        else np.empty(values.shape, values.dtype)
    )
    whole = read_array(tmp_path, file, "x/y ü", values.shape, values.dtype)
    with np.load(tmp_path / "a.npz") as archive:
        assert archive.files == ["x/y ü"]
        for copy in (read, whole, archive["x/y ü"]):
            assert copy.dtype == values.dtype and copy.shape == values.shape
            assert copy.tobytes() == values.tobytes()


@pytest.mark.parametrize("bounds", [(0, 500), (1, 700), (2500, 3000), (2999, 3000), (5, 5), (0, 0), (3000, 3000)])
def test_some_rows_are_read_and_all_are_compared_with_the_checksum(tmp_path, monkeypatch, bounds):
    monkeypatch.setattr(checkpoint_arrays, "BLOCK_BYTES", 2000)
    values = np.arange(9000, dtype="i4").reshape(3000, 3)  # many times what the zip's reader reads ahead
    path, (start, stop) = tmp_path / "a.npz", bounds
    file = write(path, x=values)
    sizes, read_some = [], zipfile.ZipExtFile.read
    monkeypatch.setattr(zipfile.ZipExtFile, "read", lambda self, n=-1: sizes.append(n) or read_some(self, n))

    def read():
        return list(read_blocks(tmp_path, file, "x", values.shape, values.dtype, 300, start=start, stop=stop))

    blocks = read()
    assert [first for first, _ in blocks] == list(range(start, stop, 300))
    for first, block in blocks:
        np.testing.assert_array_equal(block, values[first : min(first + 300, stop)])
    assert min(sizes) > 0 and max(sizes) <= 2000
    content = path.read_bytes()
    begin = content.index(values.tobytes())
    for row in (0, 1200, 2600, 2999):  # within the range and outside
        position = begin + 12 * row
        path.write_bytes(content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :])
        with pytest.raises(InputError, match="Bad CRC-32"):
            read()


def test_a_scalar_array_comes_back(tmp_path):
    value = np.array(2.5, "f4")
    file = write_npz(tmp_path / "a.npz", [("x", (), F32, [value])])
    read = read_array(tmp_path, file, "x", (), F32)
    assert read.shape == () and read == value


def test_arrays_larger_than_a_block_are_read_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint_arrays, "BLOCK_BYTES", 7)
    values = np.arange(101, dtype="i4")
    file = write(tmp_path / "a.npz", x=values)
    np.testing.assert_array_equal(read_array(tmp_path, file, "x", (101,), values.dtype), values)


def test_every_altered_byte_is_reported_or_without_effect(tmp_path):
    expected = {"x": np.arange(4, dtype="f4").reshape(2, 2), "y": np.zeros(0, "i8")}
    path = tmp_path / "a.npz"
    file = write(path, **expected)
    good = path.read_bytes()
    reported = 0
    for position in range(len(good)):
        path.write_bytes(good[:position] + bytes([good[position] ^ 0x15]) + good[position + 1 :])
        for name, values in expected.items():
            try:
                check_npz(tmp_path, file, {name: (values.shape, values.dtype)})
                read = read_array(tmp_path, file, name, values.shape, values.dtype)
            except InputError as error:
                assert str(path) in str(error) and f"delete the folder {tmp_path}" in str(error)
                reported += 1
            else:
                assert read.tobytes() == values.tobytes(), position
    assert reported > len(good) / 2
    payload = good.index(expected["x"].tobytes())
    path.write_bytes(good[:payload] + b"\1" + good[payload + 1 :])
    with pytest.raises(InputError, match=r"Bad CRC-32"):
        list(read_blocks(tmp_path, file, "x", (2, 2), F32, 1))


def test_an_altered_value_is_found_even_if_the_size_in_the_zip_is_altered_too(tmp_path):
    values = np.arange(3000, dtype="f4")
    path = tmp_path / "a.npz"
    file = write(path, x=values)
    content = bytearray(path.read_bytes())
    content[content.index(values.tobytes())] ^= 1
    directory = content.rindex(b"PK\1\2")
    for offset in (20, 24):  # compressed and original size: the reader would compare the checksum one byte later
        (size,) = struct.unpack_from("<I", content, directory + offset)
        struct.pack_into("<I", content, directory + offset, size + 1)
    path.write_bytes(content)
    for read in (read_array, lambda *a: list(read_blocks(*a, 1000))):
        with pytest.raises(InputError, match=r"a\.npz: damaged"):
            read(tmp_path, file, "x", values.shape, values.dtype)


def test_a_shape_or_type_other_than_the_recorded_one_is_refused(tmp_path):
    file = write(tmp_path / "a.npz", x=np.zeros((4, 3), "f4"))
    for shape, dtype in [((3, 3), "f4"), ((4, 3), "i4"), ((12,), "f4")]:
        with pytest.raises(InputError, match=r"array 'x' is float32\(4, 3\), recorded"):
            check_npz(tmp_path, file, {"x": (shape, np.dtype(dtype))})
    with pytest.raises(InputError, match=r"no item named 'z\.npy'"):
        check_npz(tmp_path, file, {"z": ((4, 3), F32)})


def test_arrays_past_the_limit_of_plain_zip_files_are_written(tmp_path, monkeypatch):
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 1000)  # instead of 2 GiB
    values = np.arange(900, dtype="f4")
    file = write(tmp_path / "a.npz", x=values, y=values)
    monkeypatch.undo()
    np.testing.assert_array_equal(read_array(tmp_path, file, "y", values.shape, values.dtype), values)
    with np.load(tmp_path / "a.npz") as archive:
        np.testing.assert_array_equal(archive["y"], values)


def test_a_whole_file_of_another_checkpoint_is_refused(tmp_path):
    file = write(tmp_path / "a.npz", x=np.zeros(3, "f4"))
    (tmp_path / "a.npz").unlink()
    assert write(tmp_path / "a.npz", x=np.ones(3, "f4")).size == file.size
    with pytest.raises(InputError, match="array 'x' has the checksum"):
        check_npz(tmp_path, file, {"x": ((3,), F32)})


def test_missing_truncated_and_longer_files_are_refused(tmp_path):
    path = tmp_path / "a.npz"
    file = write(path, x=np.arange(9, dtype="f4"))
    content = path.read_bytes()
    for damaged in (content[:-1], content + b"\0", b""):
        path.write_bytes(damaged)
        with pytest.raises(InputError, match=rf"a\.npz: .*{len(damaged)} bytes, recorded {len(content)}"):
            check_npz(tmp_path, file, {})
    path.unlink()
    with pytest.raises(InputError, match=r"a\.npz: cannot read the checkpoint: No such file"):
        check_npz(tmp_path, file, {})


def test_an_error_of_the_consumer_is_not_taken_for_damage(tmp_path):
    file = write(tmp_path / "a.npz", x=np.arange(9, dtype="f4"))
    with pytest.raises(KeyError, match="mine"):
        for _ in read_blocks(tmp_path, file, "x", (9,), F32, 2):
            raise KeyError("mine")


@pytest.mark.parametrize(
    ("shape", "dtype", "block"),
    [((3,), "f4", np.zeros(2, "f4")), ((3,), "f4", np.zeros(3, "f8")), ((3, 2), "f4", np.zeros((2, 3), "f4"))],
)
def test_blocks_that_differ_from_what_is_announced_are_a_bug(tmp_path, shape, dtype, block):
    with pytest.raises(ValueError, match="array 'x'") as caught:
        write_npz(tmp_path / "a.npz", [("x", shape, np.dtype(dtype), [block])])
    assert not isinstance(caught.value, InputError)


def test_types_that_npy_cannot_hold_are_a_bug(tmp_path):
    with pytest.raises(ValueError, match="array 'x' has the dtype object"):
        write(tmp_path / "a.npz", x=np.array([None, "a", 1], object))


def test_file_names_are_safe_and_distinct():
    names = ["a/b", "a b", "a%2Fb", "..", "ü", "x" * 300, "x" * 299 + "y", "a\0b", ""]
    safe = [safe_name(name) for name in names]
    assert len(set(safe)) == len(names)
    assert all(len(name) <= 120 and not set(name) & set("/ \0") for name in safe)
    assert safe_name("ad_id") == "ad_id"


def test_the_file_record_names_every_array(tmp_path):
    file = write(tmp_path / "a.npz", x=np.zeros(3, "f4"), y=np.ones(3, "f4"))
    assert isinstance(file, DataFile) and file.name == "a.npz"
    assert file.size == (tmp_path / "a.npz").stat().st_size and list(file.crc32) == ["x", "y"]
