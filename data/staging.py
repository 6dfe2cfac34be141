"""An output folder that is there complete or not at all."""

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator

from data import filesystem
from data.errors import InputError


@contextlib.contextmanager
def staged_folder(output_dir: str, *, overwrite: bool = False, marker: str) -> Iterator[str]:
    """Gives a temporary folder beside `output_dir` that becomes it when the block ends without an exception.

    The temporary folder is `output_dir` with `.partial` behind it, so that it lies on the same disk. It is locked while
    the block runs, emptied first where a killed run has left it, and removed on any exception.

    Args:
      output_dir: a folder that does not exist or is empty.
      overwrite: replaces an `output_dir` that holds a finished dataset, at the end, when the new one is complete. The
        old one is renamed and removed only after the new one has its place; what a run that is killed in between leaves
        behind, the next run puts back or removes.
      marker: a file that every finished dataset of this kind has at its top, "feature_spec.yaml" say; a folder without
        it is never replaced.

    Raises:
      InputError: `output_dir` is an address or holds something that may not be replaced, another process is writing to
        it, or an OSError of the block or of the renames: it cannot be written.
    """
    filesystem.local_path(output_dir, "output folder")
    output = os.path.realpath(output_dir)  # of a link the folder that it names, which is on another disk perhaps
    check_output(output, overwrite=overwrite, marker=marker)
    partial, old = f"{output}.partial", f"{output}.partial.replaced"
    try:
        with _locked_folder(partial):
            try:
                _mend(output, old, marker)
                check_output(output, overwrite=overwrite, marker=marker)
                for name in os.listdir(partial):
                    _remove(os.path.join(partial, name))
                yield partial
                check_output(output, overwrite=overwrite, marker=marker)
                _replace(partial, output, old)
            except BaseException:
                shutil.rmtree(partial, ignore_errors=True)
                raise
            # The dataset is there. What cannot be removed now is left to the next run.
            with contextlib.suppress(OSError):
                _mend(output, old, marker)
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
    if os.path.ismount(output_dir):
        raise InputError(f"{output_dir}: a disk is mounted there, so it cannot be renamed; name a new folder below it")
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
    handle = _lock(folder)
    try:
        yield
    finally:
        os.close(handle)


def _lock(folder: str) -> int:
    """Makes the folder and locks it; the lock is held until the descriptor is closed."""
    while True:
        os.makedirs(folder, exist_ok=True)
        try:
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            continue  # the holder before us has just renamed or removed it
        locked = False
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            locked = os.path.samestat(os.fstat(handle), os.stat(folder))
        except FileNotFoundError:
            pass  # so it has between opening and locking
        except BlockingIOError:
            raise InputError(
                f"{folder}: another process is writing there; wait for it to end, or name another folder"
            ) from None
        finally:
            if not locked:
                os.close(handle)
        if locked:
            return handle


def _replace(partial: str, output: str, old: str) -> None:
    """Renames `partial` to `output`; a dataset that is there becomes `old`."""
    if not os.path.isdir(output) or not os.listdir(output):
        os.rename(partial, output)
        return
    os.rename(output, old)
    try:
        os.rename(partial, output)
    except BaseException:
        if not os.path.lexists(output):
            os.rename(old, output)
        raise


def _mend(output: str, old: str, marker: str) -> None:
    """Puts an old dataset back that has lost its name to no new one, and removes one that has been replaced."""
    if not os.path.lexists(old):
        return
    if not os.path.lexists(output):
        os.rename(old, output)
        return
    held = os.listdir(old)
    if held and marker not in held:
        raise InputError(f"{old}: holds {held[0]} and no {marker}, so it is left alone; move it away")
    # The marker goes last: by it the next run knows what one that is killed here has left.
    for name in sorted(held, key=lambda name: (name == marker, name)):
        _remove(os.path.join(old, name))
    os.rmdir(old)


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        os.remove(path)
