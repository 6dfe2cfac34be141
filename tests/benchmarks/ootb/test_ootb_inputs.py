import itertools

import keras
import numpy as np
import pytest
from ootb_cases import BATCH, make_dataset, make_spec

from benchmarks.ootb.inputs import model_inputs, scoring_dataset, training_dataset
from data.feature_spec import TEST, TRAIN
from data.input_pipeline import ParquetInput


@pytest.fixture(scope="module")
def spec(tmp_path_factory):
    return make_dataset(tmp_path_factory.mktemp("rows"))


def test_ids_are_one_more_by_feature():
    batch = {"ids": np.array([[4, 0, 7, -1, -1], [-1, 6, 1, 2, 3]]), "numerical": np.zeros((2, 2))}
    inputs = model_inputs(make_spec(), batch)
    assert list(inputs["ids"]) == ["ad", "site", "topics"]
    assert inputs["ids"]["ad"].tolist() == [[5], [0]] and inputs["ids"]["site"].tolist() == [[1], [7]]
    assert inputs["ids"]["topics"].tolist() == [[8, 0, 0], [2, 3, 4]]
    assert inputs["numerical"] is batch["numerical"]


def test_training_rows_are_those_of_the_stream_in_its_order(spec):
    rows = ParquetInput(spec, TRAIN, with_display=False)
    with rows.train_stream(global_batch_size=BATCH, seed=4) as stream:
        expected = list(itertools.islice(stream.arrays(), 30))
    with rows.train_stream(global_batch_size=BATCH, seed=4) as stream:
        found = [*training_dataset(stream, spec).take(30)]
    for batch, (inputs, labels) in zip(expected, found, strict=True):
        keras.tree.map_structure(
            np.testing.assert_array_equal,
            keras.tree.map_structure(lambda tensor: tensor.numpy(), inputs),
            model_inputs(spec, batch),
        )
        assert labels.shape == (BATCH, 1) and labels[:, 0].numpy().tolist() == batch["labels"].tolist()


def test_rows_to_score_include_those_that_fill_up_a_batch(spec):
    rows = ParquetInput(spec, TEST, with_display=False)
    with rows.eval_stream(global_batch_size=50, repeat=True) as stream:
        batches = [*scoring_dataset(stream, spec).take(stream.steps_per_epoch + 1)]
    assert all(batch["numerical"].shape == (50, 2) for batch in batches)
    padding = -rows.num_rows % 50
    assert padding and (batches[-2]["ids"]["ad"].numpy() == 0).sum() == padding
    np.testing.assert_array_equal(batches[-1]["ids"]["topics"], batches[0]["ids"]["topics"])
