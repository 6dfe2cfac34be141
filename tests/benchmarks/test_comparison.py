import json

import pytest

from benchmarks import comparison
from benchmarks.comparison import Row
from data.errors import InputError


def test_no_pass_is_left_out_if_none_should_be():
    turns, said = [], []
    contenders = {name: lambda name=name: turns.append(name) or (6.0, 2.0) for name in ("one", "two")}
    assert comparison.measure(contenders, 2, said.append, "GB/s", left_out=0) == {"one": [3, 3], "two": [3, 3]}
    assert turns == ["one", "two"] * 2
    assert said[0] == "pass 1 of 2: one: 3 GB/s"


def test_rows_say_what_their_figures_are():
    lines = comparison.render(
        [
            Row("small", 0.05678, "s", 0.05, 0.06, ratio=0.05678, ratio_is="s", target=8, at_most=True),
            Row(
                "large", 12345.6, "samples/s", 12000, 13000, ratio=0.5, ratio_is="of it", target=0.92, note="no metrics"
            ),
            Row("a name that is longer than twenty-six letters", None, "samples/s", target=1.2, note="not installed"),
        ]
    ).splitlines()
    assert lines[0].startswith("small ") and "0.0568 s " in lines[0] and "(0.05 to 0.06)" in lines[0]
    assert lines[0].endswith("target: at most 8, met")
    assert "12,346 samples/s (12,000 to 13,000)" in lines[1] and lines[1].endswith("at least 0.92, MISSED [no metrics]")
    assert lines[2] == "a name that is longer than twenty-six letters not installed"
    assert lines[0].index("target") == lines[1].index("target")


def test_a_target_without_a_ratio_is_neither_met_nor_missed():
    assert Row("a", 1.0, "s", target=2.0).met is None and Row("a", 1.0, "s", ratio=2.0).met is None
    assert Row("a", 1.0, "s", ratio=2.0, target=2.0).met is True
    assert Row("a", 1.0, "s", ratio=2.1, target=2.0, at_most=True).met is False


def test_json_has_every_row(tmp_path):
    path = tmp_path / "rows.json"
    rows = [Row("a", 1.0, "s", ratio=2.0, target=1.0), Row("b", None, "s", note="why")]
    comparison.write_json(rows, str(path))
    first, second = json.loads(path.read_text())
    assert first["met"] is True and first["figure"] == 1.0 and second["met"] is None and second["note"] == "why"
    with pytest.raises(InputError, match="cannot be written: No such file"):
        comparison.write_json(rows, str(tmp_path / "none" / "rows.json"))
