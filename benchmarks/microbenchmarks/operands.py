"""Random operands of products, in TensorFlow's precision and, the same values, in numpy's float64."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import tensorflow as tf

_DTYPES = {"fp32": "float32", "tf32": "float32", "bf16": "bfloat16", "fp16": "float16"}


def tensor(array: np.ndarray, precision: str) -> "tf.Tensor":
    """The array rounded to a precision. tf32 has float32's tensors: only products round them."""
    import tensorflow as tf

    return tf.cast(tf.constant(array), _DTYPES[precision])


def normal(rng: np.random.Generator, shape: tuple[int, ...], precision: str, scale: float = 1.0) -> "tf.Tensor":
    """Independent normal values of mean 0 and standard deviation `scale`."""
    return tensor(rng.standard_normal(shape, dtype=np.float32) * np.float32(scale), precision)


def float64(values: Any) -> np.ndarray:
    """A tensor's values, exactly."""
    return values.numpy().astype(np.float64)


def read_sums(values: Iterable["tf.Tensor"]) -> list[float]:
    """The sum of each tensor, read back: it takes every one of its values, and no memory for a copy."""
    import tensorflow as tf

    return [float(tf.reduce_sum(tensor)) for tensor in values]


def last_value(values: "tf.Tensor") -> "tf.Tensor":
    """The last value of a matrix, scalar float32: reading it back waits until the matrix is there."""
    import tensorflow as tf

    return tf.cast(values[-1, -1], tf.float32)
