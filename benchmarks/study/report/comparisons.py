"""The plan's pairs of cells compared, and what that says of each setting."""

import dataclasses
import itertools

from benchmarks.report.tables import Grid
from benchmarks.study.cells import Cell
from benchmarks.study.plan import CONTROL, Plan
from benchmarks.study.report import statistics
from benchmarks.study.report.counted import MAP, Study
from benchmarks.study.report.statistics import UNDECIDED, VERDICTS, Difference, Ks
from benchmarks.study.report.wording import PRECISION, arithmetic, batches, p_value, percent, signed, without_precision

SETTINGS = {
    "precision": "mixed precision",
    "xla": "XLA",
    "world_size": "number of ranks",
    "global_batch_size": "global batch size",
    CONTROL: "control",
}


@dataclasses.dataclass(frozen=True)
class Compared:
    """Two cells that differ in one setting.

    Attributes:
      setting: key of SETTINGS.
      what: what the setting is changed from and to.
      where: the settings that both have.
      ks, difference: of MAP@12; None where a side has no run.
    """

    setting: str
    reference: Cell
    other: Cell
    what: str
    where: str
    ks: Ks | None
    difference: Difference | None

    @property
    def is_control(self) -> bool:
        """Whether the other cell was made worse on purpose."""
        return self.setting == CONTROL

    @property
    def name(self) -> str:
        """For pictures."""
        return f"{self.what}: {self.where}"

    @property
    def verdict(self) -> str:
        """What may be said; UNDECIDED where a side has no run, too."""
        return UNDECIDED if self.difference is None else self.difference.verdict


def compared(study: Study) -> list[Compared]:
    """All comparisons of the plan, those of the same change together; those whose runs are missing, too."""
    plan = study.plan
    found = []
    for one in plan.comparisons():
        first, second = study.figures(one.reference, MAP), study.figures(one.other, MAP)
        found.append(
            Compared(
                one.setting,
                one.reference,
                one.other,
                _what(one.setting, one.reference, one.other),
                _where(one.setting, one.reference, plan),
                statistics.ks(tuple(first.values()), tuple(second.values())),
                statistics.compare(first, second, margin=plan.equivalence_margin, confidence=plan.confidence),
            )
        )
    return list(itertools.chain(*by_change(found).values()))


def equivalence_grid(found: list[Compared], confidence: float) -> Grid:
    """A row for each comparison."""
    interval = f"{percent(2 * confidence - 1)} interval"
    headings = ["Compared", "Both", "Runs", "Difference", interval, "p (equal means)", "p (TOST)", "KS p", "Verdict"]
    rows = []
    for one in found:
        it = one.difference
        rows.append(
            [
                one.what,
                one.where,
                "" if it is None else _runs(it),
                signed(it.difference if it else None),
                "" if it is None or it.low is None else f"{signed(it.low)} to {signed(it.high)}",
                p_value(it.p_different if it else None),
                p_value(it.p_equivalent if it else None),
                p_value(one.ks.p_value if one.ks else None),
                one.verdict if it is not None else "",
            ]
        )
    return Grid(headings, rows, ("Runs", "Difference", interval, "p (equal means)", "p (TOST)", "KS p"))


def summary_grid(found: list[Compared]) -> Grid:
    """How often each verdict fell, by what was changed."""
    rows = []
    for what, ones in by_change(found).items():
        sizes = [abs(one.difference.difference) for one in ones if one.difference is not None]
        verdicts = [one.verdict for one in ones if one.difference is not None]
        rows.append(
            [
                what,
                str(len(ones)),
                *(str(verdicts.count(verdict) or "") for verdict in VERDICTS),
                str(len(ones) - len(verdicts) or ""),
                f"{max(sizes):.5f}" if sizes else "",
            ]
        )
    headings = [
        "Compared",
        "Comparisons",
        *(verdict.capitalize() for verdict in VERDICTS),
        "No runs",
        "Largest difference",
    ]
    return Grid(headings, rows, tuple(headings[1:]))


def by_change(found: list[Compared]) -> dict[str, list[Compared]]:
    """The comparisons by what was changed, such as "float32 to mixed float16"."""
    groups: dict[str, list[Compared]] = {}
    for one in found:
        prefix = f"{one.reference.model}: " if len({other.reference.model for other in found}) > 1 else ""
        groups.setdefault(prefix + one.what, []).append(one)
    return groups


def verdict_lines(found: list[Compared]) -> list[str]:
    """A line for each change, for a terminal and for the head of the report."""
    lines = []
    for what, ones in by_change(found).items():
        verdicts = [one.verdict if one.difference is not None else "without runs" for one in ones]
        counts = [f"{verdicts.count(one)} {one}" for one in (*VERDICTS, "without runs") if one in verdicts]
        said = verdicts[0] if len(ones) == 1 else f"of {len(ones)} comparisons {', '.join(counts)}"
        sizes = [one.difference.difference for one in ones if one.difference is not None]
        largest = f"; largest difference {max(sizes, key=abs):+.5f}" if sizes else ""
        lines.append(f"{what}: {said}{largest}")
    return lines


def precision_grid(study: Study) -> Grid:
    """Means and standard deviations of full and of each mixed precision, with the KS test."""
    full = study.plan.precisions[0]
    rows = []
    for group in without_precision(study.settings).values():
        for precision in study.plan.precisions[1:]:
            if full not in group or precision not in group:
                continue
            values = [list(study.figures(group[one], MAP).values()) for one in (full, precision)]
            first, second = map(statistics.spread, values)
            test = statistics.ks(*values)
            cell = group[precision]
            rows.append(
                [
                    *([cell.model] if len(study.plan.models) > 1 else []),
                    str(cell.world_size),
                    f"{cell.global_batch_size:,}",
                    "yes" if cell.xla else "no",
                    PRECISION[precision],
                    f"{len(values[0])} + {len(values[1])}",
                    *(_figure(side, name) for side in (first, second) for name in ("mean", "std")),
                    "" if test is None else f"{test.statistic:.3f}",
                    p_value(test.p_value if test else None),
                ]
            )
    of_full = [f"Mean {PRECISION[full]}", f"Std {PRECISION[full]}"]
    figures = [*of_full, "Mean mixed", "Std mixed", "KS statistic", "KS p-value"]
    model = ["Model"] if len(study.plan.models) > 1 else []
    headings = [*model, "Ranks", "Global batch", "XLA", "Mixed precision", "Runs", *figures]
    return Grid(headings, rows, ("Ranks", "Global batch", "Runs", *figures))


def _figure(side: statistics.Spread | None, name: str) -> str:
    value = None if side is None else getattr(side, name)
    return "" if value is None else f"{value:.5f}"


def _runs(difference: Difference) -> str:
    if difference.method == statistics.PAIRED:
        return f"{difference.runs[0]} pairs"
    return f"{difference.runs[0]} + {difference.runs[1]}, {difference.method}"


def _what(setting: str, reference: Cell, other: Cell) -> str:
    match setting:
        case "precision":
            return f"{PRECISION[reference.precision]} to {PRECISION[other.precision]}"
        case "xla":
            return "no XLA to XLA" if other.xla else "XLA to no XLA"
        case "world_size":
            return f"{reference.world_size} to {other.world_size} ranks"
        case "global_batch_size":
            return f"global batch {reference.global_batch_size:,} to {other.global_batch_size:,}"
    return f"baseline to control {other.label} (rates x {other.learning_rate_factor:g})"


def _where(setting: str, cell: Cell, plan: Plan) -> str:
    """The settings of a pair that both cells have."""
    parts = [cell.model] if len(plan.models) > 1 else []
    match setting:
        case "precision":
            parts += ["XLA" if cell.xla else "no XLA", batches(cell)]
        case "xla":
            parts += [PRECISION[cell.precision], batches(cell)]
        case "world_size":
            parts += [arithmetic(cell), f"global batch {cell.global_batch_size:,}"]
        case "global_batch_size":
            parts += [arithmetic(cell), f"{cell.world_size} rank" + ("s" if cell.world_size > 1 else "")]
        case _:
            parts += [arithmetic(cell), batches(cell)]
    return ", ".join(parts)
