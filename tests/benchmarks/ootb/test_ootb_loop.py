import numpy as np
import pytest
import tensorflow as tf
from ootb_cases import make_keras, make_pair, make_workload

from benchmarks.ootb import loop
from benchmarks.ootb.optimizers import make_optimizer
from benchmarks.our_steps import as_tensors
from trainer.distributed import SingleProcess

STEPS = 8


def losses_of_both(workload, *, xla=False):
    """Losses of the same steps, of ours and of the loop in plain Keras."""
    ours, model = make_pair(workload)
    optimizer = make_optimizer(workload.config, model, 1000)
    optimizer.build(model.trainable_variables)
    step = loop.make_train_step(
        model, optimizer, SingleProcess(), spec=workload.spec, global_batch_size=workload.batch_size, xla=xla
    )
    batches = workload.batches(STEPS)
    outs = [step(batch, tf.constant([0.0, 0.0]), tf.constant(i)) for i, batch in enumerate(as_tensors(batches))]
    return np.array(ours.losses(batches)), np.array([float(out["loss"]) for out in outs])


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("wide_deep", {}),
        ("dlrm", {}),
        ("dlrm", {"optimizer": "rmsprop", "learning_rate": 0.01}),
        ("dcnv2", {"optimizer": "adagrad"}),
    ],
)
def test_training_is_our_training(name, changes):
    """FTRL and RMSprop for Wide & Deep included, in a schedule, with ids that repeat in a batch."""
    ours, theirs = losses_of_both(make_workload(name, **changes))
    assert abs(ours[0] - ours[-1]) > 0.01
    np.testing.assert_allclose(theirs, ours, rtol=0, atol=1e-4)


def test_the_compiled_step_is_the_same_step():
    ours, theirs = losses_of_both(make_workload("dlrm"), xla=True)
    np.testing.assert_allclose(theirs, ours, rtol=0, atol=1e-4)


class Ranks(SingleProcess):
    """Two ranks of which the other has three times this one's gradients."""

    def allreduce(self, tensors, *, name):
        self.sent = getattr(self, "sent", {}) | {name: tensors}
        return [tensor * 4 if name == "gradients" else tensor for tensor in tensors]


def test_every_gradient_is_summed_whole_and_applied():
    workload = make_workload("dlrm", learning_rate=0.5)
    model, comm = make_keras(workload), Ranks()
    optimizer = make_optimizer(workload.config, model, 1000)
    optimizer.build(model.trainable_variables)
    step = loop.make_train_step(model, optimizer, comm, spec=workload.spec, global_batch_size=2 * workload.batch_size)
    before = model.get_weights()
    (batch,) = as_tensors(workload.batches(1))
    inputs = loop.model_inputs(workload.spec, batch)
    with tf.GradientTape() as tape:
        logits = model(inputs)[:, 0]
        loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(batch["labels"], logits)) / 2
    expected = tape.gradient(loss, [v.value for v in model.trainable_variables])
    step(batch, tf.constant([0.0, 0.0]), tf.constant(0))
    assert [tuple(tensor.shape) for tensor in comm.sent["gradients"]] == [v.shape for v in model.trainable_variables]
    for old, variable, gradient in zip(before, model.trainable_variables, expected, strict=True):
        change = old - variable.numpy()
        np.testing.assert_allclose(change, 0.5 * 4 * tf.convert_to_tensor(gradient).numpy(), rtol=1e-4, atol=1e-6)


def test_signals_come_back_and_bytes_are_counted():
    workload = make_workload("dlrm")
    model = make_keras(workload)
    optimizer = make_optimizer(workload.config, model, 1000)
    step = loop.make_train_step(model, optimizer, SingleProcess(), spec=workload.spec, global_batch_size=32)
    out = step(as_tensors(workload.batches(1))[0], tf.constant([0.0, 1.0]), tf.constant(0))
    assert out["signals"].numpy().tolist() == [0.0, 1.0]
    assert int(out["wire_bytes"]) == int(out["alltoall_bytes"]) == 0  # alone


def test_rows_that_fill_up_a_batch_do_not_count():
    assert loop.RowCount().update({"mask": tf.constant([1.0, 1.0, 0.0])}, tf.zeros(3)) == 2
    assert loop.RowCount().compute(SingleProcess()) is None
