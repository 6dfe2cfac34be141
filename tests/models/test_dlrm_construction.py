import keras
import numpy as np
import pytest
from dlrm_cases import (
    ALL,
    EQUAL,
    NO_CATEGORICAL,
    NO_NUMERICAL,
    ONE_TABLE,
    ROWS,
    SEVERAL,
    dense_weights,
    make_batch,
    make_model,
    make_spec,
    table_rows,
)

from data.errors import InputError
from models.dlrm import DLRM
from models.embedding import initial_rows, uniform_by_rows
from models.table_groups import ReplicatedTables


def test_tables_of_equal_dimension_share_a_variable():
    model = make_model("concat")
    assert [(t.group, t.dim, [f.name for f in t.tables], t.variable.shape.as_list()) for t in model.tables] == [
        ("main", 4, ["platform", "words"], [10, 4]),
        ("main", 3, ["topics"], [5, 3]),
        ("main", 2, ["page"], [8, 2]),
    ]
    groups = DLRM.table_groups(ALL, SEVERAL, combiner="mean", seed=3)
    assert [(g.name, g.dim, g.combiner, g.optimizer_group, g.seed, g.sum_features) for g in groups] == [
        (f"embedding_{dim}", dim, "mean", "main", 3, False) for dim in (4, 3, 2)
    ]
    assert DLRM.table_groups(NO_CATEGORICAL, {}, combiner="sum", seed=0) == []


@pytest.mark.parametrize(
    ("case", "shapes"),
    [
        # 3 of the bottom MLP and 10 products of 5 vectors.
        ("dot", [[2, 5], [5], [5, 3], [3], [13, 6], [6], [6, 4], [4], [4, 1], [1]]),
        ("dot, no numerical", [[6, 6], [6], [6, 4], [4], [4, 1], [1]]),
        # 3 of the bottom MLP and 13 of the embeddings.
        (
            "cross",
            [[2, 5], [5], [5, 3], [3], *([[16, 3], [3, 16], [16]] * 2), [16, 6], [6], [6, 4], [4], [4, 1], [1]],
        ),
    ],
)
def test_every_variable_is_in_a_table_or_in_the_group(case, shapes):
    model = make_model(case)
    groups = model.dense_variables()
    assert list(groups) == ["main"] and [v.shape.as_list() for v in groups["main"]] == shapes
    named = [id(v) for v in (*groups["main"], *(table.variable for table in model.tables))]
    assert sorted(named) == sorted(id(v.value) for v in model.variables)


def test_initial_weights_depend_on_the_seed_alone():
    def weights(seed):
        model = make_model("cross", seed=seed)
        return [*table_rows(model).values(), *dense_weights(model)]

    first = weights(1)
    keras.utils.set_random_seed(1234)
    assert all((a == b).all() for a, b in zip(first, weights(1), strict=True))
    drawn = [values.any() for values in first]
    assert drawn.count(False) == 2  # the biases of the cross layers are zero
    for other in (2, 3):
        assert [not (a == b).any() for a, b in zip(first, weights(other), strict=True)] == drawn


def test_no_two_layers_start_with_the_same_numbers():
    model = make_model("cross", bottom_mlp_dims=(16, 16, 16), top_mlp_dims=(16, 16, 16, 1), num_cross_layers=3)
    drawn = [v.numpy().ravel() for v in model.dense_variables()["main"]]
    drawn = [values / values.std() for values in drawn if values.size > 1 and values.any()]
    assert len(drawn) == 3 * 2 + 3 * 2 + 3 * 2 + 1  # bottom, kernels of the cross layers, top, the last kernel
    for i, values in enumerate(drawn):
        for other in drawn[:i]:
            size = min(16, len(values), len(other))
            assert np.abs(values[:size] - other[:size]).max() > 0.1


def test_tables_start_uniform_by_their_rows():
    spec = make_spec(onehot={"page": 4000, "platform": 1000}, multihot={})
    model = DLRM(spec, {"page": 8, "platform": 8}, bottom_mlp_dims=(8,), top_mlp_dims=(1,), seed=5)
    for name, rows in table_rows(model).items():
        limit = np.sqrt(1 / len(rows))
        assert 0.99 * limit < np.abs(rows).max() <= limit
        assert abs(rows.std() / (limit / np.sqrt(3)) - 1) < 0.02
        drawn = np.concatenate([values for _, values in initial_rows(uniform_by_rows, name, len(rows), 8, 5)])
        assert (drawn == rows).all()


def test_layers_start_normal_by_their_widths():
    spec = make_spec(onehot={"page": 3}, multihot={}, numerical=tuple(f"n{i}" for i in range(100)))
    model = DLRM(spec, {"page": 300}, bottom_mlp_dims=(200, 300), top_mlp_dims=(400, 1))
    weights = dense_weights(model)
    for kernel, bias in zip(weights[:-2:2], weights[1:-2:2], strict=True):
        assert abs(kernel.std() / np.sqrt(2 / sum(kernel.shape)) - 1) < 0.02
        assert abs(bias.std() / np.sqrt(1 / len(bias)) - 1) < 0.2
    assert weights[-2].shape == (400, 1) and abs(weights[-2].std() / np.sqrt(2 / 401) - 1) < 0.15
    assert weights[-1].any()


@pytest.mark.parametrize(
    ("spec", "dims", "options", "says"),
    [
        (ALL, SEVERAL, {}, "one embedding dimension for all features, got 2 and 4: give --embedding_dim one number"),
        (ALL, {**EQUAL, "words": 9}, {}, "got 3 and 9"),
        (ALL, EQUAL, {"bottom_mlp_dims": (5, 7)}, "got embeddings of 3 and an output of 7: make --embedding_dim and"),
        (ALL, EQUAL, {"bottom_mlp_dims": ()}, "got embeddings of 3 and an output of 2"),
        (ONE_TABLE, EQUAL, {}, "one categorical feature and no numerical one leave the dot interaction no pair"),
        (ALL, EQUAL, {"top_mlp_dims": (4, 2)}, "--top_mlp_dims must end with 1, the logit, got 4,2"),
        (ALL, EQUAL, {"top_mlp_dims": ()}, "--top_mlp_dims must end with 1, the logit, got none"),
        (ALL, EQUAL, {"interaction": "sum"}, "--interaction must be one of dot, concat, cross, got 'sum'"),
    ],
)
def test_shapes_that_cannot_be_are_refused_before_tables_are_made(spec, dims, options, says):
    made = []
    with pytest.raises(InputError) as caught:
        DLRM(spec, dims, **{"bottom_mlp_dims": (5, 3), "top_mlp_dims": (6, 1), **options}, embeddings=made.append)
    assert says in str(caught.value)
    assert not made


def test_the_bottom_mlp_is_not_asked_about_where_there_are_no_numericals():
    model = DLRM(NO_NUMERICAL, EQUAL, bottom_mlp_dims=(99,), top_mlp_dims=(1,))
    assert model.bottom_mlp is None
    batch = make_batch(NO_NUMERICAL)
    assert model(batch).shape == (ROWS,)


def test_tables_are_made_by_the_factory_from_the_groups():
    given = []

    def factory(groups):
        given.extend(groups)
        return ReplicatedTables(groups)

    model = make_model("concat", embeddings=factory, combiner="mean", seed=7)
    assert given == DLRM.table_groups(ALL, SEVERAL, combiner="mean", seed=7)
    assert [table.name for table in model.tables] == [group.name for group in given]
