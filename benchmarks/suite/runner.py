"""One repeat of a cell: a process of its own is started, its record is read and judged, a result comes out."""

import itertools
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.ootb.shapes import layer_widths
from benchmarks.suite import commands, devices, micro, processes, safeguards
from benchmarks.suite.correctness import Correctness
from benchmarks.suite.definitions import TRAINING, Definition
from benchmarks.suite.plan import Planned
from benchmarks.suite.results import FAILED, OK, SKIPPED, UNSOUND, Cell, Result
from benchmarks.suite.settings import resolve
from data.errors import InputError
from trainer.dataset import planned_spec
from trainer.setting_checks import LEAST_TIMED_STEPS

# Figures of a record that a result keeps by name.
_FIGURES = ("loss", "log_loss", "auc", "map_at_12", "input_wait_share", "wire_bytes", "alltoall_bytes", "passes")


class Runner:
    """Runs repeats.

    Args:
      logs: folder for what runs print, one file each.
      fingerprint: of the machine.
      correctness: checks that need runs of their own.
      peak_flops: precision -> bound on what the machine can do in a second; a precision that is missing has none.
      hosts: as horovodrun's -H takes them.
      timeout_s: of a run.
      launch: see benchmarks.suite.processes.run.
      watch: see benchmarks.suite.devices.watched; asked on a machine with GPUs.
    """

    def __init__(
        self,
        logs: str,
        *,
        fingerprint: Mapping[str, Any],
        correctness: Correctness,
        peak_flops: Mapping[str, float],
        hosts: str | None = None,
        timeout_s: float = 900.0,
        launch: processes.Launch = processes.run,
        watch: devices.Watch = devices.watched,
    ):
        self._logs = logs
        self._fingerprint = fingerprint
        self._correctness = correctness
        self._peak_flops = peak_flops
        self._hosts = hosts
        self._timeout_s = timeout_s
        self._launch = launch
        self._watch = watch

    def run(self, planned: Planned) -> Result:
        """Runs a repeat to its end. Whatever goes wrong in it is in the result; bad input is, too."""
        definition, cell = planned.definition, planned.cell
        common = self._common(planned)
        with tempfile.TemporaryDirectory(prefix="suite-run-") as folder:
            try:
                command = commands.of_cell(definition, cell, folder, self._hosts)
            except InputError as error:
                return Result(**common, status=FAILED, reason=str(error))
            # The folder is gone when somebody runs it again.
            common["command"] = tuple(word.replace(folder, "RESULTS") for word in command)
            log = os.path.join(self._logs, f"{log_name(cell)}-{planned.repeat}.log")
            environ = commands.environment(cell.precision)
            # What GPUs of other machines do is not seen from here.
            ranks = cell.world_size if self._fingerprint.get("gpus") and not self._hosts else 0
            with self._watch(ranks, environ) as seen:
                ended = self._launch(
                    command, log=log, timeout_s=self._timeout_s, cwd=str(commands.ROOT), environ=environ
                )
            common["peak_device_memory_bytes"] = seen.peak_memory_bytes
            common["figures"] = seen.figures
            if ended.code is None:
                reason = f"ran past its time of {self._timeout_s:,.0f} s and was ended: {processes.last_words(log)}"
                return Result(**common, status=FAILED, reason=reason)
            if ended.code != 0:
                reason = f"ended with code {ended.code}: {processes.last_words(log)}"
                return Result(**common, status=FAILED, reason=reason)
            name = commands.MICRO_RESULT if definition.is_micro else commands.RECORD
            try:
                found = json.loads(Path(folder, name).read_text(encoding="utf-8"))
                if definition.is_micro:
                    return _micro_result(common, found)
                return self._judged(planned, common, found)
            except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
                reason = f"ended well and left no result that can be read: {type(error).__name__}: {error}"
                return Result(**common, status=FAILED, reason=" ".join(reason.split()))

    def skipped(self, planned: Planned) -> Result:
        """The result of what is not run."""
        return Result(**self._common(planned), status=SKIPPED, reason=planned.skipped)

    def _common(self, planned: Planned) -> dict[str, Any]:
        return {
            "cell": planned.cell,
            "repeat": planned.repeat,
            "units": micro.units(planned.definition) if planned.definition.is_micro else "samples/s",
            "latency_limit_ms": planned.definition.latency_limit_ms,
            "fingerprint": self._fingerprint,
            "start_time": datetime.now(UTC).isoformat(timespec="seconds"),
        }

    def _judged(self, planned: Planned, common: Mapping[str, Any], record: Mapping[str, Any]) -> Result:
        definition, cell = planned.definition, planned.cell
        checks = safeguards.of_record(
            record,
            flops_per_step=dense_flops(definition, cell),
            peak_flops=self._peak_flops.get(cell.precision),
        )
        verdict = safeguards.verdict([*checks, *self._correctness.of(definition, cell, record)])
        figures = {name: record[name] for name in _FIGURES if record.get(name) is not None}
        return Result(
            **{**common, "figures": common["figures"] | figures},
            status=OK if verdict.sound else UNSOUND,
            reason=verdict.reason,
            score=record["samples_per_sec"] if verdict.sound else None,
            step_ms=tuple(record.get("step_times_ms") or ()),
            safeguard=verdict.safeguard,
            rank_step_ms=tuple(record.get("rank_step_ms") or ()),
            peak_memory_bytes=tuple(record.get("peak_memory_bytes") or ()),
            record=record,
        )


def dense_flops(definition: Definition, cell: Cell) -> float:
    """Floating-point operations of the dense layers' products in a step over all ranks: 2 m n k each.

    A backward pass has two for each of the forward pass.
    """
    config = resolve(definition, cell)
    stacks = layer_widths(config, planned_spec(config))
    weights = sum(inputs * outputs for widths in stacks for inputs, outputs in itertools.pairwise(widths))
    return 2.0 * cell.batch_size * weights * (3 if definition.mode == TRAINING else 1)


def log_name(cell: Cell) -> str:
    """Name of a cell's logs, without ending and repeat."""
    ranks = f"-{cell.world_size}x-{cell.scaling}" if cell.world_size > 1 else ""
    return f"{cell.benchmark}-{cell.batch_size}-{cell.precision}{ranks}"


def _micro_result(common: Mapping[str, Any], found: Mapping[str, Any]) -> Result:
    sound = found["sound"] is True
    steps: Sequence[float] = found.get("step_ms") or ()
    figures = {name: value for name, value in (found.get("figures") or {}).items() if value is not None}
    common = {**common, "units": found["units"], "figures": common["figures"] | figures}
    if sound and len(steps) < LEAST_TIMED_STEPS:
        sound, found = False, {**found, "reason": f"{len(steps)} steps measured, at least {LEAST_TIMED_STEPS} needed"}
    return Result(
        **common,
        status=OK if sound else UNSOUND,
        reason="" if sound else found.get("reason") or "it does not say that it is sound",
        score=found["score"] if sound else None,
        step_ms=tuple(steps),
        safeguard=found.get("safeguard", ""),
        rank_step_ms=tuple(found.get("rank_step_ms") or ()),
        peak_memory_bytes=tuple(found.get("peak_memory_bytes") or ()),
    )
