"""Pictures: what they say, how many runs they rest on, and that there is none of nothing."""

import pytest
from study_cases import cell
from study_report_cases import runs, small_plan, study, whole

from benchmarks.report import drawing
from benchmarks.study.report import comparisons, figures, tables
from benchmarks.study.report.blocks import Picture

pytest.importorskip("matplotlib", reason="matplotlib is not installed")

ALONE = ("world_sizes", "global_batch_sizes")


@pytest.fixture
def plan():
    return small_plan(xla=[False, True], world_sizes=[1, 2], global_batch_sizes=[64, 128], alone=list(ALONE))


def all_of(found):
    groups = tables.batch_size_groups(found, "wide_deep")
    return [
        *figures.learning_curves(found, "wide_deep"),
        *figures.distributions(found, "wide_deep"),
        *figures.pairs(found, "wide_deep"),
        *figures.throughput(found, "wide_deep"),
        *figures.batch_sizes(found, groups, "wide_deep"),
        *figures.differences(found, comparisons.compared(found)),
    ]


def test_each_says_how_many_runs_it_rests_on(tmp_path, plan):
    found = all_of(study(tmp_path, plan, whole(plan)))
    assert {one.name: one.plot.text.partition("Rests on ")[2] for one in found} == {
        "learning-curves-wide_deep": "28 runs, 4 a configuration.",
        "stability-wide_deep": "24 runs, 4 a configuration.",
        "mixed-precision-wide_deep": "16 runs, 4 a configuration.",
        "throughput-wide_deep": "8 runs, 4 a configuration.",
        "batch-size-wide_deep": "8 runs, 4 a configuration.",
        "equivalence": "24 runs, 4 a configuration.",
    }
    assert all(one.plot.png.startswith(b"\x89PNG") and one.plot.svg.startswith("<svg") for one in found)
    assert len({one.plot.title for one in found}) == len(found)


def test_what_is_drawn_is_named(tmp_path, plan):
    svgs = {one.name: one.plot.svg for one in all_of(study(tmp_path, plan, whole(plan)))}
    for name, texts in {
        "learning-curves-wide_deep": ("MAP@12", "step", "1 x 128", "2 x 32", " mixed bfloat16, XLA", "degraded"),
        "stability-wide_deep": ("all configurations", "float32, XLA"),
        "mixed-precision-wide_deep": ("mixed bfloat16", "no XLA"),
        "throughput-wide_deep": ("samples/s", "ranks", " float32, global batch 64"),
        "batch-size-wide_deep": ("global batch size", "128"),
        "equivalence": ("no XLA to XLA: mixed bfloat16, 1 x 64", " equivalent", "difference of mean MAP@12"),
    }.items():
        assert all(text in svgs[name] for text in texts), name
    assert "degraded" not in svgs["stability-wide_deep"] + svgs["equivalence"]


def test_the_same_runs_give_the_same_bytes(tmp_path, plan):
    found = study(tmp_path, plan, whole(plan))
    assert figures.distributions(found, "wide_deep") == figures.distributions(found, "wide_deep")


def test_missing_runs_are_left_out_and_counted(tmp_path, plan):
    its_runs = [*runs(cell(), [0.7, "killed", 0.701]), *runs(cell(precision="mixed_bfloat16"), [0.7])]
    found = {one.name: one.plot.text for one in all_of(study(tmp_path, plan, its_runs))}
    assert "Rests on 3 runs, 1 to 2 a configuration." in found["mixed-precision-wide_deep"]
    # One run of a side has no interval; two sizes or ranks there are none.
    assert set(found) == {"learning-curves-wide_deep", "stability-wide_deep", "mixed-precision-wide_deep"}


def test_of_no_runs_and_of_no_map_there_is_no_picture(tmp_path, plan):
    assert all_of(study(tmp_path / "a", plan, [])) == []
    its_runs = runs(cell(), [0.7, 0.7], map_at_12=None, evaluations=[{"step": 1, "map_at_12": None}], displays=None)
    assert all_of(study(tmp_path / "b", plan, its_runs)) == []


def test_curves_are_of_the_steps_that_all_runs_have(tmp_path, plan, monkeypatch):
    drawn = []
    monkeypatch.setattr(
        figures.drawings, "curves", lambda panels, controls: drawn.append(panels) or drawing.figure(1, 1)
    )
    its_runs = [
        *runs(cell(), [0.7]),
        *runs(cell(), [None, 0.9], evaluations=[{"step": 20, "map_at_12": 0.9}, {"step": 30, "map_at_12": 1.0}]),
    ]
    (picture,) = figures.learning_curves(study(tmp_path, plan, its_runs), "wide_deep")
    assert isinstance(picture, Picture)
    assert drawn == [{"1 x 64": {"float32": {20: [0.7, 0.9]}}}]
