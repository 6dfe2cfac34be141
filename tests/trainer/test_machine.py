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


def test_peak_memory_is_at_least_what_is_resident_now():
    with open("/proc/self/statm") as file:
        resident = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    # The kernel counts in batches of pages, so the peak may lag a little behind.
    assert 0.9 * resident < machine.peak_memory_bytes() < 2**40
