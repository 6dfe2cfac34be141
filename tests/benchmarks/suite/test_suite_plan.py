"""Which cells are run in which order, and why some are not."""

import dataclasses

import pytest
import suite_cases

from benchmarks.suite import plan
from benchmarks.suite.plan import Machine, Selection, cells, machine_precisions, why_not
from data.errors import InputError

SCALED = {
    "world_sizes": [1, 2],
    "scaling": {"implementations": ["optimized"], "strong": [64], "weak": [32, 64]},
}
HERE = Machine(cpus=2, memory_bytes=10 * 2**30)


def shown(found):
    return [(c.implementation, c.batch_size, c.world_size, c.scaling) for c in found]


def test_cells_of_batch_sizes_and_implementations():
    one = suite_cases.definition()
    assert shown(cells(one, Selection())) == [
        ("ootb", 32, 1, "single"),
        ("optimized", 32, 1, "single"),
        ("ootb", 64, 1, "single"),
        ("optimized", 64, 1, "single"),
    ]
    assert all(c.version == "1.0" and c.benchmark.endswith("training-small") for c in cells(one, Selection()))


def test_strong_scaling_shares_the_batch_and_weak_scaling_multiplies_it():
    found = cells(suite_cases.definition(**SCALED), Selection())
    assert [row for row in shown(found) if row[2] == 2] == [
        ("optimized", 64, 2, "strong"),
        ("optimized", 64, 2, "weak"),
        ("optimized", 128, 2, "weak"),
    ]


def test_bytes_of_a_collective_are_those_of_each_rank():
    one = suite_cases.micro(model="allreduce", mode="exchange", batch_sizes=[100, 200], world_sizes=[2])
    assert shown(cells(one, Selection())) == [("micro", 100, 2, "single"), ("micro", 200, 2, "single")]


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        ({"quick": True}, [("ootb", 32, 1, "single"), ("optimized", 32, 1, "single")]),
        (
            {"implementations": ("optimized",), "batch_sizes": (8,), "world_sizes": (1,)},
            [("optimized", 8, 1, "single")],
        ),
        ({"implementations": ("micro",)}, []),
        (
            {"world_sizes": (4,), "batch_sizes": (8,), "implementations": ("ootb",)},
            [("ootb", 8, 4, "strong"), ("ootb", 32, 4, "weak")],
        ),
    ],
)
def test_selections(selection, expected):
    assert shown(cells(suite_cases.definition(**SCALED), Selection(**selection))) == expected


STATED = SCALED | {"quick": {"ootb": [64]}, "default": {"ootb": [32], "optimized": [64, 32]}}


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        # Of several ranks there is what scaling states, and one rank alone where it is to be quick.
        (
            {"stated": "default"},
            [
                *(("ootb", 32, 1, "single"), ("optimized", 32, 1, "single"), ("optimized", 64, 1, "single")),
                *(("optimized", 64, 2, "strong"), ("optimized", 64, 2, "weak"), ("optimized", 128, 2, "weak")),
            ],
        ),
        ({"stated": "quick", "quick": True}, [("ootb", 64, 1, "single")]),
        ({"stated": "quick"}, [("ootb", 64, 1, "single")]),
        ({"stated": "default", "world_sizes": (1,), "implementations": ("ootb",)}, [("ootb", 32, 1, "single")]),
        ({"stated": "quick", "batch_sizes": (8,), "world_sizes": (1,)}, [("ootb", 8, 1, "single")]),
    ],
)
def test_a_selection_takes_what_is_stated_of_it(selection, expected):
    assert shown(cells(suite_cases.definition(**STATED), Selection(**selection))) == expected


@pytest.mark.parametrize("stated", ["quick", "default"])
def test_what_is_in_no_selection_has_no_cells_in_it(stated):
    one = suite_cases.definition(quick=None, default=None)
    assert cells(one, Selection(stated=stated)) == [] and len(cells(one, Selection())) == 4


def test_precisions_of_the_selection_replace_the_definitions():
    found = cells(suite_cases.definition(), Selection(precisions=("bf16",), quick=True))
    assert [c.precision for c in found] == ["bf16", "bf16"]


def test_implementations_alternate_and_repeats_are_spread():
    ones = [suite_cases.definition(batch_sizes=[8], config=config) for config in ("a", "b")]
    order = [(p.definition.config, p.cell.implementation, p.repeat) for p in plan.plan(ones, Selection(repeats=2))]
    assert order == [
        *(("a", "ootb", 1), ("a", "optimized", 1), ("b", "ootb", 1), ("b", "optimized", 1)),
        *(("a", "ootb", 2), ("a", "optimized", 2), ("b", "ootb", 2), ("b", "optimized", 2)),
    ]


def test_pairs_take_all_their_turns_before_the_next():
    one = suite_cases.definition(batch_sizes=[8, 16])
    order = [
        (p.cell.batch_size, p.cell.implementation, p.repeat) for p in plan.plan([one], Selection(repeats=2, pair=True))
    ]
    assert order == [
        *((8, "ootb", 1), (8, "optimized", 1), (8, "ootb", 2), (8, "optimized", 2)),
        *((16, "ootb", 1), (16, "optimized", 1), (16, "ootb", 2), (16, "optimized", 2)),
    ]


def test_what_cannot_run_is_listed_once_with_its_reason():
    one = suite_cases.definition(batch_sizes=[8])
    planned = plan.plan([one], Selection(), lambda _, c: "no" if c.implementation == "ootb" else "")
    assert [(p.cell.implementation, p.repeat, p.skipped) for p in planned] == [
        ("ootb", 1, "no"),
        *(("optimized", repeat, "") for repeat in (1, 2, 3)),
    ]


@pytest.mark.parametrize(
    ("changes", "cell", "machine", "reason"),
    [
        ({}, {}, {}, ""),
        ({"needs": {"gpus": 8}}, {}, {}, "needs 8 GPUs, 0 here"),
        ({"needs": {"gpus": 8}}, {"world_size": 8}, {"gpus": ("G",) * 8}, ""),
        ({"needs": {"machines": 2}}, {}, {}, "needs 2 machines, 1 given (--hosts)"),
        ({}, {"world_size": 2}, {"has_horovod": False}, "2 ranks need Horovod, which is not installed"),
        ({}, {"world_size": 3}, {}, "3 ranks on a machine with 2 CPUs"),
        ({}, {"world_size": 4}, {"machines": 2}, ""),
        ({}, {"world_size": 4}, {"machines": 2, "slots": 4}, ""),
        ({}, {"world_size": 4}, {"machines": 2, "slots": 3}, "4 ranks on hosts that take 3 (--hosts)"),
        ({}, {"world_size": 2}, {"gpus": ("G",)}, "2 ranks on a machine with 1 GPUs"),
        ({}, {"precision": "tf32"}, {}, "this machine does not compute in tf32, only in fp32"),
        ({}, {}, {"memory_bytes": 2**30}, "needs about 4.0 GiB of memory, 1.0 GiB are available"),
        (
            {},
            {"world_size": 2},
            {"memory_bytes": 5 * 2**30},
            "needs about 8.0 GiB of memory (2 ranks, 4.0 GiB each), 5.0 GiB are available",
        ),
        ({}, {}, {"memory_bytes": None}, ""),
        ({}, {}, {"gpus": ("G",), "gpu_memory_bytes": 2**30}, "needs about 4.0 GiB on a GPU, 1.0 GiB are free"),
    ],
)
def test_why_a_machine_cannot_run_a_cell(changes, cell, machine, reason):
    one = suite_cases.definition(**changes)
    here = dataclasses.replace(HERE, **machine)
    assert why_not(one, suite_cases.cell(one, **cell), here, lambda *_: 4 * 2**30) == reason


def test_bad_input_of_a_prediction_is_a_reason():
    def refuse(*_):
        raise InputError("no such dataset")

    one = suite_cases.definition()
    assert why_not(one, suite_cases.cell(one), HERE, refuse) == "no such dataset"


def test_the_key_is_that_of_what_is_run():
    one = suite_cases.definition()
    planned = plan.plan([one], Selection())
    assert plan.key(planned) == plan.key(reversed(planned)) == plan.key(plan.plan([one], Selection(pair=True)))
    assert plan.key(planned) != plan.key(planned[1:])
    assert plan.key(planned) != plan.key(plan.plan([suite_cases.definition(version="2.0")], Selection()))
    skipped = dataclasses.replace(planned[0], cell=suite_cases.cell(one, batch_size=9), skipped="no")
    assert plan.key(planned) == plan.key([skipped, *planned])


@pytest.mark.parametrize(
    ("cpu_flags", "gpus", "expected"),
    [
        ({"avx2"}, (), ("fp32",)),
        ({"avx512_bf16"}, (), ("fp32", "bf16")),
        ({"amx_bf16", "avx512_fp16"}, (), ("fp32", "bf16", "fp16")),
        (set(), ("NVIDIA A100",), ("fp32", "tf32", "bf16", "fp16")),
    ],
)
def test_precisions_that_a_machine_has(cpu_flags, gpus, expected):
    assert machine_precisions(frozenset(cpu_flags), gpus) == expected
