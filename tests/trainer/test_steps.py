import types

import numpy as np
import pytest
import tensorflow as tf
from step_cases import (
    BATCH,
    SEED,
    PlainTraining,
    bits,
    graph_of,
    make_batch,
    make_model,
    make_state,
    make_step,
    precision,
    run,
)

from benchmarks import workloads
from benchmarks.our_steps import OurSteps, as_tensors
from models import custom_ops
from trainer.distributed import SingleProcess
from trainer.optimizers import SGD, Adagrad
from trainer.reduction import Reduction
from trainer.state import INITIAL_LOSS_SCALE
from trainer.steps import cross_entropies, make_eval_step, trains_in_backward, updates_from_pools

STEPS = 20


def assert_same_weights(state, model, *, atol):
    for table in state.model.tables:
        state.optimizers[table.group].bring_up_to_date(table.variable, int(state.applied_steps))
    for ours, theirs in zip(state.model.trainable_variables, model.trainable_variables, strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=0, atol=atol, err_msg=ours.path)


def assert_padding_rows_are_zero(state):
    for table in state.model.tables:
        assert table.variable.numpy()[table.padding_row].tobytes() == bytes(4 * table.dim)


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "xla"])
def trained(request):
    """A state after 20 steps, compiled ones with dropout, its losses, and the graph of its step."""
    dropout = 0.5 if request.param else 0.0
    state = make_state(dropout=dropout)
    start = [v.numpy() for v in state.model.trainable_variables]
    train_step = make_step(state, xla=request.param)
    losses = [run(train_step, make_batch(step), step)["loss"] for step in range(STEPS)]
    graph = graph_of(train_step, make_batch(0))
    assert train_step.traced.experimental_get_tracing_count() == 1
    return types.SimpleNamespace(
        state=state, start=start, losses=losses, graph=graph, dropout=dropout, xla=request.param
    )


def test_training_equals_a_tape_and_the_optimizers_of_keras(trained):
    plain = PlainTraining(make_model(dropout=trained.dropout))
    for step in range(STEPS):
        plain.step(make_batch(step), step)
    np.testing.assert_allclose(trained.losses, plain.losses, rtol=0, atol=1e-5 if trained.xla else 1e-6)
    assert_same_weights(trained.state, plain.model, atol=1e-5)
    weights = trained.state.model.trainable_variables
    assert min(np.abs(v.numpy() - old).max() for v, old in zip(weights, trained.start, strict=True)) > 0.01
    assert int(trained.state.applied_steps) == STEPS
    assert_padding_rows_are_zero(trained.state)


def test_figures_and_signals():
    state = make_state()
    figures = run(make_step(state), make_batch(0), 0, signals=(0.25, 3.0))
    assert {name: (value.dtype, value.shape) for name, value in figures.items()} == {
        "loss": (np.float32, ()),
        "skipped": (np.float32, ()),
        "wire_bytes": (np.int64, ()),
        "alltoall_bytes": (np.int64, ()),
        "signals": (np.float32, (2,)),
    }
    assert figures["signals"].tolist() == [0.25, 3.0]
    assert figures["skipped"] == 0 and figures["wire_bytes"] == 0
    # Without dynamic scaling the scale stays what it is.
    assert float(state.loss_scale) == 1 and int(state.good_steps) == 0 and int(state.applied_steps) == 1


def test_dropout_masks_follow_the_step_and_the_seed():
    state = make_state(dropout=0.5, optimizers={"wide": SGD(), "deep": SGD()})
    first, second = (make_step(state, rate=0.0, seed=seed) for seed in (SEED, SEED + 1))

    def loss(train_step, step):
        return float(run(train_step, make_batch(0), step)["loss"])

    assert loss(first, 1) == loss(first, 1)
    assert len({loss(first, 1), loss(first, 2), loss(second, 1), loss(second, 2)}) == 4


def test_parts_of_a_batch_add_up():
    """What ranks rely on: losses and gradients are sums over rows, whatever the size of a rank's part."""
    state = make_state(optimizers={"wide": SGD(), "deep": SGD()})
    weights = state.model.trainable_variables
    start = [v.numpy() for v in weights]
    train_step = make_step(state, rate=1.0)  # a weight moves by its gradient
    losses, gradients = [], []
    for rows in (slice(0, BATCH), slice(0, 5), slice(5, BATCH)):
        part = {name: value[rows] for name, value in make_batch(0).items()}
        losses.append(run(train_step, part, 0)["loss"])
        gradients.append([old - v.numpy() for v, old in zip(weights, start, strict=True)])
        for variable, old in zip(weights, start, strict=True):
            variable.assign(old)
    np.testing.assert_allclose(losses[0], losses[1] + losses[2], rtol=1e-6)
    for whole, first, second in zip(*gradients, strict=True):
        assert np.abs(whole).max() > 1e-4
        np.testing.assert_allclose(whole, first + second, rtol=0, atol=1e-6)


# Which part is compiled, and what stays sparse.


def functions_below(graph, found=None):
    """The definitions and graphs of all functions that a graph calls, directly or not, by name."""
    found = {} if found is None else found
    for definition in graph.as_graph_def().library.function:
        name = definition.signature.name
        if name not in found:
            found[name] = definition, graph._get_function(name).graph
            functions_below(found[name][1], found)
    return found


def types_of(graph):
    return {operation.type for operation in graph.get_operations()}


def test_the_dense_part_alone_is_compiled(trained):
    functions = functions_below(trained.graph).values()
    compiled = [body for definition, body in functions if definition.attr["_XlaMustCompile"].b]
    assert len(compiled) == (1 if trained.xla else 0)
    sparse = {"ResourceGather", "ResourceScatterSub", "ResourceScatterUpdate", "ResourceSparseApplyFtrl"}
    sparse |= {"Unique"} if custom_ops.embedding_ops() is None else {"RecsysPooledLookup", "RecsysRowGradients"}
    assert sparse <= types_of(trained.graph) and "MatMul" not in types_of(trained.graph)
    for body in compiled:
        assert {"MatMul", "ReluGrad", "StatelessRandomUniformFullIntV2"} <= types_of(body)
        assert not sparse & types_of(body)


class _TwoRanks(SingleProcess):
    """Two ranks for a graph that is traced and never run."""

    def __init__(self):
        super().__init__(size=2)


def large_tensors(train_step, batch, rows):
    """Types of the operations that make a tensor of as many rows as a table; a handle of a variable is none."""
    graph = graph_of(train_step, batch)
    return {
        operation.type
        for body in (graph, *(body for _, body in functions_below(graph).values()))
        for operation in body.get_operations()
        for output in operation.outputs
        if output.dtype != tf.resource and output.shape.rank and output.shape[0] == rows
    }


def test_sparse_gradients_stay_sparse():
    page_rows = 5003
    rows = page_rows + 9 + 1  # the fused table of page and topics
    batch = make_batch(0, page_rows=page_rows)
    # Without loss scaling the updates are in the outermost graph, where all shapes are known; with it, the scaling is.
    for dynamic in (False, True):
        state = make_state(page_rows=page_rows, dynamic_loss_scale=dynamic)
        assert rows in [table.variable.shape[0] for table in state.model.tables]
        assert not large_tensors(make_step(state, comm=_TwoRanks()), batch, rows)
    # The dense exchange of that table makes such tensors: the search above would have found one.
    dense = make_step(state, comm=_TwoRanks(), methods=("gather", "allreduce", "gather"))
    assert "UnsortedSegmentSum" in large_tensors(dense, batch, rows)


# Loss scaling.


def overflowing(batch):
    return {**batch, "numerical": batch["numerical"] * 1e6}  # infinite in float16


@pytest.fixture(scope="module")
def half():
    """A state under mixed_float16 and its step, for several tests."""
    with precision("mixed_float16"):
        state = make_state(dynamic_loss_scale=True)
    return types.SimpleNamespace(state=state, train_step=make_step(state))


def test_a_step_that_overflows_changes_nothing_and_is_not_counted(half):
    state, train_step = half.state, half.train_step
    state.loss_scale.assign(INITIAL_LOSS_SCALE)
    state.good_steps.assign(0)
    applied = int(state.applied_steps)
    assert run(train_step, make_batch(0), 0)["skipped"] == 0
    kept = [v for v in state.variables() if v is not state.loss_scale and v is not state.good_steps]
    before = bits(kept)
    assert (int(state.good_steps), float(state.loss_scale)) == (1, 2.0**15)

    figures = run(train_step, overflowing(make_batch(1)), 1, signals=(0.0, 1.0))
    assert figures["skipped"] == 1 and figures["signals"].tolist() == [0, 1]
    assert bits(kept) == before and int(state.applied_steps) == applied + 1
    assert (int(state.good_steps), float(state.loss_scale)) == (0, 2.0**14)

    state.loss_scale.assign(2.0**40)  # a finite loss, whose gradients are not
    figures = run(train_step, make_batch(2), 2)
    assert figures["skipped"] == 1 and np.isfinite(figures["loss"])
    assert bits(kept) == before and float(state.loss_scale) == 2.0**39

    state.loss_scale.assign(2.0**15)
    assert run(train_step, make_batch(3), 3)["skipped"] == 0
    assert bits(kept) != before and int(state.applied_steps) == applied + 2 and int(state.good_steps) == 1
    assert all(np.isfinite(v.numpy()).all() for v in state.variables())
    assert {v.dtype for v in kept} == {tf.float32, tf.int32}
    assert_padding_rows_are_zero(state)


class _Spoiled:
    """A reduction that multiplies the n-th gradient by the n-th factor: what another rank may do to the sums."""

    def __init__(self, factors):
        self.comm = SingleProcess()
        self.factors = factors

    def __call__(self, dense, slices, extras):
        dense = [gradient * self.factors[n] for n, gradient in enumerate(dense)]
        slices = [
            tf.IndexedSlices(s.values * self.factors[len(dense) + n], s.indices, s.dense_shape)
            for n, s in enumerate(slices)
        ]
        return dense, slices, extras


def test_any_gradient_that_is_not_finite_skips_the_step():
    state = make_state(dynamic_loss_scale=True)
    factors = tf.Variable(tf.ones(len(state.dense()) + len(state.model.tables)), trainable=False)
    train_step = make_step(state, reduction=_Spoiled(factors))
    kept = [v for v in state.variables() if v is not state.loss_scale and v is not state.good_steps]
    before = bits(kept)
    for member in range(factors.shape[0]):
        factors[member].assign((np.inf, np.nan)[member % 2])
        assert run(train_step, make_batch(0), 0)["skipped"] == 1, member
        assert bits(kept) == before
        factors[member].assign(1.0)
    assert run(train_step, make_batch(0), 0)["skipped"] == 0 and bits(kept) != before


def test_a_gradient_that_overflows_on_the_wire_skips_the_step_without_loss_scaling():
    class TwoRanks(SingleProcess):
        """The other one has nothing to add."""

    state = make_state()
    reduction = Reduction(TwoRanks(size=2), ("gather", "allreduce", "gather"), half=True, half_scale=1024.0)
    train_step = make_step(state, reduction=reduction)
    before = bits(state.variables())
    huge = dict(make_batch(0))
    huge["numerical"] = huge["numerical"] * 1e4  # finite gradients beyond 64, which times 1024 float16 cannot hold
    figures = run(train_step, huge, 0)
    assert figures["skipped"] == 1 and np.isfinite(figures["loss"])
    assert bits(state.variables()) == before
    assert run(train_step, make_batch(0), 0)["skipped"] == 0
    assert int(state.applied_steps) == 1 and float(state.loss_scale) == 1


def test_the_loss_scale_grows_after_2000_good_steps_and_has_bounds(half):
    state, train_step = half.state, half.train_step
    state.loss_scale.assign(2.0**15)
    state.good_steps.assign(1998)
    for step, (good, scale) in enumerate([(1999, 2.0**15), (0, 2.0**16), (1, 2.0**16)]):
        run(train_step, make_batch(step), step)
        assert (int(state.good_steps), float(state.loss_scale)) == (good, scale)
    state.good_steps.assign(1999)
    run(train_step, overflowing(make_batch(5)), 5)
    assert (int(state.good_steps), float(state.loss_scale)) == (0, 2.0**15)
    state.loss_scale.assign(1.0)
    run(train_step, overflowing(make_batch(6)), 6)
    assert float(state.loss_scale) == 1.0


def test_training_goes_on_after_a_skipped_step_as_if_it_had_not_been():
    # In float32 the loss scale, a power of two, changes no bit.
    state, plain = make_state(dynamic_loss_scale=True), PlainTraining(make_model())
    train_step = make_step(state)
    losses, applied = [], 0
    for step in range(12):
        batch = make_batch(step)
        if step in (3, 4, 8):
            batch["numerical"] *= 1e37  # its gradients are infinite
            assert run(train_step, batch, step)["skipped"] == 1
        else:
            losses.append(run(train_step, batch, step)["loss"])
            plain.step(batch, step, applied_steps=applied)
            applied += 1
    np.testing.assert_allclose(losses, plain.losses, rtol=0, atol=1e-6)
    assert int(state.applied_steps) == applied == 9
    assert_same_weights(state, plain.model, atol=1e-5)


@pytest.mark.parametrize(("policy", "tolerance"), [("mixed_float16", 0.005), ("mixed_bfloat16", 0.03)])
def test_half_precision_trains_as_float32_does_but_for_rounding(policy, tolerance):
    with precision(policy):
        state = make_state(dynamic_loss_scale=policy == "mixed_float16")
    train_step, plain = make_step(state), PlainTraining(make_model())
    losses = []
    for step in range(8):
        losses.append(run(train_step, make_batch(step), step)["loss"])
        plain.step(make_batch(step), step)
    differences = np.abs(np.subtract(losses, plain.losses))
    assert 0 < differences.max() < tolerance
    assert {v.dtype for v in state.variables()} == {tf.float32, tf.int32}


def test_cross_entropies_and_their_gradients_of_every_size():
    """Of logits that are surely right and surely wrong too, where a difference of large numbers would be nothing."""
    logits = np.array([-200.0, -40.0, -3.0, -1e-3, 0.0, 0.5, 9.0, 40.0, 200.0], np.float32)
    for label in (0.0, 1.0):
        labels = np.full_like(logits, label)
        with tf.GradientTape() as tape:
            watched = tf.constant(logits)
            tape.watch(watched)
            found = cross_entropies(tf.constant(labels), watched)
        against = np.where(label, -logits, logits).astype(np.float64)
        np.testing.assert_allclose(found, np.logaddexp(0.0, against), rtol=1e-6, atol=1e-38)
        wanted = np.where(label, -1.0, 1.0) * np.exp(-np.logaddexp(0.0, -against))
        np.testing.assert_allclose(tape.gradient(found, watched), wanted, rtol=1e-6, atol=1e-38)
    assert np.isnan(cross_entropies(tf.constant([1.0]), tf.constant([np.nan])))


# Evaluation.


@pytest.mark.parametrize("xla", [False, True])
def test_evaluation_equals_the_model_without_dropout(xla):
    model = make_model(dropout=0.9)
    for variable in model.dense_variables()["wide"]:
        variable.assign_add(tf.ones_like(variable))
    batch = make_batch(0)
    logits = make_eval_step(model, xla=xla)({**batch, "mask": batch["labels"]}).numpy()
    assert logits.shape == (BATCH,) and logits.dtype == np.float32
    wanted = model(batch).numpy()
    np.testing.assert_allclose(logits, wanted, rtol=0, atol=1e-5 if xla else 1e-6)
    assert np.ptp(wanted) > 0.1


@pytest.mark.parametrize(
    ("optimizer", "options", "straight"),
    [(SGD, {}, True), (Adagrad, {}, False), (SGD, {"dynamic_loss_scale": True}, False)],
)
def test_one_process_with_sgd_needs_no_gradients_of_rows(monkeypatch, optimizer, options, straight):
    """And comes to the weights that it comes to with them."""
    found = []
    for forbidden in (False, True):
        if forbidden:
            monkeypatch.setattr(optimizer, "applies_pools", lambda self, table: False)
        state = make_state(optimizers={"wide": optimizer(), "deep": optimizer()}, **options)
        reduction = Reduction(SingleProcess(), ("gather",) * 3)
        wanted = straight and not forbidden and custom_ops.embedding_ops() is not None
        assert updates_from_pools(state, reduction) == wanted
        train_step = make_step(state, reduction=reduction, rate=0.1)
        for step in range(3):
            run(train_step, make_batch(step), step)
        found.append([table.variable.numpy() for table in state.model.tables])
    for ours, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)


def test_ranks_need_the_gradients_of_rows():
    two = types.SimpleNamespace(size=2)
    state = make_state(optimizers={"wide": SGD(), "deep": SGD()})
    assert not updates_from_pools(state, Reduction(two, ("gather",) * 3))
    assert not updates_from_pools(state, Reduction(SingleProcess(), ("gather",) * 3, half=True))


def dlrm(**changes):
    settings = {"learning_rate": 0.5, "global_batch_size": BATCH, **changes}
    return workloads.dlrm_tiny("fixed", shrink=32).changed(**settings)


def test_layers_trained_in_the_backward_pass_have_the_same_weights(monkeypatch):
    if custom_ops.mlp_ops() is None:
        pytest.skip("the kernels are not built: python -m models.custom_ops")
    found = []
    for plain in (True, False):
        monkeypatch.setattr(SGD, "is_plain", plain)
        ours = OurSteps(dlrm())
        batches = ours.workload.batches(4)
        losses = ours.losses(batches)
        graph = graph_of(ours.train_step, as_tensors(batches)[0])
        kernels = {node.op for function in graph.as_graph_def().library.function for node in function.node_def}
        assert ("RecsysTrainMlp" in kernels) == ("RecsysTrainedMlp" in kernels) == plain
        assert ("RecsysMlpGradient" in kernels) == ("RecsysMlp" in kernels) != plain
        found.append([losses, *(variable.numpy() for variable in ours.state.variables())])
    assert np.ptp(losses) > 0.001
    for ours, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)


def test_who_needs_gradients_of_dense_layers():
    """Other ranks, a loss scale, float16 on the wire, slots, and groups with rates of their own."""
    one, two = (Reduction(types.SimpleNamespace(size=size), ("gather",)) for size in (1, 2))
    state = OurSteps(dlrm()).state
    assert trains_in_backward(state, one) == "main"
    assert trains_in_backward(state, two) is None
    assert trains_in_backward(state, Reduction(SingleProcess(), ("gather",), half=True)) is None
    assert trains_in_backward(OurSteps(dlrm(optimizer="adagrad")).state, one) is None
    assert trains_in_backward(make_state(optimizers={"wide": SGD(), "deep": SGD()}), one) is None
    state.dynamic_loss_scale = True
    assert trains_in_backward(state, one) is None
