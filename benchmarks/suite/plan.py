"""Which cells of which benchmarks are run how often, in which order, and which cannot be run here and why."""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from benchmarks.suite.definitions import STRONG, WEAK, Definition
from benchmarks.suite.results import Cell
from data.errors import InputError
from trainer.records import jsonable

DEFAULT_REPEATS = 3
QUICK_REPEATS = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Selection:
    """What of the benchmarks is wanted; None takes what the definitions state.

    Attributes:
      stated: takes what the definitions state of this selection, of SELECTIONS; None takes all that they have.
      quick: one rank alone (of collectives, the fewest ranks) and, unless a selection is stated, the first batch size.
      batch_sizes, world_sizes, precisions, implementations: in place of the definitions'; implementations that a
        definition does not have are left out.
      repeats: of each cell.
      pair: all repeats of a benchmark follow each other, implementations in turns, instead of round after round of
        everything.
    """

    stated: str | None = None
    quick: bool = False
    batch_sizes: tuple[int, ...] | None = None
    world_sizes: tuple[int, ...] | None = None
    precisions: tuple[str, ...] | None = None
    implementations: tuple[str, ...] | None = None
    repeats: int = DEFAULT_REPEATS
    pair: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Machine:
    """What a plan must know of the machine.

    Attributes:
      cpus: that processes may use.
      memory_bytes: available; None where nobody knows.
      gpus: names.
      gpu_memory_bytes: free on one of them; None where nobody knows.
      machines: that runs are spread over.
      slots: ranks that they take, all together; None where nobody has said.
      precisions: that its units compute in.
      has_horovod: whether several ranks can be started.
    """

    cpus: int
    memory_bytes: int | None
    gpus: tuple[str, ...] = ()
    gpu_memory_bytes: int | None = None
    machines: int = 1
    slots: int | None = None
    precisions: tuple[str, ...] = ("fp32",)
    has_horovod: bool = True


@dataclasses.dataclass(frozen=True)
class Planned:
    """A repeat of a cell; `skipped` says why it is not run, "" if it is."""

    definition: Definition
    cell: Cell
    repeat: int
    skipped: str = ""


def cells(definition: Definition, selection: Selection) -> list[Cell]:
    """The cells of a benchmark, those of one kind by implementation in its order."""
    found = []
    precisions = selection.precisions or definition.precisions
    for precision in precisions:
        for world_size, scaling, batch_size in _sizes(definition, selection):
            for implementation in definition.implementations:
                if selection.implementations is not None and implementation not in selection.implementations:
                    continue
                # Scaling is shown of those implementations that the definition names for it.
                limited = scaling != "single" and selection.implementations is None
                if limited and implementation not in definition.scaling["implementations"]:
                    continue
                if not _is_stated(definition, selection, implementation, batch_size, scaling):
                    continue
                found.append(
                    Cell(
                        model=definition.model,
                        implementation=implementation,
                        mode=definition.mode,
                        config=definition.config,
                        version=definition.version,
                        batch_size=batch_size,
                        world_size=world_size,
                        precision=precision,
                        scaling=scaling,
                    )
                )
    return found


def plan(
    definitions: Sequence[Definition],
    selection: Selection,
    why_not: Callable[[Definition, Cell], str] = lambda definition, cell: "",
) -> list[Planned]:
    """All repeats in the order in which they are run; those that are not run come first, once for a cell.

    Repeats are spread over the time that all takes, so that what slows the machine for a while does not slow all
    repeats of one cell; the implementations of a benchmark follow each other, so that it slows both.

    Args:
      definitions: the benchmarks.
      selection: what of them.
      why_not: why a cell cannot be run here, "" if it can.
    """
    skipped, wanted = [], []
    for definition in definitions:
        for cell in cells(definition, selection):
            reason = why_not(definition, cell)
            if reason:
                skipped.append(Planned(definition, cell, 1, reason))
            else:
                wanted.append((definition, cell))
    repeats = range(1, selection.repeats + 1)
    if not selection.pair:
        return [*skipped, *(Planned(*pair, repeat) for repeat in repeats for pair in wanted)]
    groups: dict[Cell, list] = {}
    for definition, cell in wanted:
        groups.setdefault(dataclasses.replace(cell, implementation=""), []).append((definition, cell))
    return [*skipped, *(Planned(*pair, repeat) for group in groups.values() for repeat in repeats for pair in group)]


def why_not(
    definition: Definition, cell: Cell, machine: Machine, predicted_bytes: Callable[[Definition, Cell], int]
) -> str:
    """Why the machine cannot run a cell, one line; "" if it can.

    Args:
      definition, cell: what to run.
      machine: what there is.
      predicted_bytes: memory of one rank; asked last.
    """
    needs = definition.needs or {}
    if needs.get("machines", 1) > machine.machines:
        return f"needs {needs['machines']} machines, {machine.machines} given (--hosts)"
    if needs.get("gpus", 0) > len(machine.gpus):
        return f"needs {needs['gpus']} GPUs, {len(machine.gpus)} here"
    reason = no_room(cell.world_size, machine)
    if reason:
        return reason
    if cell.precision not in machine.precisions:
        return f"this machine does not compute in {cell.precision}, only in {', '.join(machine.precisions)}"
    try:
        needed = predicted_bytes(definition, cell)
    except InputError as error:
        return str(error)
    return _too_large(needed, _ranks_here(cell.world_size, machine), machine)


def no_room(ranks: int, machine: Machine) -> str:
    """Why the machine cannot start so many ranks, one line; "" if it can."""
    if ranks > 1 and not machine.has_horovod:
        return f"{ranks} ranks need Horovod, which is not installed"
    if machine.slots is not None and ranks > machine.slots:
        return f"{ranks} ranks on hosts that take {machine.slots} (--hosts)"
    here = _ranks_here(ranks, machine)
    places, kind = (len(machine.gpus), "GPUs") if machine.gpus else (machine.cpus, "CPUs")
    return f"{here} ranks on a machine with {places} {kind}" if here > places else ""


def key(planned: Iterable[Planned]) -> str:
    """A hash of what is run, whatever the order and whatever is skipped."""
    rows = sorted(json.dumps([jsonable(one.cell), one.repeat], sort_keys=True) for one in planned if not one.skipped)
    return hashlib.sha256("\n".join(rows).encode()).hexdigest()


def describe(one: Planned) -> str:
    """The repeat for people."""
    cell = one.cell
    ranks = f", {cell.world_size} ranks ({cell.scaling})" if cell.world_size > 1 else ""
    size = "bytes" if one.definition.is_micro and cell.world_size > 1 else "batch"
    return f"{one.definition.name} {cell.implementation}, {size} {cell.batch_size:,}, {cell.precision}{ranks}"


def _sizes(definition: Definition, selection: Selection) -> list[tuple[int, str, int]]:
    """(world size, scaling, batch size) of the cells, batch sizes over all ranks."""
    batch_sizes = selection.batch_sizes or definition.batch_sizes
    world_sizes = selection.world_sizes or definition.world_sizes
    if selection.quick:
        if selection.stated is None:
            batch_sizes = batch_sizes[:1]
        world_sizes = (min(world_sizes),)
    found: list[tuple[int, str, int]] = []
    for world_size in world_sizes:
        if world_size == 1 or definition.is_micro:
            found += [(world_size, "single", size) for size in batch_sizes]
            continue
        scaling: dict[str, Any] = dict(definition.scaling or {})
        for kind, factor in ((STRONG, 1), (WEAK, world_size)):
            sizes = selection.batch_sizes or scaling.get(kind, ())
            if kind in scaling:
                found += [(world_size, kind, size * factor) for size in sizes]
    return found


def _is_stated(
    definition: Definition, selection: Selection, implementation: str, batch_size: int, scaling: str
) -> bool:
    """Whether a cell is in the selection that the definitions state, if one is asked for.

    Sizes that are given take the place of the stated ones; implementations stay those that are stated.
    """
    if selection.stated is None:
        return True
    sizes = definition.stated(selection.stated).get(implementation, ())
    return bool(sizes) and (scaling != "single" or selection.batch_sizes is not None or batch_size in sizes)


def _ranks_here(ranks: int, machine: Machine) -> int:
    return -(-ranks // machine.machines)


def _too_large(needed: int, ranks: int, machine: Machine) -> str:
    if machine.gpus and machine.gpu_memory_bytes is not None and needed > machine.gpu_memory_bytes:
        return f"needs about {_gib(needed)} on a GPU, {_gib(machine.gpu_memory_bytes)} are free"
    if not machine.gpus and machine.memory_bytes is not None and needed * ranks > machine.memory_bytes:
        each = f" ({ranks} ranks, {_gib(needed)} each)" if ranks > 1 else ""
        return f"needs about {_gib(needed * ranks)} of memory{each}, {_gib(machine.memory_bytes)} are available"
    return ""


def _gib(size: int) -> str:
    return f"{size / 2**30:,.1f} GiB"


def machine_precisions(cpu_flags: frozenset[str], gpus: Sequence[str]) -> tuple[str, ...]:
    """The precisions that a machine has units for. Of GPUs all are supposed (not run on hardware by us)."""
    if gpus:
        return ("fp32", "tf32", "bf16", "fp16")
    found = ["fp32"]
    if cpu_flags & {"avx512_bf16", "amx_bf16", "bf16"}:
        found.append("bf16")
    if cpu_flags & {"avx512_fp16", "amx_fp16"}:
        found.append("fp16")
    return tuple(found)
