"""What NVIDIA's management library says about this machine's GPUs: which CPUs are near one, names, driver.

Everything here is a hint. A machine without the library, a driver that refuses, a MIG slice or an identifier that
nobody knows gives "unknown" and a sentence that says why, never an exception.
"""

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

# Words of 64 CPUs asked for: 1024 CPUs, which is also the most that sched_setaffinity's own cpu_set_t holds.
_AFFINITY_WORDS = 16


@dataclass(frozen=True)
class Locality:
    """CPUs near one device: `cpus` is None where they are not known, `warning` None where there is nothing to say."""

    cpus: frozenset[int] | None
    warning: str | None = None


@dataclass(frozen=True)
class Gpus:
    """Names of the GPUs that the driver shows, in its order, and the driver's version; empty and None without one."""

    names: tuple[str, ...] = ()
    driver: str | None = None


def load() -> ModuleType | None:
    """The NVML binding, or None where none is installed."""
    # Two distributions bring a `pynvml`: nvidia-ml-py a file, and pynvml 11.4, which NVTabular requires, a folder.
    # Where both are installed the folder wins: Python looks for packages before modules. They differ in text alone:
    # nvidia-ml-py gives str and takes str or bytes, pynvml 11.4 gives bytes and takes nothing but bytes.
    try:
        import pynvml
    except ImportError:
        return None
    return pynvml


def visible_devices(environ: Mapping[str, str]) -> list[str] | None:
    """Entries of CUDA_VISIBLE_DEVICES up to the first that CUDA stops at (negative or empty); None if it is not set."""
    value = environ.get("CUDA_VISIBLE_DEVICES")
    if value is None:
        return None
    entries = []
    for entry in (part.strip() for part in value.split(",")):
        if not entry or entry.startswith("-"):
            break
        entries.append(entry)
    return entries


def cpus_near(device: str, *, nvml: Any = None, environ: Mapping[str, str] = os.environ) -> Locality:
    """CPUs near a device as the driver gives them (in general those of its NUMA node), not cut to what is allowed.

    device: an entry of CUDA_VISIBLE_DEVICES: an index, a GPU UUID or a unique beginning of one ("GPU-8f6d"), or a MIG
      identifier ("MIG-<uuid>", "MIG-GPU-<uuid>/<gi>/<ci>"), which stands for the GPU that it is a slice of. An index
      counts as NVML does, by PCI bus; CUDA counts so under CUDA_DEVICE_ORDER=PCI_BUS_ID and where all GPUs are alike.
      Otherwise it puts the fastest first, and which one an index means is not known.
    nvml: the binding to ask; None imports it.
    environ: CUDA_DEVICE_ORDER is looked for in it.
    """
    nvml = nvml or load()
    if nvml is None:
        return Locality(None, f"no NVML binding is installed: the CPUs near device {device} are not known")
    try:
        with _session(nvml):
            cpus = _cpus(nvml, _handle(nvml, device, environ))
    # Placement is a hint: whatever a driver, a binding or a container makes of the question must not stop a run.
    except Exception as error:
        return Locality(None, f"NVML does not give the CPUs near device {device} ({type(error).__name__}: {error})")
    if not cpus:
        return Locality(None, f"NVML names no CPU near device {device}")
    if device.startswith("MIG-"):
        return Locality(cpus, f"{device} is a MIG slice: it gets the CPUs near its GPU, which other slices share")
    return Locality(cpus)


def cpus_near_each(*, nvml: Any = None) -> list[frozenset[int]]:
    """CPUs near each GPU that the driver shows, in its order, visible to CUDA or not; [] where one is not told."""
    nvml = nvml or load()
    if nvml is None:
        return []
    try:
        with _session(nvml):
            count = nvml.nvmlDeviceGetCount()
            found = [_cpus(nvml, nvml.nvmlDeviceGetHandleByIndex(index)) for index in range(count)]
    except Exception:  # As above.
        return []
    return found if all(found) else []


def gpus(*, nvml: Any = None) -> Gpus:
    """Names of all GPUs of the machine (not only the visible ones) and the driver's version."""
    nvml = nvml or load()
    if nvml is None:
        return Gpus()
    try:
        with _session(nvml):
            names = tuple(
                _text(nvml.nvmlDeviceGetName(nvml.nvmlDeviceGetHandleByIndex(index)))
                for index in range(nvml.nvmlDeviceGetCount())
            )
            return Gpus(names, _text(nvml.nvmlSystemGetDriverVersion()))
    except Exception:  # As above: no GPU, no driver and a broken driver all mean that there is nothing to name.
        return Gpus()


def free_memory_bytes(environ: Mapping[str, str], *, nvml: Any = None) -> int | None:
    """Free memory of the first GPU that CUDA_VISIBLE_DEVICES shows, which TensorFlow takes; None where nobody knows.

    Of a MIG slice it is not known: NVML tells the memory of the whole GPU. Nor is it where `cpus_near` does not know
    which GPU an index means. (Not run on hardware by us.)
    """
    nvml = nvml or load()
    visible = visible_devices(environ)
    device = "0" if visible is None else next(iter(visible), None)
    if nvml is None or device is None or device.startswith("MIG-"):
        return None
    try:
        with _session(nvml):
            return int(nvml.nvmlDeviceGetMemoryInfo(_handle(nvml, device, environ)).free)
    except Exception:  # As above.
        return None


@contextlib.contextmanager
def _session(nvml: Any) -> Iterator[None]:
    nvml.nvmlInit()
    try:
        yield
    finally:
        nvml.nvmlShutdown()


def _cpus(nvml: Any, handle: Any) -> frozenset[int]:
    words = nvml.nvmlDeviceGetCpuAffinity(handle, _AFFINITY_WORDS)
    return frozenset(64 * i + bit for i, word in enumerate(words) for bit in range(64) if int(word) >> bit & 1)


def _handle(nvml: Any, device: str, environ: Mapping[str, str]) -> Any:
    if device.isdecimal():
        if environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID" and not _are_alike(nvml):
            raise LookupError("the GPUs differ, and CUDA counts the fastest first: set CUDA_DEVICE_ORDER=PCI_BUS_ID")
        return nvml.nvmlDeviceGetHandleByIndex(int(device))
    if device.startswith("MIG-GPU-"):
        device = device.removeprefix("MIG-").split("/")[0]
    elif device.startswith("MIG-"):
        return nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvml.nvmlDeviceGetHandleByUUID(device.encode()))
    handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    matches = [handle for handle in handles if _text(nvml.nvmlDeviceGetUUID(handle)).startswith(device)]
    if len(matches) != 1:
        raise LookupError(f"{len(matches)} of {len(handles)} GPUs have that UUID")
    return matches[0]


def _are_alike(nvml: Any) -> bool:
    handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    return len({_text(nvml.nvmlDeviceGetName(handle)) for handle in handles}) <= 1


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
