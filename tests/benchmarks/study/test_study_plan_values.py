"""Values of plans by themselves; together they are tested as plans are."""

import pytest

from benchmarks.study import plan_values


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (plan_values.SHARE, [0.5, 1e-9], [0, 1, True, "0.5", float("nan"), None]),
        (plan_values.SECONDS, [1, 0.5], [0, -1, float("inf"), False]),
        (plan_values.COUNT, [1, 20], [0, 1.0, True]),
        (plan_values.SIZES, [[1], [2, 1]], [[], [0], [1, 1], [1.0], [True], 1]),
        (plan_values.SEEDS, [1, [0], [3, 1]], [0, [], [-1], True]),
        (plan_values.FACTORS, [{}, {"slow": 0.1}, {"fast": 3}], [{"same": 1}, {"": 2}, {"no": 0}, {"no": True}, []]),
        (plan_values.DEVICE_SETS, [[{"cpus": "0"}], [{"gpus": "0,1"}, {"gpus": "GPU-a"}]], [[], [{}], [{"gpus": 0}]]),
        (plan_values.or_null(plan_values.COUNT), [None, 3], [0]),
        (plan_values.some_of((False, True)), [[True], [False, True]], [[], [0], [True, True], True]),
        (plan_values.some_of(("a", "b"), least=0), [[], ["b", "a"]], [["c"], [["a"]]]),
    ],
)
def test_values(kind, good, bad):
    need, holds = kind
    assert need and all(map(holds, good)) and not any(map(holds, bad))
