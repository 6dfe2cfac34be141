"""What is compared with what, and what is said of it."""

import pytest
from report_cases import MACHINE, repeats, result, turns

from benchmarks.report.compare import compare, compare_implementations, interleaved
from benchmarks.report.rows import summarise
from benchmarks.suite.results import FAILED, SKIPPED
from data.errors import InputError


def systems(a, b):
    return compare(summarise(a, "A"), summarise(b, "B"), "A", "B")


def test_system_against_system():
    found = systems(repeats(100, 101, 99), repeats(150, 151, 149))
    (row,) = found.rows
    assert row.ratio.ratio == pytest.approx(1.5, rel=1e-3)
    assert (row.ratio.verdict, row.ratio.method) == ("faster", "Welch t")
    assert found.machines_differ == ""


def test_what_the_machines_differ_in_is_said():
    found = systems(repeats(1), repeats(1, fingerprint={**MACHINE, "cpus": 64}))
    assert found.machines_differ == "cpus (2 / 64)"


def test_nothing_is_faster_where_the_interval_has_1():
    (row,) = systems(repeats(100, 130, 90), repeats(110, 140, 100)).rows
    assert row.ratio.ratio > 1
    assert row.ratio.verdict == "no difference shown"


def test_one_repeat_shows_nothing():
    assert systems(repeats(100), repeats(1000, 1001)).rows[0].ratio.verdict == "no interval"


def test_each_cell_that_is_not_compared_is_named():
    a = [*repeats(1), *repeats(1, batch_size=8), *repeats(1, config="x", version="1"), *repeats(1, config="y")]
    b = [*repeats(1), *repeats(1, batch_size=16), *repeats(1, config="x", version="2")]
    b += [result(status=FAILED, reason="killed", config="y"), *repeats(1, config="z", units="GB/s")]
    a += repeats(1, config="z", units="TF/s")
    found = systems(a, b)
    assert [row.b.cell.config for row in found.rows] == ["tiny"]
    dlrm = "dlrm-optimized-training"
    assert found.left_out == [
        f"{dlrm}-tiny, version 1, batch 8, fp32: a score in A, none in B",
        f"{dlrm}-tiny, version 1, batch 16, fp32: a score in B, none in A",
        f"{dlrm}-x, version 1, batch 64, fp32: version 2 in B, and versions are not compared",
        f"{dlrm}-x, version 2, batch 64, fp32: version 1 in A, and versions are not compared",
        f"{dlrm}-y, version 1, batch 64, fp32: a score in A, none in B",
        f"{dlrm}-z, version 1, batch 64, fp32: TF/s in A and GB/s in B",
        f"{dlrm}-y, version 1, batch 64, fp32: failed in B: killed",
    ]
    assert found.lost == [found.left_out[place] for place in (0, 2, 4, 5)]


@pytest.mark.parametrize(
    "other", [{"version": "2"}, {"batch_size": 8}, {"implementation": "ootb"}, {"precision": "bf16"}]
)
def test_nothing_to_compare_is_refused(other):
    with pytest.raises(InputError, match="A and B have no cell to compare"):
        systems(repeats(1), repeats(1, **other))


def test_implementations_of_one_table():
    summary = summarise(
        [*turns([50, 51, 52], [100, 101, 102]), *repeats(1, batch_size=8, implementation="ootb")], "here"
    )
    found = compare_implementations(summary, "ootb", "optimized")
    (row,) = found.rows
    assert (row.a.cell.implementation, row.b.cell.implementation) == ("ootb", "optimized")
    assert row.ratio.verdict == "faster"
    assert found.left_out == ["dlrm-ootb-training-tiny, version 1, batch 8, fp32: a score in ootb, none in optimized"]


def test_implementations_without_a_score_are_named():
    summary = summarise(
        [
            *turns([1], [2]),
            result(status=SKIPPED, reason="too large", config="criteo"),
            *repeats(1, implementation="micro"),
        ],
        "here",
    )
    (line,) = compare_implementations(summary, "ootb", "optimized").left_out
    assert line.endswith("skipped: too large")
    with pytest.raises(InputError, match="two different ones"):
        compare_implementations(summary, "ootb", "ootb")


def test_repeats_that_took_turns_are_paired_and_drift_does_not_hide_the_difference():
    drifting = turns([100, 50, 75], [150, 76, 110])
    (row,) = compare_implementations(summarise(drifting, "here"), "ootb", "optimized").rows
    assert (row.ratio.method, row.ratio.verdict) == ("paired t", "faster")
    a, b = (
        summarise([one for one in drifting if one.cell.implementation == name], "x") for name in ("ootb", "optimized")
    )
    assert {row.cell.implementation for row in a.rows} == {"ootb"}
    assert interleaved(a.rows[0].repeats, b.rows[0].repeats)


def test_systems_that_took_turns_on_one_machine_are_paired():
    def started(results, second, host):
        machine = {**MACHINE, "host": host}
        return [
            result(
                one.score, repeat=one.repeat, fingerprint=machine, start_time=f"2026-01-01T00:0{one.repeat}:{second}Z"
            )
            for one in results
        ]

    a = started(repeats(100, 50, 75), "00", "one")
    assert systems(a, started(repeats(150, 76, 110), "30", "one")).rows[0].ratio.method == "paired t"
    assert systems(a, started(repeats(150, 76, 110), "30", "another")).rows[0].ratio.method == "Welch t"


def at(*minutes, numbers=None):
    numbers = numbers or range(1, len(minutes) + 1)
    return [
        result(1, repeat=number, start_time="" if minute is None else f"2026-01-01T00:{minute:02}:00+00:00")
        for number, minute in zip(numbers, minutes, strict=True)
    ]


@pytest.mark.parametrize(
    ("first", "second", "turns_taken"),
    [
        (at(0, 2, 4), at(1, 3, 5), True),
        (at(1, 2, 5), at(0, 3, 4), True),
        (at(0, 1, 2), at(3, 4, 5), False),
        (at(0, 2, 4), at(1, 3, None), False),
        (at(0, 2), at(1, 3), False),
        (at(0, 2, 4), at(1, 3, 5, 7), False),
        (at(0, 2, 4), at(1, 3, 5, numbers=(1, 2, 4)), False),
        (at(0, 2, 4, 6, numbers=(1, 2, 3, 3)), at(1, 3, 5), False),
        (at(0, 2, 2), at(1, 2, 5), False),
    ],
)
def test_turns_are_told_by_when_repeats_began(first, second, turns_taken):
    assert interleaved(first, second) is turns_taken


def test_slower_than_a_threshold_needs_the_whole_interval_below():
    slow = systems(repeats(100, 101, 99), repeats(80, 81, 79))
    assert len(slow.slower_than(0.95)) == 1
    assert slow.slower_than(0.8) == []
    assert systems(repeats(100, 101, 99), repeats(80, 120, 60)).slower_than(0.95) == []
    once = systems(repeats(100), repeats(10))
    assert once.slower_than(0.95) == [] and len(once.without_interval()) == 1
    assert slow.without_interval() == []
