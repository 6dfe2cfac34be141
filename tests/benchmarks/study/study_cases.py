"""Plans and records of the runner's tests, made by hand."""

from benchmarks.study.cells import OK, Cell, Run
from benchmarks.study.plan import Plan

DTYPES = {"float32": "float32", "mixed_float16": "float16", "mixed_bfloat16": "bfloat16"}


def mapping(**changed):
    """A small plan as YAML has it; a key whose value is ... is left out."""
    found = {
        "name": "small",
        "models": ["wide_deep"],
        "precisions": ["float32", "mixed_bfloat16"],
        "xla": [False],
        "world_sizes": [1],
        "global_batch_sizes": [64],
        "seeds": [1, 2],
        "flags": {"dataset_type": "synthetic", "synthetic_rows": 2000, "num_epochs": 1},
        "controls": {},
        "equivalence_margin": 0.01,
        **changed,
    }
    return {key: value for key, value in found.items() if value is not ...}


def plan(**changed):
    return Plan.of("plan.yaml", mapping(**changed))


def cell(**changed):
    settings = {"model": "wide_deep", "precision": "float32", "xla": False, "world_size": 1, "global_batch_size": 64}
    return Cell(**{**settings, **changed})


def record(cell, seed, map_at_12=0.7):
    """The record, as JSON has it, of a run that proves its cell's settings."""
    return {
        "identity": {"model": cell.model, "mode": "training"},
        "config": {"seed": seed, "linear_learning_rate": 0.02, "deep_learning_rate": 0.001},
        "world_size": cell.world_size,
        "global_batch_size": cell.global_batch_size,
        "loss": 0.4,
        "log_loss": 0.4,
        "auc": 0.75,
        "map_at_12": map_at_12,
        "displays": 100,
        "trained": True,
        "ended_by": "steps",
        "evaluations": [{"step": 10, "epoch": 1.0, "train_seconds": 1.0, "map_at_12": map_at_12}],
        "settings_in_force": {
            "compute_dtype": DTYPES[cell.precision],
            "variable_dtype": "float32",
            "jit_compiled": ["forward_backward"] if cell.xla else [],
            "world_size": cell.world_size,
        },
    }


def run(cell, seed=1, **changed):
    settings = {"status": OK, "record": record(cell, seed), "seconds": 3.0}
    return Run(**{"cell": cell, "seed": seed, **settings, **changed})
