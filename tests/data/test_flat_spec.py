import pytest

from data.errors import InputError
from data.flat_spec import flat_spec


def test_tables_are_numbered_in_the_order_given_and_one_hot_ones_come_first():
    spec = flat_spec([10, 20, 30, 40], [5, 1, 2, 1], 2)
    assert spec.onehot == ("cat_1", "cat_3") and spec.multihot == ("cat_0", "cat_2")
    shapes = {name: (spec.features[name].cardinality, spec.features[name].max_hotness) for name in spec.categorical}
    assert shapes == {"cat_0": (10, 5), "cat_1": (20, 1), "cat_2": (30, 2), "cat_3": (40, 1)}
    assert spec.numerical == ("num_0", "num_1") and spec.label == "label" and spec.display is None
    assert spec.total_hotness == 9


def test_one_hotness_stands_for_all_tables():
    assert flat_spec([10, 20], [3], 0).to_dict() == flat_spec([10, 20], [3, 3], 0).to_dict()
    assert flat_spec([10, 20], [1], 0).onehot == ("cat_0", "cat_1")


def test_numericals_alone_and_tables_alone():
    assert flat_spec([], [1], 3).categorical == () and flat_spec([], [], 3).numerical == ("num_0", "num_1", "num_2")
    assert flat_spec([5], [1], 0).numerical == ()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (([10, 20, 30], [1, 2], 0), "hotness has 2 values .* 3;"),
        (([10], [1, 2], 0), "hotness has 2 values .* 1;"),
        (([10, 20], [], 0), "hotness has 0 values .* 2;"),
        (([10, 0], [1], 0), "cardinalities has 0"),
        (([10, 2**31 + 1], [1], 0), "cardinalities has 2147483649"),
        (([10, 20], [2, -3], 0), "hotness has -3"),
        (([10, 20], [0], 0), "hotness has 0: "),
        (([10], [1], -1), "num_numerical_features=-1"),
        (([], [1], 0), "nothing to learn from"),
    ],
)
def test_shapes_that_cannot_be_are_refused_in_one_line(arguments, named):
    with pytest.raises(InputError, match=named) as raised:
        flat_spec(*arguments)
    assert "\n" not in str(raised.value)
