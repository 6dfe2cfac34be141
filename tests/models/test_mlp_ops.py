"""The kernel that does all hidden layers at once, against numpy in float64."""

import itertools
import os
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from models import custom_ops, layers
from models.layers import MLP, build_dense

# Rows and widths: more than a panel and less, no multiple of a tile, more terms than are added up at a time.
SHAPES = [
    (1, [3, 5]),
    (7, [13, 17, 1]),
    (16, [1, 1, 1]),
    (33, [6, 300, 7, 65]),
    (64, [100, 130, 48]),
    (65, [600, 49]),
    (256, [40, 70]),
    (0, [4, 3]),
]


@pytest.fixture(autouse=True)
def ops():
    found = custom_ops.mlp_ops()
    if found is None:
        pytest.skip("the kernels are not built: python -m models.custom_ops")
    return found


def drawn(rows, widths, seed=0):
    """Inputs, kernels, biases and a gradient of the outputs."""
    rng = np.random.default_rng(seed)

    def normal(*shape):
        return rng.standard_normal(shape).astype(np.float32)

    kernels = [normal(*pair) / np.float32(np.sqrt(pair[0])) for pair in itertools.pairwise(widths)]
    return normal(rows, widths[0]), kernels, [normal(width) for width in widths[1:]], normal(rows, widths[-1])


def by_numpy(inputs, kernels, biases, upstream, linear_last=False):
    """Outputs and the gradients of inputs, kernels and biases."""
    hidden = [inputs.astype(np.float64)]
    lowest = [0.0] * len(kernels)
    if linear_last:
        lowest[-1] = -np.inf
    for kernel, bias, least in zip(kernels, biases, lowest, strict=True):
        hidden.append(np.maximum(hidden[-1] @ kernel + bias, least))
    gradient, of_kernels, of_biases = upstream.astype(np.float64), [], []
    for kernel, before, after, least in reversed(list(zip(kernels, hidden, hidden[1:], lowest, strict=False))):
        gradient = gradient * (after > least)
        of_kernels.insert(0, before.T @ gradient)
        of_biases.insert(0, gradient.sum(axis=0))
        gradient = gradient @ kernel.T
    return hidden[-1], gradient, of_kernels, of_biases


@pytest.mark.parametrize("linear_last", [False, True])
@pytest.mark.parametrize(("rows", "widths"), SHAPES)
def test_outputs_and_gradients_are_numpys(ops, rows, widths, linear_last):
    inputs, kernels, biases, upstream = drawn(rows, widths)
    watched = [tf.constant(array) for array in (inputs, *kernels, *biases)]
    with tf.GradientTape() as tape:
        tape.watch(watched)
        outputs = ops.recsys_mlp(
            watched[0], watched[1 : len(widths)], watched[len(widths) :], linear_last=linear_last
        ).outputs
    found = tape.gradient(outputs, watched, output_gradients=tf.constant(upstream))
    wanted, of_inputs, of_kernels, of_biases = by_numpy(inputs, kernels, biases, upstream, linear_last)
    np.testing.assert_allclose(outputs, wanted, atol=1e-5)
    for ours, theirs in zip(found, [of_inputs, *of_kernels, *of_biases], strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-4, rtol=1e-5)


def test_the_gradient_of_data_is_not_worked_out(ops):
    inputs, kernels, biases, upstream = drawn(5, [4, 3])
    out = ops.recsys_mlp(inputs, kernels, biases)
    gradients = ops.recsys_mlp_gradient(upstream, out.outputs, kernels, out.panels, of_inputs=False)
    assert gradients.input_gradient.shape == (0, 0)
    np.testing.assert_allclose(
        gradients.kernel_gradients[0], by_numpy(inputs, kernels, biases, upstream)[2][0], atol=1e-5
    )


def test_what_is_no_number_is_seen(ops):
    inputs, kernels, biases, _ = drawn(20, [4, 8, 8])
    inputs[3, 2] = np.nan
    outputs = ops.recsys_mlp(inputs, kernels, biases).outputs.numpy()
    assert np.isnan(outputs[3]).any()
    assert np.isfinite(np.delete(outputs, 3, axis=0)).all()  # and nobody else has it


def test_operations_that_share_the_threads_do_not_mix_their_work(ops):
    """Many at once, in some of which a thread is still at work while others ask for it."""
    cases = [drawn(rows, [60, 150, 40], seed=rows) for rows in (3, 17, 32, 64, 100, 200)]

    @tf.function(autograph=False)
    def all_of_them():
        found = []
        for inputs, kernels, biases, upstream in cases:
            out = ops.recsys_mlp(inputs, kernels, biases)
            found.append([out.outputs, ops.recsys_mlp_gradient(upstream, *out[:1], kernels, out[1], of_inputs=True)[0]])
        return found

    wanted = [by_numpy(*case)[:2] for case in cases]
    for _ in range(30):
        for ours, theirs in zip(all_of_them(), wanted, strict=True):
            for a, b in zip(ours, theirs, strict=True):
                np.testing.assert_allclose(a, b, atol=1e-4)


@pytest.mark.parametrize(
    ("rows", "change", "said"),
    [
        (257, {}, "at most 256 rows"),
        (5, {"kernels": [np.zeros((3, 2), np.float32)]}, "for inputs of 4"),
        (5, {"biases": [np.zeros(2, np.float32)]}, "bias"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(ops, rows, change, said):
    inputs, kernels, biases, _ = drawn(rows, [4, 3])
    with pytest.raises(tf.errors.InvalidArgumentError, match=said):
        ops.recsys_mlp(**{"inputs": inputs, "kernels": kernels, "biases": biases} | change)


def kernels_of(mlp, rows, training=False):
    """Types of the operations that an MLP is made of, for a number of rows that may be unknown."""
    function = tf.function(lambda x: mlp(x, tf.zeros((2,), tf.int32), training=training), autograph=False)
    graph = function.get_concrete_function(tf.TensorSpec((rows, 6), tf.float32)).graph
    return {operation.type for operation in graph.get_operations() if operation.type.startswith("Recsys")}


def test_one_kernel_does_few_rows_and_only_those():
    mlp, separate = MLP(6, [5, 4]), {"RecsysMatMul", "RecsysBiasReluDropout"}
    least, most = layers._FEW_ROWS
    assert kernels_of(mlp, least) == kernels_of(mlp, most) == {"RecsysMlp"}
    assert kernels_of(mlp, least - 1) == kernels_of(mlp, most + 1) == kernels_of(mlp, None) == separate


def test_dropout_is_not_left_out():
    mlp = MLP(6, [5, 4], dropout=0.5)
    assert "RecsysMlp" not in kernels_of(mlp, 64, training=True)
    assert kernels_of(mlp, 64) == {"RecsysMlp"}


def test_a_head_is_done_with_the_layers_before_it():
    """With as many rows as the kernel is for; with others it comes after them, and the result is the same."""
    mlp, head = MLP(6, [5, 4], seed=3), build_dense(4, 1, seed=7)
    head.bias.assign([0.5])
    few, many = (np.random.default_rng(1).standard_normal((rows, 6)).astype(np.float32) for rows in (64, 500))
    for inputs in (few, many):
        found = mlp(inputs, tf.zeros((2,), tf.int32), head=head)
        np.testing.assert_allclose(found, head(mlp(inputs, tf.zeros((2,), tf.int32))), atol=1e-6)
        assert np.min(found) < 0 < np.max(found)

    def work(inputs):
        return mlp(inputs, tf.zeros((2,), tf.int32), head=head)

    graph = tf.function(work, autograph=False).get_concrete_function(tf.constant(few)).graph
    assert {op.type for op in graph.get_operations() if op.type.startswith("Recsys")} == {"RecsysMlp"}


def test_an_mlp_of_data_has_the_gradients_of_any_other():
    inputs = drawn(20, [6, 5])[0]
    found = []
    for reads_data in (False, True):
        mlp = MLP(6, [5, 4], seed=3, reads_data=reads_data)
        with tf.GradientTape() as tape:
            total = tf.reduce_sum(mlp(tf.constant(inputs), tf.zeros((2,), tf.int32)) ** 2)
        found.append(tape.gradient(total, [variable.value for variable in mlp.trainable_variables]))
    for ours, theirs in zip(*found, strict=True):
        np.testing.assert_array_equal(ours, theirs)


_ELSEWHERE = """
import os, sys
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # TensorFlow's threads and ours begin with this
import tensorflow as tf
tf.config.threading.set_intra_op_parallelism_threads(int(sys.argv[1]))
import numpy as np
from tests.models import test_mlp_ops as cases
from models import custom_ops
case = cases.drawn(64, [60, 150, 40])
outputs = custom_ops.mlp_ops().recsys_mlp(*case[:3]).outputs
np.testing.assert_allclose(outputs, cases.by_numpy(*case)[0], atol=1e-5)
print(len(os.listdir("/proc/self/task")))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="threads keep to a CPU on Linux alone")
def test_more_threads_than_cpus_are_no_harm():
    root = pathlib.Path(__file__).resolve().parents[2]
    counted = []
    for threads in (1, 3):
        done = subprocess.run(
            [sys.executable, "-c", _ELSEWHERE, str(threads)], cwd=root, capture_output=True, text=True, check=True
        )
        counted.append(int(done.stdout))
    # One thread needs no others. Of three, the caller is one, and TensorFlow has begun its own pool's besides.
    assert counted[1] >= counted[0] + 2


@pytest.mark.parametrize("lanes", [4, 8, 16])
def test_the_pieces_are_right_for_vectors_of_any_machine(tmp_path, lanes):
    """AVX-512 and machines without AVX2 have other panels than the one that this runs on may have."""
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    if compiler is None:
        pytest.skip("no C++ compiler")
    here, program = pathlib.Path(__file__).resolve().parent, tmp_path / "check"
    folder = here.parents[1] / "models" / "ops"
    source = here / "mlp_pieces_check.cc"
    subprocess.run(
        [compiler, "-O1", "-w", f"-DLANES={lanes}", "-I", str(folder), str(source), "-o", str(program)],
        check=True,
        capture_output=True,
    )
    found = subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout
    assert float(found) < 1e-4
