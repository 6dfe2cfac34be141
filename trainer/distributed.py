"""Ranks and what they exchange: the only module that imports Horovod, and its single-process twin.

Collectives inside a step work on tensors and belong to the traced graph; those between steps work on numpy arrays and
Python objects. Everything else in the program is given a communicator and never asks which kind it is.
"""

import contextlib
import dataclasses
import importlib.metadata
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from data.errors import InputError

# Variables by which launchers tell a process how many of it there are. SLURM_NTASKS is not among them: it is also set
# in an allocation whose script starts one process.
_LAUNCHER_SIZES = ("HOROVOD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")

# What collectives of Horovod 0.28.1 fail with where another rank has gone: its own words if that was noticed before the
# transfer, otherwise those of the transport, "[...gloo/transport/tcp/pair.cc:589] Read error [...]: Connection reset by
# peer" or, as NCCL's source has it (not run on hardware by us), "remote process exited or there was a network error".
_LOST_RANK = re.compile(r"Horovod has been shut down|gloo/transport/|remote process exited")


_BROADCAST_BYTES = 16 << 20  # of a variable at a time


class WireCounter:
    """Bytes that this rank handed to collectives, counted where they are called."""

    def __init__(self):
        self._parts: dict[str, list[tf.Tensor]] = {}

    def add(self, collective: str, tensor: tf.Tensor) -> None:
        self._parts.setdefault(collective, []).append(tf.size(tensor, out_type=tf.int64) * tensor.dtype.size)

    def total(self, collective: str | None = None) -> tf.Tensor:
        """Scalar int64, of one kind of collective or of all."""
        parts = [
            part for name, parts in self._parts.items() if collective is None or name == collective for part in parts
        ]
        return tf.add_n(parts) if parts else tf.zeros((), tf.int64)


@dataclasses.dataclass
class SingleProcess:
    """The communicator of one process: every exchange is with itself."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    description: str = "single process"

    def __post_init__(self):
        self._counter: WireCounter | None = None

    @contextlib.contextmanager
    def counting(self) -> Iterator[WireCounter]:
        """Counts the payload of the collectives traced inside; read `total()` inside the same graph."""
        self._counter = WireCounter()
        try:
            yield self._counter
        finally:
            self._counter = None

    # Inside a step, on tensors.

    def allreduce(self, tensors: Sequence[tf.Tensor], *, name: str) -> list[tf.Tensor]:
        """Sums of each tensor over all ranks, the same bits on every rank."""
        del name
        return list(tensors)

    def allgather(self, tensor: tf.Tensor, *, name: str) -> tf.Tensor:
        """The ranks' tensors one below the other, in rank order; first dimensions may differ."""
        del name
        return tensor

    def alltoall(self, parts: Sequence[tf.Tensor], *, name: str) -> list[tf.Tensor]:
        """Sends parts[r] to rank r and returns what each rank sent here, by rank.

        Args:
          parts: one 1-D tensor of any length for each rank, all of one dtype. The own one does not travel.
        """
        del name
        return list(parts)

    def broadcast_variables(self, variables: Sequence[tf.Variable]) -> None:
        """Overwrites the variables of every rank with those of rank 0."""

    # Between steps, on host values.

    def allreduce_sum(self, array: np.ndarray) -> np.ndarray:
        """Element-wise sum over all ranks of an int64 or float64 array of one shape."""
        return np.array(array)

    def allgather_object(self, value: Any) -> list[Any]:
        """Each rank's value, by rank."""
        return [value]

    def alltoall_arrays(self, parts: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Sends parts[r] to rank r; returns what each rank sent here. 1-D arrays of one dtype."""
        return [np.array(parts[0])]

    def broadcast_array(self, array: np.ndarray | None, root: int) -> np.ndarray:
        """The root's array on every rank."""
        del root
        return np.array(array)

    def barrier(self) -> None:
        """Returns once every rank has called it."""

    def shutdown(self) -> None:
        """Leaves the group."""


class HorovodRanks(SingleProcess):
    """The communicator of a rank under Horovod."""

    def __init__(self, hvd):
        controller = "MPI" if hvd.mpi_enabled() else "Gloo"
        super().__init__(
            rank=hvd.rank(),
            size=hvd.size(),
            local_rank=hvd.local_rank(),
            local_size=hvd.local_size(),
            description=f"Horovod over {controller}",
        )
        self._hvd = hvd
        self._received_variable: tf.Variable | None = None

    def allreduce(self, tensors: Sequence[tf.Tensor], *, name: str) -> list[tf.Tensor]:
        self._count("allreduce", tensors)
        return self._hvd.grouped_allreduce(list(tensors), op=self._hvd.Sum, name=name)

    def allgather(self, tensor: tf.Tensor, *, name: str) -> tf.Tensor:
        self._count("allgather", [tensor])
        return self._hvd.allgather(tensor, name=name)

    def alltoall(self, parts: Sequence[tf.Tensor], *, name: str) -> list[tf.Tensor]:
        away = [part[:0] if rank == self.rank else part for rank, part in enumerate(parts)]
        # TensorFlow computes what is constant before it runs a graph, and leaves out what nobody reads. Where a rank
        # sends nothing the one would happen here, where it needs nothing of what it gets the other; then ranks wait for
        # each other for ever. A variable is no constant, and what is added to it is never left out.
        zero = tf.cast(tf.minimum(self._received.read_value(), 0), tf.int32)
        payload = tf.concat([*away, tf.zeros((zero,), away[0].dtype)], axis=0)
        splits = tf.stack([tf.size(part) for part in away]) + zero
        self._count("alltoall", [payload])
        received, sizes = self._hvd.alltoall(payload, splits=splits, name=name)
        self._received.assign_add(tf.size(received, out_type=tf.int64))
        found = tf.split(received, sizes, num=self.size)
        found[self.rank] = parts[self.rank]
        return found

    def broadcast_variables(self, variables: Sequence[tf.Variable]) -> None:
        large = [v for v in variables if v.shape.rank and v.shape.num_elements() * v.dtype.size > _BROADCAST_BYTES]
        names = {id(variable) for variable in large}
        self._hvd.broadcast_variables([v for v in variables if id(v) not in names], root_rank=0)
        # A broadcast makes two copies of what it sends: of a large table they are made of some rows at a time.
        for variable in large:
            rows = variable.shape[0]
            block = max(1, _BROADCAST_BYTES * rows // (variable.shape.num_elements() * variable.dtype.size))
            for start in range(0, rows, block):
                part = tf.range(start, min(start + block, rows))
                values = self._hvd.broadcast(tf.gather(variable, part), root_rank=0, name="table_rows")
                if self.rank != 0:
                    variable.scatter_update(tf.IndexedSlices(values, part))

    def allreduce_sum(self, array: np.ndarray) -> np.ndarray:
        return self._hvd.allreduce(tf.constant(array), op=self._hvd.Sum, name="host_sum").numpy()

    def allgather_object(self, value: Any) -> list[Any]:
        return self._hvd.allgather_object(value, name="host_objects")

    def alltoall_arrays(self, parts: Sequence[np.ndarray]) -> list[np.ndarray]:
        splits = np.array([part.size for part in parts], np.int32)
        received, sizes = self._hvd.alltoall(tf.constant(np.concatenate(parts)), splits=splits, name="host_exchange")
        return np.split(received.numpy(), np.cumsum(sizes.numpy())[:-1])

    def broadcast_array(self, array: np.ndarray | None, root: int) -> np.ndarray:
        shape, dtype = self.allgather_object(None if array is None else (array.shape, array.dtype.str))[root]
        payload = tf.constant(array) if self.rank == root else tf.zeros(shape, np.dtype(dtype))
        return self._hvd.broadcast(payload, root_rank=root, name="host_broadcast").numpy()

    def barrier(self) -> None:
        self.allreduce_sum(np.zeros(1))

    def shutdown(self) -> None:
        self._hvd.shutdown()

    @property
    def _received(self) -> tf.Variable:
        """Values that alltoalls have brought."""
        if self._received_variable is None:
            with tf.init_scope():  # not before: TensorFlow's threads are settled after the ranks have met
                self._received_variable = tf.Variable(0, dtype=tf.int64, trainable=False)
        return self._received_variable

    def _count(self, collective: str, tensors: Sequence[tf.Tensor]) -> None:
        if self._counter is not None:
            for tensor in tensors:
                self._counter.add(collective, tensor)


def connect(environ: Mapping[str, str] | None = None) -> SingleProcess:
    """Joins the ranks that the launcher started.

    Returns:
      A communicator; SingleProcess where Horovod is not installed.

    Raises:
      InputError: Horovod was built against another TensorFlow, or the launcher says several processes and Horovod one.
    """
    environ = os.environ if environ is None else environ
    launched = launched_processes(environ)
    try:
        version = importlib.metadata.version("horovod")
    except importlib.metadata.PackageNotFoundError:
        if launched > 1:
            raise InputError(
                f"the launcher started {launched} processes but Horovod is not installed: run 'make setup' with a "
                "compiler present, or start one process"
            ) from None
        return SingleProcess(description="single process, Horovod is not installed (HOROVOD=0)")
    check_build(version, tf.__version__)
    try:
        import horovod.tensorflow as hvd
    except ImportError as error:
        raise InputError(
            f"Horovod {version} does not load with TensorFlow {tf.__version__} ({error}): run 'make setup' again to "
            "build it against this TensorFlow"
        ) from error
    hvd.init()
    if launched > 1 and hvd.size() == 1:
        raise InputError(
            f"the launcher started {launched} processes but Horovod sees one: this build of Horovod lacks the "
            "launcher's controller; start with horovodrun, or run 'make setup MPI=1' for mpirun"
        )
    return HorovodRanks(hvd) if launched > 1 or hvd.size() > 1 else SingleProcess()


def launched_processes(environ: Mapping[str, str]) -> int:
    """How many processes the launcher says it started; 1 without a launcher."""
    sizes = [int(environ[name]) for name in _LAUNCHER_SIZES if environ.get(name, "").isdigit()]
    return max(sizes, default=1)


def check_build(horovod_version: str, tensorflow_version: str) -> None:
    """Compares the TensorFlow that Horovod was built against, where its version says so, with the one here.

    Set-up gives the wheel a local version such as 0.28.1+tf2.21.0.gloo. An image's own build has none and is trusted.

    Raises:
      InputError: they differ.
    """
    match = re.search(r"\+tf(\d+\.\d+\.\d+)", horovod_version)
    if match and match.group(1) != tensorflow_version:
        raise InputError(
            f"Horovod was built against TensorFlow {match.group(1)} but TensorFlow {tensorflow_version} is "
            "installed: run 'make setup' again"
        )


def is_lost_rank(error: BaseException) -> bool:
    """Whether an exception means that another rank has gone, and not that we made a mistake.

    It is the same in a step and between steps, for a rank that was killed, one that raised and one that left early.
    """
    return isinstance(error, tf.errors.UnknownError) and _LOST_RANK.search(str(error)) is not None
