"""Paths that may be addresses of remote filesystems (`s3://bucket/folder`, `gs://...`, `hdfs://...`), read by pyarrow.

A plain path is local. `fsspec+NAME://...` reaches any filesystem that the library fsspec knows by NAME. What stands
behind a `?` are pyarrow's options (`s3://bucket/folder?endpoint_override=host:9000&scheme=http`). The rest of an
address is taken as it stands: nothing in it is percent-encoded.
"""

import os
import re
from functools import lru_cache

import pyarrow as pa
import pyarrow.fs

from data.errors import InputError

_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_FSSPEC = "fsspec+"


def is_address(path: str) -> bool:
    """Whether `path` names its filesystem."""
    return _ADDRESS.match(path) is not None


def join(folder: str, name: str) -> str:
    """`name` below `folder`; `name` itself where it is absolute (a local path, then) or an address."""
    if is_address(name) or name.startswith("/"):
        return name
    if is_address(folder):
        scheme, rest, options = _split(folder)
        return f"{scheme}://{rest}{'' if rest.endswith('/') else '/'}{name}{options}"
    return os.path.join(folder, name)


def parent(path: str) -> str:
    """The folder of `path`; "" for a bare local name."""
    if is_address(path):
        scheme, rest, options = _split(path)
        place, slash, inside = rest.partition("/")
        return f"{scheme}://{place}{slash}{os.path.dirname(inside)}{options}"
    return os.path.dirname(path)


def local_path(path: str, what: str) -> str:
    """The absolute path of what is written or must be local; `what` names it in the message, "--output" say.

    Raises:
      InputError: it is an address, which would otherwise become a folder of that name.
    """
    if is_address(path):
        raise InputError(f"{what}={path}: is an address; give a folder of this machine, and copy it there afterwards")
    return os.path.abspath(path)


def resolve(path: str) -> tuple[pa.fs.FileSystem, str]:
    """The filesystem of `path` and the path in it.

    Raises:
      InputError: no filesystem of that name is there, or it cannot be reached.
    """
    if not is_address(path):
        return _local(), path or "."
    scheme, rest, options = _split(path)
    try:
        if scheme.startswith(_FSSPEC):
            return _fsspec(scheme.removeprefix(_FSSPEC)), rest
        # One connection for each place (opening one can take a second): what stands before the first slash.
        place, _, inside = rest.partition("/")
        filesystem, root = _remote(f"{scheme}://{place}/{options}")
        return filesystem, f"{root.rstrip('/')}/{inside}".rstrip("/") or "/"
    except (pa.ArrowException, OSError, ValueError, ImportError, AttributeError) as error:
        raise InputError(
            f"{path}: cannot reach that filesystem: {error}; give a local path or an address that pyarrow knows "
            "(s3://, gs://, hdfs://)"
        ) from error


def _split(address: str) -> tuple[str, str, str]:
    """Scheme, path and options (with their `?`) of an address; local files and fsspec's have no options."""
    scheme, rest = address.split("://", 1)
    if scheme == "file" or scheme.startswith(_FSSPEC):
        return scheme, rest, ""
    rest, mark, options = rest.partition("?")
    return scheme, rest, mark + options


@lru_cache(maxsize=1)
def _local() -> pa.fs.FileSystem:
    return pa.fs.LocalFileSystem(use_mmap=False)


@lru_cache(maxsize=32)
def _remote(address: str) -> tuple[pa.fs.FileSystem, str]:
    return pa.fs.FileSystem.from_uri(address)


@lru_cache(maxsize=32)
def _fsspec(name: str) -> pa.fs.FileSystem:
    import fsspec  # optional: pyarrow's own filesystems need it not

    return pa.fs.PyFileSystem(pa.fs.FSSpecHandler(fsspec.filesystem(name)))


def list_files(folder: str, *, recursive: bool = True) -> list[str]:
    """Paths of the files below `folder`, hidden ones (`.` or `_` in front) left out, sorted; empty if it is a file.

    Raises:
      InputError: there is no such folder, or it cannot be read.
    """
    kind = _type_of(folder)
    if kind is pa.fs.FileType.NotFound:
        raise InputError(f"{folder}: no such folder; check the path")
    if kind is pa.fs.FileType.File:
        return []
    filesystem, inside = resolve(folder)
    try:
        infos = filesystem.get_file_info(pa.fs.FileSelector(inside, recursive=recursive))
    except OSError as error:
        raise InputError(f"{folder}: cannot be listed: {error}; check that it may be read") from error
    base = inside.strip("/")
    found = []
    for info in infos:
        relative = info.path.lstrip("/").removeprefix(base).lstrip("/")
        hidden = any(part.startswith((".", "_")) for part in relative.split("/"))
        if info.type is pa.fs.FileType.File and not hidden:
            found.append(join(folder, relative))
    return sorted(found)


def exists(path: str) -> bool:
    """Whether there is a file or folder at `path`. Raises InputError where that cannot be found out."""
    return _type_of(path) is not pa.fs.FileType.NotFound


def is_folder(path: str) -> bool:
    """Whether there is a folder at `path`. Raises InputError where that cannot be found out."""
    return _type_of(path) is pa.fs.FileType.Directory


def _type_of(path: str) -> pa.fs.FileType:
    filesystem, inside = resolve(path)
    try:
        return filesystem.get_file_info(inside).type
    except OSError as error:
        raise InputError(f"{path}: cannot be reached: {error}; check the address and what may be read") from error


def open_file(path: str) -> pa.NativeFile:
    """Opens a file for random reads. Raises OSError (FileNotFoundError) as `open` does, and InputError."""
    filesystem, inside = resolve(path)
    return filesystem.open_input_file(inside)


def read_bytes(path: str) -> bytes:
    """The content of a small file. Raises OSError and InputError."""
    if not is_address(path):
        with open(path, "rb") as file:
            return file.read()
    with open_file(path) as file:
        return file.read()
