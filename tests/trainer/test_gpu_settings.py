"""What TensorFlow is told, what is in force on GPUs of several kinds, and what the user's variables make of it."""

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

from trainer import gpu_settings
from trainer.config import DeviceConfig

ROOT = Path(__file__).resolve().parents[2]
AMPERE, VOLTA = (8, 0), (7, 0)


def in_force(device=None, environ=None, compute_capability=AMPERE, failure=None):
    return gpu_settings.in_force(
        device or DeviceConfig(), environ or {}, compute_capability=compute_capability, l2_fetch_failure=failure
    )


def test_the_defaults():
    device = DeviceConfig()
    assert gpu_settings.variables(device) == {
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
        "TF_GPU_THREAD_MODE": "gpu_private",
    }
    assert in_force(device, gpu_settings.variables(device)) == gpu_settings.GpuSettings(
        tf32=True, allocator="bfc", memory_growth=True, l2_fetch_granularity=128, compute_capability="8.0"
    )


def test_the_drivers_allocator():
    device = DeviceConfig(gpu_allocator="async")
    variables = gpu_settings.variables(device)
    assert variables["TF_GPU_ALLOCATOR"] == "cuda_malloc_async"
    assert in_force(device, variables).allocator == "cuda_malloc_async"


@pytest.mark.parametrize(
    ("asked", "override", "compute_capability", "tf32", "said"),
    [
        (True, None, AMPERE, True, "float32, TF32"),
        (True, None, (12, 0), True, "float32, TF32"),
        (True, None, VOLTA, False, "float32, no TF32"),
        (True, None, None, None, "float32, TF32 where the GPU has it"),
        (True, "0", AMPERE, False, "float32, no TF32"),
        (True, "0", None, False, "float32, no TF32"),
        (True, "1", AMPERE, True, "float32, TF32"),
        (False, None, AMPERE, False, "float32, no TF32"),
        (False, "1", AMPERE, False, "float32, no TF32"),
        (False, None, None, False, "float32, no TF32"),
    ],
)
def test_when_products_are_tf32_ones(asked, override, compute_capability, tf32, said):
    environ = {} if override is None else {"NVIDIA_TF32_OVERRIDE": override}
    found = in_force(DeviceConfig(tf32=asked), environ, compute_capability)
    assert found.tf32 is tf32 and found.describe_precision("float32") == said


def test_memory_as_the_users_variables_have_it():
    found = in_force(environ={"TF_FORCE_GPU_ALLOW_GROWTH": "False", "TF_GPU_ALLOCATOR": "cuda_malloc_async"})
    assert (found.allocator, found.memory_growth) == ("cuda_malloc_async", False)


def test_l2_fetches_that_could_not_be_had_or_were_not_asked_for():
    assert in_force(failure="refused").l2_fetch_granularity is None
    assert in_force(DeviceConfig(l2_fetch_granularity=0)).l2_fetch_granularity is None
    assert in_force(DeviceConfig(l2_fetch_granularity=64)).l2_fetch_granularity == 64


def idle(device, given, environ=None, has_gpu=True):
    return gpu_settings.without_effect(device, given=set(given), environ=environ or {}, has_gpu=has_gpu)


def test_nothing_of_it_matters_on_a_cpu():
    names = ["tf32", "gpu_allocator", "l2_fetch_granularity"]
    assert idle(DeviceConfig(), names, has_gpu=False) == [f"{name} (no GPU)" for name in names]
    assert idle(DeviceConfig(), [], has_gpu=False) == idle(DeviceConfig(), names) == []


@pytest.mark.parametrize(
    ("settings", "environ", "notes"),
    [
        ({"tf32": True}, {"NVIDIA_TF32_OVERRIDE": "0"}, ["tf32 (NVIDIA_TF32_OVERRIDE=0)"]),
        ({"tf32": False}, {"NVIDIA_TF32_OVERRIDE": "0"}, []),
        ({"gpu_allocator": "async"}, {"TF_GPU_ALLOCATOR": "cuda_malloc_async"}, []),
        ({"gpu_allocator": "async"}, {"TF_GPU_ALLOCATOR": "x"}, ["gpu_allocator async (TF_GPU_ALLOCATOR=x)"]),
        ({"gpu_allocator": "growth"}, {"TF_GPU_ALLOCATOR": "x"}, ["gpu_allocator growth (TF_GPU_ALLOCATOR=x)"]),
        (
            {"gpu_allocator": "growth"},
            {"TF_FORCE_GPU_ALLOW_GROWTH": "false"},
            ["gpu_allocator growth (TF_FORCE_GPU_ALLOW_GROWTH=false)"],
        ),
        ({"gpu_allocator": "growth"}, {"TF_FORCE_GPU_ALLOW_GROWTH": "True"}, []),
    ],
)
def test_the_users_variables_come_before_flags_and_that_is_said(settings, environ, notes):
    assert idle(dataclasses.replace(DeviceConfig(), **settings), settings, environ) == notes
    assert idle(dataclasses.replace(DeviceConfig(), **settings), [], environ) == []


@pytest.mark.parametrize(
    ("flags", "warned"),
    [
        ("--tf_xla_auto_jit=2", True),
        ("--tf_xla_cpu_global_jit --tf_xla_auto_jit=fusible --x", True),
        ("--tf_xla_auto_jit=0", False),
        ("--tf_xla_auto_jit=-1", False),
        ("--tf_xla_clustering_debug", False),
        (None, False),
    ],
)
def test_auto_clustering_is_warned_about(flags, warned):
    found = gpu_settings.warnings_about({} if flags is None else {"TF_XLA_FLAGS": flags})
    assert len(found) == warned and all("auto-clustering" in warning and "--xla" in warning for warning in found)


def test_variables_that_are_kept():
    environ = gpu_settings.variables(DeviceConfig(gpu_allocator="async")) | {
        "HOROVOD_FUSION_THRESHOLD": "33554432",
        "NCCL_ALGO": "",
        "NCCL_SOCKET_IFNAME": "eth0",
        "HOME": "/root",
    }
    kept = {"HOROVOD_FUSION_THRESHOLD": "33554432", "TF_GPU_ALLOCATOR": "cuda_malloc_async"}
    assert gpu_settings.tuning(environ) == kept
    # What every run of ours sets says nothing, unless the user has set it otherwise.
    assert gpu_settings.tuning({"TF_GPU_THREAD_MODE": "global"}) == {"TF_GPU_THREAD_MODE": "global"}


def test_the_module_imports_no_tensorflow():
    script = "import sys, trainer.gpu_settings; print(sorted({'tensorflow', 'keras', 'numpy'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
