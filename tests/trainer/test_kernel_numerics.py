"""What our kernels buy is time alone: fifty steps with them have the losses of TensorFlow's kernels."""

import numpy as np
import pytest

from benchmarks import workloads
from benchmarks.our_steps import OurSteps
from models import custom_ops

STEPS = 50
KERNELS = ("embedding_ops", "dense_ops", "dropout_ops", "mlp_ops", "interaction_ops")


def losses(workload, monkeypatch, ours):
    """Of a training from the same initial weights, with only these kernels of ours."""
    with monkeypatch.context() as patch:
        for name in KERNELS:
            if name not in ours:
                patch.setattr(custom_ops, name, lambda: None)
        return OurSteps(workload).losses(workload.batches(STEPS))


@pytest.fixture(scope="module")
def plain():
    """Losses of a model with TensorFlow's kernels alone, worked out once."""
    found = {}

    def of(name, workload):
        if name not in found:
            with pytest.MonkeyPatch.context() as patch:
                found[name] = losses(workload, patch, ours=())
        return found[name]

    return of


@pytest.mark.parametrize("ours", [*((name,) for name in KERNELS), KERNELS], ids="+".join)
@pytest.mark.parametrize("model", ["wide_deep", "dlrm"])
def test_fifty_steps_have_the_losses_of_the_plain_path(plain, monkeypatch, model, ours):
    if custom_ops.embedding_ops() is None:
        pytest.skip("the kernels are not built: python -m models.custom_ops")
    if model == "wide_deep":
        workload = workloads.wide_deep(shrink=32).changed(deep_dropout=0.0)
    else:
        workload = workloads.dlrm_tiny("distinct", shrink=16).changed(learning_rate=0.5, global_batch_size=16)
    wanted = plain(model, workload)
    assert np.std(wanted) > 1e-3  # they are of training, and of batches that differ
    np.testing.assert_allclose(losses(workload, monkeypatch, ours), wanted, rtol=1e-5)
