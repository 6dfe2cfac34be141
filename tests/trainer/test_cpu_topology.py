"""Reading sysfs, faked as files."""

import os
import random

from trainer.cpu_topology import format_cpu_list, parse_cpu_list, read_topology


def fake_sysfs(root, cpus, nodes=None, siblings_name="core_cpus_list"):
    """cpus: CPU -> (siblings, socket); nodes: node -> list text, or None for a kernel without NUMA."""
    for cpu, (siblings, socket) in cpus.items():
        folder = root / f"cpu/cpu{cpu}/topology"
        folder.mkdir(parents=True)
        (folder / siblings_name).write_text(siblings + "\n")
        (folder / "physical_package_id").write_text(f"{socket}\n")
    (root / "cpu/cpufreq").mkdir()
    for node, text in (nodes or {}).items():
        (root / f"node/node{node}").mkdir(parents=True)
        (root / f"node/node{node}/cpulist").write_text(text + "\n")


def test_cores_and_nodes(tmp_path):
    cpus = {0: ("0,4", 0), 1: ("1,5", 0), 2: ("2,6", 1), 3: ("3,7", 1)}
    cpus |= {cpu + 4: value for cpu, value in cpus.items()}
    fake_sysfs(tmp_path, cpus, {0: "0-1,4-5", 11: "2-3,6-7"})
    assert read_topology(tmp_path) == {
        0: (0, 0), 4: (0, 0), 1: (1, 0), 5: (1, 0), 2: (2, 11), 6: (2, 11), 3: (3, 11), 7: (3, 11),
    }  # fmt: skip


def test_socket_stands_in_for_nodes_and_the_old_file_name_is_read(tmp_path):
    fake_sysfs(tmp_path, {0: ("0-1", 0), 1: ("0-1", 0), 2: ("2", 3)}, siblings_name="thread_siblings_list")
    assert read_topology(tmp_path) == {0: (0, 0), 1: (0, 0), 2: (2, 3)}


def test_absent_and_broken_sysfs(tmp_path):
    assert read_topology(tmp_path / "nothing") == {}
    (tmp_path / "cpu/cpu5/topology").mkdir(parents=True)
    assert read_topology(tmp_path) == {5: (5, 0)}


def test_this_machine_names_only_real_cpus():
    if hasattr(os, "sched_getaffinity") and os.path.isdir("/sys/devices/system/cpu/cpu0/topology"):
        assert set(os.sched_getaffinity(0)) <= set(read_topology())


def test_cpu_lists_round_trip():
    assert parse_cpu_list("0-3,8,10-11\n") == {0, 1, 2, 3, 8, 10, 11}
    assert parse_cpu_list("") == parse_cpu_list("none") == set()
    assert format_cpu_list({8, 0, 1, 2, 10}) == "0-2,8,10"
    generator = random.Random(0)
    for _ in range(50):
        cpus = set(generator.sample(range(200), generator.randint(0, 60)))
        assert parse_cpu_list(format_cpu_list(cpus)) == cpus
