import contextlib
import os
import subprocess
import sys
import types
from pathlib import Path

import keras
import pytest
import tensorflow as tf

from data.errors import InputError
from trainer import cuda_driver, runtime
from trainer.config import DeviceConfig, RunConfig
from trainer.gpu_settings import GpuSettings

ROOT = Path(__file__).resolve().parents[2]


# Environment.


def test_what_the_user_has_set_stays():
    environ = {"TF_CPP_MIN_LOG_LEVEL": "0", "TF_FORCE_GPU_ALLOW_GROWTH": "false", "HOME": "/x"}
    wanted = runtime.environment_for(DeviceConfig(), environ)
    assert wanted == {
        "TF_CPP_MIN_LOG_LEVEL": "0",
        "TF_FORCE_GPU_ALLOW_GROWTH": "false",
        "TF_GPU_THREAD_MODE": "gpu_private",
    }
    assert environ["HOME"] == "/x" and len(environ) == 3


def test_the_drivers_allocator_must_be_named_before_tensorflow_is_imported():
    assert runtime.environment_for(DeviceConfig(gpu_allocator="async"), {})["TF_GPU_ALLOCATOR"] == "cuda_malloc_async"
    assert (
        runtime.environment_for(DeviceConfig(gpu_allocator="async"), {"TF_GPU_ALLOCATOR": "x"})["TF_GPU_ALLOCATOR"]
        == "x"
    )
    assert "TF_GPU_ALLOCATOR" not in runtime.environment_for(DeviceConfig(), {})


def test_devices_are_left_to_the_wrapper_unless_cpu_is_asked_for():
    assert "CUDA_VISIBLE_DEVICES" not in runtime.environment_for(DeviceConfig(), {})
    for environ in ({}, {"CUDA_VISIBLE_DEVICES": "3"}):
        wanted = runtime.environment_for(DeviceConfig(cpu=True), environ)
        assert wanted == {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "-1"}


def test_the_environment_is_set_when_tensorflow_is_imported():
    environ = {}
    assert runtime.import_tensorflow(DeviceConfig(cpu=True), environ) is tf
    assert environ == {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "-1"}


def test_the_module_itself_imports_no_tensorflow():
    script = "import sys, trainer.runtime; print(sorted({'tensorflow', 'keras', 'numpy'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_start_up_noise_is_held_back_and_nothing_else(capfd):
    with runtime._without_start_up_noise():
        os.write(2, b"WARNING: All log messages before absl::InitializeLog() is called are written to STDERR\n")
        os.write(2, b"I0000 00:00:17.1 12361 port.cc:153] oneDNN custom operations are on. You may see\n")
        os.write(2, b"E0000 00:00:17.1 12361 cuda.cc:31] no CUDA driver\nWARNING: something else\n")
    assert capfd.readouterr().err.splitlines() == [
        "E0000 00:00:17.1 12361 cuda.cc:31] no CUDA driver",
        "WARNING: something else",
    ]


def test_what_was_written_before_an_import_failed_is_shown(capfd):
    with pytest.raises(ImportError), runtime._without_start_up_noise():
        os.write(2, b"undefined symbol: x\n")
        raise ImportError
    os.write(2, b"after\n")
    assert capfd.readouterr().err == "undefined symbol: x\nafter\n"


# Threads, precision, devices. TensorFlow's own threads are fixed once it has run, so here they are only looked at.


@pytest.fixture
def threads(monkeypatch):
    numbers = {}
    for kind in ("intra", "inter"):
        name = f"set_{kind}_op_parallelism_threads"
        monkeypatch.setattr(tf.config.threading, name, lambda number, kind=kind: numbers.__setitem__(kind, number))
    yield numbers
    keras.mixed_precision.set_global_policy("float32")


@pytest.mark.parametrize(
    ("device", "policy"),
    [
        (DeviceConfig(), "float32"),
        (DeviceConfig(amp=True), "mixed_float16"),
        (DeviceConfig(amp=True, amp_dtype="bfloat16"), "mixed_bfloat16"),
    ],
)
def test_threads_and_precision_on_a_cpu(threads, device, policy):
    found = runtime.configure(device, threads=3)
    assert threads == {"intra": 3, "inter": 2}
    assert keras.mixed_precision.global_policy().name == policy
    assert found == runtime.Device(has_gpu=False, description="CPU, 3 threads a rank")


def test_a_cpu_keeps_what_steps_free(threads, monkeypatch):
    kept = []
    monkeypatch.setattr(runtime, "keep_freed_memory", lambda: kept.append(True))
    runtime.configure(DeviceConfig(), threads=2)
    assert kept == [True]


def test_one_thread_is_no_threads(threads):
    assert runtime.configure(DeviceConfig(), threads=1).description == "CPU, 1 thread a rank"


@pytest.fixture
def gpu(threads, monkeypatch):
    """TensorFlow and the driver as with a GPU: what they are asked, in order, and `answer`, the driver's refusal."""
    state = types.SimpleNamespace(
        asked=[], answer=None, details={"device_name": "NVIDIA X", "compute_capability": (8, 0)}
    )
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: ["gpu"] if kind == "GPU" else [])
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind: state.asked.append(f"context of {kind}"))
    monkeypatch.setattr(tf.config.experimental, "get_device_details", lambda gpu: state.details)
    enabled = tf.config.experimental.tensor_float_32_execution_enabled()

    def set_granularity(size):
        state.asked.append(f"fetch {size}")
        return state.answer

    monkeypatch.setattr(cuda_driver, "set_l2_fetch_granularity", set_granularity)
    for name in ("NVIDIA_TF32_OVERRIDE", "TF_GPU_ALLOCATOR", "TF_XLA_FLAGS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TF_FORCE_GPU_ALLOW_GROWTH", "true")
    yield state
    tf.config.experimental.enable_tensor_float_32_execution(enabled)


def test_a_gpu_is_named_and_set_up(gpu):
    assert runtime.has_gpu()
    expected = GpuSettings(
        tf32=True, allocator="bfc", memory_growth=True, l2_fetch_granularity=128, compute_capability="8.0"
    )
    assert runtime.configure(DeviceConfig(), threads=1) == runtime.Device(True, "GPU NVIDIA X", expected)
    # A limit of a context that nobody uses would be lost.
    assert gpu.asked == ["context of GPU", "fetch 128"]
    assert tf.config.experimental.tensor_float_32_execution_enabled()


def test_gpus_that_nobody_computes_on_are_left_alone(gpu, monkeypatch):
    chosen = []
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: ["first", "second"] if kind == "GPU" else [])
    monkeypatch.setattr(tf.config, "set_visible_devices", lambda devices, kind: chosen.append((devices, kind)))
    runtime.configure(DeviceConfig(), threads=1)
    assert chosen == [(["first"], "GPU")]


@pytest.mark.parametrize(("ranks", "gpus", "refused"), [(2, 2, True), (1, 8, False), (2, 1, False), (2, 0, False)])
def test_ranks_that_all_see_the_same_gpus_are_refused(monkeypatch, ranks, gpus, refused):
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: ["gpu"] * gpus if kind == "GPU" else [])
    expected = pytest.raises(InputError, match=r"2 processes .* see 2 GPUs each.* hvd_wrapper.sh")
    with expected if refused else contextlib.nullcontext():
        runtime.check_own_gpu(local_size=ranks)


def test_tf32_is_as_asked_for(gpu):
    found = runtime.configure(DeviceConfig(tf32=False), threads=1)
    assert not tf.config.experimental.tensor_float_32_execution_enabled()
    assert found.describe_precision("float32") == "float32, no TF32"
    assert runtime.Device(False, "CPU").describe_precision("float32") == "float32"


def test_an_l2_granularity_that_cannot_be_had_is_one_warning(gpu):
    gpu.answer = "cuCtxSetLimit failed: CUDA_ERROR_UNSUPPORTED_LIMIT"
    found = runtime.configure(DeviceConfig(), threads=1)
    (warning,) = found.warnings
    assert "128 bytes" in warning and gpu.answer in warning and "--l2_fetch_granularity=0" in warning
    assert found.gpu.l2_fetch_granularity is None


def test_the_driver_is_left_alone_if_that_is_asked_for(gpu):
    gpu.answer = "not asked"
    found = runtime.configure(DeviceConfig(l2_fetch_granularity=0), threads=1)
    assert gpu.asked == [] and found.warnings == () and found.gpu.l2_fetch_granularity is None


def test_a_gpu_that_tells_nothing(gpu):
    gpu.details = {}
    found = runtime.configure(DeviceConfig(), threads=1)
    assert found.description == "GPU" and found.gpu.tf32 is None and found.gpu.compute_capability is None


def test_auto_clustering_is_warned_about_on_a_gpu(gpu, monkeypatch):
    monkeypatch.setenv("TF_XLA_FLAGS", "--tf_xla_auto_jit=2")
    (warning,) = runtime.configure(DeviceConfig(), threads=1).warnings
    assert "auto-clustering" in warning


# What the first line says of flags that change nothing.


def idle(device=None, *given, world_size=1, affinity_changed=False):
    return runtime.without_effect(
        device or DeviceConfig(), given=set(given), world_size=world_size, affinity_changed=affinity_changed
    )


def test_settings_of_gpus_matter_only_on_them(monkeypatch):
    monkeypatch.delenv("NVIDIA_TF32_OVERRIDE", raising=False)
    assert idle(None, "tf32") == ["tf32 (no GPU)"]
    with_gpu = runtime.without_effect(
        DeviceConfig(), given={"tf32"}, world_size=1, affinity_changed=False, has_gpu=True
    )
    assert with_gpu == []


def test_nothing_is_said_of_defaults():
    assert idle() == [] == idle(world_size=2)


def test_cpu_says_nothing_new_without_a_gpu(monkeypatch):
    for installed, notes in ((False, ["cpu (no GPU here)"]), (True, [])):
        monkeypatch.setattr(runtime, "_gpus_installed", lambda installed=installed: installed)
        assert idle(DeviceConfig(cpu=True), "cpu") == notes


def test_what_ranks_exchange_matters_only_between_ranks():
    device = DeviceConfig(fp16_compression=True, table_reduction="gather")
    assert idle(device, "data_shards") == [
        "fp16_compression (one rank)",
        "table_reduction (one rank)",
        "data_shards (one rank)",
    ]
    assert idle(device, "data_shards", world_size=2) == []


@pytest.mark.parametrize(
    ("mode", "changed", "notes"),
    [("single", False, ["affinity single (nothing to restrict)"]), ("single", True, []), ("disabled", False, [])],
)
def test_affinity_that_restricts_nothing(mode, changed, notes):
    assert idle(DeviceConfig(affinity=mode), "affinity", affinity_changed=changed) == notes


def test_flags_that_nobody_reads():
    assert idle(None, "num_auc_thresholds") == ["num_auc_thresholds (AUC is exact)"]
    assert idle(DeviceConfig(amp_dtype="bfloat16"), "amp_dtype") == ["amp_dtype (without --amp)"]
    assert idle(DeviceConfig(amp=True, amp_dtype="bfloat16"), "amp_dtype", "amp") == []


def idle_tables_and_data(world_size=2, **settings):
    config = RunConfig.from_flat(settings, given=frozenset(settings))
    return runtime.without_effect_on_tables_and_data(config, world_size=world_size)


def test_thresholds_matter_only_where_ranks_share_tables_out():
    assert idle_tables_and_data() == idle_tables_and_data(embedding_parallelism="model", row_slice_threshold=9) == []
    assert idle_tables_and_data(row_slice_threshold=9) == ["row_slice_threshold (embedding_parallelism data)"]
    assert idle_tables_and_data(1, embedding_parallelism="auto", data_parallel_threshold=0) == [
        "embedding_parallelism (one rank)",
        "data_parallel_threshold (one rank)",
    ]


def test_the_shape_of_generated_data_matters_only_where_data_is_generated():
    shape = {"synthetic_rows": 99, "synthetic_dataset_cardinalities": (5,)}
    assert idle_tables_and_data(dataset_type="synthetic", **shape) == []
    assert idle_tables_and_data(**shape) == [
        "synthetic_rows (dataset_type parquet)",
        "synthetic_dataset_cardinalities (dataset_type parquet)",
    ]
    assert idle_tables_and_data(model="dlrm", preset="tiny") == []
