"""The cost of --deterministic: figures on turns made by hand, and two real turns."""

import json

import pytest

from benchmarks import own_process
from benchmarks.study import determinism_cost
from benchmarks.study.determinism_cost import WITH, WITHOUT, Turn, compare


def turns(seconds, losses):
    """Turns that took so long, one after the other, and had these losses; who asked is kept in `asked`."""
    asked, left = [], list(zip(seconds, losses, strict=True))

    def turn(deterministic):
        asked.append(deterministic)
        took, found = left.pop(0)
        return Turn(rows=100, seconds=took, losses=found)

    return turn, asked


def test_turns_alternate_and_medians_are_compared():
    turn, asked = turns([1.0, 2.0, 2.0, 4.0, 4.0, 5.0], [(0.5, 0.4)] * 6)
    without, with_it = compare(turn, 3, lambda line: None)
    assert asked == [False, True] * 3
    assert (without.name, without.figure, without.lowest, without.highest) == (WITHOUT, 50.0, 25.0, 100.0)
    assert (with_it.name, with_it.figure, with_it.ratio) == (WITH, 25.0, 0.5)
    assert without.note == with_it.note == "the same losses in 3 turns, the same in both"


def test_losses_that_differ_are_told():
    turn, _ = turns([1.0] * 4, [(0.5,), (0.6,), (0.5000001,), (0.6,)])
    without, with_it = compare(turn, 2, lambda line: None)
    assert without.note == "2 sequences of losses in 2 turns" and with_it.note == "the same losses in 2 turns"


def test_real_turns_in_processes_of_their_own(capsys, tmp_path):
    path = tmp_path / "cost.json"
    assert determinism_cost.main(["--runs=1", "--steps=2", "--threads=1", "--shrink=64", f"--json={path}"]) == 0
    rows = json.loads(path.read_text())
    assert [row["name"] for row in rows] == [WITHOUT, WITH] and all(row["figure"] > 0 for row in rows)
    assert "the same in both" in capsys.readouterr().out


@pytest.mark.parametrize("flag", ["runs", "steps", "threads", "shrink"])
def test_numbers_out_of_range_are_refused(flag, capsys, monkeypatch):
    monkeypatch.setattr(own_process, "call", lambda *arguments: pytest.fail("nothing may start"))
    assert determinism_cost.main([f"--{flag}=0"]) == 2
    assert capsys.readouterr().err == f"--{flag} must be at least 1, got 0\n"
