"""Plans: what they may say, and which cells and settings they come to."""

import pytest
import study_cases
import yaml

from benchmarks.study.cells import Cell
from benchmarks.study.plan import PRESETS, Comparison, Plan
from data.errors import InputError
from trainer import flags


def test_what_is_left_out_has_its_default():
    plan = study_cases.plan(seeds=..., controls=...)
    assert plan.seeds == tuple(range(1, 21)) and plan.controls == {"degraded": 0.1}
    assert (plan.confidence, plan.lr_scaling, plan.target_map12, plan.runs_per_launch) == (0.95, "none", None, 1)


def test_a_number_of_seeds_counts_from_one():
    assert study_cases.plan(seeds=3).seeds == (1, 2, 3)
    assert study_cases.plan(seeds=[7, 0]).seeds == (7, 0)


def test_cells_are_all_combinations_and_the_controls():
    plan = study_cases.plan(xla=[False, True], world_sizes=[1, 2], controls={"degraded": 0.1})
    names = [cell.name for cell in plan.cells()]
    assert len(names) == 9 and names[0] == "wide_deep-float32-1x64" == plan.baseline("wide_deep").name
    assert "wide_deep-mixed_bfloat16-xla-2x32" in names and names[-1] == "wide_deep-float32-1x64-rate*0.1-degraded"


def test_values_that_stand_alone_meet_the_baseline_only():
    plan = study_cases.plan(xla=[False, True], global_batch_sizes=[64, 128], alone=["global_batch_sizes"])
    large = [cell for cell in plan.cells() if cell.global_batch_size == 128]
    assert large == [Cell("wide_deep", "float32", False, 1, 128)] and len(plan.cells()) == 5
    every = study_cases.plan(
        xla=[False, True], world_sizes=[1, 2], alone=["precisions", "xla", "world_sizes", "global_batch_sizes"]
    )
    assert len(every.cells()) == 4


def test_comparisons_differ_in_one_setting():
    plan = study_cases.plan(world_sizes=[2, 1], controls={"slow": 0.5})
    low, high = Cell("wide_deep", "float32", False, 2, 64), Cell("wide_deep", "mixed_bfloat16", False, 2, 64)
    one = Cell("wide_deep", "float32", False, 1, 64)
    found = plan.comparisons()
    assert Comparison("precision", low, high) in found and Comparison("world_size", low, one) in found
    assert found[-1] == Comparison("control", low, Cell("wide_deep", "float32", False, 2, 64, 0.5, "slow"))
    assert len(found) == 2 + 2 + 1


def test_settings_of_a_run_are_flags_of_the_trainer():
    plan = study_cases.plan(xla=[True], lr_scaling="sqrt")
    config = flags.parse([f"--{name}={value}" for name, value in plan.settings(plan.cells()[1], 7).items()])
    assert config.device.precision == "mixed_bfloat16" and config.device.xla
    assert (config.training.seed, config.training.global_batch_size, config.training.lr_scaling) == (7, 64, "sqrt")


def test_seeds_do_not_change_the_data():
    plan = study_cases.plan(flags={"dataset_type": "synthetic", "synthetic_seed": 5})
    first, second = (plan.settings(plan.cells()[0], seed) for seed in (1, 2))
    assert {name for name in first if first[name] != second[name]} == {"seed"}


def test_controls_change_the_rates_that_are_given_and_those_that_are_not():
    plan = study_cases.plan(controls={"degraded": 0.1}, flags={"linear_learning_rate": 0.5})
    control = plan.settings(plan.cells()[-1], 1)
    assert control["linear_learning_rate"] == pytest.approx(0.05)
    assert control["deep_learning_rate"] == pytest.approx(0.000012)
    other = study_cases.plan(models=["dlrm"], controls={"degraded": 0.1}, flags={"learning_rate": 2.0})
    assert other.settings(other.cells()[-1], 1)["learning_rate"] == pytest.approx(0.2)


def test_a_plan_survives_its_file(tmp_path):
    sets = [{"cpus": "0-1,3"}, {"gpus": "0,1", "cpus": "2"}]
    plan = study_cases.plan(device_sets=sets, flags={"deep_hidden_units": [16, 8]}, target_map12=0.7)
    path = tmp_path / "plan.yaml"
    path.write_text(plan.to_yaml())
    assert Plan.load(str(path)) == plan and Plan.load(str(path)).differences(plan) == []


def test_differences_are_named_and_how_runs_are_started_is_none():
    plan = study_cases.plan()
    other = study_cases.plan(seeds=[1], equivalence_margin=0.02, runs_per_launch=9, timeout_s=5)
    assert plan.differences(other) == ["equivalence_margin", "seeds"]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"seed": 1}, "there is no key 'seed'"),
        ({"models": ...}, "the key 'models' is missing"),
        ({"models": ["bert"]}, "models must be a list of different ones of wide_deep"),
        ({"precisions": ["float32", "float32"]}, "precisions must be"),
        ({"xla": [1]}, "xla must be a list of different ones of false, true, got [1]"),
        ({"world_sizes": [0]}, "world_sizes must be a list of different numbers from 1 on, got [0]"),
        ({"seeds": 0}, "seeds must be a number from 1 on"),
        ({"seeds": [1, 1]}, "seeds must be"),
        ({"equivalence_margin": 0}, "equivalence_margin must be a number between 0 and 1, got 0"),
        ({"equivalence_margin": ...}, "the key 'equivalence_margin' is missing"),
        ({"controls": {"same": 1}}, "controls must be"),
        ({"controls": {"a/b": 0.1}}, "controls must be a mapping of labels, plain file names, to numbers"),
        ({"name": "a/../b"}, "name must be a plain file name: no / or \\, and none of . - or a blank at its beginning"),
        ({"name": "a\\b"}, "name must be a plain file name"),
        ({"name": ".."}, "name must be a plain file name"),
        ({"name": "two\nlines"}, "name must be a plain file name"),
        ({"name": ""}, "name must be a plain file name"),
        ({"name": 7}, "name must be a plain file name"),
        ({"alone": ["seeds"]}, "alone must be"),
        ({"lr_scaling": "cubic"}, "lr_scaling must be one of none, sqrt, linear"),
        ({"timeout_s": float("inf")}, "timeout_s must be a number above 0"),
        ({"device_sets": [{"cpus": "a"}]}, "device_sets must be"),
        ({"device_sets": [{"gpus": "0"}], "world_sizes": [2]}, "device_sets have at most 1 GPUs"),
        ({"flags": {"seed": 3}}, "flags: seed is not for here: use the key seeds"),
        ({"flags": {"amp": True}}, "use the key precisions"),
        ({"flags": {"benchmark": True}}, "flags: benchmark is not for a study"),
        ({"flags": {"synthetic_seed": [1, 2]}}, "synthetic_seed must be one number"),
        ({"folds": 1}, "folds must be a number from 2 on, or null, got 1"),
        ({"folds": 3, "flags": {}}, "folds and sample_path go together: add sample_path"),
        ({"sample_path": "raw"}, "folds and sample_path go together: add folds"),
        ({"folds": 3, "sample_path": "raw"}, "dataset_type is not for a study of folds: use the key sample_path"),
        (
            {"folds": 3, "sample_path": "raw", "flags": {"dataset_path": "x"}},
            "flags: dataset_path is not for a study of",
        ),
        ({"flags": {"num_epoch": 3}}, "wide_deep-float32-1x64: Unknown command line flag 'num_epoch'"),
        ({"flags": {"num_epochs": 0}}, "wide_deep-float32-1x64: --num_epochs"),
    ],
)
def test_what_a_plan_cannot_say_is_one_line(changed, said):
    with pytest.raises(InputError) as caught:
        study_cases.plan(**changed)
    message = str(caught.value)
    assert said in message and message.startswith("plan.yaml: ") and "\n" not in message


@pytest.mark.parametrize("text", ["[1", "just words"])
def test_a_file_that_is_no_plan(tmp_path, text):
    (tmp_path / "plan.yaml").write_text(text)
    with pytest.raises(InputError) as caught:
        Plan.load(str(tmp_path / "plan.yaml"))
    assert "\n" not in str(caught.value)


def test_a_key_that_stands_twice_is_named_with_its_line(tmp_path):
    path = tmp_path / "plan.yaml"
    path.write_text(study_cases.plan().to_yaml() + "seeds: 3\n")
    with pytest.raises(InputError) as caught:
        Plan.load(str(path))
    lines = path.read_text().splitlines()
    assert str(caught.value).startswith(
        f"{path}:{len(lines)}: the key 'seeds' stands in line {lines.index('seeds:') + 1} "
    )


def test_presets_are_known_by_name():
    with pytest.raises(
        InputError, match=r"desktop: cannot be read: .*give a plan's file, or a preset: clicks, laptop, paper"
    ):
        Plan.load("desktop")
    for path in PRESETS.glob("*.yaml"):
        assert Plan.load(path.stem).name == path.stem


def test_the_paper_s_grid_is_the_seed_s():
    plan = Plan.load("paper")
    assert plan.seeds == tuple(range(1, 21)) and plan.baseline("wide_deep").global_batch_size == 131072
    names = {(cell.precision, cell.xla, cell.world_size) for cell in plan.cells() if not cell.label}
    assert names == {(p, x, n) for p in ("float32", "mixed_float16") for x in (False, True) for n in (1, 8)}
    # Flags that the preset leaves alone have the seed's defaults.
    config = flags.parse([f"--{name}={value}" for name, value in plan.settings(plan.cells()[0], 1).items()])
    assert config.data.dataset_path == "/outbrain/data" and config.training.num_epochs == 20


def test_the_laptop_s_grid_has_both_mixed_precisions_and_a_control():
    plan = Plan.load("laptop")
    assert len(plan.seeds) == 10 and {cell.precision for cell in plan.cells()} == set(plan.precisions)
    assert len(plan.precisions) == 3 and {one.setting for one in plan.comparisons()} == {
        *("precision", "xla", "world_size", "global_batch_size", "control")
    }


def test_each_seed_trains_on_each_fold():
    plan = study_cases.plan(seeds=[4, 2], folds=2, sample_path="raw", flags={})
    assert plan.trials == ((4, 1), (4, 2), (2, 1), (2, 2))
    assert study_cases.plan(seeds=[4, 2]).trials == ((4, None), (2, None))


def test_a_sample_may_move_and_folds_may_not_change():
    plan, moved, more = (
        study_cases.plan(folds=folds, sample_path=path, flags={}) for folds, path in ((2, "a"), (2, "b"), (3, "a"))
    )
    assert plan.differences(moved) == [] and plan.differences(more) == ["folds"]


def test_the_preset_of_real_clicks_has_three_folds_and_five_seeds():
    plan = Plan.load("clicks")
    assert (plan.folds, len(plan.seeds), plan.sample_path) == (3, 5, "$OUTBRAIN_SAMPLE")
    assert plan.baseline("wide_deep").precision == "float32" and len(plan.trials) == 15


def test_plans_are_plain_yaml():
    assert yaml.safe_load(study_cases.plan().to_yaml())["precisions"] == ["float32", "mixed_bfloat16"]
