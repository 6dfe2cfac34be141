"""One rank from start to exit code: its log, its CPUs, the other ranks, and how it ends when something is wrong."""

import dataclasses
import functools
import os
import signal
import sys
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NoReturn

from data.errors import InputError
from trainer import affinity, runtime
from trainer.agreement import from_rank_0, is_because_of_another
from trainer.config import RunConfig, fall_back_batch_sizes, fall_back_directories
from trainer.cpu_topology import read_topology
from trainer.rank_log import RankLog, rank_log
from trainer.runtime import Surroundings

# Variables by which launchers number the processes of a job.
_LAUNCHER_RANKS = ("HOROVOD_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")

# Settings of a device that each run of a process can have its own way.
_SETTLED_BY_RUN = ("amp", "amp_dtype", "xla", "fp16_compression", "table_reduction")

BAD_INPUT = 2
FAILED = 1


def run_as_rank(config: RunConfig, run: Callable) -> int:
    """Runs `run(config, comm, surroundings)` as one rank of a job.

    Bad input on any rank ends every rank with code 2, each with its own line. Anything else that is raised ends this
    process at once with code 1 and its trace: the launcher and broken connections then end the others.

    Returns:
      The exit code: 0 or 2.
    """
    config, fell_back = fall_back_directories(config)

    def work(comm, log: RankLog) -> None:
        run(*_surround(config, comm, _settle(config, comm), fell_back, log))

    return _as_rank(config, os.path.join(config.output.results_dir, "rank-{rank}.log"), work)


def run_several_as_rank(
    configs: Sequence[RunConfig],
    run: Callable,
    *,
    log_path: str,
    ended: Callable[[int, Any, str | None], None],
    started: Callable[[int], None] = lambda index: None,
) -> int:
    """Does several runs one after another as one rank of a job, so that what a start costs is paid once.

    A run that finds bad input, a loss that is not finite included, has failed and the next one follows. Anything else
    ends the process as in `run_as_rank`. After a run that a signal stopped there is no other.

    Args:
      configs: of the runs; they can share a process, see `check_one_process`.
      run: `run(config, comm, surroundings)`, which returns a record.
      log_path: of the ranks' output, with "{rank}" in it.
      ended: on rank 0 alone, `ended(index, record, None)`, or `ended(index, None, reason)` after a run that failed. An
        InputError that it raises ends every rank with code 2.
      started: on rank 0 alone, before a run; the same of what it raises.

    Returns:
      The exit code: 0, whatever the runs found, or 2.
    """
    try:
        check_one_process(configs)
    except InputError as error:
        print(f"main.py: {error}", file=sys.stderr)
        return BAD_INPUT

    def work(comm, log: RankLog) -> None:
        process = _settle(configs[0], comm)
        for index, config in enumerate(configs):
            from_rank_0(comm, functools.partial(started, index))
            record, reason = _try(run, config, comm, process, log)
            from_rank_0(comm, functools.partial(ended, index, record, reason))
            if record is not None and record.ended_by == "signal":
                break

    return _as_rank(configs[0], log_path, work)


def check_one_process(configs: Sequence[RunConfig]) -> None:
    """Refuses, with InputError, runs of which one process can have but one kind: its devices, CPUs and threads."""
    if not configs:
        raise InputError("no run was asked for: give at least one configuration")
    first = dataclasses.asdict(configs[0].device)
    for config in configs[1:]:
        for name, value in dataclasses.asdict(config.device).items():
            if name not in _SETTLED_BY_RUN and value != first[name]:
                raise InputError(
                    f"--{name} is {first[name]} in one run and {value} in another: one process can have but one of "
                    "them, so run them apart"
                )


def _try(run: Callable, config: RunConfig, comm, process: "_Process", log: RankLog) -> tuple[Any, str | None]:
    """One run among several: its record, or the reasons why it failed on this or another rank."""
    record, own = None, None
    try:
        runtime.begin_run(config.device)
        config, fell_back = fall_back_directories(config)
        record = run(*_surround(config, comm, process, fell_back, log))
    except InputError as error:
        own = str(error)
        _print_line(comm, comm.rank, own)
    found = comm.allgather_object(own)
    # Ranks that only stopped because of another have nothing to say.
    reasons = [
        f"rank {rank}: {reason}" if comm.size > 1 else reason
        for rank, reason in enumerate(found)
        if reason is not None and not is_because_of_another(reason)
    ]
    return (record, None) if not any(found) else (None, "; ".join(reasons) or "stopped")


def _as_rank(config: RunConfig, log_path: str, work: Callable) -> int:
    """Joins the ranks, does `work(comm, log)` and ends as `run_as_rank` says."""
    rank = launched_rank(os.environ)
    comm = None
    try:
        log = rank_log(log_path.format(rank=rank))
    except InputError as error:
        print(f"main.py: {error}", file=sys.stderr)
        return BAD_INPUT
    try:
        runtime.import_tensorflow(config.device)
        from trainer import distributed

        comm = distributed.connect()
        work(comm, log)
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


@dataclasses.dataclass(frozen=True)
class _Process:
    """What a process settles once, for all of its runs."""

    device: runtime.Device
    affinity_changed: bool
    warnings: tuple[str, ...]


def _settle(config: RunConfig, comm) -> _Process:
    """Gives this rank its CPUs and TensorFlow its threads and precision."""
    _check_determinism(config, comm, os.environ)
    use_gpu = runtime.has_gpu()
    own = affinity.neighbourhood(local_rank=comm.local_rank, use_gpu=use_gpu)
    runtime.check_own_gpu(local_size=comm.local_size)
    # TensorFlow's threads are fixed by its first operation, and asking the other ranks is one: so their number is
    # that of the CPUs that this rank can foresee, which it gets but for unusual bindings.
    expected = affinity.foresee(
        config.device.affinity,
        local_rank=comm.local_rank,
        local_size=comm.local_size,
        own=own.cpus,
        use_gpu=use_gpu,
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
    warnings = device.warnings + applied.warnings
    share = _share(config, comm, applied.cpus)
    if config.device.intra_op_threads is None and share != threads:
        warnings += (f"{threads} threads for {share} CPUs; --intra_op_threads={share} fits",)
    return _Process(device=device, affinity_changed=applied.changed, warnings=warnings)


def _surround(
    config: RunConfig, comm, process: _Process, fell_back: tuple[str, ...], log: RankLog
) -> tuple[RunConfig, Any, Surroundings]:
    """What a run is given: its configuration with what depends on the device settled, the ranks, what it finds."""
    device = process.device
    config, smaller = fall_back_batch_sizes(config, has_gpu=device.has_gpu)
    from models import custom_ops  # brings TensorFlow

    if not device.has_gpu and custom_ops.embedding_ops() is None:
        fell_back += ("TensorFlow's kernels for embedding tables (make setup builds faster ones)",)
    idle = runtime.without_effect(
        config.device,
        given=config.given,
        world_size=comm.size,
        affinity_changed=process.affinity_changed,
        has_gpu=device.has_gpu,
    )
    surroundings = Surroundings(
        device=device,
        fell_back=fell_back + smaller,
        without_effect=(*idle, *runtime.without_effect_on_tables_and_data(config, world_size=comm.size)),
        warnings=process.warnings,
        terminal=log.terminal,
    )
    return config, comm, surroundings


def _check_determinism(config: RunConfig, comm, environ: Mapping[str, str]) -> None:
    """Refuses what would make sums over ranks depend on time."""
    asked = environ.get("HOROVOD_AUTOTUNE", "0").strip()
    if config.device.deterministic and comm.size > 1 and asked not in ("", "0"):
        raise InputError(
            f"HOROVOD_AUTOTUNE={asked} changes how gradients are summed while --deterministic wants the same sums in "
            "every run: unset the variable or leave the flag out"
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
