"""Whether a study can say what it is for: its control was found out, and its baselines have learned."""

from collections.abc import Sequence

from benchmarks.study.report.comparisons import Compared
from benchmarks.study.report.counted import Study
from benchmarks.study.report.statistics import DIFFERENT
from benchmarks.study.report.tables import mean
from benchmarks.study.report.wording import configuration, share

_SHARES = {"map_margin_share": "MAP@12", "auc_margin_share": "AUC"}


def problems(study: Study, compared: Sequence[Compared]) -> list[str]:
    """Why its verdicts must not be relied on: a line each."""
    return [*_controls(study, compared), *_baselines(study)]


def _controls(study: Study, compared: Sequence[Compared]) -> list[str]:
    controls = [one for one in compared if one.is_control]
    if not controls and study.plan.folds is not None:
        return []  # It says how real clicks are ranked, beside chance and a baseline, which need no control.
    if not controls:
        return ["This study cannot tell whether it would see a difference: its plan has no control."]
    found = []
    for one in controls:
        if one.difference is None:
            found.append(f"This study cannot tell settings apart yet: no runs to compare ({one.what}).")
        elif one.verdict != DIFFERENT:
            found.append(
                f"This study cannot tell settings apart: {one.what} must come out different and came out "
                f"{one.verdict} ({one.difference.difference:+.5f})."
            )
        elif one.difference.difference > 0:
            found.append(
                f"The control came out better than the baseline ({one.what}, {one.difference.difference:+.5f}): the "
                "baseline's rates are not good ones."
            )
    return found


def _baselines(study: Study) -> list[str]:
    """Baselines that do not reach enough of what is attainable on generated data; of others nothing is known."""
    found = []
    for model in study.plan.models if study.plan.folds is None else ():
        cell = study.plan.baseline(model)
        for name, figure in _SHARES.items():
            reached = mean(study, cell, name)
            if reached is not None and reached < study.plan.least_margin_share:
                found.append(
                    f"The baseline {model}, {configuration(cell, study.plan).removeprefix(f'{model}, ')}, has not "
                    f"learned enough to be compared with: its {figure} is {share(reached)} of the attainable margin, "
                    f"and the plan asks for {share(study.plan.least_margin_share)}."
                )
    return found
