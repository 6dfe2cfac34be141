"""The sections: all are there, and say what is missing."""

from study_cases import cell
from study_report_cases import runs, small_plan, study, whole

from benchmarks.report import drawing
from benchmarks.study.report import blocks, comparisons
from benchmarks.study.report.sections import CPU_ARITHMETIC, sections

TITLES = [
    "What the study shows", "Training accuracy", "Learning curves", "Training stability",
    "Influence of mixed precision", "Training throughput", "Evaluation throughput", "Time to a target",
    "Accuracy against batch size", "Equivalence", "Published by others", "Runs that do not count", "Machine and plan",
]  # fmt: skip


def made(path, plan, its_runs, *further_lines):
    found = study(path, plan, its_runs, *further_lines)
    return sections(found, comparisons.compared(found), ["It cannot tell."])


def text(found, title):
    (one,) = (section for section in found if section.title == title)
    return blocks.markdown("", [one])


def test_all_are_there_in_order(tmp_path):
    plan = small_plan()
    found = made(tmp_path / "a", plan, whole(plan))
    assert [one.title for one in found] == TITLES
    assert [one.title for one in made(tmp_path / "b", plan, [])] == TITLES
    assert "12 of 12 planned runs count: 3 configurations, 4 seeds each" in text(found, TITLES[0])
    assert "All planned runs are there, and count." in text(found, "Runs that do not count")


def test_problems_stand_first_and_in_bold(tmp_path):
    assert made(tmp_path, small_plan(), [])[0].blocks[0] == blocks.Text("It cannot tell.", strong=True)


def test_every_table_of_ours_says_how_many_runs_it_rests_on(tmp_path):
    plan = small_plan(global_batch_sizes=[64, 128])
    ours = [
        block
        for section in made(tmp_path, plan, whole(plan))
        for block in section.blocks
        if isinstance(block, blocks.Table) and section.title not in ("Published by others", "Machine and plan")
    ]
    assert len(ours) == 10
    assert all(block.title.endswith(" runs)") for block in ours)


def test_runs_that_do_not_count_are_listed(tmp_path):
    found = text(made(tmp_path, small_plan(), runs(cell(), [0.7, "no memory"]), "{\n"), "Runs that do not count")
    assert "| float32, 1 x 64 | 2 | failed: no memory |" in found
    assert "| float32, 1 x 64 | 3, 4 | 2 |" in found
    assert "line 3: left out" in found


def test_a_cpu_is_said_to_be_one(tmp_path):
    plan = small_plan()
    assert CPU_ARITHMETIC.startswith("CPU arithmetic is not a GPU's.")
    on_cpu = text(made(tmp_path / "a", plan, whole(plan)), "Influence of mixed precision")
    assert "CPU arithmetic is not a GPU's" in on_cpu
    its_runs = runs(cell(), device="GPU (H200)")
    assert "CPU" not in text(made(tmp_path / "b", plan, its_runs), "Influence of mixed precision")


def test_what_the_plan_does_not_have_is_said(tmp_path):
    plan = small_plan(precisions=["float32"], target_map12=None)
    found = made(tmp_path, plan, runs(cell(), map_margin_share=None, auc_margin_share=None))
    assert "The plan has one precision." in text(found, "Influence of mixed precision")
    assert "The plan has no target." in text(found, "Time to a target")
    assert "The plan has one batch size." in text(found, "Accuracy against batch size")
    assert "they are not generated" in text(found, "Training accuracy")


def test_without_matplotlib_there_are_tables_and_it_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(drawing, "can_draw", lambda: False)
    plan = small_plan(global_batch_sizes=[64, 128])
    found = made(tmp_path, plan, whole(plan))
    assert blocks.pictures(found) == []
    assert "matplotlib is not installed" in text(found, "Learning curves")
