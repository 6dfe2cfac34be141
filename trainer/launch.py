"""One rank from start to exit code: its log, its CPUs, the other ranks, and how it ends when something is wrong."""

import os
import signal
import sys
import traceback
from collections.abc import Callable, Collection, Mapping
from typing import NoReturn

from data.errors import InputError
from trainer import affinity, runtime
from trainer.config import RunConfig, fall_back_batch_sizes, fall_back_directories
from trainer.cpu_topology import read_topology
from trainer.rank_log import RankLog, rank_log
from trainer.runtime import Surroundings

# Variables by which launchers number the processes of a job.
_LAUNCHER_RANKS = ("HOROVOD_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")

BAD_INPUT = 2
FAILED = 1


def run_as_rank(config: RunConfig, run: Callable) -> int:
    """Runs `run(config, comm, surroundings)` as one rank of a job.

    Bad input on any rank ends every rank with code 2, each with its own line. Anything else that is raised ends this
    process at once with code 1 and its trace: the launcher and broken connections then end the others.

    Returns:
      The exit code: 0 or 2.
    """
    rank = launched_rank(os.environ)
    comm = None
    try:
        config, fell_back = fall_back_directories(config)
        log = rank_log(os.path.join(config.output.results_dir, f"rank-{rank}.log"))
    except InputError as error:
        print(f"main.py: {error}", file=sys.stderr)
        return BAD_INPUT
    try:
        runtime.import_tensorflow(config.device)
        from trainer import distributed

        comm = distributed.connect()
        config, surroundings = _settle(config, comm, fell_back, log)
        run(config, comm, surroundings)
        comm.shutdown()
        code = 0
    except InputError as error:
        if comm is not None and comm.size > 1:
            _ignore_launcher()
        try:
            _print_line(comm, rank, str(error))
            if comm is not None:
                comm.barrier()  # no rank leaves before all have said their line
                comm.shutdown()
        except BaseException as second:
            _fail(log, comm, rank, second)
        code = BAD_INPUT
    except SystemExit:
        raise
    except BaseException as error:
        _fail(log, comm, rank, error)
    log.close()
    return code


def launched_rank(environ: Mapping[str, str]) -> int:
    """This process's rank by the launcher's word; 0 without a launcher."""
    for name in _LAUNCHER_RANKS:
        if environ.get(name, "").isdigit():
            return int(environ[name])
    return 0


def _settle(config: RunConfig, comm, fell_back: tuple[str, ...], log: RankLog) -> tuple[RunConfig, Surroundings]:
    """Gives this rank its CPUs and TensorFlow its threads and precision; settles what depends on the device."""
    use_gpu = runtime.has_gpu()
    own = affinity.neighbourhood(local_rank=comm.local_rank, use_gpu=use_gpu)
    # TensorFlow's threads are fixed by its first operation, and asking the other ranks is one: so their number is
    # planned as if all ranks of this machine were allowed the same CPUs, which is so but for unusual bindings.
    expected = affinity.plan(
        config.device.affinity,
        local_rank=comm.local_rank,
        local_size=comm.local_size,
        allowed_cpus=own.cpus,
        topology=read_topology(),
    )
    threads = config.device.intra_op_threads or _share(config, comm, expected.cpus)
    device = runtime.configure(config.device, threads=threads)
    node = comm.rank - comm.local_rank  # the first rank of this machine names it
    everyone = comm.allgather_object((node, comm.local_rank, sorted(own.cpus)))
    here = [cpus for other, _, cpus in sorted(everyone) if other == node]
    applied = affinity.apply(
        config.device.affinity,
        local_rank=comm.local_rank,
        local_size=comm.local_size,
        use_gpu=use_gpu,
        neighbourhoods=here if len(here) == comm.local_size else None,
        asked_for="affinity" in config.given,
    )
    warnings = applied.warnings
    share = _share(config, comm, applied.cpus)
    if config.device.intra_op_threads is None and share != threads:
        warnings += (f"{threads} threads for {share} CPUs; --intra_op_threads={share} fits",)
    config, smaller = fall_back_batch_sizes(config, has_gpu=device.has_gpu)
    from models import custom_ops  # brings TensorFlow

    if not device.has_gpu and custom_ops.embedding_ops() is None:
        fell_back += ("TensorFlow's kernels for embedding tables (make setup builds faster ones)",)
    idle = runtime.without_effect(
        config.device, given=config.given, world_size=comm.size, affinity_changed=applied.changed
    )
    return config, Surroundings(
        device=device,
        fell_back=fell_back + smaller,
        without_effect=(*idle, *runtime.without_effect_on_tables_and_data(config, world_size=comm.size)),
        warnings=warnings,
        terminal=log.terminal,
    )


def _share(config: RunConfig, comm, cpus: Collection[int]) -> int:
    """CPUs for one rank; ranks that are not kept apart share theirs evenly."""
    together = config.device.affinity in ("all", "disabled")
    return max(1, len(cpus) // comm.local_size) if together else len(cpus)


def _print_line(comm, rank: int, message: str) -> None:
    several = comm is not None and comm.size > 1
    print(f"main.py: rank {rank}: {message}" if several else f"main.py: {message}", file=sys.stderr, flush=True)


def _ignore_launcher() -> None:
    """For a rank about to leave with a line and a code of its own: launchers end the others once the first has left."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _fail(log: RankLog, comm, rank: int, error: BaseException) -> NoReturn:
    """Ends the process without waiting for anybody: an orderly exit would wait for ranks that wait for us."""
    from trainer.distributed import is_lost_rank

    _ignore_launcher()
    if isinstance(error, KeyboardInterrupt):
        _print_line(comm, rank, "interrupted; --use_checkpoint goes on from the last checkpoint, if there is one")
    elif is_lost_rank(error):
        _print_line(comm, rank, "ended because another rank did: that rank's output says why, unless it was killed")
    else:
        print(f"main.py: rank {rank} failed:", file=sys.stderr)
        traceback.print_exception(error)
    log.close()
    os._exit(130 if isinstance(error, KeyboardInterrupt) else FAILED)
