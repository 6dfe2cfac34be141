"""The process before the first tensor: environment, TensorFlow's import, threads, precision, devices."""

import contextlib
import dataclasses
import os
import re
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping, MutableMapping
from typing import TextIO

from data.errors import InputError
from data.freed_memory import keep_freed_memory
from trainer import cuda_driver, gpu_settings
from trainer.config import DeviceConfig, RunConfig
from trainer.gpu_settings import GpuSettings

# What TensorFlow says at every start, whatever its log level, and nobody can act on.
_START_UP_NOISE = re.compile(
    rb"WARNING: All log messages before absl::InitializeLog\(\)|.*port\.cc:\d+\] oneDNN custom operations are on"
)


@dataclasses.dataclass(frozen=True)
class Device:
    """What this rank computes on.

    Attributes:
      gpu: what is in force on its GPU; None without one.
      warnings: settings that could not be had, and what else the user should know.
    """

    has_gpu: bool
    description: str
    gpu: GpuSettings | None = None
    warnings: tuple[str, ...] = ()

    def describe_precision(self, precision: str) -> str:
        """A precision by name, with what this device makes of it: on a GPU float32 products may be TF32 ones."""
        return precision if self.gpu is None else self.gpu.describe_precision(precision)


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
    """Variables that must be set before TensorFlow is imported; those that the user has set stay."""
    wanted = {"TF_CPP_MIN_LOG_LEVEL": "2"}
    if device.cpu:
        return {"TF_CPP_MIN_LOG_LEVEL": environ.get("TF_CPP_MIN_LOG_LEVEL", "2"), "CUDA_VISIBLE_DEVICES": "-1"}
    wanted |= gpu_settings.variables(device)
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


def check_own_gpu(*, local_size: int) -> None:
    """Refuses several ranks that see several GPUs each: TensorFlow would compute on the first one in all of them.

    Args:
      local_size: ranks of this machine.

    Raises:
      InputError: there are several of both.
    """
    import tensorflow as tf

    seen = len(tf.config.list_physical_devices("GPU"))
    if local_size > 1 and seen > 1:
        raise InputError(
            f"{local_size} processes of this machine see {seen} GPUs each, and would all compute on the first: start "
            "them with hvd_wrapper.sh (horovodrun -np N sh hvd_wrapper.sh python main.py ...), which gives each its own"
        )


def configure(device: DeviceConfig, *, threads: int) -> Device:
    """Sets threads and precision, finds the device and, if it is a GPU, sets it up. Call it before the first tensor.

    Args:
      device: what to run on, in what precision.
      threads: of one operation.
    """
    import keras
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(threads)
    # Two: one runs the step, one lets the input pipeline's operations past it.
    tf.config.threading.set_inter_op_parallelism_threads(2)
    if device.deterministic:
        tf.config.experimental.enable_op_determinism()
    keras.mixed_precision.set_global_policy(device.precision)
    tf.config.experimental.enable_tensor_float_32_execution(device.tf32)
    gpus = tf.config.list_physical_devices("GPU")
    if len(gpus) > 1:  # Those that nobody computes on stay free for other programs.
        tf.config.set_visible_devices(gpus[:1], "GPU")
    if not gpus:
        keep_freed_memory()
        return Device(False, f"CPU, {threads} thread{'s' if threads > 1 else ''} a rank")
    return _set_up_gpu(device, gpus[0])


def _set_up_gpu(device: DeviceConfig, gpu) -> Device:
    """Sets what TensorFlow leaves to others on the GPU that it computes on, its first, and says what is in force."""
    import tensorflow as tf

    details = tf.config.experimental.get_device_details(gpu)
    warnings, failure = gpu_settings.warnings_about(os.environ), None
    if device.l2_fetch_granularity:
        tf.config.list_logical_devices("GPU")  # begins to use the GPU, as the driver needs it
        failure = cuda_driver.set_l2_fetch_granularity(device.l2_fetch_granularity)
    if failure is not None:
        warnings += (
            f"L2 fetch granularity of {device.l2_fetch_granularity} bytes cannot be had ({failure}): the GPU keeps its "
            "own; --l2_fetch_granularity=0 does not ask for it",
        )
    settings = gpu_settings.in_force(
        device, os.environ, compute_capability=details.get("compute_capability"), l2_fetch_failure=failure
    )
    return Device(True, f"GPU {details.get('device_name', '')}".rstrip(), settings, warnings)


def begin_run(device: DeviceConfig) -> None:
    """Gives a run of a process that has had others what they had: Keras's numbering of names anew, and its policy."""
    import keras

    keras.backend.clear_session()
    keras.mixed_precision.set_global_policy(device.precision)


def without_effect(
    device: DeviceConfig, *, given: Collection[str], world_size: int, affinity_changed: bool, has_gpu: bool = False
) -> list[str]:
    """Settings that the user gave and that change nothing on this machine, for the first line of output."""
    notes = []
    if device.cpu and not _gpus_installed():
        notes.append("cpu (no GPU here)")
    notes += gpu_settings.without_effect(device, given=given, environ=os.environ, has_gpu=has_gpu)
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
