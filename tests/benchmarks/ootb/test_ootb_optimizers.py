import keras
import pytest
from ootb_cases import make_keras, make_workload

from benchmarks.ootb.optimizers import make_optimizer


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("sgd", keras.optimizers.SGD),
        ("adagrad", keras.optimizers.Adagrad),
        ("rmsprop", keras.optimizers.RMSprop),
        ("adam", keras.optimizers.Adam),
    ],
)
def test_the_optimizer_is_keras_own_with_the_schedule(name, kind):
    changes = {"learning_rate": 8.0, "warmup_steps": 4, "decay_start_step": 6, "decay_steps": 2}
    workload = make_workload("dlrm", optimizer=name, **changes)
    model = make_keras(workload)
    optimizer = make_optimizer(workload.config, model, 100)
    optimizer.build(model.trainable_variables)
    assert type(optimizer) is kind
    rates = []
    for step in range(9):
        optimizer.iterations.assign(step)
        rates.append(float(optimizer.learning_rate))
    assert rates == [0, 2, 4, 6, 8, 8, 8, 2, 0]


def test_wide_and_deep_have_an_optimizer_each():
    workload = make_workload(
        "wide_deep",
        deep_learning_rate=0.8,
        linear_learning_rate=0.3,
        deep_warmup_steps=None,
        deep_decay_step=None,
        deep_warmup_epochs=0.5,
        num_epochs=2,
    )
    model = make_keras(workload)
    optimizer = make_optimizer(workload.config, model, 8)  # half an epoch: 4 steps, then half of 12 at a quarter
    optimizer.build(model.trainable_variables)
    by_kind = {type(one): one for one in optimizer.optimizers}
    assert set(by_kind) == {keras.optimizers.Ftrl, keras.optimizers.RMSprop}
    wide, deep = by_kind[keras.optimizers.Ftrl], by_kind[keras.optimizers.RMSprop]
    assert float(wide.learning_rate) == pytest.approx(0.3) and deep.rho == 0.5
    assert len(wide._trainable_variables) == len(model.wide_variables()) == 5
    assert len(deep._trainable_variables) == len(model.trainable_variables) - 5
    rates = []
    for step in (0, 2, 4, 9, 10):
        deep.iterations.assign(step)
        rates.append(float(deep.learning_rate))
    assert rates == pytest.approx([0, 0.4, 0.2, 0.2, 0.1])
