"""Rows that must have a score: skipping is no way out."""

import pytest
import suite_cases

from benchmarks.suite import must_score, plan
from benchmarks.suite.definitions import DEFAULT, load
from benchmarks.suite.results import Result
from data.errors import InputError

ONE = suite_cases.definition()
CELL = suite_cases.cell(ONE)
ROW = {
    "benchmark": "wide_deep-training-small",
    "implementation": "ootb",
    "batch_size": 32,
    "world_size": 1,
    "scaling": "single",
}


@pytest.mark.parametrize(
    ("found", "missing"),
    [
        ([], ["wide_deep-training-small ootb, 32"]),
        ([Result(cell=CELL, status="skipped", reason="too large")], ["wide_deep-training-small ootb, 32"]),
        ([Result(cell=CELL, status="unsound", reason="x")], ["wide_deep-training-small ootb, 32"]),
        ([Result(cell=CELL, status="failed", reason="x"), Result(cell=CELL, status="ok", score=1.0, repeat=2)], []),
    ],
)
def test_rows_without_a_score(found, missing):
    assert must_score.without_score([ROW], [CELL, CELL], found) == missing


def test_only_rows_of_the_plan_count():
    assert must_score.without_score([ROW], [suite_cases.cell(ONE, batch_size=64)], []) == []
    assert must_score.without_score([ROW], [suite_cases.cell(ONE, precision="bf16")], []) == []


@pytest.mark.parametrize(
    ("facts", "applies"),
    [
        ({"allowed_cpus": 2, "memory_gib": 24}, True),
        ({"allowed_cpus": 64, "memory_gib": 512}, True),
        ({"allowed_cpus": 1, "memory_gib": 24}, False),
        ({"allowed_cpus": 2, "memory_gib": 16}, False),
        ({"allowed_cpus": 2, "memory_gib": None}, False),
    ],
)
def test_the_machine_that_the_list_is_for(facts, applies):
    assert must_score.applies({"cpus": 2, "memory_gib": 24}, facts) == applies


@pytest.mark.parametrize("text", ["", "rows: []", "machine: {cpus: 2, memory_gib: 1}\nrows: [{benchmark: x}]"])
def test_a_broken_list_is_named(tmp_path, text):
    path = tmp_path / "list.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=str(path)):
        must_score.rows(path)


def test_the_projects_list_has_every_row_of_the_default_selection_and_none_that_nobody_can_run():
    machine, listed = must_score.rows()
    assert machine == {"cpus": 2, "memory_gib": 24}
    default, every = (
        {
            (one.name, cell.implementation, cell.batch_size, cell.world_size, cell.scaling)
            for one in load()
            for cell in plan.cells(one, plan.Selection(stated=stated))
        }
        for stated in (DEFAULT, None)
    )
    rows = [tuple(row[key] for key in ROW) for row in listed]
    assert len(rows) == len(set(rows)) and default and default <= set(rows) <= every
