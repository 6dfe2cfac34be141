"""The matrix products of a model's hidden layers and nothing else: what a step takes at least on this machine."""

import time
from collections.abc import Callable, Sequence

import numpy as np

from benchmarks import torch_peer
from benchmarks.comparison import Contender

Shape = tuple[int, int]


def contenders(batch_size: int, layers: Sequence[Shape], steps: int, *, gradients: bool) -> dict[str, Contender]:
    """Library -> the products of `steps` steps. TensorFlow, numpy, and PyTorch where it is installed.

    Of a hidden layer they are x W and, with gradients, dy W' and x' dy: those of the first layer's input, too, for it
    holds embeddings. Every layer has matrices of its own, as in a step: layers that shared them would find them in the
    caches, which made numpy 1.1 times as fast where it was tried.

    Args:
      batch_size: rows of a batch.
      layers: (inputs, units) of every hidden layer.
      steps: at each turn.
      gradients: also the two products of the backward pass.
    """
    rng = np.random.default_rng(0)
    drawn = [
        [
            rng.standard_normal(shape, dtype=np.float32)
            for shape in ((batch_size, inputs), (inputs, units), (batch_size, units))
        ]
        for inputs, units in layers
    ]

    def contender(multiply: Callable, to_library: Callable) -> Contender:
        own = [[to_library(array) for array in arrays] for arrays in drawn]

        def work() -> tuple[float, float]:
            started = time.perf_counter()
            for _ in range(steps):
                for x, kernel, dy in own:
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


def flops(batch_size: int, layers: Sequence[Shape], *, gradients: bool) -> int:
    """Floating-point operations of the products of a step: 2 m n k each."""
    weights = sum(inputs * units for inputs, units in layers)
    return 2 * batch_size * weights * (3 if gradients else 1)


def _tensorflow() -> tuple[Callable, Callable]:
    import tensorflow as tf

    return lambda a, b, left, right: tf.matmul(a, b, transpose_a=left, transpose_b=right), tf.constant


def _numpy() -> tuple[Callable, Callable]:
    return lambda a, b, left, right: np.matmul(a.T if left else a, b.T if right else b), np.array
