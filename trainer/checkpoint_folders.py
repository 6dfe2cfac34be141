"""The folders of checkpoints: a new one under a hidden name until it is complete, and those that are there."""

import contextlib
import dataclasses
import errno
import fcntl
import os
import pathlib
import shutil
import time
from collections.abc import Iterator

from data.errors import InputError
from trainer.checkpoint_arrays import safe_name
from trainer.checkpoint_manifest import MANIFEST, Manifest


@dataclasses.dataclass(frozen=True)
class NewFolder:
    """A checkpoint in the making.

    Attributes:
      path: the folder to write to.
      target: what it is to be called.
      created: as Manifest.created.
    """

    path: pathlib.Path
    target: pathlib.Path
    created: int

    def put_in_place(self) -> None:
        """Gives the folder, whose files are on the disk, its name, and replaces what has it."""
        sync_folder(self.path)
        if self.target.exists():
            # Still a checkpoint by its name and content, until the new one is in place and it is deleted.
            os.rename(self.target, self.target.with_name(f"{self.target.name}.replaced-{self.created}"))
        os.rename(self.path, self.target)
        sync_folder(self.target.parent)


@contextlib.contextmanager
def new_folder(directory: pathlib.Path, step: int, run_id: str) -> Iterator[NewFolder]:
    """A new hidden folder in `directory`, which is made if absent; removed at the end unless it was put in place.

    Raises:
      OSError: it cannot be made.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with _writers_lock(directory):
        present = checkpoints(directory, skip_damaged=True)
        # A clock that was set back must not make the newest checkpoint the first to be deleted.
        created = max([time.time_ns(), *(other.created + 1 for other in present)])
        target = _target(directory, step, run_id, present)
        path = _hidden(target, created)
        try:
            path.mkdir()
            yield NewFolder(path, target, created)
        finally:
            shutil.rmtree(path, ignore_errors=True)


def checkpoints(directory: pathlib.Path, *, skip_damaged: bool = False) -> list[Manifest]:
    """The complete checkpoints in a folder, of any run.

    Raises:
      InputError: a manifest is damaged or of another format, unless `skip_damaged`.
    """
    found = []
    for path in sorted(directory.glob(f"step-*/{MANIFEST}")):
        try:
            found.append(Manifest.read(path.parent))
        except InputError:
            # A run that prunes may delete a folder between the listing and the reading.
            if not skip_damaged and path.exists():
                raise
    return found


def delete_old(directory: pathlib.Path, run_id: str, keep: int) -> None:
    """Deletes all checkpoints of a run but those of its newest `keep` steps."""
    mine = [manifest for manifest in checkpoints(directory, skip_damaged=True) if manifest.run_id == run_id]
    mine.sort(key=lambda manifest: manifest.created, reverse=True)
    newest_of_step: dict[int, Manifest] = {}
    for manifest in mine:
        newest_of_step.setdefault(manifest.step, manifest)
    kept = {manifest.path for manifest in list(newest_of_step.values())[:keep]}
    for manifest in mine:
        if manifest.path not in kept:
            # Hidden first: a folder that is being emptied is no checkpoint.
            hidden = _hidden(manifest.path, time.time_ns())
            os.rename(manifest.path, hidden)
            shutil.rmtree(hidden, ignore_errors=True)  # what a busy network file system keeps, the next save removes


def sync_folder(folder: pathlib.Path) -> None:
    """Brings a folder's entries to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _target(directory: pathlib.Path, step: int, run_id: str, present: list[Manifest]) -> pathlib.Path:
    target = directory / f"step-{step:09d}"
    mine = any(manifest.path == target and manifest.run_id == run_id for manifest in present)
    return target if mine or not target.exists() else directory / f"{target.name}-{safe_name(run_id)}"


def _hidden(path: pathlib.Path, token: int) -> pathlib.Path:
    return path.with_name(f".{path.name}.partial-{os.getpid()}-{token}")


@contextlib.contextmanager
def _writers_lock(directory: pathlib.Path) -> Iterator[None]:
    """Removes the partial folders of dead writers, then marks this process as a living one.

    Every writer holds a shared lock, which ends with its process however that ends, on whatever machine of a shared
    file system. Who gets the lock exclusively knows that all partial folders are left-overs.
    """
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(open(directory / ".lock", "a"))
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                pass
            else:
                for path in directory.glob(".step-*.partial-*"):
                    shutil.rmtree(path, ignore_errors=True)
            fcntl.flock(file, fcntl.LOCK_SH)
        except OSError as error:
            # A file system without locks: save all the same and remove nobody's folders.
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise
        yield
