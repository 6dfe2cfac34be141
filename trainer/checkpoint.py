"""Checkpoints: a folder per checkpoint, complete or absent, that holds logical tables and not the model's variables.

    <directory>/step-000000123/
        table.<name>.npz                            the weights and optimizer slots of one embedding table
        table.<name>+r<rows>.c<columns>.npz         the same of a part of one, written by its owner
        dense.npz                                   everything else
        manifest.json                               what the files hold, their sizes and checksums; written last

A folder is written under a hidden name and renamed when it is complete and on the disk. The ranks of a run write and
read together; which part of which table a rank holds may differ from one run to the next.
"""

import contextlib
import dataclasses
import itertools
import json
import os
import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from data.errors import InputError
from trainer.agreement import Alone, Ranks, agree, from_rank_0
from trainer.checkpoint_arrays import ArraySpecs, array_specs, check_npz, read_array, write_npz
from trainer.checkpoint_folders import NewFolder, checkpoints, delete_old, new_folder
from trainer.checkpoint_manifest import (
    MANIFEST,
    OPTIMIZER_PREFIX,
    Manifest,
    Piece,
    Rectangle,
    TableRecord,
    flaw_of_cover,
    table_columns,
)
from trainer.checkpoint_tables import Table, check_pieces, read_pieces, rectangle, write_pieces

__all__ = ["OPTIMIZER_PREFIX", "Manifest", "State", "Table", "check_shared", "latest", "restore", "save"]

_ALONE = Alone()


@dataclasses.dataclass(frozen=True)
class State:
    """What a checkpoint holds.

    Attributes:
      step: training steps done.
      tables: the embedding tables or, on one of several ranks, the parts of them that it is to write.
      dense: every other variable, by name; optimizer state under OPTIMIZER_PREFIX. Rank 0's is saved.
      scalars: what JSON can hold, such as what the position in the data depends on. Rank 0's are saved.
      spec_digest: `FeatureSpec.digest()` of the model.
    """

    step: int
    tables: list[Table]
    dense: dict[str, np.ndarray]
    scalars: dict[str, Any]
    spec_digest: str


def save(
    directory: str | os.PathLike,
    state: State,
    *,
    keep: int = 2,
    run_id: str,
    row_block: int | None = None,
    ranks: Ranks = _ALONE,
) -> pathlib.Path:
    """Writes a checkpoint, then deletes all but the newest `keep` of the same run. All ranks of a run call it.

    A process that is killed at any moment leaves the checkpoints that were complete; the next save removes its rest.
    A checkpoint of this run and step is replaced. Where another run has the step, the folder's name ends in the run_id.

    Args:
      directory: where the checkpoints are; made if absent. Several runs may share it. Ranks other than 0 need to see it
        only if they have tables to write.
      keep: checkpoints to keep, at least 1.
      run_id: the run; checkpoints of other runs are left alone. Rank 0's counts.
      row_block: rows of a table in memory at a time; by default what fits in 4 MiB.
      ranks: those who together hold every table once; one process by default.

    Returns:
      The checkpoint's folder.

    Raises:
      InputError: on every rank, if one of them cannot write (disk full, no permission, another file system); nothing
        half-written is left.
    """
    if keep < 1:
        raise InputError(f"checkpoints to keep: {keep}; at least 1 is needed")
    json.dumps(state.scalars)  # raises before anything is written
    tables = _gather_tables(ranks, state.tables)
    for name, (rows, arrays, rectangles) in tables.items():
        flaw = flaw_of_cover(rectangles, rows, table_columns(arrays))
        if flaw is not None:
            raise ValueError(f"table {name!r} of {rows} rows is not held exactly once: {flaw}")
    directory = pathlib.Path(directory)
    with contextlib.ExitStack() as stack:

        @_input_errors(directory, state.step)
        def begin() -> NewFolder:
            return stack.enter_context(new_folder(directory, state.step, run_id))

        new = from_rank_0(ranks, begin)

        @_input_errors(directory, state.step)
        def write() -> list[tuple[str, Piece]]:
            if not state.tables:
                return []
            check_shared(new.path, ranks.rank)
            return write_pieces(new.path, state.tables, row_block)

        pieces = list(itertools.chain.from_iterable(ranks.allgather_object(agree(ranks, write))))

        @_input_errors(directory, state.step)
        def commit() -> pathlib.Path:
            dense = {name: np.asarray(values) for name, values in state.dense.items()}
            manifest = Manifest(
                path=new.path,
                step=state.step,
                created=new.created,
                run_id=run_id,
                spec_digest=state.spec_digest,
                scalars=state.scalars,
                tables={
                    name: TableRecord(rows, arrays, tuple(piece for owner, piece in pieces if owner == name))
                    for name, (rows, arrays, _) in tables.items()
                },
                dense={name: (values.shape, values.dtype) for name, values in dense.items()},
                dense_file=write_npz(
                    new.path / "dense.npz",
                    ((name, values.shape, values.dtype, [values]) for name, values in dense.items()),
                ),
            )
            manifest.write(new.path / MANIFEST)
            new.put_in_place()
            delete_old(directory, run_id, keep)
            return new.target

        return from_rank_0(ranks, commit)


def latest(directory: str | os.PathLike) -> Manifest | None:
    """The newest complete checkpoint of any run, by the time in its manifest; None where there is none.

    Raises:
      InputError: a manifest is damaged or of another format.
    """
    return max(checkpoints(pathlib.Path(directory)), key=lambda manifest: manifest.created, default=None)


def restore(
    checkpoint: Manifest | str | os.PathLike,
    *,
    tables: list[Table],
    dense: ArraySpecs,
    spec_digest: str,
    partial: bool = False,
    row_block: int | None = None,
    ranks: Ranks = _ALONE,
) -> tuple[dict[str, np.ndarray], dict[str, Any], int]:
    """Reads a checkpoint into `tables`, in blocks of rows. All ranks of a run call it.

    Everything but the values is checked before the first row is written; the values' checksums while they are read, so
    tables are to be discarded if it raises.

    Args:
      checkpoint: a manifest, or the folder. Rank 0's counts; the others need to see it only if they have tables.
      tables: where the tables go, through `Table.write`: those of all ranks together are all of the checkpoint's, whole
        or in part.
      dense: name -> (shape, dtype) of the other variables. Rank 0 alone reads them.
      spec_digest: `FeatureSpec.digest()` of the model.
      partial: the tables may have fewer arrays than the checkpoint, and `dense` may lack names of OPTIMIZER_PREFIX
        (evaluation needs no optimizer slots).
      row_block: as in `save`.
      ranks: one process by default.

    Returns:
      The dense arrays (none on ranks other than 0), the scalars (as JSON keeps them: a tuple is a list), the step.

    Raises:
      InputError: on every rank, if the checkpoint is of another model, specification, optimizer or format, or a file
        that one of them reads is missing or damaged. The message has both values, or the file.
    """
    dense = array_specs(dense) if ranks.rank == 0 else {}
    wanted = {name: (rows, arrays) for name, (rows, arrays, _) in _gather_tables(ranks, tables).items()}

    def choose() -> Manifest:
        manifest = checkpoint if isinstance(checkpoint, Manifest) else Manifest.read(checkpoint)
        manifest.check(wanted, dense, spec_digest, partial=partial)
        return manifest

    manifest = from_rank_0(ranks, choose)

    def check_files() -> None:
        if ranks.rank != 0 and tables:
            _check_same(manifest, ranks.rank)
        check_pieces(manifest, tables)
        if ranks.rank == 0:
            check_npz(manifest.path, manifest.dense_file, dense)

    def read() -> dict[str, np.ndarray]:
        # Dense first: small, and damage there is found before any table is touched.
        values = {
            name: read_array(manifest.path, manifest.dense_file, name, shape, dtype)
            for name, (shape, dtype) in dense.items()
        }
        read_pieces(manifest, tables, row_block)
        return values

    agree(ranks, check_files)
    return agree(ranks, read), dict(manifest.scalars), manifest.step


def check_shared(folder: pathlib.Path, rank: int) -> None:
    """Checks that a rank that holds parts of tables sees a folder that rank 0 sees.

    Raises:
      InputError: it does not.
    """
    if not folder.is_dir():
        raise InputError(
            f"{folder}: rank {rank} holds parts of tables and does not see this folder of rank 0: name a --model_dir "
            "on a file system that all ranks share, or keep all tables on every rank by --embedding_parallelism=data"
        )


def _gather_tables(ranks: Ranks, tables: list[Table]) -> dict[str, tuple[int, ArraySpecs, list[Rectangle]]]:
    """Name -> (rows, array specifications, the rectangles that are held somewhere) of the tables of all ranks."""
    own = [(table.name, table.rows, array_specs(table.arrays), rectangle(table)) for table in tables]
    found: dict[str, tuple[int, ArraySpecs, list[Rectangle]]] = {}
    for name, rows, arrays, held in itertools.chain.from_iterable(ranks.allgather_object(own)):
        known = found.setdefault(name, (rows, arrays, []))
        if known[:2] != (rows, arrays):
            raise ValueError(f"table {name!r} is {(rows, arrays)} here and {known[:2]} there")
        known[2].append(held)
    return found


@contextlib.contextmanager
def _input_errors(directory: pathlib.Path, step: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(
            f"{error.filename or directory}: cannot write the checkpoint of step {step}: {error.strerror or error}: "
            "free disk space, or name a writable --model_dir"
        ) from error


def _check_same(manifest: Manifest, rank: int) -> None:
    """Checks that the folder is that of rank 0: machines with disks of their own may have one of that name on each."""
    check_shared(manifest.path, rank)
    found = Manifest.read(manifest.path)
    if (found.run_id, found.created) != (manifest.run_id, manifest.created):
        raise InputError(
            f"{manifest.path}: rank {rank} sees the checkpoint of run {found.run_id} there and rank 0 that of run "
            f"{manifest.run_id}: name a --model_dir on a file system that all ranks share"
        )
