"""Checkpoints: a folder per checkpoint, complete or absent, that holds logical tables and not the model's variables.

    <directory>/step-000000123/
        table.<name>.npz    the weights and optimizer slots of one embedding table
        dense.npz           everything else
        manifest.json       what the files hold, their sizes and checksums; written last

A folder is written under a hidden name and renamed when it is complete and on the disk. The manifest lists a table as
pieces of rows, so that several owners may write one table.
"""

import contextlib
import dataclasses
import errno
import fcntl
import json
import os
import pathlib
import shutil
import time
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import numpy as np

from data.errors import InputError
from trainer.checkpoint_arrays import (
    ArraySpecs,
    array_specs,
    check_npz,
    read_array,
    read_blocks,
    rows_per_block,
    safe_name,
    write_npz,
)
from trainer.checkpoint_manifest import MANIFEST, OPTIMIZER_PREFIX, Manifest, Piece, TableRecord

__all__ = ["OPTIMIZER_PREFIX", "Manifest", "State", "Table", "latest", "restore", "save"]


class Table(Protocol):
    """One logical embedding table with its optimizer slots, wherever its rows are kept.

    Attributes:
      name: any text, unique in the model.
      rows: number of rows of every array.
      arrays: array name ("weights", "rms", "last_step", ...) -> (shape of one row, dtype).
    """

    name: str
    rows: int
    arrays: Mapping[str, tuple[tuple[int, ...], np.dtype]]

    def read(self, array: str, start: int, stop: int) -> np.ndarray:
        """Rows start..stop, of shape (stop - start, *row shape)."""

    def write(self, array: str, start: int, stop: int, values: np.ndarray) -> None:
        """Replaces rows start..stop."""


@dataclasses.dataclass(frozen=True)
class State:
    """What a checkpoint holds.

    Attributes:
      step: training steps done.
      tables: the embedding tables.
      dense: every other variable, by name; optimizer state under OPTIMIZER_PREFIX.
      scalars: what JSON can hold, such as what the position in the data depends on.
      spec_digest: `FeatureSpec.digest()` of the model.
    """

    step: int
    tables: list[Table]
    dense: dict[str, np.ndarray]
    scalars: dict[str, Any]
    spec_digest: str


def save(
    directory: str | os.PathLike, state: State, *, keep: int = 2, run_id: str, row_block: int | None = None
) -> pathlib.Path:
    """Writes a checkpoint, then deletes all but the newest `keep` of the same run. Called by one process of a run.

    A process that is killed at any moment leaves the checkpoints that were complete; the next save removes its rest.
    A checkpoint of this run and step is replaced. Where another run has the step, the folder's name ends in the run_id.

    Args:
      directory: where the checkpoints are; made if absent. Several runs may share it.
      keep: checkpoints to keep, at least 1.
      run_id: the run; checkpoints of other runs are left alone.
      row_block: rows of a table in memory at a time; by default what fits in 4 MiB.

    Returns:
      The checkpoint's folder.

    Raises:
      InputError: the folder cannot be written (disk full, no permission); nothing half-written is left.
    """
    if keep < 1:
        raise InputError(f"checkpoints to keep: {keep}; at least 1 is needed")
    names = [table.name for table in state.tables]
    if len(set(names)) < len(names):
        raise ValueError(f"two tables of one name in {names}")
    json.dumps(state.scalars)  # raises before anything is written
    directory = pathlib.Path(directory)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with _writers_lock(directory):
            present = _checkpoints(directory, skip_damaged=True)
            # A clock that was set back must not make the newest checkpoint the first to be deleted.
            created = max([time.time_ns(), *(other.created + 1 for other in present)])
            target = _target(directory, state.step, run_id, present)
            partial = _hidden(target, created)
            try:
                partial.mkdir()
                _write_folder(partial, state, created, run_id, row_block)
                if target.exists():
                    # Still a checkpoint by its name and content, until the new one is in place and it is deleted below.
                    os.rename(target, target.with_name(f"{target.name}.replaced-{created}"))
                os.rename(partial, target)
                _sync_folder(directory)
            except BaseException:
                shutil.rmtree(partial, ignore_errors=True)
                raise
            _delete_old(directory, run_id, keep)
    except OSError as error:
        raise InputError(
            f"{error.filename or directory}: cannot write the checkpoint of step {state.step}: "
            f"{error.strerror or error}: free disk space, or name a writable --model_dir"
        ) from error
    return target


def latest(directory: str | os.PathLike) -> Manifest | None:
    """The newest complete checkpoint of any run, by the time in its manifest; None where there is none.

    Raises:
      InputError: a manifest is damaged or of another format.
    """
    return max(_checkpoints(pathlib.Path(directory)), key=lambda manifest: manifest.created, default=None)


def restore(
    checkpoint: Manifest | str | os.PathLike,
    *,
    tables: list[Table],
    dense: ArraySpecs,
    spec_digest: str,
    partial: bool = False,
    row_block: int | None = None,
) -> tuple[dict[str, np.ndarray], dict[str, Any], int]:
    """Reads a checkpoint into `tables`, in blocks of rows.

    Everything but the values is checked before the first row is written; the values' checksums while they are read, so
    tables are to be discarded if it raises.

    Args:
      checkpoint: a manifest, or the folder.
      tables: where the tables go: all of the checkpoint's, through `Table.write`.
      dense: name -> (shape, dtype) of the other variables.
      spec_digest: `FeatureSpec.digest()` of the model.
      partial: the tables may have fewer arrays than the checkpoint, and `dense` may lack names of OPTIMIZER_PREFIX
        (evaluation needs no optimizer slots).
      row_block: as in `save`.

    Returns:
      The dense arrays, the scalars (as JSON keeps them: a tuple is a list), the step.

    Raises:
      InputError: the checkpoint is of another model, specification, optimizer or format, or a file is missing or
        damaged. The message has both values, or the file.
    """
    manifest = checkpoint if isinstance(checkpoint, Manifest) else Manifest.read(checkpoint)
    dense = array_specs(dense)
    manifest.check({table.name: (table.rows, table.arrays) for table in tables}, dense, spec_digest, partial=partial)
    for table in tables:
        for piece in manifest.tables[table.name].pieces:
            check_npz(manifest.path, piece.file, _stored(table, piece))
    check_npz(manifest.path, manifest.dense_file, dense)

    # Dense first: small, and damage there is found before any table is touched.
    values = {
        name: read_array(manifest.path, manifest.dense_file, name, shape, dtype)
        for name, (shape, dtype) in dense.items()
    }
    for table in tables:
        for piece in manifest.tables[table.name].pieces:
            for array, (shape, dtype) in _stored(table, piece).items():
                block = row_block or rows_per_block(shape[1:], dtype)
                for first, rows in read_blocks(manifest.path, piece.file, array, shape, dtype, block):
                    start = piece.start + first
                    table.write(array, start, start + len(rows), rows)
    return values, dict(manifest.scalars), manifest.step


def _write_folder(folder: pathlib.Path, state: State, created: int, run_id: str, row_block: int | None) -> None:
    tables = {}
    for table in state.tables:
        piece = _write_piece(folder / f"table.{safe_name(table.name)}.npz", table, 0, table.rows, row_block)
        tables[table.name] = TableRecord(table.rows, table.arrays, (piece,))
    dense = {name: np.asarray(values) for name, values in state.dense.items()}
    manifest = Manifest(
        path=folder,
        step=state.step,
        created=created,
        run_id=run_id,
        spec_digest=state.spec_digest,
        scalars=state.scalars,
        tables=tables,
        dense={name: (values.shape, values.dtype) for name, values in dense.items()},
        dense_file=write_npz(
            folder / "dense.npz", ((name, values.shape, values.dtype, [values]) for name, values in dense.items())
        ),
    )
    manifest.write(folder / MANIFEST)
    _sync_folder(folder)


def _write_piece(path: pathlib.Path, table: Table, start: int, stop: int, row_block: int | None) -> Piece:
    def blocks(array: str, block: int) -> Iterator[np.ndarray]:
        for first in range(start, stop, block):
            yield table.read(array, first, min(first + block, stop))

    contents = (
        (array, (stop - start, *row_shape), dtype, blocks(array, row_block or rows_per_block(row_shape, dtype)))
        for array, (row_shape, dtype) in array_specs(table.arrays).items()
    )
    return Piece(start, stop, write_npz(path, contents))


def _stored(table: Table, piece: Piece) -> ArraySpecs:
    """Name -> (shape, dtype), in the file of `piece`, of the arrays that `table` wants."""
    rows = piece.stop - piece.start
    return {array: ((rows, *shape), dtype) for array, (shape, dtype) in array_specs(table.arrays).items()}


def _checkpoints(directory: pathlib.Path, *, skip_damaged: bool = False) -> list[Manifest]:
    found = []
    for path in sorted(directory.glob(f"step-*/{MANIFEST}")):
        try:
            found.append(Manifest.read(path.parent))
        except InputError:
            # A run that prunes may delete a folder between the listing and the reading.
            if not skip_damaged and path.exists():
                raise
    return found


def _target(directory: pathlib.Path, step: int, run_id: str, present: list[Manifest]) -> pathlib.Path:
    target = directory / f"step-{step:09d}"
    mine = any(manifest.path == target and manifest.run_id == run_id for manifest in present)
    return target if mine or not target.exists() else directory / f"{target.name}-{safe_name(run_id)}"


def _delete_old(directory: pathlib.Path, run_id: str, keep: int) -> None:
    mine = [manifest for manifest in _checkpoints(directory, skip_damaged=True) if manifest.run_id == run_id]
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


def _sync_folder(folder: pathlib.Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
