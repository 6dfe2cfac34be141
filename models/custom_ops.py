"""The project's own TensorFlow kernels (models/ops): built once at set-up, loaded where they are and can help.

    python -m models.custom_ops     builds them for the installed TensorFlow; needs a C++ compiler

Whoever asks gets None where they were not built, or where tables are on a GPU, for which there are no kernels, and then
uses TensorFlow's own.
"""

import functools
import hashlib
import os
import pathlib
import subprocess
import sys
import tempfile
from types import ModuleType

import tensorflow as tf

from data.errors import InputError

_SOURCE = pathlib.Path(__file__).parent / "ops" / "embedding_ops.cc"


def library_path() -> pathlib.Path:
    """Where the built kernels of this source and this TensorFlow are kept: in Python's own environment."""
    key = hashlib.sha256(_SOURCE.read_bytes()).hexdigest()[:12]
    folder = pathlib.Path(sys.prefix) / "lib" / "recsys-harness"
    return folder / f"embedding_ops-tf{tf.__version__}-{key}.so"


@functools.cache
def embedding_ops() -> ModuleType | None:
    """The kernels as Python functions: recsys_pooled_lookup, recsys_row_gradients, recsys_subtract_rows."""
    path = library_path()
    if tf.config.list_physical_devices("GPU") or not path.exists():
        return None
    return tf.load_op_library(str(path))


def build(compiler: str = "") -> pathlib.Path:
    """Compiles the kernels, about 15 seconds; returns their library, which is there complete or not at all.

    Args:
      compiler: the C++ compiler; $CXX or g++ by default.

    Raises:
      InputError: there is no compiler, or it fails; the message has the end of what it said.
    """
    path = library_path()
    compiler = compiler or os.environ.get("CXX") or "g++"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            built = pathlib.Path(folder) / path.name
            command = [
                *(compiler, "-O3", "-shared", "-fPIC", *tf.sysconfig.get_compile_flags()),
                *("-o", str(built), str(_SOURCE), *tf.sysconfig.get_link_flags()),
            ]
            result = subprocess.run(command, capture_output=True, text=True)
            if result.returncode != 0:
                said = " ".join(result.stderr.split())[-500:]
                raise InputError(f"{_SOURCE}: {compiler} cannot build the kernels: {said}")
            os.replace(built, path)
    except OSError as error:
        raise InputError(
            f"{path}: cannot build the kernels with {compiler}: {error.strerror or error}; install g++ or name a "
            "compiler by CXX"
        ) from error
    return path


@tf.RegisterGradient("RecsysPooledLookup")
def _pooled_lookup_gradient(op: tf.Operation, upstream: tf.Tensor) -> list[tf.IndexedSlices | None]:
    """Of the table: the rows that were looked up."""
    table, ids = op.inputs
    layout = ("columns", "hotness", "offsets", "first_rows", "row_counts", "dim", "mean", "sum_features")
    rows, values = embedding_ops().recsys_row_gradients(
        ids=ids, upstream=upstream, **{name: op.get_attr(name) for name in layout}
    )
    return [tf.IndexedSlices(values, rows, tf.raw_ops.VariableShape(input=table, out_type=rows.dtype)), None]


if __name__ == "__main__":
    try:
        print(build())
    except InputError as error:
        print(f"models.custom_ops: {error}", file=sys.stderr)
        sys.exit(2)
