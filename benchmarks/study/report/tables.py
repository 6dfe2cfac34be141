"""Tables of accuracy and stability, made of a study's runs that count. What is missing is blank."""

import statistics as standard
from collections.abc import Mapping, Sequence

from benchmarks.report.tables import Grid
from benchmarks.study.cells import Cell
from benchmarks.study.report import statistics
from benchmarks.study.report.counted import MAP, Study
from benchmarks.study.report.wording import (
    PRECISION,
    arithmetic,
    batches,
    mean_figure,
    per_rank,
    seconds,
    share,
    times,
    without_precision,
)

_RULES = {
    "none": "no rule: the same rates at every size",
    "sqrt": "rates grow with the root of the batch size",
    "linear": "rates grow with the batch size",
}


def training_accuracy(study: Study) -> Grid:
    """MAP@12 and time to train, a row for each number of ranks, batch and compilation, columns for each precision."""
    precisions = study.plan.precisions
    full, *mixed = precisions
    rows = []
    for first, group in without_precision(study.settings).items():
        found = {precision: group.get(precision) for precision in precisions}
        maps = [mean(study, cell, MAP) for cell in found.values()]
        took = {precision: median(study, cell, "train_seconds") for precision, cell in found.items()}
        rows.append(
            [
                *model_column(study, first),
                str(first.world_size),
                per_rank(first),
                "yes" if first.xla else "no",
                *map(mean_figure, maps),
                *(seconds(took[precision]) for precision in precisions),
                *(times(over(took[full], took[precision])) for precision in mixed),
                " + ".join(str(study.runs([cell])) if cell else "0" for cell in found.values()),
            ]
        )
    headings = ["Ranks", "Batch per rank", "XLA"]
    headings += [f"MAP@12 {PRECISION[one]}" for one in precisions]
    headings += [f"Time to train {PRECISION[one]} (s)" for one in precisions]
    headings += [f"Speed-up {PRECISION[one]}" for one in mixed]
    headings.append("Runs")
    return Grid([*model_heading(study), *headings], rows, [one for one in headings if one != "XLA"])


def attainable(study: Study) -> Grid | None:
    """MAP@12 and AUC as shares of what the teacher of generated data gets; None where no record has them."""
    shares = ("map_margin_share", "auc_margin_share")
    if not any(study.figures(cell, name) for cell in study.counted for name in shares):
        return None
    rows = []
    for cell in study.counted:
        rows.append(
            [
                *model_column(study, cell),
                arithmetic(cell),
                batches(cell),
                mean_figure(mean(study, cell, MAP)),
                share(mean(study, cell, shares[0])),
                mean_figure(mean(study, cell, "auc")),
                share(mean(study, cell, shares[1])),
                str(study.runs([cell])),
            ]
        )
    right = ["MAP@12", "MAP@12 of attainable", "AUC", "AUC of attainable", "Runs"]
    headings = [*model_heading(study), "Configuration", "Ranks x batch", *right]
    return Grid(headings, rows, right)


def stability(study: Study) -> Grid:
    """Mean, standard deviation, minimum and maximum of MAP@12, controls last, and of all configurations together."""
    rows = []
    for model in study.plan.models:
        cells = [cell for cell in study.counted if cell.model == model]
        every = [value for cell in cells if not cell.label for value in study.figures(cell, MAP).values()]
        for cell in sorted(cells, key=lambda cell: bool(cell.label)):
            values = list(study.figures(cell, MAP).values())
            rows.append([*model_column(study, cell), arithmetic(cell), batches(cell), *_spread(values)])
        rows.append([*model_column(study, cells[0]), "all configurations", "", *_spread(every)])
    right = ["Mean", "Std", "Minimum", "Maximum", "Runs"]
    return Grid([*model_heading(study), "Configuration", "Ranks x batch", *right], rows, right)


def batch_size_groups(study: Study, model: str) -> dict[str, list[Cell]]:
    """Name -> cells that differ in global batch size alone, where there are several; in the order of sizes."""
    groups: dict[str, list[Cell]] = {}
    for cell in study.settings:
        if cell.model == model:
            ranks = f"{cell.world_size} rank" + ("s" if cell.world_size > 1 else "")
            groups.setdefault(f"{arithmetic(cell)}, {ranks}", []).append(cell)
    return {
        name: sorted(cells, key=lambda cell: cell.global_batch_size) for name, cells in groups.items() if len(cells) > 1
    }


def batch_sizes(study: Study, groups: Mapping[str, Sequence[Cell]]) -> Grid:
    """MAP@12 against the global batch size, and what the rule made of the rates."""
    rows = []
    for name, cells in groups.items():
        smallest = cells[0].global_batch_size
        for cell in cells:
            ratio = cell.global_batch_size / smallest
            rows.append(
                [
                    name,
                    f"{cell.global_batch_size:,}",
                    f"{rate_factor(study.plan.lr_scaling, ratio):.3g}",
                    *_spread(list(study.figures(cell, MAP).values())),
                ]
            )
    right = ["Global batch", "Rates x", "Mean", "Std", "Minimum", "Maximum", "Runs"]
    return Grid(["Configuration", *right], rows, right)


def rate_rule(study: Study) -> str:
    """The plan's rule in words."""
    return f"{study.plan.lr_scaling}: {_RULES[study.plan.lr_scaling]}"


def rate_factor(rule: str, ratio: float) -> float:
    """What a rule multiplies rates by where batches are `ratio` times as large."""
    return {"none": 1.0, "sqrt": ratio**0.5, "linear": ratio}[rule]


def mean(study: Study, cell: Cell | None, name: str) -> float | None:
    """Mean of a figure over the runs of a cell; None of none."""
    found = list(study.figures(cell, name).values()) if cell else []
    return standard.fmean(found) if found else None


def median(study: Study, cell: Cell | None, name: str) -> float | None:
    """Median of a figure over the runs of a cell; None of none."""
    found = list(study.figures(cell, name).values()) if cell else []
    return standard.median(found) if found else None


def over(first: float | None, second: float | None) -> float | None:
    """Their ratio; None where one is missing or the second is 0."""
    return first / second if first is not None and second else None


def model_heading(study: Study) -> list[str]:
    """A column for models where there are several."""
    return ["Model"] if len(study.plan.models) > 1 else []


def model_column(study: Study, cell: Cell) -> list[str]:
    """Its value."""
    return [cell.model] if len(study.plan.models) > 1 else []


def _spread(values: Sequence[float]) -> list[str]:
    found = statistics.spread(values)
    if found is None:
        return ["", "", "", "", "0"]
    return [*map(mean_figure, (found.mean, found.std, found.lowest, found.highest)), str(found.runs)]
