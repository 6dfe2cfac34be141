"""What the suite keeps of every repeat of every cell: one object a line in records.jsonl. Plain data; no TensorFlow.

A benchmark is model + implementation + mode + configuration, of a version. A cell is a benchmark at one batch size,
world size and precision, and a repeat is one run of it in a process of its own. Tables, plots and comparisons are made
from these records alone.
"""

import dataclasses
import json
import math
import numbers
import os
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from trainer.records import jsonable

RECORDS_FILE = "records.jsonl"

OK, FAILED, SKIPPED, UNSOUND = "ok", "failed", "skipped", "unsound"
STATUSES = (OK, FAILED, SKIPPED, UNSOUND)
"""unsound: it ran, and a safeguard of its correctness did not hold. Only what is ok has a score."""

UNITS = ("samples/s", "TF/s", "GB/s")
SCALINGS = ("single", "strong", "weak")

_TEXTS = ("model", "implementation", "mode", "config", "version", "precision", "scaling")


@dataclasses.dataclass(frozen=True, order=True)
class Cell:
    """What a score is of. Two records of one cell are repeats of each other.

    Attributes:
      model: such as "wide_deep", "dlrm", or of a microbenchmark its name, such as "gemm".
      implementation: "ootb", "optimized" or "micro".
      mode: "training" or "inference"; of a microbenchmark what is timed, such as "forward".
      config: name of the configuration.
      version: of the benchmark's meaning; scores of different versions are not compared.
      batch_size: rows over all ranks; of a collective the bytes that each rank hands over.
      world_size: ranks.
      precision: "fp32", "tf32", "bf16" or "fp16".
      scaling: "single"; or of several ranks "strong" (the batch over all ranks is that of one rank) or "weak" (that of
        each rank is).
    """

    model: str
    implementation: str
    mode: str
    config: str
    version: str
    batch_size: int
    world_size: int = 1
    precision: str = "fp32"
    scaling: str = "single"

    @property
    def benchmark(self) -> str:
        """Name of the benchmark: what it is apart from its sizes."""
        return f"{self.model}-{self.implementation}-{self.mode}-{self.config}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
    """One repeat of a cell, or why there is none.

    Attributes:
      cell: what was run.
      status: see STATUSES.
      reason: why it has no score, one line; "" if it has one.
      repeat: 1, 2, ...
      score: in `units`; None unless the status is ok.
      units: see UNITS.
      step_ms: times of the measured steps of the slowest rank, in order, milliseconds.
      latency_limit_ms: what p95 may be; None without a limit.
      figures: further ones by name, such as "bus_gb_per_s" or "loss".
      safeguard: what was checked and what was found, one line.
      rank_step_ms: each rank's median.
      peak_memory_bytes, peak_device_memory_bytes: each rank's.
      fingerprint: of the machine; see benchmarks.suite.fingerprint.
      start_time: ISO 8601, UTC.
      command: what was run, to be run again.
      record: the trainer's record (trainer.records.Record as JSON); empty for a microbenchmark.
    """

    cell: Cell
    status: str
    reason: str = ""
    repeat: int = 1
    score: float | None = None
    units: str = "samples/s"
    step_ms: Sequence[float] = ()
    latency_limit_ms: float | None = None
    figures: Mapping[str, float] = dataclasses.field(default_factory=dict)
    safeguard: str = ""
    rank_step_ms: Sequence[float] = ()
    peak_memory_bytes: Sequence[int] = ()
    peak_device_memory_bytes: Sequence[int] = ()
    fingerprint: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    start_time: str = ""
    command: Sequence[str] = ()
    record: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        if self.status not in STATUSES:
            raise ValueError(f"status must be one of {', '.join(STATUSES)}, got {self.status!r}")
        if (self.score is not None) != (self.status == OK):
            raise ValueError(f"a score goes with status ok and no other, got {self.score} with {self.status!r}")
        if self.units not in UNITS:
            raise ValueError(f"units must be one of {', '.join(UNITS)}, got {self.units!r}")

    @property
    def p95_ms(self) -> float | None:
        """95th percentile of the step times, linearly interpolated; None without any."""
        if not self.step_ms:
            return None
        if len(self.step_ms) == 1:
            return self.step_ms[0]
        return statistics.quantiles(self.step_ms, n=20, method="inclusive")[-1]

    @property
    def missed_limit(self) -> bool:
        """Whether p95 is above the latency limit."""
        return self.latency_limit_ms is not None and self.p95_ms is not None and self.p95_ms > self.latency_limit_ms

    def to_line(self) -> str:
        """One line of records.jsonl."""
        return json.dumps(jsonable(self), allow_nan=False) + "\n"


def from_object(found: Mapping[str, Any]) -> Result:
    """A result from the object of its line.

    Raises:
      ValueError: it is not a result; the message says what is wrong.
    """
    if not isinstance(found, Mapping) or not isinstance(found.get("cell"), Mapping):
        raise ValueError("not a result: it has no cell")
    try:
        result = Result(**{**found, "cell": Cell(**found["cell"])})
    except TypeError as error:
        raise ValueError(f"not a result of this version: {error}") from None
    check(result)
    return result


def check(result: Result) -> None:
    """That a result which was read has values of the types and ranges that all that is made from it relies on.

    Raises:
      ValueError: a field has another; the message names it and its value.
    """
    _check_cell(result.cell)
    for name in ("reason", "safeguard", "start_time"):
        _require(isinstance(getattr(result, name), str), name, getattr(result, name), "text")
    _require(_whole(result.repeat) and result.repeat >= 1, "repeat", result.repeat, "a whole number above 0")
    if result.score is not None:
        _require(_finite(result.score) and result.score > 0, "score", result.score, "a finite number above 0")
    if result.latency_limit_ms is not None:
        _require(_finite(result.latency_limit_ms), "latency_limit_ms", result.latency_limit_ms, "a finite number")
    for name in ("step_ms", "rank_step_ms", "peak_memory_bytes", "peak_device_memory_bytes"):
        values = getattr(result, name)
        _require(
            isinstance(values, list | tuple) and all(_finite(value) and value >= 0 for value in values),
            name, values, "a list of finite numbers, none below 0",
        )  # fmt: skip
    _require(
        isinstance(result.command, list | tuple) and all(isinstance(word, str) for word in result.command),
        "command", result.command, "a list of texts",
    )  # fmt: skip
    for name in ("figures", "fingerprint", "record"):
        _require(isinstance(getattr(result, name), Mapping), name, getattr(result, name), "an object")


def _check_cell(cell: Cell) -> None:
    for name in _TEXTS:
        _require(isinstance(getattr(cell, name), str), f"cell.{name}", getattr(cell, name), "text")
    _require(_whole(cell.batch_size) and cell.batch_size >= 0, "cell.batch_size", cell.batch_size, "a whole number")
    _require(_whole(cell.world_size) and cell.world_size >= 1, "cell.world_size", cell.world_size, "at least 1")


def _require(holds: bool, name: str, value: object, wanted: str) -> None:
    if not holds:
        raise ValueError(f"{name} must be {wanted}, got {str(value)[:60]!r}")


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _finite(value: object) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)


def append(results: Iterable[Result], folder: str) -> None:
    """Adds lines to the folder's records, on the disk when it returns: a later crash loses none of them."""
    with open(os.path.join(folder, RECORDS_FILE), "a", encoding="utf-8") as file:
        file.writelines(result.to_line() for result in results)
        file.flush()
        os.fsync(file.fileno())


def read(path: str) -> tuple[list[Result], list[str]]:
    """The results of a records file, and a line for each of its lines that is none: PATH:LINE: reason.

    Raises:
      OSError: the file cannot be read.
    """
    results, problems = [], []
    with open(path, encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, start=1):
            try:
                results.append(from_object(json.loads(line.rstrip("\n"))))
            except json.JSONDecodeError as error:
                # Its own line numbers are within this line, and would be taken for the file's.
                problems.append(f"{path}:{number}: not JSON: {error.msg} at letter {error.pos + 1}")
            except ValueError as error:
                problems.append(f"{path}:{number}: {error}")
            except RecursionError:
                problems.append(f"{path}:{number}: nested too deeply")
    return results, problems
