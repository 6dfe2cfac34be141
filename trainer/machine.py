"""What a figure was measured on: the machine, the installed versions and the state of the source tree."""

import dataclasses
import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from trainer import nvml as nvml_hints

ABSENT = "absent"

# Package -> distributions that bring it; vendors' and CPU-only builds of TensorFlow have names of their own.
_DISTRIBUTIONS = {
    "tensorflow": ("tensorflow", "tensorflow-cpu", "tf-nightly", "nvidia-tensorflow"),
    "keras": ("keras", "tf-keras"),
    "horovod": ("horovod",),
    "numpy": ("numpy",),
    "pyarrow": ("pyarrow",),
}
_SOURCE_ROOT = Path(__file__).resolve().parents[1]
_GIT_TIMEOUT_S = 10


def environment(
    *,
    source_root: Path = _SOURCE_ROOT,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
    nvml: Any = None,
) -> dict[str, Any]:
    """Facts of this machine and installation, ready for JSON. Nothing of the user's environment variables is copied.

    host, os, python: texts. cpu_model: text. cpus, allowed_cpus: CPUs of the machine, and those this process may use.
    memory_bytes: of the machine, None where it is not told. versions: package -> version or "absent".
    gpus, driver: names of all GPUs, and the driver's version (None without one). container: kind, None outside one.
    commit, dirty: of the source tree, and whether a tracked file in it differs from the commit; None outside git.
    start_time: ISO 8601, UTC; the moment of this call, so call it where the run begins.
    """
    commit, dirty = git_state(source_root)
    gpus = nvml_hints.gpus(nvml=nvml)
    try:
        allowed = len(os.sched_getaffinity(0))
    except (AttributeError, OSError):
        allowed = os.cpu_count() or 1
    return {
        "host": platform.node(),
        "os": f"{_os_name()} ({platform.system()} {platform.release()} {platform.machine()})",
        "python": platform.python_version(),
        "cpu_model": cpu_model(_read("/proc/cpuinfo")),
        "cpus": os.cpu_count(),
        "allowed_cpus": allowed,
        "memory_bytes": memory_bytes(_read("/proc/meminfo")),
        "versions": {package: _version(names) for package, names in _DISTRIBUTIONS.items()},
        "gpus": list(gpus.names),
        "driver": gpus.driver,
        "container": container(os.environ),
        "commit": commit,
        "dirty": dirty,
        "start_time": now().astimezone(UTC).isoformat(timespec="seconds"),
    }


def git_state(root: Path) -> tuple[str | None, bool | None]:
    """Commit checked out at `root`, and whether tracked files under it differ from it; (None, None) outside git.

    A tree that is unpacked inside somebody else's repository, tracked by nobody, counts as outside.
    """
    if not _git(root, "ls-files", "--", "."):
        return None, None
    commit = _git(root, "rev-parse", "HEAD")
    changes = _git(root, "status", "--porcelain", "--untracked-files=no", "--", ".")
    if not commit or changes is None:
        return None, None
    return commit, bool(changes)


def container(environ: Mapping[str, str], root: Path = Path("/")) -> str | None:
    """Kind of container that this process seems to run in, by the marks that each kind leaves; None for none."""
    if "KUBERNETES_SERVICE_HOST" in environ:
        return "kubernetes"
    if "APPTAINER_CONTAINER" in environ or "SINGULARITY_CONTAINER" in environ:
        return "apptainer"
    if (root / "run/.containerenv").exists():
        return "podman"
    if (root / ".dockerenv").exists():
        return "docker"
    return None


def cpu_model(cpuinfo: str) -> str:
    """Model name from the text of /proc/cpuinfo; the architecture where that names none (as on ARM)."""
    return _field(cpuinfo, "model name") or platform.processor() or platform.machine()


def memory_bytes(meminfo: str) -> int | None:
    """Total memory from the text of /proc/meminfo, which counts in units of 1024 bytes."""
    total = _field(meminfo, "MemTotal").split()
    return int(total[0]) * 1024 if total and total[0].isdecimal() else None


@dataclasses.dataclass(frozen=True)
class MemoryControl:
    """What a control group's files say, as texts; "" for a file that is not there.

    limit: memory.max or, of version 1, memory.limit_in_bytes. usage: memory.current or memory.usage_in_bytes.
    stat: memory.stat.
    """

    limit: str
    usage: str
    stat: str = ""

    def available_bytes(self) -> int | None:
        """What the limit leaves, counting as free what the kernel gives back when asked; None without a limit."""
        limit, usage = self.limit.strip(), self.usage.strip()
        if not limit.isdecimal() or not usage.isdecimal():
            return None
        # Pages of files count as usage until they are reclaimed: having read a large dataset is no lack of memory.
        lines = (line.partition(" ") for line in self.stat.splitlines())
        stat = {key: int(value) for key, _, value in lines if value.isdecimal()}
        # Version 1 counts a group with those below it under names of their own.
        reclaimable = sum(
            stat.get(f"total_{name}", stat.get(name, 0))
            for name in ("inactive_file", "active_file", "slab_reclaimable")
        )
        return max(0, min(int(limit), int(limit) - int(usage) + reclaimable))


def available_memory_bytes(meminfo: str, controls: Iterable[MemoryControl] = ()) -> int | None:
    """Memory that this process could still get: what the kernel estimates, or less where control groups leave less.

    Args:
      meminfo: text of /proc/meminfo.
      controls: of the control groups that this process is in, at any level.

    Returns:
      Bytes; None where neither tells.
    """
    told = [control.available_bytes() for control in controls]
    available = _field(meminfo, "MemAvailable").split()
    if available and available[0].isdecimal():
        told.append(int(available[0]) * 1024)
    return min((size for size in told if size is not None), default=None)


def read_available_memory_bytes(root: Path = Path("/")) -> int | None:
    """`available_memory_bytes` of this process now, from the files below `root`."""
    return available_memory_bytes(_read(root / "proc/meminfo"), _memory_controls(root))


def _memory_controls(root: Path) -> Iterator[MemoryControl]:
    """This process's control group for memory and all above it, whose limits hold too, of both versions."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, name = rest.partition(":")
        if not controllers:
            base, files = root / "sys/fs/cgroup", ("memory.max", "memory.current", "memory.stat")
        elif "memory" in controllers.split(","):
            base = root / "sys/fs/cgroup/memory"
            files = ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.stat")
        else:
            continue
        # In a container the name can be the host's; its own group is then what is mounted at the top.
        group = base / name.strip("/")
        while True:
            yield MemoryControl(*(_read(group / file) for file in files))
            if base not in group.parents:
                break
            group = group.parent


def peak_memory_bytes() -> int:
    """Largest resident memory that this process has had so far."""
    import resource  # Unix only, and not needed to read records elsewhere.

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if platform.system() == "Darwin" else peak * 1024


def _version(names: tuple[str, ...]) -> str:
    for name in names:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return ABSENT


def _git(root: Path, *arguments: str) -> str | None:
    """Output of a git command, None if it fails: no git, no repository, one of another owner, or it takes too long."""
    try:
        result = subprocess.run(
            ["git", "-C", str(root), *arguments],
            capture_output=True,
            text=True,
            timeout=_GIT_TIMEOUT_S,
            # Only looking: taking the index lock would disturb the user's own git commands.
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip() if result.returncode == 0 else None


def _os_name() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", platform.system())
    except OSError:
        return platform.system()


def _field(text: str, name: str) -> str:
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return ""


def _read(path: str | Path) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
