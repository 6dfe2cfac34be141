import os
import subprocess
import sys
from pathlib import Path

import keras
import pytest
import tensorflow as tf

from trainer import runtime
from trainer.config import DeviceConfig, RunConfig

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


def test_one_thread_is_no_threads(threads):
    assert runtime.configure(DeviceConfig(), threads=1).description == "CPU, 1 thread a rank"


def test_a_gpu_is_named(threads, monkeypatch):
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: ["gpu"] if kind == "GPU" else [])
    monkeypatch.setattr(tf.config.experimental, "get_device_details", lambda gpu: {"device_name": "NVIDIA X"})
    assert runtime.has_gpu()
    assert runtime.configure(DeviceConfig(), threads=1) == runtime.Device(True, "GPU NVIDIA X")


# What the first line says of flags that change nothing.


def idle(device=None, *given, world_size=1, affinity_changed=False):
    return runtime.without_effect(
        device or DeviceConfig(), given=set(given), world_size=world_size, affinity_changed=affinity_changed
    )


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
