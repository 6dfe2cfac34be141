"""Folds of real clicks: a dataset for each, made before the first run of a study, and what is known of it."""

import json
import os
import shutil
from collections.abc import Mapping
from typing import Any

from benchmarks.study.plan import Plan
from data.errors import InputError
from data.outbrain import sample
from data.whole_files import write

FOLDS, FACTS_FILE = "folds", "folds.json"
"""In the folder of a study: the datasets, and the figures of each. Its report needs the latter alone."""

CHANCE, BASELINE, DISPLAYS = "chance_map_at_12", "ctr_map_at_12", "test_displays"
"""Of the facts: MAP@12 of random order and of ads by click-through rate on the held-out displays, and their number."""

_RAW = ("clicks_train.csv", "events.csv", "promoted_content.csv")
_METADATA = "outbrain_sample"


def settings(folder: str, fold: int | None) -> dict[str, Any]:
    """What a run on a fold gives to main.py beside the plan's settings, by flag; nothing without folds."""
    return {} if fold is None else {"dataset_path": os.path.join(os.path.abspath(folder), FOLDS, _name(fold))}


def is_dataset(path: Any, fold: int) -> bool:
    """Whether a dataset's path is that of a fold."""
    return isinstance(path, str) and os.path.basename(path) == _name(fold)


def are_made(folder: str) -> bool:
    """Whether the folder of a study has the datasets of its folds, and their figures."""
    return os.path.isdir(os.path.join(folder, FOLDS)) and os.path.exists(os.path.join(folder, FACTS_FILE))


def check_sample(sample_path: str) -> None:
    """That there are the files that datasets of folds are made of.

    Raises:
      InputError: the folder or one of the files is not there.
    """
    source = _source(sample_path)
    for name in _RAW:
        if not os.path.isfile(os.path.join(source, name)):
            raise InputError(f"sample_path: {source}: has no {name}: name the folder of raw clicks")


def prepare(folder: str, plan: Plan) -> None:
    """Makes the datasets of a plan's folds, all of them or none; those that are there stay.

    Args:
      folder: of the study.

    Raises:
      InputError: there is no sample, it is another one than the study began with, or the folder cannot be written.
    """
    place, facts_path = os.path.join(folder, FOLDS), os.path.join(folder, FACTS_FILE)
    if are_made(folder):
        return
    source = _source(plan.sample_path)
    partial = f"{place}.partial"
    try:
        for old in (place, partial):
            shutil.rmtree(old, ignore_errors=True)
        facts = {}
        for fold in range(1, plan.folds + 1):
            spec = sample.prepare(source, os.path.join(partial, _name(fold)), fold=(fold, plan.folds))
            facts[fold] = dict(spec.metadata[_METADATA])
        if os.path.exists(facts_path) and read(folder) != facts:
            raise InputError(
                f"{source}: is another sample than that of the runs in {folder}: name another --results_dir"
            )
        os.rename(partial, place)
        write(facts_path, json.dumps(facts, indent=2) + "\n")
    except OSError as error:
        problem = error.strerror or error
        raise InputError(f"{folder}: cannot be written: {problem}; name another --results_dir") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def read(folder: str) -> dict[int, Mapping[str, Any]]:
    """fold -> what `prepare` noted of it, in the order of folds; empty of a study that has not begun.

    Raises:
      InputError: the note cannot be read.
    """
    path = os.path.join(folder, FACTS_FILE)
    try:
        with open(path, encoding="utf-8") as file:
            found = {int(fold): dict(facts) for fold, facts in json.load(file).items()}
        for facts in found.values():
            float(facts[CHANCE]), float(facts[BASELINE]), int(facts[DISPLAYS])
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise InputError(
            f"{path}: does not say what is known of the folds: {' '.join(str(error).split())}; remove it, and "
            "start the study again, which makes it anew"
        ) from error
    return dict(sorted(found.items()))


def _source(sample_path: str) -> str:
    """The folder of the sample, with variables put in."""
    source = os.path.expandvars(os.path.expanduser(sample_path))
    if "$" in source:
        raise InputError(f"sample_path: {sample_path}: the variable is not set: let it name the folder of raw clicks")
    if not os.path.isdir(source):
        raise InputError(f"sample_path: {source}: no such folder: name the one of raw clicks")
    return source


def _name(fold: int) -> str:
    return f"fold-{fold}"
