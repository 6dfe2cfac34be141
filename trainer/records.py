"""The record of a run: what ran, on what, and what came out. Plain data; rendering and writing are functions of it."""

import contextlib
import dataclasses
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from data.errors import InputError

# Raise it when a change makes figures incomparable with those of earlier records.
BENCHMARK_VERSION = "1.0"
MODES = ("training", "inference")
DATA_SOURCES = ("real", "generated", "in memory")


@dataclass(frozen=True)
class Identity:
    """What was run: a benchmark is model + implementation + mode + configuration, of a version.

    mode: "training" or "inference"; anything else is a ValueError.
    """

    model: str
    mode: str
    config: str = "default"
    implementation: str = "optimized"
    version: str = BENCHMARK_VERSION

    def __post_init__(self):
        if self.mode not in MODES:
            raise ValueError(f"mode must be one of {', '.join(MODES)}, got {self.mode!r}")


@dataclass(frozen=True, kw_only=True)
class Record:
    """Figures of one run. None: not measured; NaN: measured, but undefined (JSON has null for both).

    samples_per_sec   rows per second over all ranks, each row counted once
    step_ms           milliseconds from step end to step end of the slowest rank: mean, p50, p90, p95, p99
    step_times_ms     those of each measured step, in order; None of more than a thousand steps
    measured_seconds  of the measured steps by another clock, until the device had nothing left to do; of the last rank
    rank_step_ms      each rank's median, milliseconds
    input_wait_share  0 to 1
    requested_steps   steps that were asked for, warm-up included; the run had warmup_steps + measured_steps. Of a
                      benchmark of so many seconds, the steps that its ranks agreed on.
    distinct_rows, passes   rows of the dataset that were read, and how often it was gone through
    wire_bytes        bytes that rank 0 handed to collectives in the last training step
    alltoall_bytes, predicted_alltoall_bytes   those handed to alltoall, and what the placement of tables predicted
    auc_margin_share, map_margin_share   on generated data: AUC - 0.5 and MAP@12 - chance, as shares of the teacher's
    ended_by          of training: "steps" for its last step, "target" for an evaluation that reached it, "signal"
    evaluations       of training, one for each evaluation on the way, in order: step, epoch (a float), train_seconds
                      until then, map_at_12, auc, log_loss
    train_seconds     of all training steps of this run, the first one's compilation included, evaluations and
                      checkpoints not
    eval_samples_per_sec   rows per second over all ranks of the last evaluation, metrics included; where there was but
                      one, its compilation too
    target_map12      MAP@12 at which training was to end
    steps_to_target, seconds_to_target   steps, and train_seconds, before the first evaluation that reached the target;
                      None if none did, the second also of a run that was resumed
    settings_in_force what the objects that ran show of precision, compilation and ranks; see trainer.settings_in_force
    trained           whether the weights after the run are others than those before it
    peak_memory_bytes each rank's largest resident memory
    config            the full configuration
    notes             what a reader of the figures must know, such as why the run ended early
    """

    identity: Identity
    environment: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    world_size: int = 1
    device: str | None = None
    precision: str | None = None
    global_batch_size: int | None = None
    samples_per_sec: float | None = None
    step_ms: Mapping[str, float] | None = None
    step_times_ms: tuple[float, ...] | None = None
    measured_seconds: float | None = None
    rank_step_ms: tuple[float, ...] | None = None
    input_wait_share: float | None = None
    warmup_steps: int | None = None
    measured_steps: int | None = None
    requested_steps: int | None = None
    distinct_rows: int | None = None
    passes: float | None = None
    wire_bytes: int | None = None
    alltoall_bytes: int | None = None
    predicted_alltoall_bytes: int | None = None
    data_source: str | None = None
    loss: float | None = None
    log_loss: float | None = None
    auc: float | None = None
    map_at_12: float | None = None
    normalized_entropy: float | None = None
    calibration: float | None = None
    auc_margin_share: float | None = None
    map_margin_share: float | None = None
    displays: int | None = None
    displays_without_click: int | None = None
    ended_by: str | None = None
    evaluations: tuple[Mapping[str, Any], ...] | None = None
    train_seconds: float | None = None
    eval_samples_per_sec: float | None = None
    target_map12: float | None = None
    steps_to_target: int | None = None
    seconds_to_target: float | None = None
    settings_in_force: Mapping[str, Any] | None = None
    trained: bool | None = None
    peak_memory_bytes: tuple[int, ...] | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self):
        if self.data_source not in (None, *DATA_SOURCES):
            raise ValueError(f"data_source must be one of {', '.join(DATA_SOURCES)}, got {self.data_source!r}")

    @property
    def missing_steps(self) -> int:
        """Steps that were asked for and not run."""
        if self.requested_steps is None or self.measured_steps is None:
            return 0
        return max(0, self.requested_steps - self.measured_steps - (self.warmup_steps or 0))

    def to_json(self) -> str:
        """Strict JSON text, indented, keys in the order of the fields."""
        return json.dumps(jsonable(self), indent=2, allow_nan=False) + "\n"

    def write_json(self, path: str | os.PathLike) -> None:
        """Writes `to_json()` so that a reader sees the old file or the whole new one, never a part.

        Raises InputError if the folder cannot be written.
        """
        path = Path(path)
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        text = self.to_json()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with temporary.open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink()
            message = f"cannot write the record {path}: {error.strerror}; give a writable results_dir"
            raise InputError(message) from error


def jsonable(value: Any) -> Any:
    """`value` with everything that strict JSON lacks made something it has.

    NaN and infinities become null, numpy scalars and arrays Python's, tuples lists, sets sorted lists, paths text,
    dataclasses objects by field name, keys of mappings text. Raises TypeError for anything else.
    """
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, np.generic | np.ndarray):
        return jsonable(value.tolist())
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {item.name: jsonable(getattr(value, item.name)) for item in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(item) for item in value]
    if isinstance(value, set | frozenset):
        return [jsonable(item) for item in sorted(value)]
    raise TypeError(f"a record cannot hold {type(value).__name__}: {value!r}")


def render_table(record: Record) -> str:
    """A fixed-width table of what the record has: name, value (right-aligned), unit. No line ends in a space.

    NaN is shown as "undefined", a figure that was not measured not at all. A line below the table says if the run was
    shorter than asked, and each note follows.
    """
    who = record.identity
    title = f"{who.model} {who.mode}, {who.implementation}, configuration {who.config}, version {who.version}"
    rows = [(name, _number(value, digits), unit) for name, value, digits, unit in _rows(record) if value is not None]
    name_width = max(len(name) for name, _, _ in rows)
    value_width = max(len(value) for _, value, _ in rows)
    lines = [f"{name:<{name_width}}  {value:>{value_width}}  {unit}".rstrip() for name, value, unit in rows]
    rule = "-" * max(len(line) for line in [title, *lines])
    footer = []
    if record.missing_steps:
        run = record.requested_steps - record.missing_steps
        footer.append(f"Shorter than asked: {run:,} of {record.requested_steps:,} steps were run.")
    footer += record.notes
    return "\n".join([title, rule, *lines, rule, *footer]) + "\n"


def _rows(record: Record) -> list[tuple[str, Any, int, str]]:
    """(name, value or None, digits after the point, unit) of everything that a table can show, in its order."""
    step_ms = record.step_ms or {}
    ranks_ms = record.rank_step_ms
    peaks = record.peak_memory_bytes
    return [
        ("device", record.device, 0, ""),
        ("precision", record.precision, 0, ""),
        ("ranks", record.world_size, 0, ""),
        ("global batch", record.global_batch_size, 0, "rows"),
        ("throughput", record.samples_per_sec, 1, "samples/s"),
        *((f"step time, {name}", step_ms.get(name), 2, "ms") for name in ("mean", "p50", "p90", "p95", "p99")),
        ("rank medians, lowest", min(ranks_ms) if ranks_ms and len(ranks_ms) > 1 else None, 2, "ms"),
        ("rank medians, highest", max(ranks_ms) if ranks_ms and len(ranks_ms) > 1 else None, 2, "ms"),
        ("waiting for input", _percent(record.input_wait_share), 1, "%"),
        ("sent by rank 0 in a step", _mebibytes(record.wire_bytes), 2, "MiB"),
        ("of it by alltoall", _mebibytes(record.alltoall_bytes), 2, "MiB"),
        ("predicted for alltoall", _mebibytes(record.predicted_alltoall_bytes), 2, "MiB"),
        ("warm-up", record.warmup_steps, 0, "steps"),
        ("measured", record.measured_steps, 0, "steps"),
        ("data source", record.data_source, 0, ""),
        ("distinct rows", record.distinct_rows, 0, "rows"),
        ("passes over the data", record.passes, 2, ""),
        ("loss", record.loss, 6, ""),
        ("MAP@12", record.map_at_12, 6, ""),
        ("AUC", record.auc, 6, ""),
        ("MAP@12 above chance, of teacher's", _percent(record.map_margin_share), 1, "%"),
        ("AUC above 0.5, of teacher's", _percent(record.auc_margin_share), 1, "%"),
        ("log loss", record.log_loss, 6, ""),
        ("normalized entropy", record.normalized_entropy, 6, ""),
        ("calibration", record.calibration, 6, ""),
        ("displays with a click", record.displays, 0, ""),
        ("displays without a click", record.displays_without_click, 0, ""),
        ("time in training steps", record.train_seconds, 2, "s"),
        ("to the target, steps", record.steps_to_target, 0, "steps"),
        ("to the target, time in them", record.seconds_to_target, 2, "s"),
        ("last evaluation", record.eval_samples_per_sec, 1, "samples/s"),
        ("peak memory, highest rank", max(peaks) / 2**20 if peaks else None, 0, "MiB"),
    ]


def _mebibytes(count: int | None) -> float | None:
    """None for 0, too: no table shows what there was nothing of."""
    return count / 2**20 if count else None


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _number(value: Any, digits: int) -> str:
    if isinstance(value, str):
        return value
    if not math.isfinite(value):
        return "undefined" if math.isnan(value) else str(value)
    return f"{value:,.{digits}f}"
