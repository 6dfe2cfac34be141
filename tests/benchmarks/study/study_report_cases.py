"""Studies made by hand, in memory and as folders."""

import json

import study_cases

from benchmarks.study.cells import FAILED, PLAN_FILE, RUNS_FILE
from benchmarks.study.folds import FACTS_FILE
from benchmarks.study.report import counted

ENVIRONMENT = {"host": "abacus", "cpus": 2, "versions": {"tensorflow": "2.21.0"}, "commit": "abc", "dirty": False}
# What is known of each of two folds.
FOLDS = {
    "1": {"chance_map_at_12": 0.48, "ctr_map_at_12": 0.56, "test_displays": 100},
    "2": {"chance_map_at_12": 0.50, "ctr_map_at_12": 0.58, "test_displays": 1300},
}
# Of seeds 1 to 4; their spread is small beside the margin of small_plan.
MAPS = (0.700, 0.702, 0.699, 0.701)


def small_plan(**changed):
    settings = {"seeds": [1, 2, 3, 4], "controls": {"degraded": 0.1}, "target_map12": 0.69, **changed}
    return study_cases.plan(**settings)


def record(cell, seed, map_at_12=0.7, /, **changed):
    """A record of two evaluations, the first of which is 0.1 below the last."""
    found = study_cases.record(cell, seed, map_at_12)
    below = None if map_at_12 is None else map_at_12 - 0.1
    found["config"]["eval_batch_size"] = 128
    found |= {
        "environment": ENVIRONMENT,
        "device": "CPU, 2 threads a rank",
        "samples_per_sec": 1000.0 * cell.world_size**0.5,
        "eval_samples_per_sec": 5000.0,
        "train_seconds": 8.0,
        "map_margin_share": 0.9,
        "auc_margin_share": 0.95,
        "evaluations": [
            {"step": 10, "epoch": 0.5, "train_seconds": 4.0, "map_at_12": below},
            {"step": 20, "epoch": 1.0, "train_seconds": 8.0, "map_at_12": map_at_12},
        ],
    }
    return {**found, **changed}


def runs(cell, maps=MAPS, **changed):
    """Runs of seeds 1, 2, ...: a number is a run's MAP@12, a text why it failed, None that there is none."""
    found = []
    for seed, one in enumerate(maps, start=1):
        if isinstance(one, str):
            found.append(study_cases.run(cell, seed, status=FAILED, record=None, reason=one))
        elif one is not None:
            found.append(study_cases.run(cell, seed, record=record(cell, seed, one, **changed)))
    return found


def whole(plan, less_of_control=0.2):
    """Runs of all cells: the control clearly worse, all else alike."""
    found = []
    for cell in plan.cells():
        lower = less_of_control if cell.label else 0.0
        found += runs(cell, [one - lower + 0.0001 * cell.xla for one in MAPS[: len(plan.seeds)]])
    return found


def folder(path, plan, its_runs, *further_lines):
    """The folder of a study; lines that are given are added as they are."""
    path.mkdir(exist_ok=True)
    (path / PLAN_FILE).write_text(plan.to_yaml(), encoding="utf-8")
    (path / RUNS_FILE).write_text("", encoding="utf-8")
    if plan.folds is not None:
        (path / FACTS_FILE).write_text(json.dumps(FOLDS), encoding="utf-8")
    with (path / RUNS_FILE).open("a", encoding="utf-8") as file:
        file.writelines([*(run.to_line() for run in its_runs), *further_lines])
    return str(path)


def study(path, plan, its_runs, *further_lines):
    return counted.load(folder(path, plan, its_runs, *further_lines))
