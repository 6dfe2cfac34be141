"""The process before the first tensor: environment, TensorFlow's import, threads, precision, devices."""

import contextlib
import dataclasses
import os
import re
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping, MutableMapping
from typing import TextIO

from trainer.config import DeviceConfig, RunConfig

# What TensorFlow says at every start, whatever its log level, and nobody can act on.
_START_UP_NOISE = re.compile(
    rb"WARNING: All log messages before absl::InitializeLog\(\)|.*port\.cc:\d+\] oneDNN custom operations are on"
)


@dataclasses.dataclass(frozen=True)
class Device:
    """What this rank computes on."""

    has_gpu: bool
    description: str


@dataclasses.dataclass(frozen=True)
class Surroundings:
    """What a run finds when it begins, and what its first line of output has to say of it.

    Attributes:
      device: what this rank computes on.
      fell_back: defaults that this machine cannot hold, and what stands in for them.
      without_effect: settings that change nothing here.
      warnings: what else the user should know.
      terminal: where a progress bar may go; None for nowhere.
    """

    device: Device
    fell_back: tuple[str, ...] = ()
    without_effect: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    terminal: TextIO | None = None


def environment_for(device: DeviceConfig, environ: Mapping[str, str]) -> dict[str, str]:
    """Variables that must be set before TensorFlow is imported; those that the user has set stay.

    On GPUs (not run on hardware by us): memory is taken as it is needed, so that ranks can share a device and other
    programs can run beside; kernels are launched by threads of their own, which input decoding cannot delay.
    """
    wanted = {"TF_CPP_MIN_LOG_LEVEL": "2"}
    if device.cpu:
        return {"TF_CPP_MIN_LOG_LEVEL": environ.get("TF_CPP_MIN_LOG_LEVEL", "2"), "CUDA_VISIBLE_DEVICES": "-1"}
    wanted |= {"TF_FORCE_GPU_ALLOW_GROWTH": "true", "TF_GPU_THREAD_MODE": "gpu_private"}
    return {name: environ.get(name, value) for name, value in wanted.items()}


def import_tensorflow(device: DeviceConfig, environ: MutableMapping[str, str] = os.environ):
    """Sets the environment, then imports TensorFlow, which reads it once: nothing may import TensorFlow before."""
    environ.update(environment_for(device, environ))
    with _without_start_up_noise():
        import tensorflow as tf
    return tf


def has_gpu() -> bool:
    """Whether TensorFlow sees a GPU; --cpu has hidden them from it."""
    import tensorflow as tf

    return bool(tf.config.list_physical_devices("GPU"))


def configure(device: DeviceConfig, *, threads: int) -> Device:
    """Sets threads and precision and finds the device. Call it before the first tensor is made.

    Args:
      device: what to run on, in what precision.
      threads: of one operation.
    """
    import keras
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(threads)
    # Two: one runs the step, one lets the input pipeline's operations past it.
    tf.config.threading.set_inter_op_parallelism_threads(2)
    keras.mixed_precision.set_global_policy(device.precision)
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        return Device(False, f"CPU, {threads} thread{'s' if threads > 1 else ''} a rank")
    names = {tf.config.experimental.get_device_details(gpu).get("device_name", "GPU") for gpu in gpus[:1]}
    return Device(True, f"GPU {', '.join(sorted(names))}")


def without_effect(
    device: DeviceConfig, *, given: Collection[str], world_size: int, affinity_changed: bool
) -> list[str]:
    """Settings that the user gave and that change nothing on this machine, for the first line of output."""
    notes = []
    if device.cpu and not _gpus_installed():
        notes.append("cpu (no GPU here)")
    if world_size == 1:
        if device.fp16_compression:
            notes.append("fp16_compression (one rank)")
        if device.table_reduction != "auto":
            notes.append("table_reduction (one rank)")
        if "data_shards" in given:
            notes.append("data_shards (one rank)")
    if "amp_dtype" in given and not device.amp:
        notes.append("amp_dtype (without --amp)")
    if "affinity" in given and device.affinity != "disabled" and not affinity_changed:
        notes.append(f"affinity {device.affinity} (nothing to restrict)")
    if "num_auc_thresholds" in given:
        notes.append("num_auc_thresholds (AUC is exact)")
    return notes


def without_effect_on_tables_and_data(config: RunConfig, *, world_size: int) -> list[str]:
    """The same of settings of embedding tables and of generated data."""
    notes = []
    thresholds = [
        name for name in dataclasses.asdict(config.embeddings) if name.endswith("threshold") and name in config.given
    ]
    if config.embeddings.embedding_parallelism == "data":
        notes += [f"{name} (embedding_parallelism data)" for name in thresholds]
    elif world_size == 1:
        notes += [f"{name} (one rank)" for name in ("embedding_parallelism", *thresholds)]
    # A preset describes data for those who want it generated; nobody who reads files has asked for that.
    if config.data.dataset_type != "synthetic" and config.mode.preset is None:
        generated = [name for name in dataclasses.asdict(config.data) if name.startswith("synthetic_")]
        notes += [f"{name} (dataset_type {config.data.dataset_type})" for name in generated if name in config.given]
    return notes


def _gpus_installed() -> bool:
    return os.path.isdir("/proc/driver/nvidia/gpus")


@contextlib.contextmanager
def _without_start_up_noise() -> Iterator[None]:
    """Holds standard error back and lets all of it through afterwards but two lines that say nothing."""
    sys.stderr.flush()
    saved = os.dup(2)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(saved, 2)
            os.close(saved)
            held.seek(0)
            for line in held:
                if not _START_UP_NOISE.match(line):
                    os.write(2, line)
