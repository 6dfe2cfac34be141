"""From a benchmark and a cell to the settings of main.py, and from these to its command line. No TensorFlow."""

from collections.abc import Mapping
from typing import Any

from benchmarks.microbenchmarks.timed import MOST_SECONDS, MOST_STEPS, WARMUP_STEPS
from benchmarks.suite.definitions import INFERENCE, LOSS_BAND, Definition
from benchmarks.suite.results import Cell
from data.errors import InputError
from trainer.config import RunConfig

# That of the microbenchmarks: main.py, too, measures at least LEAST_TIMED_STEPS.
_METHOD: Mapping[str, Any] = {
    "benchmark_warmup_steps": WARMUP_STEPS,
    "benchmark_steps": WARMUP_STEPS + MOST_STEPS,
    "benchmark_seconds": MOST_SECONDS,
}
_OF_PRECISION: Mapping[str, Mapping[str, Any]] = {
    "fp32": {},
    "tf32": {},
    "bf16": {"amp": True, "amp_dtype": "bfloat16"},
    "fp16": {"amp": True, "amp_dtype": "float16"},
}


def settings(definition: Definition, *, batch_size: int, precision: str = "fp32") -> dict[str, Any]:
    """What is given to main.py, by flag, but for where results go. The definition's flags come before the method's.

    Raises:
      InputError: a flag is none of main.py's, or has no value of its type.
    """
    found = {
        **_METHOD,
        **_typed(definition.name, definition.flags),
        **_OF_PRECISION[precision],
        "model": definition.model,
        "benchmark": True,
        "benchmark_name": definition.config,
    }
    if definition.mode == INFERENCE:
        found["evaluate"] = True
    found["eval_batch_size" if definition.mode == INFERENCE else "global_batch_size"] = batch_size
    return found


def check_settings(definition: Definition) -> dict[str, Any]:
    """What is given to main.py for the short training or the comparison of outputs that `correctness` states."""
    found = {
        **_typed(definition.name, definition.correctness["flags"]),
        "model": definition.model,
        "benchmark": True,
        "benchmark_name": f"{definition.config}-check",
    }
    if definition.correctness["check"] == LOSS_BAND:
        found |= {"benchmark_warmup_steps": 0, "benchmark_steps": definition.correctness["steps"]}
    return found


def resolve(definition: Definition, cell: Cell) -> RunConfig:
    """The whole configuration of a cell."""
    return config_of(settings(definition, batch_size=cell.batch_size, precision=cell.precision))


def config_of(given: Mapping[str, Any]) -> RunConfig:
    """The configuration that main.py makes of settings."""
    return RunConfig.from_flat(given, frozenset(given))


def arguments(given: Mapping[str, Any]) -> list[str]:
    """Settings as the command line spells them; those that are None are left out."""
    words = []
    for name, value in given.items():
        if isinstance(value, bool):
            words.append(f"--{'' if value else 'no'}{name}")
        elif value is not None:
            text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
            words.append(f"--{name}={text}")
    return words


def _typed(name: str, flags: Mapping[str, Any]) -> dict[str, Any]:
    """Flags as YAML has them, in the types of the configuration: lists, and one number for a list, become tuples."""
    defaults = RunConfig().flat()
    found = {}
    for flag, value in flags.items():
        if flag not in defaults:
            raise InputError(f"{name}: '{flag}' is no flag of main.py: take it out or correct it")
        default = defaults[flag]
        if isinstance(value, list):
            value = tuple(value)
        elif isinstance(default, tuple) and type(value) is int:
            value = (value,)
        elif isinstance(default, float) and type(value) is int:
            value = float(value)
        same = default is None or type(value) is type(default)
        if not same or (isinstance(value, tuple) and not all(type(item) is int for item in value)):
            raise InputError(f"{name}: flag {flag} is {value!r}, and its default {default!r} is of another type")
        found[flag] = value
    return found
