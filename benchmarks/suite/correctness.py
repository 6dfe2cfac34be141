"""The checks of a benchmark that need a run or a reading of their own: once for all its repeats, and not timed."""

import json
import math
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.microbenchmarks.checks import Check
from benchmarks.suite import commands, id_check, processes
from benchmarks.suite.definitions import LOSS_BAND, REFERENCE, Definition
from benchmarks.suite.reference import RESULT
from benchmarks.suite.results import Cell
from benchmarks.suite.safeguards import loss_in_band
from benchmarks.suite.settings import arguments, check_settings
from data.errors import InputError
from trainer.config import RunConfig
from trainer.dataset import id_draw, open_spec

OUTPUT_TOLERANCE = 2e-4
"""Largest difference of two logits as a share of the largest one: float32 sums in another order, and a wide margin."""


class Correctness:
    """Runs checks and remembers what came out, for one run of the suite.

    Args:
      logs: folder for what the checks print.
      launch: see benchmarks.suite.processes.run.
      timeout_s: of each check.
      say: takes a line for each check that is run.
    """

    def __init__(
        self,
        logs: str,
        *,
        launch: processes.Launch = processes.run,
        timeout_s: float = 600.0,
        say: Callable[[str], None] = lambda _: None,
    ):
        self._logs = logs
        self._launch = launch
        self._timeout_s = timeout_s
        self._say = say
        self._known: dict[tuple, Check] = {}

    def of(self, definition: Definition, cell: Cell, record: Mapping[str, Any]) -> list[Check]:
        """The checks of a cell's implementation and of the data that a record was measured on."""
        return [self._of_implementation(definition, cell), self._of_ids(record)]

    def _of_implementation(self, definition: Definition, cell: Cell) -> Check:
        correctness = definition.correctness
        given = check_settings(definition)
        # What the run is called changes nothing of it: benchmarks that state the same check share it.
        same = arguments({name: value for name, value in given.items() if name != "benchmark_name"})
        if correctness["check"] == REFERENCE:
            return self._once((REFERENCE, *same), lambda: self._reference(definition, given))
        if correctness["check"] == LOSS_BAND:
            key = (LOSS_BAND, cell.implementation, *same, correctness["low"], correctness["high"])
            return self._once(key, lambda: self._loss_band(definition, cell, given))
        raise ValueError(f"{definition.name}: nobody knows how to check '{correctness['check']}'")

    def _loss_band(self, definition: Definition, cell: Cell, given: Mapping[str, Any]) -> Check:
        who = f"{definition.name} {cell.implementation}"
        band = {key: definition.correctness[key] for key in ("steps", "low", "high")}
        found = self._run(who, lambda folder: commands.of_settings(given, cell.implementation, folder), commands.RECORD)
        return loss_in_band(found, **band) if isinstance(found, dict) else Check(found, False)

    def _reference(self, definition: Definition, given: Mapping[str, Any]) -> Check:
        def command(folder: str) -> list[str]:
            return ["-m", "benchmarks.suite.reference", *arguments(given), f"--results_dir={folder}"]

        found = self._run(f"{definition.name} reference", command, RESULT)
        return outputs_match(found) if isinstance(found, dict) else Check(found, False)

    def _run(self, who: str, command: Callable[[str], Sequence[str]], result: str) -> dict[str, Any] | str:
        """What a check wrote, or why it wrote nothing."""
        self._say(f"checking {who}")
        log = os.path.join(self._logs, f"check-{len(self._known):02d}-{who.replace(' ', '-')}.log")
        with tempfile.TemporaryDirectory(prefix="suite-check-") as folder:
            full = [commands.python(), *command(folder)]
            ended = self._launch(
                full, log=log, timeout_s=self._timeout_s, cwd=str(commands.ROOT), environ=commands.environment("fp32")
            )
            if ended.code != 0:
                how = "ran past its time" if ended.code is None else f"ended with code {ended.code}"
                return f"its check {how}: {processes.last_words(log)}"
            try:
                found = json.loads(Path(folder, result).read_text(encoding="utf-8"))
            except (OSError, ValueError) as error:
                return f"its check left no result: {error}"
        return found if isinstance(found, dict) else "its check left no result"

    def _of_ids(self, record: Mapping[str, Any]) -> Check:
        config = record.get("config", {})
        data = {name: value for name, value in config.items() if name.startswith(("synthetic", "data", "preset"))}
        return self._once(("ids", json.dumps(data, sort_keys=True)), lambda: ids_as_configured(record))

    def _once(self, key: tuple, check: Callable[[], Check]) -> Check:
        if key not in self._known:
            self._known[key] = check()
        return self._known[key]


def outputs_match(found: Mapping[str, Any]) -> Check:
    """Whether the logits of two implementations are the same, and say something."""
    difference, largest, spread = (found.get(key) for key in ("largest_difference", "largest_logit", "spread"))
    if not all(isinstance(value, int | float) and math.isfinite(value) for value in (difference, largest, spread)):
        return Check("outputs are not finite", False)
    if not spread > 0:
        return Check("outputs are the same for all rows", False)
    allowed = OUTPUT_TOLERANCE * max(1.0, largest)
    return Check(
        f"outputs differ from the plain Keras model's by {difference:.2g} at most, {allowed:.2g} allowed",
        difference <= allowed,
    )


def ids_as_configured(record: Mapping[str, Any]) -> Check:
    """Whether the ids of the generated data that a record was measured on follow the law that it states."""
    settings = {
        name: tuple(value) if isinstance(value, list) else value for name, value in record.get("config", {}).items()
    }
    try:
        config = RunConfig.from_flat(settings)
        if config.data.dataset_type != "synthetic":
            return Check("ids are those of real data", True)
        found = id_check.check(open_spec(config), id_draw(config.data))
    except (InputError, OSError, TypeError) as error:
        return Check(f"ids cannot be looked at: {' '.join(str(error).split())}", False)
    if found.wrong:
        return Check(f"ids are not distributed as configured: {found.wrong[0]}", False)
    return Check(f"{found.ids:,} ids of {found.features} features are distributed as configured", True)
