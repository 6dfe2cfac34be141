"""A run's checkpoints: what it reads when it begins, what it saves, and whether it may go on from what it found.

Each rank reads and writes the tables, or parts of tables, that it alone holds. Rank 0 does so for what every rank has,
and the broadcast before the first step brings what it read to the others.
"""

import contextlib
import os
import pathlib
import tempfile
import uuid
import zlib
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import tensorflow as tf

from data import filesystem
from data.errors import InputError
from data.input_pipeline import ParquetInput
from models.click_model import ClickModel
from trainer import checkpoint
from trainer.agreement import agree, from_rank_0
from trainer.config import RunConfig
from trainer.distributed import SingleProcess
from trainer.state import TrainState, dense_weights, table_views

# Training goes on at the rows where it stopped only if these settings are what they were.
_POSITION_SETTINGS = ("seed", "global_batch_size", "shuffle_buffer_rows")
_CHECKSUM_BYTES = 1 << 16


def data_position(config: RunConfig, train_rows: ParquetInput) -> dict[str, int]:
    """All that decides which rows a step reads."""
    settings = config.flat()
    return {
        **{name: settings[name] for name in _POSITION_SETTINGS},
        "train_rows": train_rows.num_rows,
        "train_checksum": _checksum(train_rows.files),
    }


class Checkpoints:
    """The checkpoints of one run in one folder. All ranks call every method."""

    def __init__(self, directory: str, comm: SingleProcess, *, spec_digest: str, precision: str):
        """
        Args:
          directory: the folder, which runs may share.
          comm: the ranks.
          spec_digest: FeatureSpec.digest() of the model's features.
          precision: see DeviceConfig.precision.
        """
        self._directory = directory
        self._comm = comm
        self._spec_digest = spec_digest
        self._precision = precision
        self._run_id = uuid.uuid4().hex[:12]

    def check_writable(self, *, by_every_rank: bool = False) -> None:
        """Makes the folder and tries it, so that a folder that cannot be used is found before an epoch is trained.

        Args:
          by_every_rank: every rank will write there, not rank 0 alone.

        Raises:
          InputError: on every rank, if one that is to write there cannot.
        """
        with contextlib.ExitStack() as stack:

            def make_folder() -> pathlib.Path:
                with self._unwritable():
                    os.makedirs(self._directory, exist_ok=True)
                    folder = tempfile.TemporaryDirectory(
                        dir=self._directory, prefix=".probe-", ignore_cleanup_errors=True
                    )
                    return pathlib.Path(stack.enter_context(folder))

            folder = from_rank_0(self._comm, make_folder)

            def probe() -> None:
                if self._comm.rank == 0 or by_every_rank:
                    checkpoint.check_shared(folder, self._comm.rank)
                    with self._unwritable(), tempfile.TemporaryFile(dir=folder):
                        pass

            agree(self._comm, probe)

    def restore_weights(self, model: ClickModel) -> None:
        """Gives a model the newest checkpoint's weights: what all ranks have on rank 0 alone.

        Raises:
          InputError: there is no checkpoint, or it is of another model.
        """

        def newest() -> checkpoint.Manifest:
            manifest = checkpoint.latest(self._directory)
            if manifest is None:
                raise InputError(
                    f"{self._directory}: no checkpoint to evaluate: train first, or name another --model_dir"
                )
            return manifest

        manifest = from_rank_0(self._comm, newest)
        weights = dense_weights(model)
        arrays, _, _ = checkpoint.restore(
            manifest,
            tables=table_views(model, self._comm.rank),
            dense=_shapes(weights),
            spec_digest=self._spec_digest,
            partial=True,
            ranks=self._comm,
        )
        for name, array in arrays.items():
            weights[name].assign(array)

    def resume(self, state: TrainState, position: Mapping[str, int]) -> int:
        """Gives the state the newest checkpoint's, where there is one; returns the step to go on from.

        What all ranks have is read on rank 0 alone.

        Raises:
          InputError: the checkpoint is of another model, or would go on at other rows.
        """

        def newest() -> tuple[checkpoint.Manifest | None, str]:
            manifest = checkpoint.latest(self._directory)
            if manifest is None:
                print(f"no checkpoint in {self._directory}: training begins at step 0", flush=True)
                return None, self._run_id
            _check_position(manifest, position)
            return manifest, manifest.run_id

        manifest, self._run_id = from_rank_0(self._comm, newest)
        if manifest is None:
            return 0
        variables = state.dense_variables()
        initial_scale = state.loss_scale.numpy()
        arrays, scalars, step = checkpoint.restore(
            manifest,
            tables=state.checkpoint_tables(),
            dense=_shapes(variables),
            spec_digest=self._spec_digest,
            ranks=self._comm,
        )
        for name, array in arrays.items():
            variables[name].assign(array)
        if scalars.get("precision") != self._precision:
            # A step divides by the scale only where its own precision asks for one.
            state.loss_scale.assign(initial_scale)
            state.good_steps.assign(0)
        if self._comm.rank == 0:
            print(f"restored {manifest.path}: training goes on at step {step}", flush=True)
        return step

    def save(self, state: TrainState, step: int, position: Mapping[str, int]) -> None:
        """Saves the state after `step` steps.

        Raises:
          InputError: on every rank, if one of them cannot write.
        """
        dense = state.dense_variables() if self._comm.rank == 0 else {}
        checkpoint.save(
            self._directory,
            checkpoint.State(
                step=step,
                tables=state.checkpoint_tables(),
                dense={name: variable.numpy() for name, variable in dense.items()},
                scalars={**position, "world_size": self._comm.size, "precision": self._precision},
                spec_digest=self._spec_digest,
            ),
            run_id=self._run_id,
            ranks=self._comm,
        )

    @contextlib.contextmanager
    def _unwritable(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise InputError(
                f"{self._directory}: checkpoints cannot be written there: {error.strerror}; name a writable --model_dir"
            ) from error


def _check_position(manifest: checkpoint.Manifest, position: Mapping[str, int]) -> None:
    for name, value in position.items():
        saved = manifest.scalars.get(name)
        if saved != value:
            remedy = f"--{name}={saved}" if name in _POSITION_SETTINGS else "the same dataset"
            raise InputError(
                f"{manifest.path}: the checkpoint was trained with {name} {saved} and this run has {value}, so it "
                f"cannot go on at the same rows: give {remedy}, or train without --use_checkpoint"
            )


def _shapes(variables: Mapping[str, tf.Variable]) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
    return {name: (tuple(v.shape), np.dtype(v.dtype.as_numpy_dtype)) for name, v in variables.items()}


def _checksum(paths: Sequence[str]) -> int:
    """Tells datasets apart without reading them: a parquet file ends in the statistics of all of its columns."""
    checksum = 0
    for path in paths:
        with filesystem.open_file(path) as file:
            size = file.size()
            file.seek(max(0, size - _CHECKSUM_BYTES))
            checksum = zlib.crc32(file.read() + str(size).encode(), checksum)
    return checksum
