import dataclasses
import itertools

import keras
import pytest
from ootb_cases import make_keras, make_workload

from benchmarks.ootb.shapes import layer_widths, table_dims, table_sizes
from data.errors import InputError
from trainer.assembly import table_groups

ALL = [
    ("wide_deep", {}),
    ("dlrm", {}),
    ("dlrm", {"self_interaction": True}),
    ("dlrm", {"numericals": 0}),
    ("dlrm", {"interaction": "concat"}),
    ("dcnv2", {}),
]


def every_layer(model):
    return [layer for layer in model._flatten_layers() if layer is not model]


@pytest.mark.parametrize(("name", "changes"), ALL)
def test_sizes_are_those_of_the_model(name, changes):
    workload = make_workload(name, **changes)
    layers = every_layer(make_keras(workload))
    dense = [tuple(layer.kernel.shape) for layer in layers if isinstance(layer, keras.layers.Dense)]
    widths = layer_widths(workload.config, workload.spec)
    assert sorted(dense) == sorted(pair for stack in widths for pair in itertools.pairwise(stack))
    tables = [layer.embeddings.shape for layer in layers if isinstance(layer, keras.layers.Embedding)]
    assert sorted(rows * dim for rows, dim in tables) == sorted(table_sizes(workload.config, workload.spec))


@pytest.mark.parametrize("name", ["wide_deep", "dlrm", "dcnv2"])
def test_dimensions_are_our_models(name, monkeypatch, tmp_path):
    workload = make_workload(name)
    monkeypatch.chdir(tmp_path)  # the file of sizes is found from anywhere
    groups = table_groups(workload.config, workload.spec)
    ours = {table.name: group.dim for group in groups if not group.sum_features for table in group.tables}
    assert table_dims(workload.config, workload.spec) == ours


def test_outbrains_dimensions_come_from_the_file(monkeypatch, tmp_path):
    from benchmarks import workloads

    monkeypatch.chdir(tmp_path)
    workload = workloads.wide_deep()
    assert sum(table_dims(workload.config, workload.spec).values()) == 1235
    stacks = [pair for stack in layer_widths(workload.config, workload.spec) for pair in itertools.pairwise(stack)]
    dense = sum(width * units + units for width, units in stacks)
    assert 91.5e6 < dense + sum(table_sizes(workload.config, workload.spec)) < 92e6


def test_shapes_that_do_not_fit():
    workload = make_workload("dlrm", bottom_mlp_dims=(6, 3))
    with pytest.raises(InputError, match=r"one width, got 3, 4, 4, 4 .*--embedding_dim.*--interaction=concat"):
        layer_widths(workload.config, workload.spec)
    workload = make_workload("wide_deep", numericals=0)
    with pytest.raises(InputError, match="needs a numerical feature"):
        layer_widths(workload.config, workload.spec)
    workload = make_workload("dlrm", numericals=0)
    alone = dataclasses.replace(workload.spec, onehot=("ad",), multihot=())
    with pytest.raises(InputError, match="no pair: add --self_interaction"):
        layer_widths(workload.config, alone)
