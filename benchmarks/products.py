"""The matrix products of a model's hidden layers and nothing else: what a step takes at least on this machine."""

import itertools
import time
from collections.abc import Callable, Sequence

import numpy as np

from benchmarks import torch_peer
from benchmarks.comparison import Contender


def contenders(batch_size: int, widths: Sequence[int], steps: int, *, gradients: bool) -> dict[str, Contender]:
    """Library -> the products of `steps` steps. TensorFlow, numpy, and PyTorch where it is installed.

    Of a hidden layer they are x W and, with gradients, dy W' and x' dy: those of the first layer's input, too, for it
    holds embeddings.

    Args:
      batch_size: rows of a batch.
      widths: of the input and of every hidden layer's output.
      steps: at each turn.
      gradients: also the two products of the backward pass.
    """
    rng = np.random.default_rng(0)
    vectors = {width: rng.standard_normal((batch_size, width), dtype=np.float32) for width in set(widths)}
    pairs = list(itertools.pairwise(widths))
    kernels = {pair: rng.standard_normal(pair, dtype=np.float32) for pair in set(pairs)}

    def contender(multiply: Callable, to_library: Callable) -> Contender:
        arrays = {key: to_library(array) for key, array in (vectors | kernels).items()}

        def work() -> tuple[float, float]:
            started = time.perf_counter()
            for _ in range(steps):
                for pair in pairs:
                    x, kernel, dy = arrays[pair[0]], arrays[pair], arrays[pair[1]]
                    multiply(x, kernel, False, False)
                    if gradients:
                        multiply(dy, kernel, False, True)
                        multiply(x, dy, True, False)
            return steps * batch_size, time.perf_counter() - started

        return work

    found = {"TensorFlow": contender(*_tensorflow()), "numpy": contender(*_numpy())}
    if torch_peer.is_installed():
        found["PyTorch"] = contender(*torch_peer.matrix_product())
    return found


def flops(batch_size: int, widths: Sequence[int], *, gradients: bool) -> int:
    """Floating-point operations of the products of a step: 2 m n k each."""
    weights = sum(inputs * outputs for inputs, outputs in itertools.pairwise(widths))
    return 2 * batch_size * weights * (3 if gradients else 1)


def _tensorflow() -> tuple[Callable, Callable]:
    import tensorflow as tf

    return lambda a, b, left, right: tf.matmul(a, b, transpose_a=left, transpose_b=right), tf.constant


def _numpy() -> tuple[Callable, Callable]:
    return lambda a, b, left, right: np.matmul(a.T if left else a, b.T if right else b), np.array
