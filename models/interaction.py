"""How DLRM and DCNv2 let features interact: pairwise dot products, and low-rank cross layers."""

from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf

from models import custom_ops
from models.layers import build_dense


def num_interactions(num_vectors: int, *, self_interaction: bool) -> int:
    """How many dot products `dot_interaction` returns for each sample."""
    return num_vectors * (num_vectors + 1 if self_interaction else num_vectors - 1) // 2


def dot_interaction(vectors: tf.Tensor, *, self_interaction: bool = False) -> tf.Tensor:
    """Dot products of all pairs of a sample's vectors. Naumov et al. (2019).

    Args:
      vectors: (rows, num_vectors, dim), the last two known when traced.
      self_interaction: also the dot product of each vector with itself.

    Returns:
      (rows, num_interactions): row by row the triangle below the diagonal of the matrix of products, (1,0), (2,0),
      (2,1), (3,0) ..; with `self_interaction` the diagonal too, (0,0), (1,0), (1,1) ..
    """
    count = vectors.shape[1]
    above, left = np.tril_indices(count, 0 if self_interaction else -1)
    taken = (above * count + left).astype(np.int32)
    # Of each element of the symmetric matrix, which product it is. One past the last stands for "not taken".
    source = np.full((count, count), len(taken), dtype=np.int32)
    source[above, left] = source[left, above] = np.arange(len(taken))

    # Autodiff scatters into a zero matrix and multiplies it twice, once transposed; keras-rs's DotInteraction, which
    # has that gradient and stacks its inputs besides, takes about twice as long forward and backward. Gathering the
    # symmetric gradient needs no scatter and one product.
    @tf.custom_gradient
    def products(x):
        flat = tf.reshape(tf.matmul(x, x, transpose_b=True), (-1, count * count))

        def gradient(upstream):
            padded = tf.pad(upstream, [[0, 0], [0, 1]])
            symmetric = tf.reshape(tf.gather(padded, source.ravel(), axis=1), (-1, count, count))
            if self_interaction:
                symmetric *= tf.constant(1 + np.eye(count), symmetric.dtype)  # a square's derivative is twice its root
            return tf.matmul(symmetric, x)

        return tf.gather(flat, taken, axis=1), gradient

    return products(vectors)


def first_and_products(
    first: tf.Tensor | None, others: Sequence[tf.Tensor], dim: int, *, self_interaction: bool = False
) -> tf.Tensor:
    """A sample's first vector, where there is one, and behind it the `dot_interaction` of it and all others.

    By a kernel of our own in float32 on a CPU.

    Args:
      first: (rows, dim); None for no vector that is passed on.
      others: tensors (rows, number * dim) of the other vectors, side by side. Of one type with `first`.
      dim: of a vector.
      self_interaction: as in `dot_interaction`.

    Returns:
      (rows, dim + num_interactions) or, without a first vector, (rows, num_interactions).
    """
    tensors = [*([] if first is None else [first]), *others]
    ops = custom_ops.interaction_ops()
    if ops is not None and all(tensor.dtype == tf.float32 for tensor in tensors):
        return ops.recsys_dot_interaction(
            tensors, dim=dim, self_interaction=self_interaction, pass_first=first is not None
        )
    side_by_side = tf.concat(tensors, axis=1)
    vectors = tf.reshape(side_by_side, (-1, side_by_side.shape[1] // dim, dim))
    products = dot_interaction(vectors, self_interaction=self_interaction)
    return products if first is None else tf.concat([first, products], axis=1)


class LowRankCross(keras.layers.Layer):
    """One cross layer of DCNv2 with a matrix of low rank: x0 * (U (V x) + b) + x. Wang et al. (2021).

    keras-rs's FeatureCross does the same in the same time: not worth a dependency.
    """

    def __init__(self, width: int, projection_dim: int, *, seed: int, **kwargs):
        """
        Args:
          width: of the inputs and of the output.
          projection_dim: the rank.
          seed: of the kernels' initial values; biases are zero.
        """
        super().__init__(**kwargs)
        self._project = build_dense(
            width, projection_dim, seed=seed, use_bias=False, dtype=self.dtype_policy, name="project"
        )
        self._expand = build_dense(projection_dim, width, seed=seed + 1, dtype=self.dtype_policy, name="expand")
        self.built = True

    def call(self, first: tf.Tensor, inputs: tf.Tensor) -> tf.Tensor:
        """
        Args:
          first: x0, the input of the first cross layer, (rows, width).
          inputs: x, the output of the layer before, (rows, width).
        """
        return first * self._expand(self._project(inputs)) + inputs
