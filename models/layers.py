"""Dense building blocks: ReLU with dropout whose mask is a function of a seed, and the multi-layer perceptron."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf

from models import backward_training, custom_ops


class SeededReluDropout(keras.layers.Layer):
    """ReLU, then dropout whose mask depends on the seed it is called with and on nothing else.

    A layer that keeps a generator of its own cannot be resumed in the middle of an epoch without saving that
    generator; here the step number is the seed, so step k has the same mask in every run. Draws 16 bits per element,
    half of what a float32 uniform costs; the drop probability is rounded to a multiple of 1 / 65536 and the scale
    uses the rounded value, so the expectation is exact. Srivastava et al. (2014), inverted scaling.

    Both in one layer, and the bias of the layer before with them, because one kernel does it all: forward and backward
    then pass over memory once each.
    """

    def __init__(self, rate: float, **kwargs):
        super().__init__(**kwargs)
        self._threshold = round(rate * 65536)
        if not 0 <= self._threshold < 65536:
            raise ValueError(f"dropout rate must be at least 0 and below 1, got {rate}")

    @property
    def drops(self) -> bool:
        """Whether it drops anything in training."""
        return self._threshold > 0

    def call(
        self, inputs: tf.Tensor, seed: tf.Tensor, training: bool = False, bias: tf.Tensor | None = None
    ) -> tf.Tensor:
        """
        Args:
          inputs: (rows, units).
          seed: (2,) int32.
          training: whether to drop.
          bias: (units,), added first; None for none.
        """
        threshold = self._threshold if training else 0
        scale = 65536.0 / (65536 - threshold)
        ops = custom_ops.dropout_ops()
        if ops is not None and inputs.dtype == tf.float32:
            key, counter = _philox_key_and_counter(seed) if threshold else _NO_DRAWS
            bias = tf.zeros(inputs.shape[-1:]) if bias is None else bias
            return ops.recsys_bias_relu_dropout(inputs, bias, key, counter, threshold=threshold, scale=scale)
        activated = tf.nn.relu(inputs if bias is None else inputs + bias)
        if threshold == 0:
            return activated
        rows, units = tf.shape(inputs)[0], inputs.shape[-1]
        # Two 16-bit draws per 32-bit word. An odd width takes a word more per row.
        words = (units + 1) // 2
        bits = tf.random.stateless_uniform((rows, words), seed, None, None, dtype=tf.int32, alg="philox")
        draws = tf.reshape(tf.bitcast(bits, tf.uint16), (rows, words * 2))[:, :units]
        keep = draws >= tf.constant(threshold, tf.uint16)
        return tf.where(keep, activated * tf.constant(scale, inputs.dtype), tf.zeros((), inputs.dtype))


# Rows of a batch for which one kernel does all layers, models/ops/mlp_ops.cc: fewer waste its vectors, which hold 16
# samples and more, and with more a product of OpenBLAS is as fast (at 256 rows no difference was seen).
_FEW_ROWS = (9, 128)

_NO_DRAWS = (np.zeros(1, np.uint64), np.zeros(2, np.uint64))


def _philox_key_and_counter(seed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """What tf.random.stateless_uniform makes of a seed for its Philox generator, (1,) and (2,) uint64."""
    scrambled = tf.raw_ops.StatelessRandomUniformFullIntV2(
        shape=[2],
        key=tf.constant([0x02461E293EC8F720], tf.uint64),
        counter=tf.cast(seed, tf.uint64),
        alg=1,
        dtype=tf.uint64,
    )
    return scrambled[:1], tf.stack([tf.zeros((), tf.uint64), scrambled[1]])


class Initialization(NamedTuple):
    """How a dense layer begins: functions of (seed, units) that return Keras initializers."""

    kernel: Callable[[int, int], keras.initializers.Initializer]
    bias: Callable[[int, int], keras.initializers.Initializer]


GLOROT_UNIFORM = Initialization(
    kernel=lambda seed, units: keras.initializers.GlorotUniform(seed=seed),
    bias=lambda seed, units: keras.initializers.Zeros(),
)
"""Kernels uniform with variance 2 / (inputs + units), biases zero. Glorot and Bengio (2010)."""

NORMAL = Initialization(
    kernel=lambda seed, units: keras.initializers.VarianceScaling(
        mode="fan_avg", distribution="untruncated_normal", seed=seed
    ),
    bias=lambda seed, units: keras.initializers.RandomNormal(stddev=np.sqrt(1.0 / units), seed=seed),
)
"""Kernels normal with variance 2 / (inputs + units), biases normal with variance 1 / units. Naumov et al. (2019)."""


class Dense(keras.layers.Dense):
    """Keras's dense layer, computed by OpenBLAS where that is faster than TensorFlow: in float32, on a CPU."""

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """(rows, inputs) -> (rows, units)."""
        if not self._is_ours(inputs):
            return super().call(inputs)
        return custom_ops.dense_ops().recsys_dense(inputs=inputs, kernel=self.kernel.value, bias=self.bias.value)

    def without_bias(self, inputs: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor | None]:
        """(rows, inputs) -> (rows, units) and the bias (units,) that is yet to be added; None where it already is."""
        if not self._is_ours(inputs):
            return self(inputs), None
        return custom_ops.dense_ops().recsys_mat_mul(inputs, self.kernel.value), self.bias.value

    def is_plain(self, inputs: tf.Tensor) -> bool:
        """Whether it is a product and a bias in float32, and nothing else."""
        plain = self.activation is keras.activations.linear and self.use_bias
        return plain and inputs.dtype == tf.float32 and self.compute_dtype == "float32"

    def _is_ours(self, inputs: tf.Tensor) -> bool:
        return custom_ops.dense_ops() is not None and self.is_plain(inputs)


def build_dense(
    input_width: int,
    units: int,
    *,
    seed: int,
    bias_seed: int = 0,
    initial: Initialization = GLOROT_UNIFORM,
    **kwargs,
) -> Dense:
    """A dense layer that has its variables already.

    Args:
      input_width: columns of the input.
      units: columns of the output.
      seed: of the kernel's initial values.
      bias_seed: of the bias's, where they are drawn; one seed for both would repeat the kernel's numbers.
      initial: distributions of the initial values.
      **kwargs: further arguments of keras.layers.Dense.
    """
    layer = Dense(
        units,
        kernel_initializer=initial.kernel(seed, units),
        bias_initializer=initial.bias(bias_seed, units),
        **kwargs,
    )
    layer.build((None, input_width))
    return layer


class MLP(keras.layers.Layer):
    """Dense layers with ReLU, each followed by dropout.

    Computes in the precision of the Keras policy in force when it is made; kernels stay float32.
    """

    def __init__(
        self,
        input_width: int,
        units: Sequence[int],
        *,
        dropout: float = 0.0,
        reads_data: bool = False,
        seed: int = 0,
        initial: Initialization = GLOROT_UNIFORM,
        **kwargs,
    ):
        """
        Args:
          input_width: columns of the input.
          units: sizes of the layers; none at all passes the input on.
          dropout: drop probability after each layer.
          reads_data: nobody asks for the gradient of the input, and it may be None.
          seed: initial values depend on it alone; layer i draws its kernel with seed + i.
          initial: distributions of the initial values.
          **kwargs: further arguments of keras.layers.Layer.
        """
        super().__init__(**kwargs)
        self._reads_data = reads_data
        self._dense, self._dropout = [], []
        width = input_width
        for index, size in enumerate(units):
            layer = build_dense(
                width,
                size,
                seed=seed + index,
                bias_seed=seed + len(units) + index,
                initial=initial,
                dtype=self.dtype_policy,
                name=f"hidden_{index}",
            )
            self._dense.append(layer)
            self._dropout.append(SeededReluDropout(dropout, dtype=self.dtype_policy, name=f"dropout_{index}"))
            width = size
        self.output_width = width
        self.built = True

    def call(self, inputs: tf.Tensor, seed: tf.Tensor, training: bool = False, head: Dense | None = None) -> tf.Tensor:
        """
        Args:
          inputs: (rows, input width).
          seed: (2,) int32, see SeededReluDropout.
          training: whether to drop.
          head: a layer that reads the last one; None for none. One kernel does it with the others where it can.

        Returns:
          (rows, units of the head or of the last layer).
        """
        if self._is_one_kernel(inputs, training):
            with_head = head is not None and head.is_plain(inputs)
            layers = [*self._dense, *([head] if with_head else [])]
            kernels, biases = zip(*((layer.kernel.value, layer.bias.value) for layer in layers), strict=True)
            ops = custom_ops.mlp_ops()
            options = {"of_inputs": not self._reads_data, "linear_last": with_head}
            if backward_training.take([*kernels, *biases]):
                handles = ([variable.handle for variable in variables] for variables in (kernels, biases))
                outputs = ops.recsys_trained_mlp(inputs, *handles, **options).outputs
            else:
                outputs = ops.recsys_mlp(inputs, kernels, biases, **options).outputs
            return outputs if with_head or head is None else head(outputs)
        hidden = inputs
        # A number for each layer of each step: step + index would give a layer the mask of its neighbour a step ago.
        layers = len(self._dense)
        for index, (dense, dropout) in enumerate(zip(self._dense, self._dropout, strict=True)):
            hidden, bias = dense.without_bias(hidden)
            hidden = dropout(hidden, seed=seed * [1, layers] + [0, index], training=training, bias=bias)
        return hidden if head is None else head(hidden)

    def _is_one_kernel(self, inputs: tf.Tensor, training: bool) -> bool:
        """Whether one kernel does all layers: on few rows, whose number is known when the function is traced."""
        rows, (least, most) = inputs.shape[0], _FEW_ROWS
        few = rows is not None and least <= rows <= most and self._dense
        if not few or custom_ops.mlp_ops() is None or (training and self._dropout[0].drops):
            return False
        return all(layer.is_plain(inputs) for layer in self._dense)
