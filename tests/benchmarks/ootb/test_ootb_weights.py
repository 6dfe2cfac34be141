import pytest
from ootb_cases import make_keras, make_pair, make_workload

from benchmarks.ootb import weights
from benchmarks.our_steps import OurSteps
from benchmarks.our_steps import weights as our_weights


@pytest.mark.parametrize("name", ["wide_deep", "dlrm", "dcnv2"])
def test_all_weights_are_taken_over(name):
    workload = make_workload(name)
    ours, model = make_pair(workload, training=False)
    dense = sum(v.shape.num_elements() for group in ours.model.dense_variables().values() for v in group)
    tables = sum(table.padding_row * table.dim for table in ours.model.tables)
    embeddings = [v for v in model.trainable_variables if "embeddings" in v.path]
    assert sum(v.shape[0] * v.shape[1] for v in embeddings) == tables + sum(v.shape[1] for v in embeddings)
    assert model.count_params() == dense + sum(v.shape[0] * v.shape[1] for v in embeddings)


def test_weights_of_another_shape_are_refused():
    workload = make_workload("dlrm")
    deeper = make_workload("dlrm", top_mlp_dims=(8, 5, 1, 1))
    with pytest.raises(ValueError, match="left over"):
        weights.load(make_keras(workload), our_weights(OurSteps(deeper, training=False).model), workload.spec)
