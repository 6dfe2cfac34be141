"""Repeats brought together, and what has no row."""

import pytest
from report_cases import CELL, MACHINE, repeats, result

from benchmarks.report.rows import describe, summarise
from benchmarks.suite.results import FAILED, SKIPPED, UNSOUND
from data.errors import InputError


def test_a_row_has_the_medians_of_its_repeats():
    found = [
        result(score, repeat=repeat, step_ms=[p95_ms] * 3, latency_limit_ms=50)
        for repeat, (score, p95_ms) in enumerate([(120, 60), (100, 40), (103, 49)], start=1)
    ]
    (row,) = summarise(found, "here").rows
    assert (row.score, row.p95_ms, row.units) == (103, 49, "samples/s")
    assert row.spread == pytest.approx(20 / 103)
    assert row.median_repeat is found[2]
    assert row.marks == "~"


def test_marks():
    late = summarise(repeats(100, 101, step_ms=[51.0], latency_limit_ms=50), "here").rows[0]
    assert (late.missed_limit, late.noisy, late.marks) == (True, False, "*")
    both = summarise(repeats(100, 120, step_ms=[51.0], latency_limit_ms=50), "here").rows[0]
    assert both.marks == "*~"
    at_the_limit = summarise(repeats(100, step_ms=[50.0], latency_limit_ms=50), "here").rows[0]
    assert at_the_limit.marks == ""
    untimed = summarise(repeats(100, step_ms=[], latency_limit_ms=50), "here").rows[0]
    assert (untimed.p95_ms, untimed.marks) == (None, "")


def test_rows_are_sorted_whatever_came_first():
    found = [
        *repeats(1, model="gemm", implementation="micro", units="TF/s"),
        *repeats(1, batch_size=128),
        *repeats(1, model="a", batch_size=1024),
        *repeats(1, batch_size=64),
    ]
    names = [(row.cell.model, row.cell.batch_size) for row in summarise(found, "here").rows]
    assert names == [("a", 1024), ("dlrm", 64), ("dlrm", 128), ("gemm", 64)]
    assert names == [(row.cell.model, row.cell.batch_size) for row in summarise(found[::-1], "here").rows]


def test_other_repeats_of_a_failed_one_count_and_it_is_listed():
    found = [*repeats(100, 101), result(status=FAILED, reason="killed", repeat=3)]
    summary = summarise(found, "here")
    assert summary.rows[0].scores == [100, 101]
    assert [(one.status, one.reason, one.repeats) for one in summary.unscored] == [(FAILED, "killed", [3])]


def test_a_second_try_replaces_the_failed_one_and_no_score():
    found = [result(status=FAILED, reason="killed", repeat=1), *repeats(100, 101), result(102, repeat=1)]
    summary = summarise(found, "here")
    assert summary.unscored == []
    assert sorted(summary.rows[0].scores) == [100, 101, 102]


def test_a_failure_after_a_score_is_not_hidden_by_it():
    assert len(summarise([*repeats(100), result(status=FAILED, reason="killed")], "here").unscored) == 1


def test_an_unsound_repeat_takes_the_scores_of_its_cell():
    found = [
        *repeats(100, 101),
        result(status=UNSOUND, reason="loss did not fall", repeat=3),
        *repeats(7, batch_size=8),
    ]
    summary = summarise(found, "here")
    assert [row.cell.batch_size for row in summary.rows] == [8]
    assert {(one.status, one.reason, tuple(one.repeats)) for one in summary.unscored} == {
        (UNSOUND, "another repeat of it was unsound", (1, 2)),
        (UNSOUND, "loss did not fall", (3,)),
    }


def test_equal_reasons_stand_once():
    found = [result(status=SKIPPED, reason="no GPU", repeat=repeat) for repeat in (2, 1, 3)]
    (one,) = summarise(found, "here").unscored
    assert one.repeats == [1, 2, 3]


def test_machines_are_not_mixed():
    other = {**MACHINE, "cpus": 64, "versions": {"tensorflow": "2.15.1"}}
    with pytest.raises(InputError, match=r"here.*cpus \(2 / 64\), versions.tensorflow \(2.21.0 / 2.15.1\)"):
        summarise([*repeats(1), *repeats(1, fingerprint=other, batch_size=8)], "here")
    with pytest.raises(InputError, match="with and without"):
        summarise([*repeats(1), *repeats(1, fingerprint={}, batch_size=8)], "here")


def test_moment_and_commit_do_not_make_another_machine():
    states = [{**MACHINE, "commit": "abc", "dirty": dirty, "start_time": str(dirty)} for dirty in (False, True)]
    summary = summarise([result(1, fingerprint=state, repeat=repeat) for repeat, state in enumerate(states, 1)], "here")
    assert summary.commits == ["abc", "abc with changes"]


def test_units_are_not_mixed():
    with pytest.raises(InputError, match=r"GB/s, TF/s"):
        summarise([result(1, units="TF/s"), result(1, units="GB/s", repeat=2)], "here")


def test_description():
    assert describe(CELL) == "dlrm-optimized-training-tiny, version 1, batch 64, fp32"
    cell = result(1, world_size=2, scaling="weak").cell
    assert describe(cell) == "dlrm-optimized-training-tiny, version 1, batch 64, 2 ranks (weak), fp32"


def test_nothing_is_an_empty_summary():
    assert summarise([], "here").rows == []
