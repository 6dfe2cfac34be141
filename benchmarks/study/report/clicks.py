"""How a study of folds ranks real clicks: beside chance, and beside ads ranked by their click-through rate."""

import dataclasses
import statistics as standard

from benchmarks.report.tables import Grid
from benchmarks.study import folds
from benchmarks.study.cells import Cell
from benchmarks.study.report import statistics
from benchmarks.study.report.blocks import Items, Section, Table, Text
from benchmarks.study.report.counted import MAP, Study
from benchmarks.study.report.tables import model_column, model_heading
from benchmarks.study.report.wording import arithmetic, batches, configuration, mean_figure, percent, signed

ALL_FOLDS = (
    "Runs of all folds are taken together, so that the displays make a part of the spread; Real clicks has that over "
    "seeds alone."
)
FEW = 10
NO_FOLDS = "No datasets of folds were made yet."


@dataclasses.dataclass(frozen=True)
class OverFolds:
    """A cell over the folds that have runs, each fold counting alike.

    Attributes:
      over_seeds: of each seed's mean over all folds of the plan; None where no seed has them all.
      mean, baseline, chance: means over folds of MAP@12; the first one of each fold's mean over its runs.
      difference: mean less baseline.
      low, high: Student's interval of the difference over folds; None of one fold.
      folds, runs, displays: on which all this rests.
    """

    over_seeds: statistics.Spread | None
    mean: float
    baseline: float
    chance: float
    difference: float
    low: float | None
    high: float | None
    folds: int
    runs: int
    displays: int


def sections(study: Study) -> list[Section]:
    """The section of a study of folds; none of others."""
    if study.plan.folds is None:
        return []
    if not study.folds:
        return [Section("Real clicks", [Text(NO_FOLDS)])]
    plan = study.plan
    displays = sum(facts[folds.DISPLAYS] for facts in study.folds.values())
    text = (
        f"{displays:,} displays of real clicks in {plan.folds} folds: each is held out in turn, and the models learn "
        "from the others. MAP@12 is of the held-out displays. Chance: their ads in random order. Click-through rate: "
        "their ads by the rate that they had on the displays of the other folds. Std over seeds: of the sample (n - "
        "1). Folds count alike in all that is of all folds. Difference: mean over runs less the click-through rate's; "
        f"its {percent(plan.confidence)} interval is Student's over the folds' differences. "
        + (f"{plan.folds} folds are few, and the " if plan.folds < FEW else "The ")
        + "training displays of any two are partly the same: take the interval for a rough one. What is attainable on "
        "real clicks, nobody knows."
    )
    cells = list(study.counted)
    blocks = [
        Text(text),
        Items(verdicts(study)),
        Table("MAP@12 over all folds", overall_grid(study), study.runs(cells)),
        Table("MAP@12 of each fold", fold_grid(study), study.runs(cells)),
    ]
    return [Section("Real clicks", blocks)]


def verdicts(study: Study) -> list[str]:
    """A line for each cell of a study of folds that has begun, for a terminal and for the section; none of others."""
    return [verdict(study, cell) for cell in study.counted] if study.folds else []


def verdict(study: Study, cell: Cell) -> str:
    """What may be said of a cell beside the baseline, in a line."""
    name, found = configuration(cell, study.plan), over_folds(study, cell)
    if found is None:
        return f"{name}: no runs"
    said = f"{name}: MAP@12 {found.mean:.4f}, chance {found.chance:.4f}, click-through rate {found.baseline:.4f}; "
    said += f"difference to the latter {found.difference:+.4f}"
    if found.low is None:
        return f"{said}: of one fold nothing can be said of others"
    said += f" ({percent(study.plan.confidence)} interval {found.low:+.4f} to {found.high:+.4f}): "
    if found.low <= 0 <= found.high:
        return said + "not told apart from it"
    return said + ("better than it" if found.low > 0 else "worse than it")


def over_folds(study: Study, cell: Cell) -> OverFolds | None:
    """A cell over the folds; None of one without runs."""
    found = _by_fold(study, cell)
    if not found:
        return None
    means = [standard.fmean(runs.values()) for runs in found.values()]
    baselines = [study.folds[fold][folds.BASELINE] for fold in found]
    differences = [mean - baseline for mean, baseline in zip(means, baselines, strict=True)]
    whole = set.intersection(*(set(runs) for runs in found.values())) if len(found) == study.plan.folds else set()
    ends = statistics.interval(differences, study.plan.confidence)
    return OverFolds(
        statistics.spread([standard.fmean(runs[seed] for runs in found.values()) for seed in sorted(whole)]),
        standard.fmean(means),
        standard.fmean(baselines),
        standard.fmean(study.folds[fold][folds.CHANCE] for fold in found),
        standard.fmean(differences),
        *(ends or (None, None)),
        folds=len(found),
        runs=sum(map(len, found.values())),
        displays=sum(study.folds[fold][folds.DISPLAYS] for fold in found),
    )


def overall_grid(study: Study) -> Grid:
    """A row for each cell."""
    interval = f"{percent(study.plan.confidence)} interval over folds"
    right = [
        *("Chance", "Click-through rate", "Mean", "Std over seeds", "Lowest seed", "Highest seed"),
        *("Difference", interval, "Displays", "Folds", "Runs"),
    ]
    rows = []
    for cell in study.counted:
        found = over_folds(study, cell)
        row = [*model_column(study, cell), arithmetic(cell), batches(cell)]
        if found is None:
            rows.append([*row, *[""] * (len(right) - 2), "0", "0"])
            continue
        ends = "" if found.low is None else f"{signed(found.low)} to {signed(found.high)}"
        rows.append(
            [
                *row,
                *map(mean_figure, (found.chance, found.baseline, found.mean)),
                *_over_seeds(found.over_seeds),
                signed(found.difference),
                ends,
                f"{found.displays:,}",
                str(found.folds),
                str(found.runs),
            ]
        )
    return Grid([*model_heading(study), "Configuration", "Ranks x batch", *right], rows, right)


def fold_grid(study: Study) -> Grid:
    """A row for each cell and fold."""
    right = [
        *("Fold", "Displays", "Chance", "Click-through rate", "Mean", "Std over seeds", "Lowest seed", "Highest seed"),
        *("Difference", "Runs"),
    ]
    rows = []
    for cell in study.counted:
        by_fold = _by_fold(study, cell)
        for fold, facts in study.folds.items():
            found = statistics.spread(list(by_fold.get(fold, {}).values()))
            rows.append(
                [
                    *model_column(study, cell),
                    arithmetic(cell),
                    batches(cell),
                    str(fold),
                    f"{facts[folds.DISPLAYS]:,}",
                    *map(mean_figure, (facts[folds.CHANCE], facts[folds.BASELINE], found and found.mean)),
                    *_over_seeds(found),
                    signed(None if found is None else found.mean - facts[folds.BASELINE]),
                    str(0 if found is None else found.runs),
                ]
            )
    return Grid([*model_heading(study), "Configuration", "Ranks x batch", *right], rows, right)


def _by_fold(study: Study, cell: Cell) -> dict[int, dict[int, float]]:
    """fold -> seed -> MAP@12, of the folds that have runs."""
    found: dict[int, dict[int, float]] = {}
    for (seed, fold), value in study.figures(cell, MAP).items():
        found.setdefault(fold, {})[seed] = value
    return dict(sorted(found.items()))


def _over_seeds(found: statistics.Spread | None) -> list[str]:
    return ["", "", ""] if found is None else [mean_figure(one) for one in (found.std, found.lowest, found.highest)]
