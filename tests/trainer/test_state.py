import types

import numpy as np
import pytest
import tensorflow as tf
from step_cases import bits, make_batch, make_model, make_spec, make_state, make_step, run

from trainer import checkpoint
from trainer.checkpoint import OPTIMIZER_PREFIX
from trainer.state import TableView, dense_weights, table_views

SPEC_DIGEST = make_spec().digest()


@pytest.fixture(scope="module")
def trained():
    """A state after three steps, the last one skipped, and its step. Tests leave it as it is."""
    state = make_state(dynamic_loss_scale=True)
    train_step = make_step(state)
    for step in range(2):
        run(train_step, make_batch(step), step)
    overflow = make_batch(2)
    run(train_step, {**overflow, "numerical": overflow["numerical"] * 1e37}, 2)
    assert int(state.applied_steps) == 2 and float(state.loss_scale) == 2.0**14
    return types.SimpleNamespace(state=state, train_step=train_step)


def fresh_state(seed=99):
    return make_state(dynamic_loss_scale=True, seed=seed)


def assign_all(target, source):
    for variable, other in zip(target.variables(), source.variables(), strict=True):
        variable.assign(other)


def save(folder, state):
    dense = {name: variable.numpy() for name, variable in state.dense_variables().items()}
    return checkpoint.save(
        folder, checkpoint.State(3, state.checkpoint_tables(), dense, {}, SPEC_DIGEST), run_id="run", row_block=4
    )


def restore(path, tables, dense, **options):
    specs = {name: (variable.shape, variable.dtype.as_numpy_dtype) for name, variable in dense.items()}
    arrays, _, step = checkpoint.restore(
        path, tables=tables, dense=specs, spec_digest=SPEC_DIGEST, row_block=3, **options
    )
    for name, values in arrays.items():
        dense[name].assign(values)
    return step


def test_variables_are_in_the_same_order_in_every_state(trained):
    first, second = trained.state.variables(), fresh_state().variables()
    assert [(v.shape, v.dtype) for v in first] == [(v.shape, v.dtype) for v in second]
    assert [id(v) for v in first] == [id(v) for v in trained.state.variables()]


def test_variables_are_all_there_is_once_each(trained):
    state = trained.state
    found = [id(v) for v in state.variables()]
    assert len(set(found)) == len(found)
    wanted = [id(v.value) for v in state.model.variables]
    wanted += [id(v) for v in (state.applied_steps, state.loss_scale, state.good_steps)]
    for _, variable in state.dense():
        wanted += [id(slot) for slot in slots_of(state, variable)]
    for table in state.model.tables:
        wanted += [id(slot) for slot in slots_of(state, table.variable)]
    assert sorted(found) == sorted(wanted)
    # 9 dense weights (2 wide with 2 slots, 6 deep with 1), 3 tables with 2 slots each, 3 counters
    assert len(found) == 2 * 3 + 6 * 2 + 3 * 3 + 3


def slots_of(state, variable):
    return [
        slot
        for optimizer in state.optimizers.values()
        for slot in (optimizer.slots(variable).values() if id(variable) in optimizer._slots else ())
    ]


def test_variables_are_all_that_a_step_depends_on(trained):
    other = fresh_state()
    step_of_other = make_step(other)
    run(step_of_other, make_batch(50), 50)  # whatever it may keep elsewhere is not that of the first
    assign_all(other, trained.state)
    assert other.digest() == trained.state.digest()

    kept = [v.numpy() for v in trained.state.variables()]
    try:
        for step in (3, 4):
            figures = [run(train_step, make_batch(step), step) for train_step in (trained.train_step, step_of_other)]
            assert figures[0]["loss"].tobytes() == figures[1]["loss"].tobytes()
        assert bits(other.variables()) == bits(trained.state.variables())
        assert other.digest() == trained.state.digest()
    finally:
        for variable, value in zip(trained.state.variables(), kept, strict=True):
            variable.assign(value)


def test_a_digest_sees_every_variable():
    state = fresh_state()
    digests = {state.digest(), fresh_state().digest()}
    assert len(digests) == 1
    for variable in state.variables():
        values = np.array(variable)
        values.flat[0] += 1
        variable.assign(values)
        digests.add(state.digest())
    assert len(digests) == 1 + len(state.variables())

    table = state.model.tables[1]
    table.variable[table.padding_row :].assign(tf.ones((1, table.dim)))
    digests.add(state.digest())
    assert len(digests) == 2 + len(state.variables())
    # That absent ids were looked up is kept in no checkpoint and may differ between runs that are the same.
    state.optimizers["deep"].slots(table.variable)["last_step"][table.padding_row :].assign([7])
    assert state.digest() in digests


def test_a_checkpoint_brings_everything_back(trained, tmp_path):
    path = save(tmp_path, trained.state)
    other = fresh_state()
    assert other.digest() != trained.state.digest()
    assert restore(path, other.checkpoint_tables(), other.dense_variables()) == 3
    assert other.digest() == trained.state.digest()


def test_a_checkpoint_holds_logical_tables(trained):
    tables = {table.name: table for table in trained.state.checkpoint_tables()}
    assert {name: (table.rows, sorted(table.arrays)) for name, table in tables.items()} == {
        "wide/page": (23, ["accumulator", "linear", "weights"]),
        "wide/platform": (3, ["accumulator", "linear", "weights"]),
        "wide/topics": (9, ["accumulator", "linear", "weights"]),
        "deep/page": (23, ["last_step", "rms", "weights"]),
        "deep/platform": (3, ["last_step", "rms", "weights"]),
        "deep/topics": (9, ["last_step", "rms", "weights"]),
    }
    assert tables["deep/topics"].arrays == {
        "weights": ((3,), np.dtype("f4")),
        "rms": ((3,), np.dtype("f4")),
        "last_step": ((), np.dtype("i4")),
    }
    # page and topics share a variable: topics' rows follow page's.
    fused = next(table for table in trained.state.model.tables if table.dim == 3)
    assert tables["deep/topics"].read("weights", 2, 5).tobytes() == fused.variable.numpy()[25:28].tobytes()
    last_step = trained.state.optimizers["deep"].slots(fused.variable)["last_step"].numpy()
    assert tables["deep/topics"].read("last_step", 0, 9).tolist() == last_step[23:32].tolist()
    assert last_step.max() == 2


def test_writing_rows_leaves_the_others():
    state = fresh_state()
    (fused,) = (table for table in state.model.tables if table.dim == 3)
    view = TableView(fused, fused.tables[1], {})
    before = fused.variable.numpy()
    view.write("weights", 7, 9, np.full((2, 3), 5, "f4"))
    after = fused.variable.numpy()
    assert (after[30:32] == 5).all() and (np.delete(after, [30, 31], 0) == np.delete(before, [30, 31], 0)).all()


def test_names_of_dense_variables(trained):
    named = trained.state.dense_variables()
    weights = {"wide/0", "wide/1", *(f"deep/{index}" for index in range(6))}
    slots = {f"wide/{index}/{slot}" for index in range(2) for slot in ("accumulator", "linear")}
    slots |= {f"deep/{index}/rms" for index in range(6)} | {"applied_steps", "loss_scale", "good_steps"}
    assert named.keys() == weights | {OPTIMIZER_PREFIX + name for name in slots}
    assert named["deep/0"].shape == (3 + 2 + 3 + 2, 8) == named[f"{OPTIMIZER_PREFIX}deep/0/rms"].shape
    assert dense_weights(trained.state.model).keys() == weights


def test_evaluation_restores_weights_without_slots(trained, tmp_path):
    model = make_model(seed=99)
    views = table_views(model, 0)
    assert all(list(view.arrays) == ["weights"] for view in views)
    batch = make_batch(5)
    wanted = trained.state.model(batch).numpy()
    assert np.abs(model(batch) - wanted).max() > 0.01
    restore(save(tmp_path, trained.state), views, dense_weights(model), partial=True)
    assert model(batch).numpy().tobytes() == wanted.tobytes()


def test_the_loss_scale_starts_at_one_unless_dynamic():
    assert [float(make_state(dynamic_loss_scale=dynamic).loss_scale) for dynamic in (False, True)] == [1, 2.0**15]


def test_a_group_without_an_optimizer_is_an_error():
    with pytest.raises(KeyError, match="wide"):
        make_state(optimizers={"deep": tf.Module()})
