"""Allreduce, alltoall and allgather between ranks, as training calls them (`trainer.distributed`).

A shape is the bytes that each rank hands over. With n ranks and t seconds:

    algorithm bandwidth   bytes / t: the score                bus bandwidth
    allreduce             bytes handed over by a rank         x 2 (n - 1) / n
    alltoall              bytes handed over by a rank         x (n - 1) / n
    allgather             bytes that every rank ends up with  x (n - 1) / n

Of an alltoall the n-th part stays where it is; of an allgather every rank ends up with n times what one hands over. The
bus bandwidth is what the wires carry, whatever the number of ranks.

What a rank hands over depends on the rank, and consists of small whole numbers, whose sums are exact in every
precision: before the loop and after it every result is compared with the exact one, so that a collective that returns
what it was given, or sends it to the wrong rank, has no score.
"""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.microbenchmarks import checks
from benchmarks.microbenchmarks.operands import read_sums
from benchmarks.microbenchmarks.shapes import BYTES_OF, PROCESS_BYTES, Benchmark, Settings
from benchmarks.microbenchmarks.timed import Work
from data.errors import InputError

ALLREDUCE, ALLTOALL, ALLGATHER = "allreduce", "alltoall", "allgather"
MODE = "exchange"
_DTYPES = {"fp32": "float32", "fp16": "float16"}  # Horovod takes no bfloat16
_PRIME, _PERIOD = 13, 97
_CHECKED_VALUES = 1 << 20
_MOST_RANKS = 128  # of an allreduce: float16 has whole numbers up to 2048


def handed_over(rank: int, target: int, size: int, dtype: type) -> np.ndarray:
    """What a rank hands over to another, (size,): whole numbers from 1 to 13, other ones for every pair of ranks.

    Polynomials of the second degree modulo a prime, whose coefficients are the ranks'; what of the ranks is beyond the
    prime stands in the first two places.
    """
    place = np.arange(_PERIOD)
    period = (place * place * (rank + 1) + place * (target + 1)) % _PRIME + 1
    period[:2] = rank // _PRIME + 1, target // _PRIME + 1
    return np.resize(period.astype(dtype), size)


def values(name: str, given_bytes: int, precision: str, ranks: int) -> int:
    """How many values a rank hands over: in all or, of an alltoall, to each rank."""
    size = BYTES_OF[precision] * (ranks if name == ALLTOALL else 1)
    if given_bytes < size:
        raise InputError(f"{name}: {given_bytes} bytes hold no value for each of {ranks} ranks; give at least {size}")
    return given_bytes // size


def bandwidth_bytes(name: str, given_bytes: int, ranks: int) -> tuple[int, float]:
    """Bytes by which the algorithm's bandwidth and that of the bus are counted; see the module."""
    counted = given_bytes * (ranks if name == ALLGATHER else 1)
    return counted, counted * (2 if name == ALLREDUCE else 1) * (ranks - 1) / ranks


def predicted_bytes(settings: Settings, ranks: int) -> int:
    """What is handed over, what comes back, and the copies that Horovod and the splitting into parts make."""
    given = sum(shape[0] for shape in settings.shapes)
    copies = {ALLREDUCE: 5, ALLTOALL: 5, ALLGATHER: 1 + 3 * ranks}[settings.name]
    return PROCESS_BYTES + copies * given


def prepare(settings: Settings, comm: Any) -> Work:
    """The same sizes on every rank.

    Raises:
      InputError: there are too few ranks, or too many, or fewer bytes than a value for each.
    """
    import tensorflow as tf

    name, ranks, rank = settings.name, comm.size, comm.rank
    if not 2 <= ranks <= _MOST_RANKS:
        raise InputError(
            f"{name}: {ranks} rank{'s' if ranks > 1 else ''}: give 2 to {_MOST_RANKS}, as by horovodrun -np 2 sh "
            "hvd_wrapper.sh python -m benchmarks.microbenchmarks"
        )
    dtype = np.dtype(_DTYPES[settings.precision])
    sizes = [values(name, shape[0], settings.precision, ranks) for shape in settings.shapes]
    given = [
        [tf.constant(handed_over(rank, target, size, dtype)) for target in (range(ranks) if name == ALLTOALL else [0])]
        for size in sizes
    ]
    exchange = _EXCHANGES[name]

    @tf.function(autograph=False)
    def step(given):
        results = [exchange(comm, parts, f"{name}_{number}") for number, parts in enumerate(given)]
        return results, tf.add_n([tf.cast(part[-1], tf.float32) for parts in results for part in parts])

    expected = [_Expected(name, size, rank, ranks, dtype) for size in sizes]

    def compare(when: str, results: Any) -> list[checks.Check]:
        return [one.compare(when, result) for one, result in zip(expected, results, strict=True)]

    counted = [
        bandwidth_bytes(name, size * dtype.itemsize * (ranks if name == ALLTOALL else 1), ranks) for size in sizes
    ]
    algorithm, bus = sum(pair[0] for pair in counted), sum(pair[1] for pair in counted)
    return Work(
        step=lambda: step(given),
        wait=lambda result: result[1].numpy(),
        read=lambda result: [read_sums(parts) for parts in result[0]],
        before=lambda: compare("before", step(given)[0]),
        after=lambda result: compare("after", result[0]),
        amount=algorithm,
        rates={"algorithm_gb_per_s": algorithm, "bus_gb_per_s": bus},
        figures={"bytes_per_step": algorithm},
    )


class _Expected:
    """Some values of a collective's exact result, picked from all over it."""

    def __init__(self, name: str, size: int, rank: int, ranks: int, dtype: np.dtype):
        everyone = [handed_over(source, rank if name == ALLTOALL else 0, _PERIOD, np.int64) for source in range(ranks)]
        parts = [sum(everyone)] if name == ALLREDUCE else everyone
        self._what = f"{name} of {size:,} values"
        self._lengths = [size] * ranks if name == ALLTOALL else [size * len(parts)]
        most = max(2, _CHECKED_VALUES // len(parts))
        self._picked = [checks.sampled(size, most, seed=part) for part in range(len(parts))]
        self._values = np.concatenate(
            [part[picked % _PERIOD] for part, picked in zip(parts, self._picked, strict=True)]
        ).astype(dtype)
        self._together = name == ALLGATHER

    def compare(self, when: str, result: Any) -> checks.Check:
        """Whether the result has the length and the values that it must have."""
        lengths = [int(part.shape[0]) for part in result]
        if lengths != self._lengths:
            return checks.Check(f"{when}, {self._what}: {lengths} values came back and not {self._lengths}", False)
        arrays = [part.numpy() for part in result]
        if self._together:
            arrays = np.split(arrays[0], len(self._picked))
        found = np.concatenate([part[picked] for part, picked in zip(arrays, self._picked, strict=True)])
        return checks.exact(f"{when}, {self._what}", found, self._values)


_EXCHANGES: dict[str, Callable] = {
    ALLREDUCE: lambda comm, parts, name: comm.allreduce(parts, name=name),
    ALLTOALL: lambda comm, parts, name: comm.alltoall(parts, name=name),
    ALLGATHER: lambda comm, parts, name: [comm.allgather(parts[0], name=name)],
}


def _benchmark(name: str, presets: dict[str, int]) -> Benchmark:
    return Benchmark(
        name=name,
        units="GB/s",
        modes=(MODE,),
        numbers=("bytes",),
        presets={preset: ((size,),) for preset, size in presets.items()},
        batch_number=0,
        precisions=tuple(_DTYPES),
        least_ranks=2,
        predicted_bytes=predicted_bytes,
        prepare=prepare,
    )


BENCHMARKS = tuple(
    itertools.starmap(
        _benchmark,
        (
            (ALLREDUCE, {"small": 2200, "medium": 9944, "large": 22372}),
            (ALLTOALL, {"small": 134_000_000, "medium": 244_000_000, "large": 544_000_000}),
            # FAMBench has none: about what a step of training gathers of touched rows, and more.
            (ALLGATHER, {"small": 1 << 20, "medium": 16 << 20, "large": 128 << 20}),
        ),
    )
)
