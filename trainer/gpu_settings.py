"""Settings of GPUs: what TensorFlow is told before it is imported, and what is in force. (Not run on hardware by us.)

- TF32: float32 products round their factors to 10 bits of mantissa, on GPUs from compute capability 8.0 on. On unless
  --notf32, as in TensorFlow itself; the first line of a run and its record say it.
- Memory: taken as it is needed, by TensorFlow's own allocator, so that programs can share a GPU; or by the driver's
  (--gpu_allocator=async), which gives back what is free and suffers less from fragments.
- L2 fetches: 128 bytes, because rows of embedding tables are read whole and lie anywhere.
- Kernels are launched by threads of their own, which input decoding cannot delay.
"""

import dataclasses
import re
from collections.abc import Collection, Mapping

from trainer.config import DeviceConfig

ALLOCATOR, GROWTH, THREADS = "TF_GPU_ALLOCATOR", "TF_FORCE_GPU_ALLOW_GROWTH", "TF_GPU_THREAD_MODE"
TF32_OVERRIDE = "NVIDIA_TF32_OVERRIDE"

_ASYNC = "cuda_malloc_async"
_FIRST_WITH_TF32 = (8, 0)  # Ampere

_OURS = {GROWTH: "true", THREADS: "gpu_private"}

# Variables that change how fast ranks or GPUs are, or in what precision; a record keeps those that are set. Variables
# with names of hosts or interfaces are left out.
TUNING_VARIABLES = (
    TF32_OVERRIDE,
    ALLOCATOR,
    GROWTH,
    THREADS,
    "TF_GPU_THREAD_COUNT",
    "TF_XLA_FLAGS",
    "XLA_FLAGS",
    "CUDA_DEVICE_ORDER",
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_LAUNCH_BLOCKING",
    "HOROVOD_AUTOTUNE",
    "HOROVOD_BATCH_D2D_MEMCOPIES",
    "HOROVOD_CACHE_CAPACITY",
    "HOROVOD_CYCLE_TIME",
    "HOROVOD_DISABLE_GROUP_FUSION",
    "HOROVOD_FUSION_THRESHOLD",
    "HOROVOD_HIERARCHICAL_ALLGATHER",
    "HOROVOD_HIERARCHICAL_ALLREDUCE",
    "HOROVOD_NUM_NCCL_STREAMS",
    "HOROVOD_THREAD_AFFINITY",
    "NCCL_ALGO",
    "NCCL_BUFFSIZE",
    "NCCL_IB_DISABLE",
    "NCCL_MAX_NCHANNELS",
    "NCCL_MIN_NCHANNELS",
    "NCCL_NET_GDR_LEVEL",
    "NCCL_NVLS_ENABLE",
    "NCCL_P2P_DISABLE",
    "NCCL_P2P_LEVEL",
    "NCCL_PROTO",
    "NCCL_SHM_DISABLE",
)


@dataclasses.dataclass(frozen=True)
class GpuSettings:
    """What is in force on a rank's GPU.

    Attributes:
      tf32: whether float32 products are TF32 ones; None where it is allowed and the GPU does not tell what it can.
      allocator: of GPU memory: "bfc", TensorFlow's own, or as TF_GPU_ALLOCATOR names it.
      memory_growth: whether memory is taken as it is needed, and not at once.
      l2_fetch_granularity: bytes, as asked for and set; None for the driver's own.
      compute_capability: as in "8.0"; None where it is not told.
    """

    tf32: bool | None
    allocator: str
    memory_growth: bool
    l2_fetch_granularity: int | None
    compute_capability: str | None = None

    def describe_precision(self, precision: str) -> str:
        """A precision with what TF32 makes of it."""
        return precision + {True: ", TF32", False: ", no TF32", None: ", TF32 where the GPU has it"}[self.tf32]


def variables(device: DeviceConfig) -> dict[str, str]:
    """Variables that TensorFlow reads when it is imported, to be set where the user has not."""
    return _OURS | ({ALLOCATOR: _ASYNC} if device.gpu_allocator == "async" else {})


def in_force(
    device: DeviceConfig,
    environ: Mapping[str, str],
    *,
    compute_capability: tuple[int, int] | None,
    l2_fetch_failure: str | None,
) -> GpuSettings:
    """What holds, by what was asked for, the environment that TensorFlow was imported in, and the GPU.

    Args:
      device: what was asked for.
      environ: of the process.
      compute_capability: of the GPU; None where it is not known.
      l2_fetch_failure: why L2 fetches are not as asked for; None if they are.
    """
    tf32: bool | None = device.tf32 and not tf32_is_overridden(environ)
    if tf32:
        tf32 = None if compute_capability is None else tuple(compute_capability) >= _FIRST_WITH_TF32
    return GpuSettings(
        tf32=tf32,
        allocator=environ.get(ALLOCATOR) or "bfc",
        memory_growth=environ.get(GROWTH, "").lower() == "true",
        l2_fetch_granularity=None if l2_fetch_failure is not None else device.l2_fetch_granularity or None,
        compute_capability=None if compute_capability is None else ".".join(map(str, compute_capability)),
    )


def warnings_about(environ: Mapping[str, str]) -> tuple[str, ...]:
    """What the user's variables do on a GPU that is seldom wanted here."""
    asked = re.search(r"--tf_xla_auto_jit=(\S+)", environ.get("TF_XLA_FLAGS", ""))
    if asked is None or asked.group(1) in ("0", "-1"):
        return ()
    return (
        f"TF_XLA_FLAGS asks for auto-clustering ({asked.group()}), which compiles again for every number of rows that "
        "a batch touches in a table; --xla compiles the dense part alone, once",
    )


def tf32_is_overridden(environ: Mapping[str, str]) -> bool:
    """Whether NVIDIA's libraries are told to leave TF32 alone, whatever a program says."""
    return environ.get(TF32_OVERRIDE, "").strip() == "0"


def without_effect(
    device: DeviceConfig, *, given: Collection[str], environ: Mapping[str, str], has_gpu: bool
) -> list[str]:
    """Settings that the user gave and that change nothing, as trainer.runtime.without_effect says them.

    Args:
      device: what was asked for.
      given: names of the settings that the user stated.
      environ: of the process.
      has_gpu: whether this rank computes on a GPU.
    """
    names = [name for name in ("tf32", "gpu_allocator", "l2_fetch_granularity") if name in given]
    if not has_gpu:
        return [f"{name} (no GPU)" for name in names]
    notes = []
    if "tf32" in names and device.tf32 and tf32_is_overridden(environ):
        notes.append(f"tf32 ({TF32_OVERRIDE}=0)")
    if "gpu_allocator" in names:
        asked = variables(device).get(ALLOCATOR, "")
        # Growth is what the program asks for; the user's own variables come before it.
        wins = {ALLOCATOR: asked, GROWTH: "true"} if not asked else {ALLOCATOR: asked}
        notes += [
            f"gpu_allocator {device.gpu_allocator} ({name}={environ[name]})"
            for name, value in wins.items()
            if environ.get(name, value).lower() != value
        ]
    return notes


def tuning(environ: Mapping[str, str]) -> dict[str, str]:
    """Those of TUNING_VARIABLES that are set, but for what every run of ours sets."""
    return {name: environ[name] for name in TUNING_VARIABLES if environ.get(name) and environ[name] != _OURS.get(name)}
