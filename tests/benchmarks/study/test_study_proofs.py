"""A run counts only where its record proves its cell's settings."""

import pytest
import study_cases

from benchmarks.study import proofs
from benchmarks.study.cells import FAILED, PRECISIONS


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("xla", [False, True])
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_record_that_proves_its_settings_counts(precision, xla, ranks):
    cell = study_cases.cell(precision=precision, xla=xla, world_size=ranks)
    assert proofs.why_not(study_cases.run(cell)) is None


@pytest.mark.parametrize(
    ("asked", "changed", "said"),
    [
        ({"precision": "mixed_float16"}, {"compute_dtype": "float32"}, "its dense layers computed in float32"),
        ({"precision": "mixed_float16"}, {"compute_dtype": "bfloat16"}, "computed in bfloat16"),
        ({}, {"compute_dtype": "float16"}, "float32 was asked for"),
        ({}, {"variable_dtype": "float16"}, "variables are float16"),
        ({"xla": True}, {"jit_compiled": []}, "no compiled function ran"),
        ({}, {"jit_compiled": ["step"]}, "XLA was not asked for, and compiled step"),
        ({}, {"jit_compiled": None}, "does not say which functions"),
        ({"world_size": 2}, {"world_size": 1}, "2 ranks were asked for, and its record has 1 ranks that answered"),
    ],
)
def test_settings_that_were_not_in_force(asked, changed, said):
    cell = study_cases.cell(**asked)
    record = study_cases.record(cell, 1)
    record["settings_in_force"] |= changed
    assert said in proofs.why_not(study_cases.run(cell, record=record))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"settings_in_force": None}, "does not say which settings"),
        ({"world_size": 2}, "its record has 2 ranks"),
        ({"global_batch_size": 32}, "global batch 32 and seed 1, not of wide_deep, 64 and 1"),
        ({"config": {"seed": 2}}, "seed 2"),
        ({"identity": {"model": "dlrm"}}, "of model dlrm"),
        ({"trained": False}, "weights are those that it began with"),
        ({"trained": None}, "weights are those that it began with"),
        ({"ended_by": "signal"}, "a signal ended its training"),
        ({"loss": None}, "its loss is None: not finite"),
        ({"auc": float("nan")}, "its auc is nan: not finite"),
        ({"map_at_12": None}, "its map_at_12 is None: not finite"),
        ({"evaluations": []}, "it was not evaluated"),
    ],
)
def test_trainings_that_say_nothing(changed, said):
    cell = study_cases.cell()
    assert said in proofs.why_not(study_cases.run(cell, record=study_cases.record(cell, 1) | changed))


def test_a_run_of_a_fold_has_trained_on_its_dataset():
    cell = study_cases.cell()
    record = study_cases.record(cell, 1)
    assert "its record is of the dataset None, not of fold 2" in proofs.why_not(study_cases.run(cell, fold=2))
    for path, said in (("/study/folds/fold-2", None), ("/study/folds/fold-1", "fold-1, not of fold 2")):
        config = {**record["config"], "dataset_path": path}
        problem = proofs.why_not(study_cases.run(cell, fold=2, record=record | {"config": config}))
        assert problem is None if said is None else said in problem


def test_without_displays_there_is_no_map():
    cell = study_cases.cell()
    record = study_cases.record(cell, 1) | {"displays": None, "map_at_12": None}
    assert proofs.why_not(study_cases.run(cell, record=record)) is None


def test_a_failed_run_says_why():
    run = study_cases.run(study_cases.cell(), status=FAILED, record=None, reason="it broke")
    assert proofs.why_not(run) == "failed: it broke"
