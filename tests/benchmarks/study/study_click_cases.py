"""Raw clicks and studies of folds, made by hand."""

import csv
import os

import study_cases
from study_report_cases import record, small_plan

# Held out in two folds, by the hash of sample seed 0.
DISPLAYS = 80
ADS = 12
# fold -> MAP@12 of seeds 1 to 4; means 0.60 and 0.61.
MAPS = {1: (0.59, 0.61, 0.60, 0.60), 2: (0.61, 0.61, 0.60, 0.62)}


def write(folder, displays=DISPLAYS):
    """Raw files of displays of three ads each, the second of which is clicked; returns their folder."""
    os.makedirs(folder)
    ads = range(1, ADS + 1)
    _write(
        folder / "clicks_train.csv",
        ("display_id", "ad_id", "clicked"),
        [(d, 1 + (d + 5 * n) % ADS, int(n == 1)) for d in range(1, displays + 1) for n in range(3)],
    )
    _write(
        folder / "events.csv",
        ("display_id", "document_id", "platform", "geo_location"),
        [(d, 1 + d % 7, 1 + d % 2, "US>CA>807") for d in range(1, displays + 1)],
    )
    _write(
        folder / "promoted_content.csv",
        ("ad_id", "document_id", "campaign_id", "advertiser_id"),
        [(ad, 100 + ad // 2, 200 + ad // 3, 300 + ad // 4) for ad in ads],
    )
    return str(folder)


def click_plan(**changed):
    settings = {"flags": {}, "folds": 2, "sample_path": "raw", "controls": {}, "target_map12": None, **changed}
    return small_plan(**settings)


def click_runs(cell, maps=None, **changed):
    """Runs of each fold; None among its MAP@12 of seeds 1, 2, ... is no run."""
    found = []
    for fold, values in (maps or MAPS).items():
        for seed, value in enumerate(values, start=1):
            if value is not None:
                found.append(
                    study_cases.run(cell, seed, fold=fold, record=click_record(cell, seed, fold, value, **changed))
                )
    return found


def click_record(cell, seed, fold, map_at_12, /, **changed):
    """A record of a run that trained on the dataset of a fold, whose displays it evaluated."""
    displays = {1: 100, 2: 1300}[fold]
    settings = {"map_margin_share": None, "auc_margin_share": None, "displays": displays, **changed}
    found = record(cell, seed, map_at_12, **settings)
    found["config"]["dataset_path"] = f"/study/folds/fold-{fold}"
    return found


def _write(path, header, rows):
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])
