"""Which CPUs a rank runs on: planned purely, then applied to the process.

Every rank of a machine must arrive at the same partition, so the planner takes what all local ranks may use and is a
pure function of it. A *neighbourhood* is what one rank may use: the CPUs near its device, cut to the CPUs that its
process is allowed. Ranks learn each other's through their communicator:

    own = affinity.neighbourhood(local_rank=local_rank)
    everyone = allgather of sorted(own.cpus) over the ranks of this machine, in the order of local ranks
    affinity.apply(mode, local_rank=local_rank, local_size=local_size, neighbourhoods=everyone)

CPU sets are exchanged and not device UUIDs, because a rank in its own cgroup can neither ask NVML about another rank's
GPU nor know what CPUs another rank is allowed.
"""

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from data.errors import InputError
from trainer import nvml as nvml_hints
from trainer.cpu_topology import Topology, format_cpu_list, read_topology

MODES = ("all", "single", "single_unique", "unique_interleaved", "unique_contiguous", "disabled")
_UNIQUE_MODES = ("single_unique", "unique_interleaved", "unique_contiguous")


@dataclass(frozen=True)
class Plan:
    """CPUs of one rank (never empty) and what the user should know about them."""

    cpus: frozenset[int]
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Applied:
    """CPUs that the process now runs on; `changed` tells whether they differ from those it had before."""

    cpus: frozenset[int]
    warnings: tuple[str, ...] = ()
    changed: bool = False


def plan(
    mode: str,
    *,
    local_rank: int,
    local_size: int,
    allowed_cpus: Collection[int],
    topology: Topology,
    device_cpus: Sequence[Collection[int] | None] | None = None,
) -> Plan:
    """CPUs for one of `local_size` ranks that are all allowed the same CPUs. Pure; all ranks' plans fit together.

    mode:
      all                 every CPU near the rank's device
      single              the first CPU near the rank's device; ranks may share it
      single_unique       one CPU of the rank's own
      unique_interleaved  the cores near a device dealt in turn to the ranks that claim them
      unique_contiguous   the same cores in equal shares (within one), each a run of neighbours
      disabled            every allowed CPU
    allowed_cpus: the only CPUs that are ever planned.
    topology: CPU -> (core, NUMA node or socket). Hyperthreads of one core stay together while there are as many cores
      as ranks; CPUs that are missing here count as cores of their own.
    device_cpus: by local rank, CPUs near its device; None for one that is not known, or for all of them without GPUs.
      An unknown device, or one that is near no allowed CPU, claims all allowed CPUs.

    Where several ranks claim a core, it goes to the one with the fewest cores so far; cores with fewer claimants go
    first. Ranks beyond the number of CPUs share, evenly, and a warning says so.
    Raises InputError for an unknown mode, ValueError for an impossible rank or no CPU.
    """
    if not allowed_cpus:
        raise ValueError("no allowed CPU")
    if device_cpus is None:
        device_cpus = [None] * local_size
    if len(device_cpus) != local_size:
        raise ValueError(f"{len(device_cpus)} devices' CPUs for {local_size} local ranks")
    allowed = frozenset(allowed_cpus)
    claims = [(allowed if near is None else allowed & frozenset(near)) or allowed for near in device_cpus]
    warnings = ()
    if mode != "disabled" and 0 <= local_rank < local_size:
        warnings = _outside_warning(device_cpus[local_rank], allowed)
    planned = _plan_claims(mode, local_rank, claims, topology)
    return Plan(planned.cpus if mode != "disabled" else allowed, warnings + planned.warnings)


def neighbourhood(
    *,
    local_rank: int,
    device_uuid: str | None = None,
    use_gpu: bool = True,
    nvml: Any = None,
    environ: Mapping[str, str] = os.environ,
) -> Plan:
    """What this process may use near its device; all that it may use where it has none or the device is not known.

    device_uuid: the device, as in CUDA_VISIBLE_DEVICES (index, GPU UUID, MIG identifier). None takes it from there: the
      only entry, or the local_rank-th of several; the local_rank-th GPU of the machine if the variable is not set.
    use_gpu: False for a run on CPUs: no device is looked for, and nothing is warned about.
    """
    allowed = _allowed_cpus()
    if not use_gpu:
        return Plan(allowed)
    device, warnings = device_uuid, ()
    if device is None:
        visible = nvml_hints.visible_devices(environ)
        if visible is None:
            device = str(local_rank)
        elif len(visible) == 1:
            device = visible[0]
        elif local_rank < len(visible):
            device = visible[local_rank]
        elif visible:
            return Plan(
                allowed, (f"CUDA_VISIBLE_DEVICES has {len(visible)} entries, none for local rank {local_rank}",)
            )
        else:
            return Plan(allowed)
    near = nvml_hints.cpus_near(device, nvml=nvml, environ=environ)
    if near.warning:
        warnings = (f"affinity: {near.warning}",)
    if near.cpus is None:
        return Plan(allowed, warnings)
    return Plan(allowed & near.cpus or allowed, warnings + _outside_warning(near.cpus, allowed))


def foresee(
    mode: str,
    *,
    local_rank: int,
    local_size: int,
    own: Collection[int],
    use_gpu: bool,
    topology: Topology,
    nvml: Any = None,
) -> Plan:
    """What `apply` is going to plan, as far as one rank can tell that has not heard from the others.

    On CPUs all ranks are taken to be allowed what this one is. On GPUs as many ranks are taken to be near the same CPUs
    as the machine has GPUs there: all of them where each rank has a GPU of its own and every GPU a rank.

    own: this process's `neighbourhood().cpus`. The other arguments are those of `apply`.
    """
    own, allowed, sharers = frozenset(own), _allowed_cpus(), local_size
    if mode == "disabled":
        return Plan(allowed)
    near = nvml_hints.cpus_near_each(nvml=nvml) if use_gpu else []
    beside = sum(bool(cpus & own) for cpus in near if cpus & allowed)
    if beside:
        ranks_of_a_gpu = -(-local_size // len(near))
        sharers = min(local_size, beside * ranks_of_a_gpu)
    return _plan_claims(mode, local_rank % sharers, [own] * sharers, topology)


def apply(
    mode: str,
    *,
    local_rank: int,
    local_size: int,
    device_uuid: str | None = None,
    use_gpu: bool = True,
    neighbourhoods: Sequence[Collection[int]] | None = None,
    asked_for: bool = True,
    topology: Topology | None = None,
    nvml: Any = None,
    environ: Mapping[str, str] = os.environ,
) -> Applied:
    """Plans this process's CPUs and moves all its threads, those that libraries have started included, onto them.

    neighbourhoods: by local rank, every rank's `neighbourhood().cpus`. Without them the other ranks' are taken for
      the same as this one's: ranks near different sockets still share nothing, but CPUs stay idle, and a warning says
      so.
    asked_for: whether the user named the mode; if not, one CPU that leaves nothing to choose is worth no warning.
    topology: None reads sysfs. The other arguments are those of `plan` and `neighbourhood`.
    Raises only for an unknown mode (InputError) or an impossible rank (ValueError): what a machine cannot tell or
    refuses becomes a warning.
    """
    before = _allowed_cpus()
    if mode == "disabled":
        return Applied(before)
    own = neighbourhood(local_rank=local_rank, device_uuid=device_uuid, use_gpu=use_gpu, nvml=nvml, environ=environ)
    warnings = own.warnings
    if neighbourhoods is None:
        claims = [own.cpus] * local_size
        if local_size > 1 and mode in _UNIQUE_MODES and own.cpus != before:
            warnings += (
                f"affinity {mode}: the other ranks' devices are not known, so all are taken to be near this one",
            )
    elif len(neighbourhoods) != local_size:
        raise ValueError(f"{len(neighbourhoods)} neighbourhoods for {local_size} local ranks")
    else:
        claims = [frozenset(cpus) or own.cpus for cpus in neighbourhoods]
        claims[local_rank] = own.cpus
    planned = _plan_claims(mode, local_rank, claims, read_topology() if topology is None else topology)
    warnings += planned.warnings
    if len(before) == 1 and asked_for:
        warnings += (f"affinity {mode}: this process may use one CPU, so there is nothing to choose",)
    try:
        _move_all_threads(planned.cpus)
    except (OSError, AttributeError) as error:
        return Applied(
            _allowed_cpus(),
            (*warnings, f"affinity {mode}: the system refused CPUs {format_cpu_list(planned.cpus)}: {error}"),
        )
    return Applied(planned.cpus, warnings, changed=planned.cpus != before)


def _plan_claims(mode: str, local_rank: int, claims: Sequence[frozenset[int]], topology: Topology) -> Plan:
    if mode not in MODES:
        raise InputError(f"affinity: got {mode!r}; choose one of {', '.join(MODES)}")
    if not 0 <= local_rank < len(claims):
        raise ValueError(f"local rank {local_rank} of {len(claims)}")
    own = claims[local_rank]
    if mode in ("all", "disabled"):
        return Plan(own)
    if mode == "single":
        first = _in_order(own, topology)[0]
        sharers = sum(_in_order(claim, topology)[0] == first for claim in claims)
        warning = f"affinity single: {sharers} ranks share CPU {first}; single_unique gives each one of its own"
        return Plan(frozenset({first}), (warning,) if sharers > 1 else ())

    shares = _partition(claims, topology, contiguous=mode == "unique_contiguous")
    warnings = []
    starved = sum(not share for share in shares)
    if starved:
        cpus = len(frozenset().union(*claims))
        warnings.append(f"affinity {mode}: {len(claims)} ranks claim {cpus} CPUs, so some ranks share a CPU")
    share = shares[local_rank]
    if not share:
        in_order = _in_order(own, topology)
        share = [in_order[list(claims[:local_rank]).count(own) % len(in_order)]]
    if mode == "single_unique":
        shares = [cpus[:1] for cpus in shares]
        share = share[:1]
    others = {_core(cpu, topology) for rank, cpus in enumerate(shares) if rank != local_rank for cpu in cpus}
    if not starved and others & {_core(cpu, topology) for cpu in share}:
        warnings.append(f"affinity {mode}: there are fewer cores than ranks, so ranks share a core by hyperthreads")
    return Plan(frozenset(share), tuple(warnings))


def _partition(claims: Sequence[frozenset[int]], topology: Topology, *, contiguous: bool) -> list[list[int]]:
    """By rank, CPUs that no other rank gets, a core's together; empty for a rank that finds none left."""
    pools: dict[tuple[int, ...], dict[tuple[int, int], list[int]]] = {}
    for cpu in _in_order(frozenset().union(*claims), topology):
        claimants = tuple(rank for rank, claim in enumerate(claims) if cpu in claim)
        pools.setdefault(claimants, {}).setdefault(_core(cpu, topology), []).append(cpu)
    shares: list[list[list[int]]] = [[] for _ in claims]
    # Cores that few ranks can use go first, so that those ranks leave the common ones to the others.
    for claimants in sorted(pools, key=lambda ranks: (len(ranks), ranks)):
        units = list(pools[claimants].values())
        if sum(not shares[rank] for rank in claimants) > len(units):
            units = [[cpu] for cpu in sorted(cpu for unit in units for cpu in unit)]
        dealt = dict.fromkeys(claimants, 0)
        owners = []
        for _ in units:
            owner = min(claimants, key=lambda rank: (len(shares[rank]) + dealt[rank], rank))
            dealt[owner] += 1
            owners.append(owner)
        for owner, unit in zip(sorted(owners) if contiguous else owners, units, strict=True):
            shares[owner].append(unit)
    return [[cpu for unit in share for cpu in unit] for share in shares]


def _core(cpu: int, topology: Topology) -> tuple[int, int]:
    """Sort key and name of a core: NUMA node first, so that a run of cores stays on one node."""
    core, node = topology.get(cpu, (cpu, 0))
    return node, core


def _in_order(cpus: Collection[int], topology: Topology) -> list[int]:
    return sorted(cpus, key=lambda cpu: (*_core(cpu, topology), cpu))


def _outside_warning(near: Collection[int] | None, allowed: frozenset[int]) -> tuple[str, ...]:
    if near is None or allowed & frozenset(near):
        return ()
    near_text, allowed_text = format_cpu_list(near), format_cpu_list(allowed)
    return (f"affinity: the device is near CPUs {near_text}, but this process may use only {allowed_text}",)


def _allowed_cpus() -> frozenset[int]:
    try:
        return frozenset(os.sched_getaffinity(0))
    except (AttributeError, OSError):  # Not every system has it; then all CPUs are allowed.
        return frozenset(range(os.cpu_count() or 1))


def _move_all_threads(cpus: frozenset[int]) -> None:
    """Sets the affinity of every thread of the process: threads that exist already do not follow their creator."""
    try:
        threads = [int(name) for name in os.listdir("/proc/self/task")]
    except OSError:
        threads = [0]  # The calling thread alone; what it starts from now on follows.
    for thread in threads:
        try:
            os.sched_setaffinity(thread, cpus)
        except ProcessLookupError:
            continue  # It ended in the meantime.
