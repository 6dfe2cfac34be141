"""What makes two machines different, and what does not."""

import pytest

from benchmarks.suite import fingerprint as fingerprints
from benchmarks.suite.fingerprint import COMPARABLE, cpu_flags, differences, fingerprint, governor
from models import custom_ops

ENVIRONMENT = {
    "host": "a", "python": "3.11", "cpu_model": "EPYC", "cpus": 4, "allowed_cpus": 2, "memory_bytes": 24 * 2**30 - 5,
    "versions": {"tensorflow": "2.21.0", "keras": "3"}, "gpus": [], "driver": None, "container": None,
    "commit": "abc", "dirty": False, "start_time": "2026-01-01T00:00:00+00:00",
}  # fmt: skip


@pytest.fixture
def facts(tmp_path):
    return fingerprint({}, root=tmp_path, environment=ENVIRONMENT)


def test_everything_that_is_compared_is_there(facts):
    assert set(COMPARABLE) <= set(facts) and facts["memory_gib"] == 24
    assert differences(facts, dict(facts)) == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"cpu_model": "Xeon"}, ["cpu_model"]),
        ({"gpus": ["A100"], "driver": "550"}, ["gpus", "driver"]),
        ({"gpus": ()}, []),
        (
            {"versions": {"tensorflow": "2.22.0", "keras": "3", "horovod": "0.28"}},
            ["versions.horovod", "versions.tensorflow"],
        ),
        ({"precision": {"NVIDIA_TF32_OVERRIDE": "0"}}, ["precision.NVIDIA_TF32_OVERRIDE"]),
        ({"governor": "powersave", "container": "docker"}, ["governor", "container"]),
        ({"host": "b", "commit": "def", "dirty": True, "start_time": "", "memory_bytes": 1}, []),
        ({"embedding_kernels": "other"}, ["embedding_kernels"]),
        ({"tuning": {"NCCL_ALGO": "Ring"}}, ["tuning"]),
    ],
)
def test_differences_are_named(facts, changes, expected):
    assert differences(facts, facts | changes) == expected


def test_variables_that_change_precision_are_kept_and_no_others(tmp_path):
    environ = {"NVIDIA_TF32_OVERRIDE": "0", "HOME": "/root", "OMP_NUM_THREADS": "2"}
    found = fingerprint(environ, root=tmp_path, environment=ENVIRONMENT)
    assert found["precision"] == {"NVIDIA_TF32_OVERRIDE": "0", "OMP_NUM_THREADS": "2"}


def test_variables_that_tune_gpus_and_ranks_are_kept(tmp_path):
    environ = {"HOROVOD_CYCLE_TIME": "5", "NVIDIA_TF32_OVERRIDE": "0", "NCCL_SOCKET_IFNAME": "eth0"}
    found = fingerprint(environ, root=tmp_path, environment=ENVIRONMENT)
    assert found["tuning"] == {"HOROVOD_CYCLE_TIME": "5"}
    other = fingerprint({"HOROVOD_CYCLE_TIME": "1"}, root=tmp_path, environment=ENVIRONMENT)
    assert differences(found, other | {"precision": found["precision"]}) == ["tuning.HOROVOD_CYCLE_TIME"]


def test_results_of_before_variables_were_kept_have_none(facts):
    assert differences(facts, {name: value for name, value in facts.items() if name != "tuning"}) == []


def test_governors(tmp_path):
    assert governor(tmp_path) is None
    for number, name in enumerate(("performance", "powersave", "performance")):
        folder = tmp_path / f"sys/devices/system/cpu/cpu{number}/cpufreq"
        folder.mkdir(parents=True)
        (folder / "scaling_governor").write_text(f"{name}\n")
    assert governor(tmp_path) == "performance, powersave"


def test_flags_of_the_cpu(tmp_path):
    assert cpu_flags(tmp_path) == frozenset()
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text("processor: 0\nflags\t\t: fpu avx2 avx512f\n\nflags: other\n")
    assert cpu_flags(tmp_path) == {"fpu", "avx2", "avx512f"}


def test_kernels_are_those_that_runs_find():
    expected = "tensorflow" if custom_ops.embedding_ops() is None else "own"
    assert fingerprints.fingerprint()["embedding_kernels"] == expected


def test_a_fingerprint_of_this_machine_is_its_own():
    found = fingerprints.fingerprint()
    assert found["cpus"] >= 1 and differences(found, fingerprints.fingerprint()) == []
