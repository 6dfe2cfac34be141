"""The report in a folder, and the command that writes it."""

import os

import pytest
from study_cases import cell
from study_report_cases import folder, runs, small_plan, whole

from benchmarks.study import __main__ as command
from benchmarks.study.report import write_report
from data.errors import InputError

pytest.importorskip("matplotlib", reason="matplotlib is not installed")

PICTURES = {"learning-curves-wide_deep", "stability-wide_deep", "mixed-precision-wide_deep", "equivalence"}


def test_everything_is_written(tmp_path):
    plan = small_plan()
    place = folder(tmp_path, plan, whole(plan))
    written = write_report(place)
    names = {f"figures/{name}.{kind}" for name in PICTURES for kind in ("png", "svg")} | {"report.md", "report.html"}
    assert {os.path.relpath(path, place) for path in written.paths} == names
    found = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    assert found == names | {"plan.yaml", "runs.jsonl"}
    assert written.problems == ()
    assert written.verdicts[0] == "float32 to mixed bfloat16: equivalent; largest difference +0.00000"
    page, text = (tmp_path / "report.html").read_text(), (tmp_path / "report.md").read_text()
    assert page.count("<figure>") == 4 and "figures/" not in page
    assert all(f"](figures/{name}.png)" in text for name in PICTURES)
    assert (tmp_path / "figures" / "equivalence.svg").read_text().startswith("<svg")


def test_again_it_writes_the_same_and_takes_away_figures_that_are_no_more(tmp_path):
    plan = small_plan()
    place = folder(tmp_path, plan, whole(plan))
    write_report(place)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    (tmp_path / "figures" / "old.png").write_bytes(b"")
    (tmp_path / "figures" / "notes.txt").write_text("mine")
    write_report(place)
    after = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert after.pop(tmp_path / "figures" / "notes.txt") == b"mine"
    assert after == before


def test_the_command_prints_paths_and_verdicts(tmp_path, capsys):
    plan = small_plan()
    assert command.main(["report", folder(tmp_path, plan, whole(plan))]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert str(tmp_path / "report.html") in lines
    assert lines[-1].startswith("baseline to control degraded (rates x 0.1): different;")


@pytest.mark.parametrize(
    ("less_of_control", "changed", "said"),
    [
        (0.0, {}, "This study cannot tell settings apart"),
        (0.2, {"least_margin_share": 0.93}, "has not learned enough"),
    ],
)
def test_a_study_that_cannot_say_what_it_is_for_is_code_1(tmp_path, capsys, less_of_control, changed, said):
    plan = small_plan(**changed)
    assert command.main(["report", folder(tmp_path, plan, whole(plan, less_of_control))]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
    bold = [line for line in (tmp_path / "report.md").read_text().splitlines() if line.startswith("**")]
    assert len(bold) == 1 and said in bold[0]
    assert "<p><strong>Th" in (tmp_path / "report.html").read_text()


def test_a_failed_run_and_a_damaged_line_are_not_fatal(tmp_path, capsys):
    plan = small_plan()
    its_runs = [*whole(plan)[1:], *runs(cell(), ["no memory"])]
    assert command.main(["report", folder(tmp_path, plan, its_runs, '{"cell')]) == 0
    text = (tmp_path / "report.md").read_text()
    assert "failed: no memory" in text and "line 13: left out" in text and "11 of 12 planned runs count" in text


def test_no_runs_at_all_give_blank_tables_and_code_1(tmp_path):
    assert command.main(["report", folder(tmp_path, small_plan(), [])]) == 1
    assert "| float32 | 1 x 64 |  |  |  |  | 0 |" in (tmp_path / "report.md").read_text()


def test_a_folder_without_a_study_is_one_line_and_code_2(tmp_path, capsys):
    assert command.main(["report", str(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"{tmp_path}: no study: it has no plan.yaml; name the --results_dir of a study's run"
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_way_is_bad_input_and_nothing_is_written(tmp_path):
    plan = small_plan()
    place = folder(tmp_path, plan, whole(plan))
    (tmp_path / "figures").write_text("mine")
    with pytest.raises(InputError, match="figures: cannot be made: File exists"):
        write_report(place)
    assert {path.name for path in tmp_path.iterdir()} == {"plan.yaml", "runs.jsonl", "figures"}
