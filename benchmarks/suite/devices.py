"""What NVML says of the GPUs while a run is on them: memory, clocks and power. Asked from the process that started it.

Readings are taken a few times a second, of whole GPUs: memory that others take counts, and so does the time in which
the run starts and ends. A peak between two readings is not seen. (Not run on hardware by us.)
"""

import contextlib
import dataclasses
import os
import statistics
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from trainer import nvml as nvml_binding

EVERY_S = 0.2

_MOST_ERRORS = 3  # a GPU that does not answer is not asked for ever


@dataclasses.dataclass
class Seen:
    """What was seen; empty without GPUs, or where NVML does not say.

    Attributes:
      peak_memory_bytes: the most that was in use on the GPU of each rank, in their order.
      figures: by name: gpu_clock_mhz and gpu_power_w, the median over readings of the ranks' mean, and the same with
        `_highest`, of one GPU.
    """

    peak_memory_bytes: tuple[int, ...] = ()
    figures: dict[str, float] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Reading:
    """Of one moment, a value for each GPU: bytes in use, MHz of its processors, W."""

    memory_bytes: tuple[int, ...]
    clock_mhz: tuple[float, ...]
    power_w: tuple[float, ...]


Watch = Callable[[int, Mapping[str, str]], contextlib.AbstractContextManager[Seen]]
"""`watched`, or what stands in for it."""


@contextlib.contextmanager
def watched(
    ranks: int, environ: Mapping[str, str] = os.environ, *, nvml: Any = None, every_s: float = EVERY_S
) -> Iterator[Seen]:
    """Reads while its block runs, at least at its beginning and at its end; what was seen is complete after it.

    Whatever NVML makes of it, the block is left as it is: figures of GPUs are no reason to lose a run.

    Args:
      ranks: on this machine; rank r has the r-th GPU that `environ` shows. 0 watches nothing.
      environ: CUDA_VISIBLE_DEVICES is looked for in it.
      nvml: the binding to ask; None imports it.
      every_s: seconds between two readings.
    """
    seen = Seen()
    nvml = (nvml or nvml_binding.load()) if ranks else None
    handles = _handles(nvml, ranks, environ) if nvml is not None else []
    if not handles:
        yield seen
        return
    readings: list[Reading] = []
    done = threading.Event()

    def take() -> bool:
        try:
            readings.append(read(nvml, handles))
        except Exception:  # of bindings and drivers there are many, with exceptions of their own
            return False
        return True

    def watch() -> None:
        errors = 0
        while errors < _MOST_ERRORS and not done.wait(every_s):
            errors += not take()

    take()
    thread = threading.Thread(target=watch, name="gpu-readings", daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        done.set()
        thread.join()
        take()
        _end(nvml)
        if readings:
            found = summarise(readings)
            seen.peak_memory_bytes, seen.figures = found.peak_memory_bytes, found.figures


def read(nvml: Any, handles: list[Any]) -> Reading:
    """One reading of each GPU."""
    return Reading(
        tuple(int(nvml.nvmlDeviceGetMemoryInfo(handle).used) for handle in handles),
        tuple(float(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)) for handle in handles),
        tuple(nvml.nvmlDeviceGetPowerUsage(handle) / 1000 for handle in handles),  # NVML gives mW
    )


def summarise(readings: list[Reading]) -> Seen:
    """All readings of a run, at least one, together."""
    figures = {}
    for name in ("clock_mhz", "power_w"):
        values = [getattr(reading, name) for reading in readings]
        figures[f"gpu_{name}"] = statistics.median(map(statistics.fmean, values))
        figures[f"gpu_{name}_highest"] = max(map(max, values))
    memory = zip(*(reading.memory_bytes for reading in readings), strict=True)
    return Seen(tuple(map(max, memory)), figures)


def _handles(nvml: Any, ranks: int, environ: Mapping[str, str]) -> list[Any]:
    """The GPUs of the ranks, with NVML left open; [] and NVML closed where they are not known, as of slices of one.

    NVML counts by PCI bus. CUDA does so where it is told to or all GPUs are alike; otherwise an index is not known.
    """
    opened = False
    try:
        nvml.nvmlInit()
        opened = True
        visible = nvml_binding.visible_devices(environ)
        count = nvml.nvmlDeviceGetCount()
        entries = list(map(str, range(count))) if visible is None else visible
        every = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
        by_bus = environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" or len(set(map(nvml.nvmlDeviceGetName, every))) == 1
        if len(entries) >= ranks and not any(entry.startswith("MIG-") for entry in entries[:ranks]):
            indices = [entry.isdecimal() for entry in entries[:ranks]]
            if by_bus or not any(indices):
                return [
                    every[int(entry)] if is_index else nvml.nvmlDeviceGetHandleByUUID(entry.encode())
                    for entry, is_index in zip(entries, indices, strict=False)
                ]
    except Exception:  # as above
        pass
    if opened:
        _end(nvml)
    return []


def _end(nvml: Any) -> None:
    with contextlib.suppress(Exception):
        nvml.nvmlShutdown()
