"""What a microbenchmark is told: its mode, its sizes, its precision and parameters of its own, read and checked.

Without TensorFlow, so that a plan can ask how much memory a size takes before anything is started.
"""

import dataclasses
import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from data.errors import InputError

if TYPE_CHECKING:
    from benchmarks.microbenchmarks.timed import Outcome, Work

Shape = tuple[int, ...]

_MOST_SHOWN = 6  # numbers of a shape, in texts

PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
BYTES_OF = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2}
PROCESS_BYTES = 700 << 20
"""What a process takes that has imported TensorFlow and done nothing yet, and what Horovod's buffers add."""


@dataclasses.dataclass(frozen=True)
class Parameter:
    """A setting that one microbenchmark has.

    Attributes:
      default: also says the type: int, float, bool or str.
      choices: the only values; None for any.
      least: the smallest value of a number.
      help: what it is.
    """

    default: Any
    help: str
    choices: tuple[Any, ...] | None = None
    least: float = 1


@dataclasses.dataclass(frozen=True)
class Settings:
    """One run of a microbenchmark.

    Attributes:
      name, mode: what is timed.
      shapes: sizes; a step does all of them, one after the other. What the numbers are, each microbenchmark says.
      batch: rows of a batch; of a collective the bytes that each rank hands over in a step.
      precision: of operands and results.
      parameters: all that the microbenchmark has, by name.
      cpu: stay off GPUs.
    """

    name: str
    mode: str
    shapes: tuple[Shape, ...]
    batch: int
    precision: str = "fp32"
    parameters: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    cpu: bool = False

    def __str__(self) -> str:
        groups = [(shape, len(list(equal))) for shape, equal in itertools.groupby(self.shapes)]
        sizes = "; ".join(f"{f'{count} x ' if count > 1 else ''}{_short(shape)}" for shape, count in groups)
        return f"{self.name} {self.mode} {self.precision}, batch {self.batch:,}" + (f", {sizes}" if sizes else "")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Benchmark:
    """A microbenchmark: what it can be told, what it takes, and how it is made.

    Attributes:
      units: of its score.
      modes: what can be timed.
      numbers: names of a shape's numbers; one name that ends in "..." stands for two numbers or more.
      presets: name -> shapes; the first is the default.
      default_batch: where `batch_number` is not given.
      batch_number: which of a shape's numbers the batch is; None where it is none of them.
      precisions: that it can be run in.
      parameters: of its own.
      least_ranks: that it takes to mean anything.
      predicted_bytes: (settings, ranks) -> bytes of memory that a rank takes, its process included.
      prepare: (settings, communicator) -> what to check and to time; brings TensorFlow. None where `run` is given.
      run: (settings, communicator) -> what came out, of a benchmark that times another loop than the common one.
    """

    name: str
    units: str
    modes: tuple[str, ...]
    numbers: tuple[str, ...] = ()
    presets: Mapping[str, tuple[Shape, ...]] = dataclasses.field(default_factory=dict)
    default_batch: int = 0
    batch_number: int | None = None
    precisions: tuple[str, ...] = PRECISIONS
    parameters: Mapping[str, Parameter] = dataclasses.field(default_factory=dict)
    least_ranks: int = 1
    predicted_bytes: Callable[[Settings, int], int]
    prepare: Callable[[Settings, Any], "Work"] | None = None
    run: Callable[[Settings, Any], "Outcome"] | None = None


def read_settings(
    benchmark: Benchmark,
    mode: str,
    *,
    shapes: str | None = None,
    params: str | Mapping[str, Any] | None = None,
    batch: int | None = None,
    precision: str = "fp32",
    cpu: bool = False,
) -> Settings:
    """Settings from what a command line or a definition says.

    Args:
      benchmark: whose.
      mode: one of its modes.
      shapes: a preset's name or "m,n,k;m,n,k".
      params: the parameters by name, as JSON or read already; "shapes" may be among them, as text or as lists.
      batch: replaces the default, and that number of every shape which is the batch.
      precision: one of the benchmark's.
      cpu: stay off GPUs.

    Raises:
      InputError: anything is unknown, or of a wrong type, or out of range.
    """
    name = benchmark.name
    if mode not in benchmark.modes:
        raise InputError(f"{name}: there is no mode '{mode}'; give {_listed(benchmark.modes)}")
    if precision not in benchmark.precisions:
        raise InputError(f"{name}: cannot be run in precision '{precision}'; give {_listed(benchmark.precisions)}")
    if batch is not None and batch < 1:
        raise InputError(f"{name}: --batch={batch}: give at least 1")
    given = _parameters(params)
    stated = given.pop("shapes", None)
    sizes = _shapes(benchmark, stated if shapes is None else shapes)
    place = benchmark.batch_number
    if batch is not None and place is not None:
        sizes = tuple((*shape[:place], batch, *shape[place + 1 :]) for shape in sizes)
    if place is not None:
        batch = sum(shape[place] for shape in sizes)
    parameters = {key: parameter.default for key, parameter in benchmark.parameters.items()}
    for key, value in given.items():
        if key not in parameters:
            known = _listed(("shapes", *parameters) if benchmark.numbers else tuple(parameters))
            raise InputError(f"{name}: there is no parameter '{key}' (given {value!r}); there is {known or 'none'}")
        parameters[key] = _checked(f"{name}: parameter '{key}'", benchmark.parameters[key], value)
    return Settings(name, mode, sizes, batch or benchmark.default_batch, precision, parameters, cpu)


def require_fit(benchmark: Benchmark, settings: Settings, *, ranks: int, free_bytes: int | None) -> None:
    """Raises InputError if a rank needs more memory than is free for it; `free_bytes` None: nobody knows."""
    needed = benchmark.predicted_bytes(settings, ranks)
    if free_bytes is not None and needed > free_bytes:
        raise InputError(
            f"{settings}: needs about {needed / 1e9:,.1f} GB on each rank, and {free_bytes / 1e9:,.1f} GB are free for "
            "it; give smaller --shapes or a smaller --batch"
        )


def _parameters(params: str | Mapping[str, Any] | None) -> dict[str, Any]:
    if params is None or isinstance(params, Mapping):
        return dict(params or {})
    try:
        found = json.loads(params)
    except ValueError as error:
        raise InputError(f"--params={params}: is not JSON ({error}); give an object such as {{}}") from None
    if not isinstance(found, dict):
        raise InputError(f"--params={params}: give an object, name to value")
    return found


def _shapes(benchmark: Benchmark, stated: Any) -> tuple[Shape, ...]:
    names, presets = ",".join(benchmark.numbers), benchmark.presets
    if not benchmark.numbers:
        if stated is not None:
            raise InputError(f"{benchmark.name}: has no shapes, got {stated!r}")
        return ()
    if stated is None:
        return next(iter(presets.values()))
    if isinstance(stated, str) and stated in presets:
        return presets[stated]
    remedy = f"give {names};... or one of {_listed(tuple(presets))}"
    problem = InputError(f"{benchmark.name}: shapes {stated!r}: {remedy}")
    try:
        if isinstance(stated, str):
            shapes = [[int(number) for number in part.split(",")] for part in stated.split(";")]
        else:
            shapes = [list(part) if isinstance(part, list | tuple) else [part] for part in stated]
    except (TypeError, ValueError):
        raise problem from None
    for shape in shapes:
        few = len(shape) < 2 if names.endswith("...") else len(shape) != len(benchmark.numbers)
        if few or not all(isinstance(number, int) and number >= 1 for number in shape):
            raise problem
    if not shapes:
        raise problem
    return tuple(tuple(shape) for shape in shapes)


def _checked(who: str, parameter: Parameter, value: Any) -> Any:
    wanted = type(parameter.default)
    if wanted is float and type(value) is int:
        value = float(value)
    if type(value) is not wanted:
        raise InputError(f"{who} is {value!r}: give one of type {wanted.__name__}, as {parameter.default!r}")
    if parameter.choices is not None and value not in parameter.choices:
        raise InputError(f"{who} is {value!r}: give one of {_listed(parameter.choices)}")
    if wanted in (int, float) and not (math.isfinite(value) and value >= parameter.least):
        raise InputError(f"{who} is {value!r}: give at least {parameter.least:g}")
    return value


def _short(shape: Shape) -> str:
    if len(shape) <= _MOST_SHOWN:
        return ",".join(map(str, shape))
    return f"{shape[0]},{shape[1]},...,{shape[-1]} ({len(shape)} numbers)"


def _listed(names: Sequence[Any]) -> str:
    return ", ".join(map(str, names))
