"""The data files of a checkpoint: npz files written and read in blocks of rows, never in memory as a whole.

A file is an uncompressed zip of `.npy` members, one per array, so `numpy.load` opens it too.
"""

import contextlib
import dataclasses
import hashlib
import os
import pathlib
import urllib.parse
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from data.errors import InputError

BLOCK_BYTES = 4 << 20
"""Bytes of one array that are read or written at a time."""

_LONGEST_NAME = 120  # bytes; file systems take 255, and partial folders append to it

ArraySpecs = Mapping[str, tuple[tuple[int, ...], np.dtype]]
"""Array name -> (shape, dtype)."""


@dataclasses.dataclass(frozen=True)
class DataFile:
    """One npz file of a checkpoint: its name, its size in bytes, and the CRC-32 of each array's `.npy` bytes."""

    name: str
    size: int
    crc32: Mapping[str, int]


def array_specs(specs: Mapping[str, tuple[Iterable[int], Any]]) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
    """`specs` with plain tuples of integers and dtype objects, so that they compare."""
    return {name: (tuple(int(size) for size in shape), np.dtype(dtype)) for name, (shape, dtype) in specs.items()}


def safe_name(name: str) -> str:
    """`name` as part of a file name: percent-encoded, and where that is too long, cut and made unique by a hash."""
    quoted = urllib.parse.quote(name, safe="")
    if len(quoted) <= _LONGEST_NAME:
        return quoted
    return f"{quoted[: _LONGEST_NAME - 17]}-{hashlib.sha256(name.encode()).hexdigest()[:16]}"


def rows_per_block(row_shape: tuple[int, ...], dtype: np.dtype) -> int:
    """Rows of an array that fit in BLOCK_BYTES; at least one."""
    return max(1, BLOCK_BYTES // max(1, _nbytes(row_shape, dtype)))


def write_npz(
    path: pathlib.Path, arrays: Iterable[tuple[str, tuple[int, ...], np.dtype, Iterable[np.ndarray]]]
) -> DataFile:
    """Writes a new npz file, and to the disk beneath it.

    Args:
      path: the file.
      arrays: (name, shape, dtype, the values as consecutive blocks along the first dimension) of each array.

    Raises:
      ValueError: the blocks are not what shape and dtype announce, or the dtype is not a number or bool.
      OSError: the disk is full, or the like.
    """
    checksums = {}
    with open(path, "xb") as file:
        with zipfile.ZipFile(file, "w") as archive:
            for name, shape, dtype, blocks in arrays:
                if dtype.kind not in "biufc":
                    raise ValueError(f"array {name!r} has the dtype {dtype}, which an npy file cannot hold")
                info = zipfile.ZipInfo(_member(name))
                missing = _nbytes(shape, dtype)
                with archive.open(info, "w", force_zip64=True) as member:
                    header = {"descr": dtype.str, "fortran_order": False, "shape": shape}
                    np.lib.format.write_array_header_1_0(member, header)
                    for block in blocks:
                        if block.dtype != dtype or block.shape[1:] != shape[1:]:
                            raise ValueError(
                                f"array {name!r}: a block is {block.dtype}{block.shape}, announced {dtype}{shape}"
                            )
                        member.write(_bytes(block))
                        missing -= block.nbytes
                if missing:
                    raise ValueError(f"array {name!r}: the blocks differ from the announced {shape} by {missing} bytes")
                checksums[name] = info.CRC
        file.flush()
        os.fsync(file.fileno())
        return DataFile(path.name, os.fstat(file.fileno()).st_size, checksums)


def check_npz(folder: pathlib.Path, file: DataFile, arrays: ArraySpecs) -> None:
    """Checks all of a file but the values: that it is there, its size, and the presence and header of each array.

    Raises:
      InputError: something is missing or different.
    """
    path = folder / file.name
    with reading(path):
        size = path.stat().st_size
        if size != file.size:
            raise ValueError(f"{size} bytes, recorded {file.size}")
    for name, (shape, dtype) in arrays.items():
        with _open_array(folder, file, name, shape, dtype):
            pass


def read_array(folder: pathlib.Path, file: DataFile, name: str, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """One whole array.

    Raises:
      InputError: the file is missing, damaged, or differs from its checksum.
    """
    with _open_array(folder, file, name, shape, dtype) as member:
        values = np.empty(shape, dtype)
        _fill(member, values)
        _finish(member)
    return values


def read_blocks(
    folder: pathlib.Path,
    file: DataFile,
    name: str,
    shape: tuple[int, ...],
    dtype: np.dtype,
    row_block: int,
    *,
    start: int = 0,
    stop: int | None = None,
) -> Iterator[tuple[int, np.ndarray]]:
    """Yields (first row, values of up to `row_block` rows) for rows start..stop, by default all of them.

    What lies before and behind is read as well: the checksum, which is compared at the end, is of the whole array.

    Raises:
      InputError: as `read_array`.
    """
    stop = shape[0] if stop is None else stop
    with _open_array(folder, file, name, shape, dtype) as member:
        _skip(member, _nbytes((start, *shape[1:]), dtype))
        for first in range(start, stop, row_block):
            values = np.empty((min(row_block, stop - first), *shape[1:]), dtype)
            _fill(member, values)
            yield first, values
        _skip(member, _nbytes((shape[0] - stop, *shape[1:]), dtype))
        _finish(member)


@contextlib.contextmanager
def reading(path: pathlib.Path) -> Iterator[None]:
    """Turns whatever reading a damaged file raises into an InputError."""
    remedy = f"delete the folder {path.parent} to use the checkpoint before it"
    try:
        yield
    except InputError:
        raise
    except OSError as error:
        raise InputError(f"{path}: cannot read the checkpoint: {error.strerror or error}: {remedy}") from error
    except Exception as error:  # a flipped bit in a zip can raise anything, of half a dozen modules
        raise InputError(f"{path}: damaged or not part of this checkpoint ({error}): {remedy}") from error


@contextlib.contextmanager
def _open_array(
    folder: pathlib.Path, file: DataFile, name: str, shape: tuple[int, ...], dtype: np.dtype
) -> Iterator[zipfile.ZipExtFile]:
    """The member of an array, at its first value.

    Its reader compares the bytes with the zip's CRC-32, which is compared with the manifest's here.
    """
    path = folder / file.name
    with reading(path), zipfile.ZipFile(path) as archive:
        info = archive.getinfo(_member(name))
        recorded = file.crc32[name]
        if recorded != info.CRC:
            raise ValueError(f"array {name!r} has the checksum {info.CRC}, recorded {recorded}")
        with archive.open(info) as member:
            np.lib.format.read_magic(member)
            found = np.lib.format.read_array_header_1_0(member)
            if found != (shape, False, dtype):
                raise ValueError(f"array {name!r} is {found[2]}{found[0]}, recorded {dtype}{shape}")
            yield member


def _fill(member: zipfile.ZipExtFile, values: np.ndarray) -> None:
    view = memoryview(_bytes(values))
    for start in range(0, len(view), BLOCK_BYTES):
        block = view[start : start + BLOCK_BYTES]
        if member.readinto(block) != len(block):
            raise EOFError("it ends early")


def _skip(member: zipfile.ZipExtFile, count: int) -> None:
    while count:
        skipped = len(member.read(min(count, BLOCK_BYTES)))
        if not skipped:
            raise EOFError("it ends early")
        count -= skipped


def _finish(member: zipfile.ZipExtFile) -> None:
    # The reader compares the CRC-32 where it takes the end to be; there must be no other end.
    if member.read(1):
        raise ValueError("it is longer than recorded")


def _member(name: str) -> str:
    return f"{name}.npy"


def _bytes(values: np.ndarray) -> np.ndarray:
    # A view, or a copy in C order where the values are not.
    return values.reshape(-1).view(np.uint8)


def _nbytes(shape: tuple[int, ...], dtype: np.dtype) -> int:
    return int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
