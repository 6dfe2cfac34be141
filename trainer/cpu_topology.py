"""The machine's cores and NUMA nodes as Linux tells them in sysfs, and the kernel's way of writing sets of CPUs."""

from collections.abc import Collection, Mapping
from pathlib import Path

Topology = Mapping[int, tuple[int, int]]  # CPU -> (core, NUMA node or socket)


def read_topology(root: Path = Path("/sys/devices/system")) -> dict[int, tuple[int, int]]:
    """CPU -> (core, NUMA node) from sysfs; {} where sysfs is absent.

    A core is named by its lowest CPU, because core_id repeats from socket to socket. Without NUMA nodes the socket
    stands in their place.
    """
    nodes = {}
    for path in root.glob("node/node[0-9]*/cpulist"):
        for cpu in parse_cpu_list(_read(path)):
            nodes[cpu] = int(path.parent.name.removeprefix("node"))
    topology = {}
    for path in root.glob("cpu/cpu[0-9]*/topology"):
        cpu = int(path.parent.name.removeprefix("cpu"))
        siblings = parse_cpu_list(_read(path / "core_cpus_list") or _read(path / "thread_siblings_list"))
        socket = _read(path / "physical_package_id")
        fallback = int(socket) if socket.isdecimal() else 0
        topology[cpu] = (min(siblings, default=cpu), nodes.get(cpu, fallback))
    return topology


def parse_cpu_list(text: str) -> set[int]:
    """CPUs of the kernel's list format ("0-3,8"); the empty set for anything that is not one."""
    cpus: set[int] = set()
    try:
        for part in filter(None, text.strip().split(",")):
            first, _, last = part.partition("-")
            cpus.update(range(int(first), int(last or first) + 1))
    except ValueError:
        return set()
    return cpus


def format_cpu_list(cpus: Collection[int]) -> str:
    """CPUs in the kernel's list format: "0-3,8"."""
    runs: list[list[int]] = []
    for cpu in sorted(cpus):
        if runs and cpu == runs[-1][1] + 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
