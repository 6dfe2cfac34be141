"""Whether runs of the suite agree, and what is said where they do not."""

import pytest
from report_cases import MACHINE, folder, repeats, result

from benchmarks.report import agreement
from benchmarks.report.__main__ import main
from benchmarks.report.rows import summarise
from benchmarks.suite.results import FAILED
from data.errors import InputError


def of(*runs):
    names = [f"run{place}" for place in range(1, len(runs) + 1)]
    return agreement.agreement([summarise(run, name) for run, name in zip(runs, names, strict=True)], names)


def test_runs_that_are_no_further_apart_than_repeats_agree():
    found = of(repeats(98, 100, 102), repeats(99, 101, 103), repeats(97, 99, 100))
    (cell,) = found.cells
    assert cell.apart == pytest.approx(0.02) and cell.stated == pytest.approx(0.04) and cell.holds
    assert found.findings == []
    assert "1 of 1 scores are no further apart" in agreement.notes(found)[-1]


def test_a_shift_of_a_whole_run_is_no_agreement():
    found = of(repeats(99, 100, 101), repeats(109, 110, 111))
    assert not found.cells[0].holds
    who = "dlrm-optimized-training-tiny, version 1, batch 64, fp32"
    assert found.findings == [f"apart: {who}: 9.5% between runs, 2.0% between repeats of one"]


def test_the_spread_of_the_noisiest_run_is_the_stated_one():
    assert of(repeats(99, 100, 101), repeats(90, 110, 120)).cells[0].stated == pytest.approx(30 / 110)


def test_one_repeat_states_no_spread_and_equal_scores_do_not_agree_by_it():
    found = of(repeats(100), repeats(100, 101))
    assert found.cells[0].stated is None and not found.cells[0].holds
    assert found.findings[0].startswith("no spread is stated: dlrm-optimized-training-tiny")


def test_a_score_that_a_run_lacks_is_named():
    failed = result(status=FAILED, reason="killed", batch_size=8)
    found = of([*repeats(1, 1), *repeats(2, 2, batch_size=8)], [*repeats(1, 1), failed])
    assert len(found.cells) == 1
    assert found.findings == ["no score in run2: dlrm-optimized-training-tiny, version 1, batch 8, fp32"]


def test_versions_are_not_mixed():
    with pytest.raises(InputError, match="no score of the same cell"):
        of(repeats(1, 1), repeats(1, 1, version="2"))


def test_what_cannot_be_compared_is_refused():
    with pytest.raises(InputError, match=r"run1 and run2 are of different machines: cpus \(2 / 9\)"):
        of(repeats(1, 1), repeats(1, 1, fingerprint={**MACHINE, "cpus": 9}))
    with pytest.raises(InputError, match="2 runs and more"):
        of(repeats(1, 1))
    with pytest.raises(InputError, match="each given once"):
        agreement.agreement([summarise(repeats(1, 1), "a")] * 2, ["a", "a"])


@pytest.mark.parametrize("form", ["text", "markdown"])
def test_the_command_prints_the_table_and_tells_by_its_code(tmp_path, capsys, form):
    a, b = folder(tmp_path / "a", repeats(99, 100, 101)), folder(tmp_path / "b", repeats(98, 100, 102))
    c = folder(tmp_path / "c", repeats(118, 120, 122))
    assert main(["agreement", str(a), str(b), "--format", form]) == 0
    out, err = capsys.readouterr()
    assert "Run 2" in out and "4.0%" in out and "yes" in out and f"Run 1: {a}." in out and err == ""
    assert main(["agreement", str(a), str(b), str(c), "--format", form]) == 1
    out, err = capsys.readouterr()
    assert "NO" in out and err.startswith("apart: dlrm-optimized-training-tiny")
    assert main(["agreement", str(a)]) == 2
