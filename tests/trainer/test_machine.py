"""Facts of the machine, each from a faked source where this machine could not show a mistake."""

import datetime
import json
import os
import platform
import subprocess
from importlib import metadata

import pytest

from trainer import machine
from trainer import nvml as nvml_hints


def git(root, *arguments):
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "init.defaultBranch=main"]
    result = subprocess.run(["git", *identity, *arguments], cwd=root, check=True, capture_output=True, text=True)
    return result.stdout.strip()


def test_environment_of_this_process(tmp_path, monkeypatch):
    monkeypatch.setenv("SOME_TOKEN", "s3cret")
    monkeypatch.setattr(nvml_hints, "gpus", lambda *, nvml=None: nvml_hints.Gpus(("Fake A", "Fake B"), "570.1"))
    noon_in_oslo = datetime.datetime(2025, 1, 2, 12, 0, tzinfo=datetime.timezone(datetime.timedelta(hours=1)))

    facts = machine.environment(source_root=tmp_path, now=lambda: noon_in_oslo)

    assert facts["start_time"] == "2025-01-02T11:00:00+00:00"
    assert facts["host"] == platform.node() and facts["python"] == platform.python_version()
    assert facts["allowed_cpus"] == len(os.sched_getaffinity(0)) <= facts["cpus"]
    assert facts["memory_bytes"] > 2**26
    assert facts["versions"]["numpy"] == metadata.version("numpy")
    assert set(facts["versions"]) == {"tensorflow", "keras", "horovod", "numpy", "pyarrow"}
    assert (facts["gpus"], facts["driver"]) == (["Fake A", "Fake B"], "570.1")
    assert (facts["commit"], facts["dirty"]) == (None, None)
    assert "s3cret" not in json.dumps(facts, allow_nan=False)


def test_packages_that_are_absent_or_go_by_another_name(monkeypatch):
    installed = {"tensorflow-cpu": "2.21.0", "numpy": "1.26.4"}

    def version(name):
        if name not in installed:
            raise metadata.PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr(metadata, "version", version)
    assert machine.environment()["versions"] == {
        "tensorflow": "2.21.0", "keras": "absent", "horovod": "absent", "numpy": "1.26.4", "pyarrow": "absent",
    }  # fmt: skip


def test_git_state(tmp_path):
    git(tmp_path, "init", "-q")
    project = tmp_path / "project"
    project.mkdir()
    (project / "file.py").write_text("one\n")
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "another project's")
    assert machine.git_state(project) == (None, None)  # Inside a repository that does not track it.
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "this project's")
    commit = git(tmp_path, "rev-parse", "HEAD")
    assert machine.git_state(project) == (commit, False)
    (project / "result.json").write_text("{}")
    assert machine.git_state(project) == (commit, False)
    (project / "file.py").write_text("two\n")
    assert machine.git_state(project) == (commit, True)


def test_no_git(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert machine.git_state(tmp_path) == (None, None)
    assert machine.git_state(tmp_path / "missing") == (None, None)


@pytest.mark.parametrize(
    ("environ", "mark", "kind"),
    [
        ({}, None, None),
        ({}, ".dockerenv", "docker"),
        ({}, "run/.containerenv", "podman"),
        ({"APPTAINER_CONTAINER": "x.sif"}, None, "apptainer"),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, ".dockerenv", "kubernetes"),
    ],
)
def test_container(tmp_path, environ, mark, kind):
    if mark:
        (tmp_path / mark).parent.mkdir(exist_ok=True)
        (tmp_path / mark).touch()
    assert machine.container(environ, tmp_path) == kind


def test_proc_files():
    assert machine.cpu_model("processor\t: 0\nmodel\t\t: 1\nmodel name\t: Fast CPU: 3 GHz\n") == "Fast CPU: 3 GHz"
    assert machine.cpu_model("processor\t: 0\n")
    assert machine.memory_bytes("MemFree: 1 kB\nMemTotal:       24683652 kB\n") == 24683652 * 1024
    assert machine.memory_bytes("") is None


GIB = 2**30
UNLIMITED_V1 = "9223372036854771712\n"


def meminfo(gib):
    return f"MemTotal: {64 * 2**20} kB\nMemFree: 1 kB\nMemAvailable:   {gib * 2**20} kB\n"


def test_available_memory_without_control_groups():
    assert machine.available_memory_bytes(meminfo(8)) == 8 * GIB
    assert machine.available_memory_bytes("MemTotal: 5 kB\n") is None
    assert machine.available_memory_bytes("") is None


@pytest.mark.parametrize(
    ("limit", "usage", "stat", "left"),
    [
        ("max\n", f"{GIB}\n", "", None),
        ("", "", "", None),
        (f"{4 * GIB}", "", "", None),
        (f"{4 * GIB}\n", f"{GIB}\n", "", 3 * GIB),
        (f"{4 * GIB}", f"{5 * GIB}", "", 0),
        # What files take is given back on demand; what processes hold is not.
        (f"{4 * GIB}", f"{4 * GIB}", f"anon 77\nfile 1\ninactive_file {GIB}\nactive_file {GIB}\nshmem 3\n", 2 * GIB),
        (f"{4 * GIB}", f"{4 * GIB}", f"anon 77\nslab_reclaimable {GIB}\n", GIB),
        (f"{4 * GIB}", f"{3 * GIB}", f"inactive_file 5\ntotal_inactive_file {GIB}\n", 2 * GIB),
        (f"{4 * GIB}", f"{GIB}", f"inactive_file {2 * GIB}\n", 4 * GIB),
    ],
)
def test_what_a_control_group_leaves(limit, usage, stat, left):
    control = machine.MemoryControl(limit, usage, stat)
    assert control.available_bytes() == left
    assert machine.available_memory_bytes("", [control]) == left
    assert machine.available_memory_bytes(meminfo(64), [control]) == (64 * GIB if left is None else left)


def test_the_least_that_any_group_leaves():
    groups = [machine.MemoryControl(str(gib * GIB), "0") for gib in (5, 3, 7)]
    assert machine.available_memory_bytes(meminfo(8), groups) == 3 * GIB
    assert machine.available_memory_bytes(meminfo(2), groups) == 2 * GIB


def write_files(root, files):
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def test_available_memory_is_read_from_all_groups_above(tmp_path):
    write_files(tmp_path, {"proc/meminfo": meminfo(32), "proc/self/cgroup": "0::/jobs/one\n"})
    assert machine.read_available_memory_bytes(tmp_path) == 32 * GIB
    groups = tmp_path / "sys/fs/cgroup"
    write_files(groups, {"jobs/one/memory.max": "max\n", "jobs/one/memory.current": "5\n"})
    assert machine.read_available_memory_bytes(tmp_path) == 32 * GIB
    write_files(groups, {"jobs/memory.max": f"{16 * GIB}\n", "jobs/memory.current": f"{4 * GIB}\n"})
    assert machine.read_available_memory_bytes(tmp_path) == 12 * GIB
    write_files(groups, {"jobs/memory.stat": f"inactive_file {2 * GIB}\n"})
    assert machine.read_available_memory_bytes(tmp_path) == 14 * GIB
    write_files(groups, {"other/memory.max": "0\n", "other/memory.current": "0\n"})
    assert machine.read_available_memory_bytes(tmp_path) == 14 * GIB


@pytest.mark.parametrize("name", ["/", "/docker/0123", "/../.."])
@pytest.mark.parametrize("version", [1, 2])
def test_available_memory_inside_a_container(tmp_path, name, version):
    if version == 2:
        group, limit, usage, line = "sys/fs/cgroup", "memory.max", "memory.current", f"0::{name}\n"
    else:
        group, limit, usage = "sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
        line = f"5:cpu,cpuacct:/x\n4:hugetlb,memory:{name}\n0::{name}\n"
    files = {f"{group}/{limit}": f"{4 * GIB}\n", f"{group}/{usage}": f"{GIB}\n"}
    write_files(tmp_path, {"proc/meminfo": meminfo(32), "proc/self/cgroup": line, **files})
    assert machine.read_available_memory_bytes(tmp_path) == 3 * GIB
    write_files(tmp_path, {f"{group}/{limit}": UNLIMITED_V1 if version == 1 else "max\n"})
    assert machine.read_available_memory_bytes(tmp_path) == 32 * GIB


def test_available_memory_of_a_machine_that_tells_nothing(tmp_path):
    assert machine.read_available_memory_bytes(tmp_path) is None


def test_available_memory_of_this_machine():
    available = machine.read_available_memory_bytes()
    assert 2**20 < available <= machine.environment()["memory_bytes"]


def test_peak_memory_is_at_least_what_is_resident_now():
    with open("/proc/self/statm") as file:
        resident = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    # The kernel counts in batches of pages, so the peak may lag a little behind.
    assert 0.9 * resident < machine.peak_memory_bytes() < 2**40
