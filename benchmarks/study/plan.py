"""The plan of a study: a short YAML file, read strictly. No TensorFlow.

  name                    of the study
  models, precisions, xla, world_sizes, global_batch_sizes    lists; the first of each makes the baseline
  alone                   some of these lists' keys, as [global_batch_sizes]. Cells are all combinations of the other
                          lists, and the baseline with each further value of one of these
  seeds                   a list, or how many: 20 stands for 1 to 20. They change initial values and order, not data
  lr_scaling              the rule by which rates follow the batch size: none, sqrt or linear, as main.py has it
  flags                   further settings of main.py by name; the data are fixed by them
  controls                label -> what the rates are multiplied by: the baseline again, made worse on purpose
  equivalence_margin      difference of MAP@12 below which two cells are as good as equal; fixed before the runs
  confidence              of intervals and tests
  target_map12            time to it is reported; null for none. No run ends at it
  least_margin_share      share of the attainable margin that baselines must reach
  runs_per_launch         at most so many runs in one process, which starts once for all of them
  timeout_s               seconds that a run may take, and a process to start
  folds                   null, or a number: each seed trains once for each of so many folds of the displays of
                          sample_path, held out in turn; the runner makes the datasets
  sample_path             with folds: folder of raw clicks, as data.outbrain.sample reads them; $NAME is a variable
  device_sets             null, or a list of sets that work side by side: {cpus: "0-3"}, {gpus: "0,1"} or both

Keys with a default may be left out. Nothing else may stand there.
"""

import dataclasses
import itertools
import pathlib
from collections.abc import Mapping
from typing import Any

import yaml

from benchmarks.study import plan_values
from benchmarks.study.cells import PRECISIONS, Cell
from benchmarks.suite.settings import arguments
from data import strict_yaml
from data.errors import InputError
from trainer import flags as command_line_flags
from trainer.config import RunConfig
from trainer.setting_checks import CHOICES

PRESETS = pathlib.Path(__file__).resolve().parents[1] / "studies"

CONTROL = "control"

# What differs between the cells of a model: the plan's list -> the cell's field.
_SETTINGS = {
    "precisions": "precision",
    "xla": "xla",
    "world_sizes": "world_size",
    "global_batch_sizes": "global_batch_size",
}
# Flags that the plan has keys of its own for, and those that would make a run something else than a training.
_NOT_FLAGS = {
    "model": "models",
    "amp": "precisions",
    "amp_dtype": "precisions",
    "xla": "xla",
    "global_batch_size": "global_batch_sizes",
    "seed": "seeds",
    "lr_scaling": "lr_scaling",
    "target_map12": "target_map12",
}
_NOT_WITH_FOLDS = ("dataset_path", "dataset_type")
_NO_TRAINING = ("evaluate", "benchmark", "use_checkpoint", "results_dir", "model_dir", "log_filename", "config")
_OF_PRECISION: Mapping[str, Mapping[str, Any]] = {
    "float32": {},
    "mixed_float16": {"amp": True, "amp_dtype": "float16"},
    "mixed_bfloat16": {"amp": True, "amp_dtype": "bfloat16"},
}
# How a study is run, and not what: another value does not make it another study.
# Another sample in another place is found out by its figures.
_MAY_CHANGE = ("timeout_s", "runs_per_launch", "sample_path")


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Two cells that differ in one setting: a name of Cell's fields, or CONTROL."""

    setting: str
    reference: Cell
    other: Cell


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """A plan; the attributes are the keys of its file, lists as tuples."""

    name: str
    models: tuple[str, ...]
    precisions: tuple[str, ...]
    xla: tuple[bool, ...]
    world_sizes: tuple[int, ...]
    global_batch_sizes: tuple[int, ...]
    equivalence_margin: float
    alone: tuple[str, ...] = ()
    seeds: tuple[int, ...] = tuple(range(1, 21))
    lr_scaling: str = "none"
    flags: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    controls: Mapping[str, float] = dataclasses.field(default_factory=lambda: {"degraded": 0.1})
    confidence: float = 0.95
    target_map12: float | None = None
    least_margin_share: float = 0.8
    runs_per_launch: int = 1
    timeout_s: float = 3600.0
    folds: int | None = None
    sample_path: str | None = None
    device_sets: tuple[Mapping[str, str], ...] | None = None

    @classmethod
    def load(cls, name: str) -> "Plan":
        """The plan of a file, or a preset by its name.

        Raises:
          InputError: there is no such plan, it cannot be read, or it says what cannot be; one line.
        """
        path = pathlib.Path(name)
        if not path.suffix and (PRESETS / f"{name}.yaml").exists():
            path = PRESETS / f"{name}.yaml"
        try:
            content = path.read_bytes()
        except OSError as error:
            known = ", ".join(sorted(one.stem for one in PRESETS.glob("*.yaml")))
            raise InputError(
                f"{name}: cannot be read: {error.strerror}; give a plan's file, or a preset: {known}"
            ) from error
        return cls.of(str(path), strict_yaml.load(content, path))

    @classmethod
    def of(cls, where: str, found: Any) -> "Plan":
        """The plan that a mapping states.

        Args:
          where: names the mapping in messages.

        Raises:
          InputError: as `load`.
        """
        fields = {field.name: field for field in dataclasses.fields(cls)}
        defaults = {name for name, field in fields.items() if not _is_required(field)}
        plan_values.check(where, found, tuple(fields), defaults, _kinds())
        values = {name: tuple(value) if isinstance(value, list) else value for name, value in found.items()}
        if isinstance(values.get("seeds"), int):
            values["seeds"] = tuple(range(1, values["seeds"] + 1))
        plan = cls(**values)
        plan._check(where)
        return plan

    def to_yaml(self) -> str:
        """The whole plan, defaults included; `load` reads it."""
        return yaml.safe_dump(self._plain(), sort_keys=False)

    def differences(self, other: "Plan") -> list[str]:
        """Keys in which another plan is another study; how runs are started does not count."""
        mine, others = self._plain(), other._plain()
        return [name for name, value in mine.items() if value != others[name] and name not in _MAY_CHANGE]

    def cells(self) -> tuple[Cell, ...]:
        """The cells, those of a model side by side, its baseline first and its controls last."""
        found: list[Cell] = []
        for model in self.models:
            for values in itertools.product(*(getattr(self, key) for key in _SETTINGS)):
                changed = {key for key, value in zip(_SETTINGS, values, strict=True) if value != getattr(self, key)[0]}
                if len(changed) <= 1 or changed.isdisjoint(self.alone):
                    found.append(Cell(model, *values))
            for label, factor in self.controls.items():
                found.append(dataclasses.replace(self.baseline(model), learning_rate_factor=float(factor), label=label))
        return tuple(found)

    def baseline(self, model: str) -> Cell:
        """The cell of the first value of each list."""
        return Cell(model, self.precisions[0], self.xla[0], self.world_sizes[0], self.global_batch_sizes[0])

    @property
    def trials(self) -> tuple[tuple[int, int | None], ...]:
        """(seed, fold) of each run of a cell, in order; the fold is None without folds."""
        return tuple(itertools.product(self.seeds, (None,) if self.folds is None else range(1, self.folds + 1)))

    def comparisons(self) -> tuple[Comparison, ...]:
        """All pairs of cells that differ in one setting, whose first value in the plan is the reference."""
        cells = self.cells()
        plain = [cell for cell in cells if not cell.label]
        found = []
        for key, setting in _SETTINGS.items():
            values = getattr(self, key)
            for cell, value in itertools.product(plain, values[1:]):
                other = dataclasses.replace(cell, **{setting: value})
                if getattr(cell, setting) == values[0] and other in plain:
                    found.append(Comparison(setting, cell, other))
        found += [Comparison(CONTROL, self.baseline(cell.model), cell) for cell in cells if cell.label]
        return tuple(found)

    def settings(self, cell: Cell, seed: int) -> dict[str, Any]:
        """What a run gives to main.py, by flag, but for where results go."""
        found = {
            **self.flags,
            **_OF_PRECISION[cell.precision],
            "model": cell.model,
            "global_batch_size": cell.global_batch_size,
            "lr_scaling": self.lr_scaling,
            "seed": seed,
        }
        if cell.xla:
            found["xla"] = True
        if cell.learning_rate_factor != 1.0:
            # By the configuration of these settings, because rates that are not given are the model's.
            known = self._configuration(found).flat()
            for flag in rate_flags(cell.model):
                found[flag] = known[flag] * cell.learning_rate_factor
        return found

    def _configuration(self, settings: Mapping[str, Any]) -> RunConfig:
        return command_line_flags.parse(arguments(_with_tuples(settings)))

    def _check(self, where: str) -> None:
        """What the keys say together."""
        for flag in self.flags:
            if flag in _NOT_FLAGS:
                raise InputError(f"{where}: flags: {flag} is not for here: use the key {_NOT_FLAGS[flag]}")
            if flag in _NO_TRAINING:
                raise InputError(f"{where}: flags: {flag} is not for a study, whose runs train: take it out")
            if self.folds is not None and flag in _NOT_WITH_FOLDS:
                raise InputError(f"{where}: flags: {flag} is not for a study of folds: use the key sample_path")
            if flag == "synthetic_seed" and type(self.flags[flag]) is not int:
                raise InputError(
                    f"{where}: flags: synthetic_seed must be one number, got {self.flags[flag]!r}: every seed of a "
                    "study sees the same data"
                )
        if (self.folds is None) != (self.sample_path is None):
            lacking = "folds" if self.folds is None else "sample_path"
            raise InputError(f"{where}: folds and sample_path go together: add {lacking}, or take out the other")
        for cell in self.cells():
            try:
                self._configuration(self.settings(cell, self.seeds[0]))
            except InputError as error:
                raise InputError(f"{where}: {cell.name}: {error}") from error
            gpus = [len(one["gpus"].split(",")) for one in self.device_sets or () if "gpus" in one]
            if gpus and max(gpus) < cell.world_size:
                raise InputError(
                    f"{where}: device_sets have at most {max(gpus)} GPUs, and {cell.name} needs {cell.world_size}: "
                    "name a larger set"
                )

    def _plain(self) -> dict[str, Any]:
        """As YAML has it."""
        found = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, tuple):
                value = [dict(one) if isinstance(one, Mapping) else one for one in value]
            elif isinstance(value, Mapping):
                value = {key: list(one) if isinstance(one, tuple) else one for key, one in value.items()}
            found[field.name] = value
        return found


def rate_flags(model: str) -> tuple[str, ...]:
    """The flags of a model's learning rates."""
    return ("linear_learning_rate", "deep_learning_rate") if model == "wide_deep" else ("learning_rate",)


def words(settings: Mapping[str, Any]) -> list[str]:
    """Settings as main.py's command line spells them."""
    return arguments(_with_tuples(settings))


def _with_tuples(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()}


def _is_required(field: dataclasses.Field) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _kinds() -> Mapping[str, plan_values.Kind]:
    return {
        "name": plan_values.NAME,
        "models": plan_values.some_of(CHOICES["model"]),
        "precisions": plan_values.some_of(PRECISIONS),
        "xla": plan_values.some_of((False, True)),
        "world_sizes": plan_values.SIZES,
        "global_batch_sizes": plan_values.SIZES,
        "equivalence_margin": plan_values.SHARE,
        "alone": plan_values.some_of(tuple(_SETTINGS), least=0),
        "seeds": plan_values.SEEDS,
        "lr_scaling": plan_values.one_of(CHOICES["lr_scaling"]),
        "flags": plan_values.SETTINGS,
        "controls": plan_values.FACTORS,
        "confidence": plan_values.SHARE,
        "target_map12": plan_values.or_null(plan_values.SHARE),
        "least_margin_share": plan_values.SHARE,
        "runs_per_launch": plan_values.COUNT,
        "timeout_s": plan_values.SECONDS,
        "folds": plan_values.or_null(plan_values.FOLDS),
        "sample_path": plan_values.or_null(plan_values.TEXT),
        "device_sets": plan_values.or_null(plan_values.DEVICE_SETS),
    }
