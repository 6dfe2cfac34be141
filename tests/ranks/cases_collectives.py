"""Cases: the microbenchmarks of collectives, as they are and with faults."""

import dataclasses
from typing import Any

from rank_cases import Context, case, replaced

from benchmarks.microbenchmarks import catalogue
from benchmarks.microbenchmarks.collectives import ALLGATHER, ALLREDUCE, ALLTOALL, MODE
from benchmarks.microbenchmarks.timed import measure
from trainer.distributed import SingleProcess

SHAPES = "2200;88"


class Ticking:
    """A clock that passes so many milliseconds at each reading: what is tested here is not how fast this machine is."""

    def __init__(self, ms: float):
        self._ms, self._readings = ms, 0

    def __call__(self) -> int:
        self._readings += 1
        return round(self._readings * self._ms * 1e6)


@case(2)
def collective_benchmarks(context: Context) -> dict[Any, dict]:
    """(name, precision or fault) -> what came out. The second rank's clock runs three times as fast."""
    comm = context.comm
    found = {}

    def run(name: str, key: str, precision: str = "fp32") -> None:
        benchmark = catalogue.find(name)
        settings = catalogue.settings(name, MODE, shapes=SHAPES, precision=precision)
        outcome = measure(
            benchmark.prepare(settings, comm),
            comm,
            units=benchmark.units,
            batch=settings.batch,
            seconds=0.2,
            clock=Ticking(30.0 if comm.rank else 10.0),
        )
        found[name, key] = dataclasses.asdict(outcome)

    for name in (ALLREDUCE, ALLTOALL, ALLGATHER):
        run(name, "fp32")
        run(name, "fp16", "fp16")
        with replaced(type(comm), name, getattr(SingleProcess, name)):
            run(name, "identity")
    with replaced(type(comm), ALLTOALL, _wrong_way(type(comm).alltoall)):
        run(ALLTOALL, "wrong way")
    return found


def _wrong_way(alltoall):
    """An alltoall whose parts go to each other's ranks."""
    return lambda comm, parts, *, name: alltoall(comm, list(reversed(parts)), name=name)
