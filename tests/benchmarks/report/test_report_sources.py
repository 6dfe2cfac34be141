"""Good rows are read, bad ones are named, whatever stands in the files."""

import json

import pytest
from report_cases import folder, log, repeats, result, whole_log

from benchmarks.report.sources import load
from data.errors import InputError


def line(**changes):
    found = json.loads(result(100.0).to_line())
    cell = changes.pop("cell", {})
    return json.dumps({**found, **changes, "cell": {**found["cell"], **cell}}) + "\n"


def test_records_come_back_as_they_were(tmp_path):
    written = repeats(1.5, 2.5, rank_step_ms=[1.0, 2.0], figures={"loss": 0.5}, command=["python"])
    folder(tmp_path / "a", written)
    for path in (tmp_path / "a", tmp_path / "a" / "records.jsonl"):
        loaded = load([str(path)])
        assert [found.to_line() for found in loaded.results] == [one.to_line() for one in written]
        assert loaded.problems == []


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ('{"cell": {"mod', "Unterminated string"),
        ("\n", "Expecting value"),
        ("\x00\ufffd\n", "Expecting value"),
        ("[1]\n", "no cell"),
        ("[" * 100_000 + "\n", "nested too deeply"),
        (line(score="fast"), "score must be a finite number above 0, got 'fast'"),
        (line(score=float("nan")), "score must be a finite number above 0, got 'nan'"),
        (line(score=0), "score must be a finite number above 0, got '0'"),
        (line(score=-3), "score must be a finite number above 0, got '-3'"),
        (line(status="fine"), "status must be one of"),
        (line(units="furlongs"), "units must be one of"),
        (line(repeat=0), "repeat must be"),
        (line(repeat=True), "repeat must be"),
        (line(step_ms="abc"), "step_ms must be a list"),
        (line(step_ms=[1, None]), "step_ms must be a list"),
        (line(figures=[]), "figures must be an object"),
        (line(fingerprint="mine"), "fingerprint must be an object"),
        (line(latency_limit_ms="soon"), "latency_limit_ms must be"),
        (line(reason=5), "reason must be text"),
        (line(cell={"model": ["dlrm"]}), "cell.model must be text"),
        (line(cell={"batch_size": "64"}), "cell.batch_size must be a whole number"),
        (line(cell={"world_size": 0}), "cell.world_size must be at least 1"),
        (line(cell={"colour": "red"}), "not a result of this version"),
        (line(colour="red"), "not a result of this version"),
    ],
)  # fmt: skip
def test_a_bad_line_is_named_and_the_others_are_read(tmp_path, bad, reason):
    path = folder(tmp_path / "a", repeats(1), bad if bad.endswith("\n") else bad + "\n", line(repeat=2))
    loaded = load([str(path)])
    assert [one.repeat for one in loaded.results] == [1, 2]
    (problem,) = loaded.problems
    assert problem.startswith(f"{path}/records.jsonl:2: ")
    assert reason in problem


def test_a_folder_of_logs_with_all_that_can_be_wrong(tmp_path):
    whole = whole_log()
    log(tmp_path / "a good one.log", *whole_log(config="tiny with blanks"))
    log(tmp_path / "truncated.log", *whole[:-1], json.dumps(whole[-1])[:-20])
    log(tmp_path / "empty.log")
    log(tmp_path / "unfinished.log", *whole[:-1])
    log(tmp_path / "two.log", *whole, *whole)
    log(tmp_path / "failed.log", *whole[:2], {"key": "error", "message": "out of\nmemory"})
    log(tmp_path / "other.txt", "not a log")
    loaded = load([str(tmp_path)])
    assert [(found.cell.config, found.score) for found in loaded.results] == [("tiny with blanks", 12)]
    assert loaded.problems == [
        f"{tmp_path}/empty.log: empty",
        f"{tmp_path}/failed.log: the run failed: out of memory",
        f"{tmp_path}/truncated.log: line 9 is not JSON: cut off, or not a log",
        f"{tmp_path}/two.log: several runs in one file: header stands 2 times",
        f"{tmp_path}/unfinished.log: no run_stop: the run did not finish",
    ]


def test_records_go_before_the_logs_that_were_made_of_them(tmp_path):
    folder(tmp_path, repeats(1))
    log(tmp_path / "x.log", *whole_log())
    assert [found.score for found in load([str(tmp_path)]).results] == [1]


def test_several_are_read_together(tmp_path):
    log(tmp_path / "x.log", *whole_log())
    path = folder(tmp_path / "a", repeats(1))
    assert [found.score for found in load([str(path), str(tmp_path / "x.log")]).results] == [1, 12]


def test_what_is_not_there(tmp_path):
    with pytest.raises(InputError, match=r"neither records\.jsonl nor"):
        load([str(tmp_path)])
    with pytest.raises(InputError, match=r"gone.*No such file"):
        load([str(tmp_path / "gone")])


def test_a_folder_may_have_a_pattern_for_a_name(tmp_path):
    (tmp_path / "[a]").mkdir()
    log(tmp_path / "[a]" / "x.log", *whole_log())
    assert len(load([str(tmp_path / "[a]")]).results) == 1
