"""An output folder that is there complete or not at all."""

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator

from data.errors import InputError


@contextlib.contextmanager
def staged_folder(output_dir: str, *, overwrite: bool = False, marker: str) -> Iterator[str]:
    """Gives a temporary folder beside `output_dir` that becomes it when the block ends without an exception.

    The temporary folder is `output_dir` with `.partial` behind it, so that it lies on the same disk. It is locked while
    the block runs, emptied first where a killed run has left it, and removed on any exception.

    Args:
      output_dir: a folder that does not exist or is empty.
      overwrite: replaces an `output_dir` that holds a finished dataset, at the end and in one rename; till then the old
        one stays whole.
      marker: a file that every finished dataset of this kind has at its top, "feature_spec.yaml" say; a folder without
        it is never replaced.

    Raises:
      InputError: `output_dir` holds something that may not be replaced, another process is writing to it, or an
        OSError of the block or of the renames: it cannot be written.
    """
    output = os.path.abspath(output_dir)
    check_output(output, overwrite=overwrite, marker=marker)
    partial = f"{output}.partial"
    try:
        with _locked_folder(partial):
            try:
                for name in os.listdir(partial):
                    _remove(os.path.join(partial, name))
                yield partial
                check_output(output, overwrite=overwrite, marker=marker)
                _replace(partial, output)
            except BaseException:
                shutil.rmtree(partial, ignore_errors=True)
                raise
    except OSError as error:
        raise InputError(
            f"{error.filename or output}: cannot write {output}: {error.strerror or error}; make room, or name another "
            "folder"
        ) from error


def check_output(output_dir: str, *, overwrite: bool, marker: str) -> None:
    """Raises InputError if `staged_folder` would refuse `output_dir` for what it holds."""
    if not os.path.lexists(output_dir):
        return
    if not os.path.isdir(output_dir):
        raise InputError(f"{output_dir}: is not a folder; name another")
    held = sorted(os.listdir(output_dir))
    if not held:
        return
    if not overwrite:
        raise InputError(
            f"{output_dir}: holds other data ({held[0]}, {len(held)} entries in all); name another folder, or replace "
            "it with --overwrite"
        )
    if marker not in held:
        raise InputError(
            f"{output_dir}: holds {held[0]} and no {marker}, so it is no dataset of this program and --overwrite "
            "leaves it alone; name another folder"
        )


@contextlib.contextmanager
def _locked_folder(folder: str) -> Iterator[None]:
    while True:
        os.makedirs(folder, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise InputError(
                    f"{folder}: another process is writing there; wait for it to end, or name another folder"
                ) from None
            # Between opening and locking, the holder before us may have renamed or removed the folder.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(handle), os.stat(folder)):
                    yield
                    return
        finally:
            os.close(handle)


def _replace(partial: str, output: str) -> None:
    if os.path.isdir(output) and os.listdir(output):
        # The old dataset moves into the new folder's reach first: a kill between the renames loses neither.
        old = f"{output}.replaced"
        shutil.rmtree(old, ignore_errors=True)
        os.rename(output, old)
        os.rename(partial, output)
        shutil.rmtree(old)
    else:
        os.rename(partial, output)


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        os.remove(path)
