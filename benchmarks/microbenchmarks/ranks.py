"""A microbenchmark as one rank of a job, or alone: the device, threads and CPUs as `main.py` gives them to a rank."""

import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

from benchmarks.microbenchmarks.shapes import Settings, require_fit
from benchmarks.microbenchmarks.timed import Outcome, measure
from data.errors import InputError

_AFFINITY = "unique_interleaved"  # main.py's default


def connect(settings: Settings) -> Any:
    """Brings TensorFlow in the settings' precision and joins the other ranks.

    Raises:
      InputError: Horovod cannot be used, the device has no such precision, or several ranks see the same GPUs.
    """
    from trainer import runtime
    from trainer.config import DeviceConfig

    device = DeviceConfig(cpu=settings.cpu, tf32=settings.precision == "tf32")
    runtime.import_tensorflow(device)
    from trainer import affinity, distributed
    from trainer.cpu_topology import read_topology

    comm = distributed.connect()
    use_gpu = runtime.has_gpu()
    if settings.precision == "tf32" and not use_gpu:
        raise InputError(f"{settings.name}: precision tf32 needs a GPU, and there is none; give fp32")
    own = affinity.neighbourhood(local_rank=comm.local_rank, use_gpu=use_gpu)
    runtime.check_own_gpu(local_size=comm.local_size)
    planned = affinity.foresee(
        _AFFINITY,
        local_rank=comm.local_rank,
        local_size=comm.local_size,
        own=own.cpus,
        use_gpu=use_gpu,
        topology=read_topology(),
    )
    for warning in runtime.configure(device, threads=len(planned.cpus)).warnings:
        print(f"benchmarks.microbenchmarks: warning: {warning}", file=sys.stderr, flush=True)
    if comm.size > 1:
        affinity.apply(_AFFINITY, local_rank=comm.local_rank, local_size=comm.local_size, use_gpu=use_gpu)
    return comm


def run(settings: Settings, comm: Any, *, seconds: float, most_steps: int) -> Outcome:
    """Runs a microbenchmark on a rank; all ranks call it, and all get the same.

    Args:
      settings: the same on every rank.
      comm: the ranks.
      seconds, most_steps: when to end, see benchmarks.microbenchmarks.timed; of no effect on a loop of its own.

    Raises:
      InputError: on every rank, if it cannot be run on any.
    """
    from benchmarks.microbenchmarks.catalogue import find
    from trainer import machine
    from trainer.agreement import agree

    benchmark = find(settings.name)
    agree(comm, lambda: require_fit(benchmark, settings, ranks=comm.size, free_bytes=_free_bytes(comm)))
    if benchmark.run is not None:
        return benchmark.run(settings, comm)
    work = agree(comm, lambda: benchmark.prepare(settings, comm))
    try:
        return measure(
            work,
            comm,
            units=benchmark.units,
            batch=settings.batch,
            seconds=seconds,
            most_steps=most_steps,
            peak_memory_bytes=machine.peak_memory_bytes,
        )
    finally:
        work.close()


def as_rank(comm: Any, work: Callable[[], str]) -> str:
    """What `work` returns. Anything but bad input ends this process at once, if it is one of several ranks.

    An orderly end would wait for ranks that wait for this one; the launcher and broken connections then end those.
    """
    try:
        said = work()
        comm.shutdown()
    except InputError:
        comm.barrier()  # bad input is that of every rank: none leaves before all have said so
        comm.shutdown()
        raise
    except BaseException:
        if comm.size == 1:
            raise
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    return said


def _free_bytes(comm: Any) -> int | None:
    """Memory that is free for this rank: a share of the machine's, or of a GPU's if that is less; None if unknown."""
    from trainer import machine, nvml, runtime

    free = [machine.read_available_memory_bytes()]
    free = [size // comm.local_size for size in free if size is not None]
    device = nvml.free_memory_bytes(os.environ) if runtime.has_gpu() else None
    return min([*free, *([] if device is None else [device])], default=None)
