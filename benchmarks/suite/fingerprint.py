"""What identifies a machine and an installation: figures of two that differ do not belong in one table."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from models import kernel_library
from trainer import gpu_settings, machine

_GIB = 2**30

COMPARABLE = (
    "cpu_model",
    "cpus",
    "allowed_cpus",
    "memory_gib",
    "gpus",
    "driver",
    "python",
    "versions",
    "precision",
    "tuning",
    "governor",
    "container",
    "embedding_kernels",
)
"""What must be equal in one table. The rest says where and when it was: a machine that starts again is the same one."""

# Variables that change how numbers are computed, on this machine or on others.
_PRECISION_VARIABLES = (
    "NVIDIA_TF32_OVERRIDE",
    "TF_ENABLE_ONEDNN_OPTS",
    "ONEDNN_DEFAULT_FPMATH_MODE",
    "ONEDNN_MAX_CPU_ISA",
    "TF_XLA_FLAGS",
    "XLA_FLAGS",
    "OMP_NUM_THREADS",
)


def fingerprint(
    environ: Mapping[str, str] = os.environ, *, root: Path = Path("/"), environment: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Facts of this machine and installation, ready for JSON; COMPARABLE names those that tables compare.

    Args:
      environ: variables that change precision, or how fast GPUs and ranks are, are looked for in it.
      root: where the system's files are.
      environment: of trainer.machine; asked for by default.
    """
    facts = dict(machine.environment() if environment is None else environment)
    memory = facts.get("memory_bytes")
    tuned = {name: value for name, value in gpu_settings.tuning(environ).items() if name not in _PRECISION_VARIABLES}
    return facts | {
        "memory_gib": None if memory is None else round(memory / _GIB),
        "precision": {name: environ[name] for name in _PRECISION_VARIABLES if name in environ},
        # None and not {}: results of before this was kept have none.
        "tuning": tuned or None,
        "governor": governor(root),
        "embedding_kernels": "own" if _kernels_are_used(facts) else "tensorflow",
    }


def differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    """Names of the comparable facts that differ; those of a mapping one by one, as "versions.tensorflow"."""
    found = []
    for name in COMPARABLE:
        left, right = a.get(name), b.get(name)
        if isinstance(left, Mapping) and isinstance(right, Mapping):
            found += [f"{name}.{key}" for key in sorted({*left, *right}) if left.get(key) != right.get(key)]
        elif _plain(left) != _plain(right):
            found.append(name)
    return found


def governor(root: Path = Path("/")) -> str | None:
    """What governs the clocks of the CPUs, "a, b" where they differ; None where the system does not say."""
    found = set()
    for path in (root / "sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_governor"):
        try:
            found.add(path.read_text().strip())
        except OSError:
            continue
    return ", ".join(sorted(found)) or None


def cpu_flags(root: Path = Path("/")) -> frozenset[str]:
    """What the first CPU says it can do."""
    try:
        text = (root / "proc/cpuinfo").read_text()
    except OSError:
        return frozenset()
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("flags", "Features"):
            return frozenset(value.split())
    return frozenset()


def _kernels_are_used(facts: Mapping[str, Any]) -> bool:
    """What models.custom_ops would find, which brings TensorFlow: kernels of this source and version, and no GPU."""
    version = facts.get("versions", {}).get("tensorflow")
    return not facts.get("gpus") and kernel_library.library_path(version).exists()


def _plain(value: Any) -> Any:
    """JSON knows no tuples."""
    return list(value) if isinstance(value, tuple) else value
