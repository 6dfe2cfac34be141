"""Predictions against what was measured and against what the code that allocates says."""

import pytest
import suite_cases

from benchmarks.suite import memory
from benchmarks.suite.definitions import load
from benchmarks.suite.settings import resolve
from trainer import ftrl, optimizers
from trainer.dataset import planned_spec

MIB = 2**20
TOLERANCE = 0.05
OURS = {
    "sgd": optimizers.SGD,
    "adagrad": optimizers.Adagrad,
    "rowwise_adagrad": optimizers.RowwiseAdagrad,
    "rmsprop": lambda: optimizers.RMSprop(rho=0.9),
    "adam": optimizers.Adam,
    "ftrl": lambda: ftrl.Ftrl(0.1),
}


def largest(one, implementation):
    sizes = [(size, 1) for size in one.batch_sizes]
    if 1 not in one.world_sizes:
        sizes = [(max(one.batch_sizes), max(one.world_sizes))]
    batch, ranks = max(sizes)
    return suite_cases.cell(one, implementation=implementation, batch_size=batch, world_size=ranks)


@pytest.mark.parametrize("one", load(), ids=lambda one: one.name)
def test_what_a_definition_expects_is_what_is_predicted(one):
    assert one.expected_memory is not None and set(one.expected_memory) == set(one.implementations)
    for implementation, expected in one.expected_memory.items():
        predicted = memory.predicted_bytes(one, largest(one, implementation)) / MIB
        assert predicted == pytest.approx(expected, rel=TOLERANCE), implementation


@pytest.mark.parametrize("name", OURS)
def test_slots_are_those_that_optimizers_have(name):
    optimizer = OURS[name]()
    assert memory.SLOTS_PER_WEIGHT[name] == optimizer.slots_per_weight
    assert memory.SLOTS_PER_ROW.get(name, 0) == optimizer.slots_per_row


def test_tables_are_counted_with_their_slots():
    # 50 and 20 rows: dimension 16 by the rule, a slot for each weight and one for each row; a wide weight, two slots.
    one = suite_cases.definition()
    config = resolve(one, suite_cases.cell(one))
    assert memory.table_bytes(config, planned_spec(config)) == 4 * 70 * (16 * 2 + 1 + 1 * 3)
    scoring = suite_cases.definition(mode="inference", correctness={"check": "reference", "flags": {}})
    config = resolve(scoring, suite_cases.cell(scoring))
    assert memory.table_bytes(config, planned_spec(config)) == 4 * 70 * (16 + 1)


def test_ranks_share_tables_of_model_parallelism():
    flags = {**suite_cases.SMALL_DATA, "synthetic_dataset_cardinalities": [1_000_000, 1_000_000]}

    def of(**more):
        one = suite_cases.definition(model="dlrm", flags={**flags, **more})
        config = resolve(one, suite_cases.cell(one))
        return memory.optimized_bytes(config, planned_spec(config), world_size=2)

    alone = of()
    tables = 2_000_000 * 128 * 4
    assert alone - of(embedding_parallelism="model") == pytest.approx(tables * (1 - 1.1 / 2), rel=0.01)


# Measured on 2 cores of an AMD EPYC with 24 GiB: largest resident memory of one rank, MiB.
MEASURED = {"wide_deep-training-outbrain": 2150, "dlrm-training-tiny": 3208}


@pytest.mark.parametrize("name", MEASURED)
def test_predictions_are_near_what_was_measured(name):
    (one,) = [one for one in load() if one.name == name]
    predicted = memory.predicted_bytes(one, largest(one, "optimized")) / MIB
    assert predicted == pytest.approx(MEASURED[name], rel=0.25)
