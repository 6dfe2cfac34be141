"""Building and loading our kernels; what they compute is tested where they are used (test_embedding.py)."""

import pathlib

import numpy as np
import pytest
import tensorflow as tf

from data.errors import InputError
from models import custom_ops


@pytest.fixture
def ops():
    found = custom_ops.embedding_ops()
    if found is None:
        pytest.skip("the kernels are not built: python -m models.custom_ops")
    return found


@pytest.fixture
def elsewhere(monkeypatch, tmp_path):
    """A place of its own for the library."""
    path = tmp_path / "lib" / "embedding_ops.so"
    monkeypatch.setattr(custom_ops, "library_path", lambda: path)
    custom_ops._library.cache_clear()
    yield path
    monkeypatch.undo()
    custom_ops._library.cache_clear()


def test_where_they_are_not_built_there_are_none(elsewhere):
    assert custom_ops.embedding_ops() is None


def test_where_tables_are_on_a_gpu_there_are_none(ops, monkeypatch):
    custom_ops._library.cache_clear()
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: ["a GPU"] if kind == "GPU" else [])
    try:
        assert custom_ops.embedding_ops() is None
    finally:
        custom_ops._library.cache_clear()


def test_a_missing_compiler_is_one_line(elsewhere):
    with pytest.raises(InputError, match=r"no-such-compiler: No such file .*install g\+\+"):
        custom_ops.build("no-such-compiler")
    assert list(elsewhere.parent.iterdir()) == []


def test_a_compiler_that_fails_leaves_nothing(elsewhere, tmp_path):
    compiler = tmp_path / "compiler"
    compiler.write_text("#!/bin/sh\necho it will not do >&2\nexit 1\n")
    compiler.chmod(0o755)
    with pytest.raises(InputError, match="cannot build the kernels: it will not do"):
        custom_ops.build(str(compiler))
    assert list(elsewhere.parent.iterdir()) == []


def test_the_library_is_of_this_source_and_this_tensorflow(monkeypatch, tmp_path):
    before = custom_ops.library_path()
    assert tf.__version__ in before.name
    for path in (*custom_ops._FOLDER.glob("*.cc"), *custom_ops._FOLDER.glob("*.h")):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    monkeypatch.setattr(custom_ops, "_FOLDER", tmp_path)
    assert custom_ops.library_path() == before
    with open(tmp_path / "dropout_ops.cc", "a") as file:
        file.write("\n")
    assert custom_ops.library_path() != before


def test_rows_are_subtracted_in_place_and_readers_keep_what_they_read(ops):
    variable = tf.Variable(np.arange(12, dtype="f4").reshape(4, 3))
    before = variable.read_value()
    rows, values = tf.constant([3, 0]), tf.constant([[1.0, 2.0, 3.0], [10.0, 20.0, 30.0]])
    ops.recsys_subtract_rows(table=variable.handle, rows=rows, values=values, scale=0.5)
    expected = np.arange(12, dtype="f4").reshape(4, 3)
    assert before.numpy().tolist() == expected.tolist()
    expected[3] -= [0.5, 1.0, 1.5]
    expected[0] -= [5.0, 10.0, 15.0]
    assert variable.numpy().tolist() == expected.tolist()


def test_dense_variables_descend_in_place_and_readers_keep_what_they_read(ops):
    rng = np.random.default_rng(0)
    shapes = [(3,), (40, 1000), (), (7, 5, 2), (0, 4)]  # one of more than one piece
    starts, values = ([rng.standard_normal(shape).astype("f4") for shape in shapes] for _ in range(2))
    variables = [tf.Variable(start) for start in starts]
    read = [variable.read_value() for variable in variables]
    ops.recsys_subtract_dense(variables=[variable.handle for variable in variables], values=values, scale=0.5)
    for variable, before, start, value in zip(variables, read, starts, values, strict=True):
        np.testing.assert_allclose(variable, start - 0.5 * value, rtol=1e-6, atol=1e-7)
        np.testing.assert_array_equal(before, start)


@pytest.mark.parametrize(
    ("named", "shapes", "said"), [((0, 1), ((3,), (2,)), "shape .2. for a variable"), ((0, 0), ((3,), (3,)), "twice")]
)
def test_dense_variables_that_do_not_fit_are_left_as_they_are(ops, named, shapes, said):
    variables = [tf.Variable(tf.zeros(3)), tf.Variable(tf.zeros(4))]
    with pytest.raises(tf.errors.InvalidArgumentError, match=said):
        ops.recsys_subtract_dense(
            variables=[variables[i].handle for i in named], values=[tf.ones(shape) for shape in shapes], scale=1.0
        )
    assert not any(variable.numpy().any() for variable in variables)


@pytest.mark.parametrize("row", [-1, 4])
def test_rows_that_are_not_there_are_refused(ops, row):
    variable = tf.Variable(np.zeros((4, 3), "f4"))
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"row {row} of a table of 4"):
        ops.recsys_subtract_rows(
            table=variable.handle, rows=tf.constant([0, row]), values=tf.ones((2, 3)), scale=tf.constant(1.0)
        )
    assert not variable.numpy().any()


def test_huge_pages_leave_the_values_alone(ops):
    values = np.random.default_rng(0).standard_normal((1 << 15, 64), dtype="f4")  # 8 MiB: whole pages are in it
    variable = tf.Variable(values)
    advised = ops.recsys_use_huge_pages(table=variable.handle)
    assert advised.numpy() == pathlib.Path("/sys/kernel/mm/transparent_hugepage").exists()
    np.testing.assert_array_equal(variable.numpy(), values)


def test_a_table_smaller_than_a_huge_page_gets_none(ops):
    assert not ops.recsys_use_huge_pages(table=tf.Variable(tf.zeros((4, 3))).handle).numpy()


@pytest.mark.parametrize("dtype", ["i4", "i8"])
def test_gradients_of_many_rows_are_summed_in_order(ops, dtype):
    """More rows than one byte of the sort, and than one thread takes; equal to adding up one after the other."""
    rng = np.random.default_rng(0)
    counts, hotness, samples, dim = (70_000, 300, 5_000_000), (1, 7, 3), 700, 5
    offsets = [0, 70_000, 70_300]
    columns = [0, 1, 8]
    ids = np.concatenate(
        [rng.integers(-1, n, (samples, h)) for n, h in zip(counts, hotness, strict=True)], axis=1
    ).astype(dtype)
    upstream = rng.standard_normal((samples, 3 * dim)).astype("f4")
    rows, values = ops.recsys_row_gradients(
        ids=ids,
        upstream=upstream,
        columns=columns,
        hotness=hotness,
        offsets=offsets,
        first_rows=[0, 0, 0],
        row_counts=counts,
        dim=dim,
        mean=False,
        sum_features=False,
    )
    expected = {}
    for sample in range(samples):
        for f in range(3):
            for i in ids[sample, columns[f] : columns[f] + hotness[f]]:
                if i >= 0:
                    gradient = upstream[sample, f * dim : (f + 1) * dim]
                    key = int(i) + offsets[f]
                    expected[key] = expected[key] + gradient if key in expected else gradient.copy()
    assert rows.numpy().tolist() == sorted(expected) and rows.dtype == ids.dtype
    assert all(values.numpy()[k].tobytes() == expected[row].tobytes() for k, row in enumerate(rows.numpy().tolist()))


def test_without_openblas_it_is_one_line(elsewhere, monkeypatch):
    monkeypatch.setattr(custom_ops.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"scipy-openblas32 is not installed; pip install -r requirements.txt"):
        custom_ops.build()
    assert list(elsewhere.parent.iterdir()) == []


# Few rows are split over threads by columns, many by rows, and of little work nothing is split.
SHAPES = [(1, 1, 1), (7, 5, 3), (64, 130, 257), (64, 512, 1024), (700, 300, 40), (1031, 65, 129), (0, 4, 3), (5, 0, 3)]


@pytest.mark.parametrize("rows, width, units", SHAPES)
def test_dense_and_its_gradients_are_numpys(ops, rows, width, units):
    rng = np.random.default_rng(rows + width)
    x, kernel = rng.standard_normal((rows, width)), rng.standard_normal((width, units))
    bias, upstream = rng.standard_normal(units), rng.standard_normal((rows, units))
    inputs = [tf.constant(array, tf.float32) for array in (x, kernel, bias)]
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        outputs = custom_ops.dense_ops().recsys_dense(*inputs)
    found = tape.gradient(outputs, inputs, output_gradients=tf.constant(upstream, tf.float32))
    tolerance = 1e-5 * max(1, rows, width, units) ** 0.5
    np.testing.assert_allclose(outputs, x @ kernel + bias, rtol=1e-5, atol=tolerance)
    for gradient, expected in zip(found, (upstream @ kernel.T, x.T @ upstream, upstream.sum(axis=0)), strict=True):
        np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=tolerance)


@pytest.mark.parametrize("rows, width, units", SHAPES)
@pytest.mark.parametrize("transpose_a", [False, True])
@pytest.mark.parametrize("transpose_b", [False, True])
def test_products_are_numpys_however_they_are_transposed(ops, rows, width, units, transpose_a, transpose_b):
    rng = np.random.default_rng(rows)
    a, b = rng.standard_normal((rows, width)), rng.standard_normal((width, units))
    found = ops.recsys_mat_mul(
        tf.constant(a.T if transpose_a else a, tf.float32),
        tf.constant(b.T if transpose_b else b, tf.float32),
        transpose_a=transpose_a,
        transpose_b=transpose_b,
    )
    np.testing.assert_allclose(found, a @ b, rtol=1e-5, atol=1e-5 * max(1, width) ** 0.5)


def test_matrices_that_do_not_fit_are_refused(ops):
    with pytest.raises(tf.errors.InvalidArgumentError, match="do not fit"):
        ops.recsys_mat_mul(tf.zeros((2, 3)), tf.zeros((2, 3)))
    with pytest.raises(tf.errors.InvalidArgumentError, match="do not fit"):
        ops.recsys_dense(tf.zeros((2, 3)), tf.zeros((3, 4)), tf.zeros((3,)))


def test_what_nobody_asks_for_is_not_computed(ops):
    """The gradient of a batch: a third of the first layer's products."""

    @tf.function(autograph=False)
    def kernel_gradient(x, kernel):
        with tf.GradientTape() as tape:
            tape.watch(kernel)
            outputs = custom_ops.dense_ops().recsys_dense(x, kernel, tf.zeros((4,)))
        return tape.gradient(outputs, kernel)

    graph = kernel_gradient.get_concrete_function(tf.zeros((2, 3)), tf.zeros((3, 4))).graph
    products = [op for op in graph.get_operations() if op.type == "RecsysMatMul"]
    wanted, todo = set(), [graph.outputs[0].op]
    while todo:
        op = todo.pop()
        wanted.add(op.name)
        todo += [tensor.op for tensor in op.inputs]
    assert sum(op.name in wanted for op in products) == 1


def test_gradients_of_a_product_are_those_of_tensorflow(ops):
    a, b = tf.random.stateless_normal((70, 5), (1, 2)), tf.random.stateless_normal((5, 9), (3, 4))
    found = []
    for product in (custom_ops.dense_ops().recsys_mat_mul, tf.matmul):
        with tf.GradientTape() as tape:
            tape.watch([a, b])
            squares = tf.square(product(a, b))
        found.append(tape.gradient(squares, [a, b]))
    for ours, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


def test_a_product_of_transposed_matrices_has_no_gradient(ops):
    a = tf.ones((3, 3))
    with tf.GradientTape() as tape:
        tape.watch(a)
        product = custom_ops.dense_ops().recsys_mat_mul(a, a, transpose_b=True)
    with pytest.raises(NotImplementedError, match="not of transposed matrices"):
        tape.gradient(product, a)


@pytest.mark.parametrize(("width", "said"), [(2, "bias of 2 values for 3 units"), (4, "bias of 4 values for 3 units")])
def test_a_bias_of_another_width_is_refused(ops, width, said):
    with pytest.raises(tf.errors.InvalidArgumentError, match=said):
        custom_ops.dropout_ops().recsys_bias_relu_dropout(
            tf.zeros((2, 3)),
            tf.zeros(width),
            np.zeros(1, np.uint64),
            np.zeros(2, np.uint64),
            threshold=0,
            scale=1.0,
        )


def interact(*shapes, dim=3, **options):
    return custom_ops.interaction_ops().recsys_dot_interaction(
        [tf.zeros(shape) for shape in shapes], dim=dim, **{"self_interaction": False, "pass_first": True, **options}
    )


@pytest.mark.parametrize("shapes", [[(2, 3), (2, 7)], [(2, 3), (4, 6)], [(2, 3), (2, 3, 1)], [(3,)]])
def test_vectors_that_do_not_fit_are_refused(ops, shapes):
    shown = ",".join(map(str, shapes[-1]))
    with pytest.raises(tf.errors.InvalidArgumentError, match=rf"dimension 3 in a tensor of shape \[{shown}\]"):
        interact(*shapes)


def test_a_first_vector_that_is_not_there_is_refused(ops):
    with pytest.raises(tf.errors.InvalidArgumentError, match="no vector to pass on"):
        interact((2, 0))
    assert interact((2, 0), pass_first=False).shape == (2, 0)


@pytest.mark.parametrize("shape", [(2, 5), (3, 6), (12,)])
def test_a_gradient_that_does_not_fit_is_refused(ops, shape):
    assert interact((2, 3), (2, 6)).shape == (2, 6)
    with pytest.raises(tf.errors.InvalidArgumentError, match="for 2 rows of width 6"):
        ops.recsys_dot_interaction_gradient(
            [tf.zeros((2, 3)), tf.zeros((2, 6))], tf.zeros(shape), dim=3, self_interaction=False, pass_first=True
        )


def test_vectors_that_do_not_fit_are_seen_when_traced(ops):
    specs = [tf.TensorSpec((2, 3)), tf.TensorSpec((4, 6))]
    work = tf.function(
        lambda *vectors: ops.recsys_dot_interaction(vectors, dim=3, self_interaction=False, pass_first=False),
        autograph=False,
    )
    with pytest.raises(ValueError, match="Dimensions must be equal"):
        work.get_concrete_function(*specs)
    unknown = work.get_concrete_function(tf.TensorSpec((2, 3)), tf.TensorSpec((None, None)))
    assert unknown.output_shapes.as_list() == [2, None]
