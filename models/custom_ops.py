"""The project's own TensorFlow kernels (models/ops): built once at set-up, loaded where they are and can help.

    python -m models.custom_ops     builds them for the installed TensorFlow; needs a C++ compiler

Whoever asks gets None where they were not built, or where tables are on a GPU, for which there are no kernels, and then
uses TensorFlow's own.
"""

import contextlib
import contextvars
import functools
import importlib.util
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from types import ModuleType

import tensorflow as tf

from data.errors import InputError
from models import kernel_library

_FOLDER = kernel_library.FOLDER
_only_tensorflow = contextvars.ContextVar("only_tensorflow", default=False)


def library_path() -> pathlib.Path:
    """Where the built kernels of this source and this TensorFlow are kept."""
    return kernel_library.library_path(tf.__version__, _FOLDER)


def in_use() -> str:
    """Whose kernels work on tables, for records: "own" or "tensorflow"."""
    return "tensorflow" if embedding_ops() is None else "own"


def dense_ops() -> ModuleType | None:
    """recsys_dense and recsys_mat_mul, see models/ops/dense_ops.cc; None while `only_tensorflow` is entered."""
    return None if _only_tensorflow.get() else _library()


def embedding_ops() -> ModuleType | None:
    """recsys_pooled_lookup, _row_gradients, _subtract_rows, _pools and _dense, _use_huge_pages: embedding_ops.cc."""
    return _library()


def dropout_ops() -> ModuleType | None:
    """recsys_bias_relu_dropout, see models/ops/dropout_ops.cc; None while `only_tensorflow` is entered."""
    return None if _only_tensorflow.get() else _library()


def mlp_ops() -> ModuleType | None:
    """recsys_mlp and recsys_trained_mlp, see models/ops/mlp_ops.cc; None while `only_tensorflow` is entered."""
    return None if _only_tensorflow.get() else _library()


def interaction_ops() -> ModuleType | None:
    """recsys_dot_interaction, see models/ops/interaction_ops.cc; None while `only_tensorflow` is entered."""
    return None if _only_tensorflow.get() else _library()


@contextlib.contextmanager
def only_tensorflow() -> Iterator[None]:
    """While entered, layers are traced with TensorFlow's kernels alone: XLA compiles no others."""
    token = _only_tensorflow.set(True)
    try:
        yield
    finally:
        _only_tensorflow.reset(token)


@functools.cache
def _library() -> ModuleType | None:
    path = library_path()
    if tf.config.list_physical_devices("GPU") or not path.exists():
        return None
    return tf.load_op_library(str(path))


def _sources() -> list[pathlib.Path]:
    return kernel_library.sources(_FOLDER)


def build(compiler: str = "") -> pathlib.Path:
    """Compiles the kernels, half a minute; returns their library, which is there complete or not at all.

    Args:
      compiler: the C++ compiler; $CXX or g++ by default.

    Raises:
      InputError: there is no compiler or no OpenBLAS, or the compiler fails; the message has the end of what it said.
    """
    path = library_path()
    compiler = compiler or os.environ.get("CXX") or "g++"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            built = pathlib.Path(folder) / path.name
            command = [
                *(compiler, "-O3", "-fno-trapping-math", "-shared", "-fPIC", "-w", *tf.sysconfig.get_compile_flags()),
                *("-o", str(built), *map(str, _sources()), *tf.sysconfig.get_link_flags(), *_openblas_flags()),
            ]
            result = subprocess.run(command, capture_output=True, text=True)
            if result.returncode != 0:
                errors = [line for line in result.stderr.splitlines() if "error" in line] or [result.stderr]
                said = " ".join(errors[0].split())[:500]
                raise InputError(f"{_FOLDER}: {compiler} cannot build the kernels: {said}")
            os.replace(built, path)
    except OSError as error:
        raise InputError(
            f"{path}: cannot build the kernels with {compiler}: {error.strerror or error}; install g++ or name a "
            "compiler by CXX"
        ) from error
    return path


def _openblas_flags() -> list[str]:
    """For the compiler: OpenBLAS of the package scipy-openblas32, found again where it lies when the kernels load."""
    # Not imported: that would give its symbols to all libraries of the process.
    found = importlib.util.find_spec("scipy_openblas32")
    if found is None or not found.submodule_search_locations:
        raise InputError(
            "cannot build the kernels: scipy-openblas32 is not installed; pip install -r requirements.txt installs it"
        )
    folder = pathlib.Path(found.submodule_search_locations[0])
    lib = folder / "lib"
    return [f"-I{folder / 'include'}", f"-L{lib}", "-lscipy_openblas", f"-Wl,-rpath,{lib}"]


@tf.RegisterGradient("RecsysDense")
def _dense_gradient(op: tf.Operation, upstream: tf.Tensor) -> list[tf.Tensor]:
    inputs, kernel, _ = op.inputs
    product = _library().recsys_mat_mul
    # Three operations and not one: what nobody asks for, such as the gradient of a batch, is not computed.
    return [
        product(upstream, kernel, transpose_b=True),
        product(inputs, upstream, transpose_a=True),
        tf.raw_ops.BiasAddGrad(out_backprop=upstream),
    ]


@tf.RegisterGradient("RecsysMatMul")
def _mat_mul_gradient(op: tf.Operation, upstream: tf.Tensor) -> list[tf.Tensor]:
    if op.get_attr("transpose_a") or op.get_attr("transpose_b"):
        raise NotImplementedError("RecsysMatMul has gradients of a b alone, not of transposed matrices")
    a, b = op.inputs
    product = _library().recsys_mat_mul
    return [product(upstream, b, transpose_b=True), product(a, upstream, transpose_a=True)]


@tf.RegisterGradient("RecsysPooledLookup")
def _pooled_lookup_gradient(op: tf.Operation, upstream: tf.Tensor) -> list[tf.IndexedSlices | None]:
    """Of the table: the rows that were looked up."""
    table, ids = op.inputs
    layout = ("columns", "hotness", "offsets", "first_rows", "row_counts", "dim", "mean", "sum_features")
    rows, values = embedding_ops().recsys_row_gradients(
        ids=ids, upstream=upstream, **{name: op.get_attr(name) for name in layout}
    )
    return [tf.IndexedSlices(values, rows, tf.raw_ops.VariableShape(input=table, out_type=rows.dtype)), None]


@tf.RegisterGradient("RecsysBiasReluDropout")
def _bias_relu_dropout_gradient(op: tf.Operation, upstream: tf.Tensor) -> list[tf.Tensor | None]:
    gradient, bias_gradient = _library().recsys_bias_relu_dropout_gradient(
        outputs=op.outputs[0], upstream=upstream, scale=op.get_attr("scale")
    )
    return [gradient, bias_gradient, None, None]


@tf.RegisterGradient("RecsysMlp")
def _mlp_gradient(op: tf.Operation, upstream: tf.Tensor, *of_panels: None) -> list[tf.Tensor | None]:
    del of_panels  # they are there for this function alone
    layers, of_inputs, linear_last = (op.get_attr(name) for name in ("N", "of_inputs", "linear_last"))
    found = _library().recsys_mlp_gradient(
        upstream=upstream,
        outputs=op.outputs[0],
        kernels=list(op.inputs[1 : 1 + layers]),
        panels=list(op.outputs[1:]),
        of_inputs=of_inputs,
        linear_last=linear_last,
    )
    return [found.input_gradient if of_inputs else None, *found.kernel_gradients, *found.bias_gradients]


@tf.RegisterGradient("RecsysDotInteraction")
def _dot_interaction_gradient(op: tf.Operation, upstream: tf.Tensor) -> list[tf.Tensor]:
    return _library().recsys_dot_interaction_gradient(
        vectors=list(op.inputs),
        upstream=upstream,
        **{name: op.get_attr(name) for name in ("dim", "self_interaction", "pass_first")},
    )


if __name__ == "__main__":
    try:
        print(build())
    except InputError as error:
        print(f"models.custom_ops: {error}", file=sys.stderr)
        sys.exit(2)
