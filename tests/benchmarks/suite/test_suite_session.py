"""What a folder of results holds, what is run, and what is left after an end that nobody wanted."""

import dataclasses
import json

import pytest
import suite_cases

from benchmarks.suite import plan, results, session
from benchmarks.suite.plan import Selection
from benchmarks.suite.results import FAILED, OK, SKIPPED, UNSOUND, Result
from data.errors import InputError

ONE = suite_cases.definition(batch_sizes=[8])
FACTS = suite_cases.FACTS


class Runs:
    """Stands in for benchmarks.suite.runner.Runner; answers with statuses in turn, or raises."""

    def __init__(self, *statuses):
        self.statuses = list(statuses)
        self.ran = []

    def run(self, planned):
        status = self.statuses.pop(0) if self.statuses else OK
        if isinstance(status, BaseException):
            raise status
        self.ran.append((planned.cell.implementation, planned.repeat))
        return self._result(planned, status)

    def skipped(self, planned):
        return self._result(planned, SKIPPED)

    @staticmethod
    def _result(planned, status):
        score = 5.0 if status == OK else None
        reason = "" if status == OK else "why"
        return Result(
            cell=planned.cell, status=status, repeat=planned.repeat, score=score, reason=reason, fingerprint=FACTS
        )


@pytest.fixture
def planned():
    return plan.plan([ONE], Selection(repeats=2))


@pytest.fixture
def start(tmp_path):
    """start(planned, runs, fresh=False): the suite in the test's folder; what it found before, and its results."""

    def start(planned, runs, *, fresh=False, say=lambda line: None, facts=FACTS):
        folder = str(tmp_path / "suite")
        found = session.look(folder, planned, facts, fresh=fresh)
        session.prepare(folder, planned, found, fresh=fresh)
        return found, session.run(folder, planned, found.finished, runs, say=say)

    return start


def records(tmp_path):
    found, problems = results.read(str(tmp_path / "suite" / results.RECORDS_FILE))
    assert problems == []
    return [(result.cell.implementation, result.repeat, result.status) for result in found]


def test_everything_is_run_and_recorded_in_order(start, planned, tmp_path):
    found, made = start(planned, Runs(OK, FAILED, UNSOUND, OK))
    assert found == session.Found()
    expected = [("ootb", 1, OK), ("optimized", 1, FAILED), ("ootb", 2, UNSOUND), ("optimized", 2, OK)]
    assert records(tmp_path) == expected and [result.status for result in made] == [row[2] for row in expected]


def test_an_interrupted_suite_keeps_what_is_finished_and_goes_on(start, planned, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        start(planned, Runs(OK, OK, KeyboardInterrupt()))
    assert records(tmp_path) == [("ootb", 1, OK), ("optimized", 1, OK)]
    again = Runs()
    found, made = start(planned, again)
    assert len(found.finished) == 2 and again.ran == [("ootb", 2), ("optimized", 2)]
    assert len(made) == 4 and [status for *_, status in records(tmp_path)] == [OK] * 4


def test_failed_runs_are_run_again_and_replaced(start, planned, tmp_path):
    start(planned, Runs(OK, FAILED, UNSOUND, OK))
    again = Runs()
    found, _ = start(planned, again)
    assert found.failed == 1 and again.ran == [("optimized", 1)]
    assert sorted(records(tmp_path)) == [
        ("ootb", 1, OK), ("ootb", 2, UNSOUND), ("optimized", 1, OK), ("optimized", 2, OK),
    ]  # fmt: skip


def test_skipped_cells_are_recorded_once_however_often_it_goes_on(start, tmp_path):
    planned = plan.plan([ONE], Selection(repeats=1), lambda _, cell: "no" if cell.implementation == "ootb" else "")
    for _ in range(2):
        start(planned, Runs())
    assert sorted(records(tmp_path)) == [("ootb", 1, SKIPPED), ("optimized", 1, OK)]


def test_a_line_that_was_cut_is_taken_out_and_its_run_made_again(start, planned, tmp_path):
    start(planned, Runs())
    path = tmp_path / "suite" / results.RECORDS_FILE
    path.write_text(path.read_text()[:-40])
    again = Runs()
    found, _ = start(planned, again)
    assert len(found.problems) == 1 and "records.jsonl:4: " in found.problems[0] and again.ran == [("optimized", 2)]
    assert len(records(tmp_path)) == 4


def test_fresh_removes_all_of_it(start, planned, tmp_path):
    start(planned, Runs(OK, FAILED))
    (tmp_path / "suite/logs/old.log").write_text("x")
    again = Runs()
    start(planned, again, fresh=True)
    assert len(again.ran) == 4 == len(records(tmp_path)) and not (tmp_path / "suite/logs/old.log").exists()


def test_another_plan_is_refused_and_left_alone(start, planned, tmp_path):
    start(planned, Runs())
    before = (tmp_path / "suite" / results.RECORDS_FILE).read_bytes()
    other = plan.plan([ONE], Selection(repeats=3))
    with pytest.raises(InputError, match=r"holds 4 results of another plan: name another --results_dir.*--fresh"):
        start(other, Runs())
    assert (tmp_path / "suite" / results.RECORDS_FILE).read_bytes() == before
    start(other, Runs(), fresh=True)


def test_another_machine_is_refused_with_what_differs(start, planned):
    start(planned, Runs())
    with pytest.raises(InputError, match=r"another machine or installation \(cpu_model, versions\.keras differ\)"):
        start(planned, Runs(), facts=FACTS | {"cpu_model": "B", "versions": {"keras": "4"}})


def test_a_plan_that_cannot_be_read_is_refused(start, planned, tmp_path):
    start(planned, Runs())
    (tmp_path / "suite" / session.PLAN_FILE).write_text("{")
    with pytest.raises(InputError, match=r"cannot be read.*--fresh removes them"):
        start(planned, Runs())
    assert json.loads((tmp_path / "suite" / results.RECORDS_FILE).read_text().splitlines()[0])["status"] == OK


def test_a_folder_that_cannot_be_written_is_refused(planned, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="cannot be written"):
        session.prepare(str(tmp_path / "file"), planned, session.Found(), fresh=False)


def test_progress_says_what_comes_and_how_long_it_takes(start, planned):
    lines = []
    start(planned, Runs(OK, FAILED), say=lines.append)
    assert lines[0] == "[1/4] wide_deep-training-small ootb, batch 8, fp32, repeat 1"
    assert (
        "5 samples/s in 0 s" in lines[1] and "FAILED: why" in lines[3] and lines[-1].endswith("that was the last one")
    )


def test_what_remains_is_estimated_by_the_same_cells(planned):
    ootb, optimized = planned[0].cell, planned[1].cell
    assert session.remaining(planned[2:], {ootb: [10.0], optimized: [50.0, 70.0]}) == "about 70 s left"
    assert session.remaining(planned[1:], {ootb: [60.0]}) == "about 3 min left"
    other = dataclasses.replace(planned[0], cell=suite_cases.cell(ONE, batch_size=99))
    assert session.remaining([other], {ootb: [10.0], optimized: [30.0]}) == "about 20 s left"
