"""Records come back as they were; a line that is no result is named, and the others are read."""

import json

import pytest
import suite_cases

from benchmarks.suite.results import RECORDS_FILE, Result, append, read

RESULT = Result(cell=suite_cases.cell(suite_cases.definition()), status="ok", score=2.0, step_ms=(1.0, 2.0))


def line(**changes):
    found = json.loads(RESULT.to_line())
    cell = changes.pop("cell", {})
    return json.dumps({**found, **changes, "cell": {**found["cell"], **cell}}) + "\n"


def test_what_is_added_is_read(tmp_path):
    append([RESULT], str(tmp_path))
    append([RESULT], str(tmp_path))
    found, problems = read(str(tmp_path / RECORDS_FILE))
    assert [one.to_line() for one in found] == [RESULT.to_line()] * 2 and problems == []


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (line(score="fast"), "score must be a finite number above 0, got 'fast'"),
        (line(step_ms=[1, None]), "step_ms must be a list of finite numbers, none below 0"),
        (line(repeat="1"), "repeat must be a whole number above 0, got '1'"),
        (line(cell={"model": ["dlrm"]}), "cell.model must be text"),
        (line(cell={"batch_size": 6.5}), "cell.batch_size must be a whole number, got '6.5'"),
        (line(command="python"), "command must be a list of texts, got 'python'"),
        (line(record=[]), "record must be an object"),
        (line(colour="red"), "not a result of this version"),
        ('{"cell": {"mod\n', "Unterminated string"),
        ("[" * 100_000 + "\n", "nested too deeply"),
    ],
)
def test_a_wrong_type_is_named_with_file_and_line(tmp_path, bad, reason):
    path = tmp_path / RECORDS_FILE
    path.write_text(RESULT.to_line() + bad + RESULT.to_line())
    found, (problem,) = read(str(path))
    assert len(found) == 2 and problem.startswith(f"{path}:2: ") and reason in problem


@pytest.mark.parametrize(
    "wrong", [{"status": "fine"}, {"score": None}, {"status": "failed"}, {"units": "furlongs"}], ids=str
)
def test_what_a_result_cannot_be(wrong):
    with pytest.raises(ValueError, match=r"must be one of|a score goes with status ok"):
        Result(**{"cell": RESULT.cell, "status": "ok", "score": 1.0, **wrong})
