"""What a loss that is not finite leads to, and what is said of the data."""

import math
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import small_runs
import tensorflow as tf

from data.errors import InputError
from trainer.loss_watch import MOST_SKIPPED_STEPS, LossWatch, describe_batch


def batch_of(*columns, ids=((0, 3), (5, -1))):
    return {"numerical": tf.constant(np.array(columns, np.float32).T), "ids": tf.constant(ids)}


def outcome(loss, skipped=0.0):
    return {"loss": tf.constant(loss), "skipped": tf.constant(skipped)}


def watch():
    return LossWatch("--the_rate", lambda batch: f"batch {batch}")


# The data in a line.


def test_largest_features_come_first_and_three_are_shown():
    batch = batch_of([1.0, -2.0], [100.0, 0.0], [0.0, 0.5], [-1e30, 5.0])
    assert describe_batch(batch, ("a", "b", "c", "d")) == (
        "'d' min -1e+30 max 5 mean -5e+29 (0 not finite), 'b' min 0 max 100 mean 50 (0 not finite), "
        "'a' min -2 max 1 mean -0.5 (0 not finite), ids 0 to 5"
    )


def test_features_that_are_not_finite_are_all_shown_with_figures_of_the_others():
    columns = [[math.nan, 2.0], [math.inf, -math.inf], [math.inf, 3.0], [0.0, 9.0]]
    said = describe_batch(batch_of(*columns), ("a", "b", "c", "d"))
    assert said == (
        "'b' nothing finite (2 not finite), 'c' min 3 max 3 mean 3 (1 not finite), "
        "'a' min 2 max 2 mean 2 (1 not finite), 'd' min 0 max 9 mean 4.5 (0 not finite), ids 0 to 5"
    )


def test_data_without_numerical_features_or_ids():
    nothing = {"numerical": tf.zeros((2, 0)), "ids": tf.fill((2, 1), -1)}
    assert describe_batch(nothing, ()) == "no ids"


# When training ends.


def test_a_finite_loss_is_returned():
    assert watch().check(1, outcome(0.25)) == 0.25


def test_the_batches_of_the_step_and_of_the_update_before_it_are_described():
    loss = watch()
    for step, batch in ((4, "D"), (5, "E"), (6, "F")):
        loss.saw(step, batch)
    with pytest.raises(InputError) as caught:
        loss.check(5, outcome(math.nan))
    said = str(caught.value)
    assert said.startswith("the loss of step 5 is nan: lower --the_rate") and "\n" not in said
    assert said.endswith("; this rank's rows of step 4: batch D; this rank's rows of step 5: batch E")


def test_skipped_steps_are_forgiven_until_loss_scaling_cannot_be_the_reason():
    loss = watch()
    for step in range(1, MOST_SKIPPED_STEPS + 1):
        assert loss.check(step, outcome(math.inf, skipped=1.0)) == math.inf
        loss.check(step, outcome(math.inf, skipped=1.0))  # asking again is no other step
    last = MOST_SKIPPED_STEPS + 1
    said = f"the loss of step {last} is inf, like those of the {MOST_SKIPPED_STEPS} steps before it"
    with pytest.raises(InputError, match=said):
        loss.check(last, outcome(math.inf, skipped=1.0))


def test_a_finite_loss_in_between_begins_the_count_anew():
    loss = watch()
    for step in range(1, 3 * MOST_SKIPPED_STEPS):
        finite = step % MOST_SKIPPED_STEPS == 0
        loss.check(step, outcome(0.5 if finite else math.nan, skipped=float(not finite)))


# The real thing.


def plant(dataset, folder, value):
    """A copy of the dataset in which a value of 'age' is another in one training row."""
    shutil.copytree(dataset, folder)
    path = next((folder / "train").glob("*.parquet"))
    table = pq.read_table(path)
    ages = table["age"].to_pylist()
    ages[0] = value
    planted = table.set_column(
        table.schema.get_field_index("age"), "age", pa.array(ages, table.schema.field("age").type)
    )
    pq.write_table(planted, path, row_group_size=16)
    return folder


@pytest.mark.parametrize("amp", [{}, {"amp": True, "amp_dtype": "bfloat16"}])
def test_an_extreme_value_in_a_file_is_named_with_its_feature(dataset, tmp_path, default_precision, amp):
    config = small_runs.configure(plant(dataset, tmp_path / "data", 1e30), tmp_path, **amp)
    with pytest.raises(InputError) as caught:
        small_runs.open_experiment(config).train()
    said = str(caught.value)
    assert "the loss of step " in said and "--deep_learning_rate" in said and "'age' min " in said and "1e+30" in said
    assert not (tmp_path / "results/result.json").exists() and "\n" not in said


def test_a_value_that_is_no_number_is_refused_where_it_is_read(dataset, tmp_path, default_precision):
    config = small_runs.configure(plant(dataset, tmp_path / "data", math.nan), tmp_path)
    with pytest.raises(InputError, match=r"column 'age'.*nan"):
        small_runs.open_experiment(config).train()
