"""Cases: what ranks exchange between steps, agreement on errors, and each rank's CPUs."""

import os

import numpy as np
from rank_cases import Context, case

from data.errors import InputError
from trainer import affinity
from trainer.agreement import agree


@case(2, 3)
def host_collectives(context: Context) -> dict:
    comm = context.comm
    rank, size = comm.rank, comm.size
    big = 2**53 + 1 + rank  # no float64 holds it
    return {
        "size": size,
        "int64": comm.allreduce_sum(np.array([big, -rank], np.int64)),
        "float64": comm.allreduce_sum(np.array([1.0 + rank * 2.0**-40, np.pi], np.float64)),
        "empty_sum": comm.allreduce_sum(np.zeros(0, np.int64)),
        "objects": comm.allgather_object({"rank": rank, "list": list(range(rank)), "text": "ü" * rank}),
        "nones": comm.allgather_object(None),
        # rank r sends r * 10 + target to each target, target times.
        "alltoall": comm.alltoall_arrays([np.full(target, rank * 10 + target, np.int64) for target in range(size)]),
        "alltoall_one_sender": comm.alltoall_arrays(
            [np.arange(3 if rank == 1 else 0, dtype=np.float32) for _ in range(size)]
        ),
        "alltoall_nothing": comm.alltoall_arrays([np.zeros(0, np.float64)] * size),
        "broadcast": comm.broadcast_array(np.array([[1.5, 2**-1074]]) if rank == 1 else None, 1),
        "broadcast_ids": comm.broadcast_array(np.array([2**63 - 1, -1]) if rank == 0 else None, 0),
        "broadcast_empty": comm.broadcast_array(np.zeros(0, np.float32) if rank == size - 1 else None, size - 1),
        "broadcast_bool": comm.broadcast_array(np.array([True, False]) if rank == 0 else None, 0),
    }


@case(2, 3)
def agreement(context: Context) -> dict:
    """Bad input on some ranks; a repetition shows that the ranks are still in step afterwards."""
    comm = context.comm

    def try_on(*ranks: int) -> str:
        def action() -> int:
            if comm.rank in ranks:
                raise InputError(f"bad file {comm.rank}")
            return comm.rank

        try:
            return f"returned {agree(comm, action)}"
        except InputError as error:
            return str(error)

    return {"on none": try_on(), "on 1": try_on(1), "on all": try_on(*range(comm.size)), "again on 0": try_on(0)}


@case(2)
def cpus(context: Context) -> dict:
    """Affinity mode -> the CPUs that this rank may run on afterwards, by the kernel's word."""
    comm = context.comm
    before = os.sched_getaffinity(0)
    found = {"allowed": before}
    for mode in affinity.MODES:
        neighbourhoods = comm.allgather_object(sorted(before))
        affinity.apply(mode, local_rank=comm.rank, local_size=comm.size, use_gpu=False, neighbourhoods=neighbourhoods)
        found[mode] = os.sched_getaffinity(0)
        for thread in os.listdir("/proc/self/task"):
            os.sched_setaffinity(int(thread), before)
    return found
