"""Cells, and the file of runs."""

import dataclasses
import json

import pytest
import study_cases

from benchmarks.study import cells
from benchmarks.study.cells import FAILED, Cell, Run
from data.errors import InputError


@pytest.mark.parametrize(
    ("cell", "name"),
    [
        (Cell("wide_deep", "float32", True, 1, 4096), "wide_deep-float32-xla-1x4096"),
        (Cell("dlrm", "mixed_float16", False, 2, 1000), "dlrm-mixed_float16-2x500"),
        (Cell("dcnv2", "float32", False, 8, 64, 0.1, "degraded"), "dcnv2-float32-8x8-rate*0.1-degraded"),
    ],
)
def test_names_say_what_a_cell_is(cell, name):
    assert cell.name == name


def test_runs_come_back_as_they_were_and_the_last_one_of_a_cell_and_seed_counts(tmp_path):
    path = str(tmp_path / "runs.jsonl")
    first, other = study_cases.cell(), study_cases.cell(xla=True)
    failed = Run(first, 1, FAILED, "it broke")
    again, beside = study_cases.run(first, 1), study_cases.run(other, 2)
    for one in (failed, beside, again):
        cells.append(path, one)
    assert cells.read(path) == [beside, again] and cells.damage(path) == []


def test_folds_of_a_seed_are_runs_of_their_own(tmp_path):
    path = str(tmp_path / "runs.jsonl")
    first, second = (study_cases.run(study_cases.cell(), 1, fold=fold) for fold in (1, 2))
    for one in (first, second, first):
        cells.append(path, one)
    assert cells.read(path) == [second, first]
    assert (second.key, second.name) == ((study_cases.cell(), 1, 2), "wide_deep-float32-1x64, seed 1 fold 2")


def test_a_line_without_a_fold_is_of_none(tmp_path):
    path = tmp_path / "runs.jsonl"
    found = dataclasses.asdict(study_cases.run(study_cases.cell()))
    del found["fold"]
    path.write_text(json.dumps(found) + "\n")
    assert cells.read(str(path)) == [study_cases.run(study_cases.cell())]


def test_a_line_that_a_killed_process_left_is_named_and_swallows_none(tmp_path):
    path = tmp_path / "runs.jsonl"
    one, other = study_cases.run(study_cases.cell(), 1), study_cases.run(study_cases.cell(), 2)
    cells.append(str(path), one)
    with path.open("a") as file:
        file.write(other.to_line()[:50])
    assert cells.read(str(path)) == [one]
    (problem,) = cells.damage(str(path))
    assert problem.startswith(f"{path}, line 2: left out, it is no run: ")
    cells.append(str(path), other)
    assert cells.read(str(path)) == [one, other] and len(cells.damage(str(path))) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"cell": {"model": "wide_deep"}},
        {"status": "fine"},
        {"seed": "1"},
        {"fold": "1"},
        {"record": None},
        {"record": []},
        {"status": FAILED},
    ],
)
def test_what_is_no_run_is_left_out(tmp_path, change):
    path = tmp_path / "runs.jsonl"
    found = dataclasses.asdict(study_cases.run(study_cases.cell()))
    path.write_text(json.dumps(found | change) + "\n")
    assert cells.read(str(path)) == [] and len(cells.damage(str(path))) == 1


def test_kinds_of_a_cell_are_checked(tmp_path):
    path = tmp_path / "runs.jsonl"
    found = dataclasses.asdict(study_cases.run(study_cases.cell()))
    found["cell"]["world_size"] = "2"
    path.write_text(json.dumps(found) + "\n")
    assert "its cell's world_size is '2'" in cells.damage(str(path))[0]


def test_a_folder_that_is_not_there_is_bad_input(tmp_path):
    with pytest.raises(InputError, match="name the folder of a study"):
        cells.read(str(tmp_path / "no" / "runs.jsonl"))
    with pytest.raises(InputError, match="cannot be written"):
        cells.append(str(tmp_path / "no" / "runs.jsonl"), study_cases.run(study_cases.cell()))
