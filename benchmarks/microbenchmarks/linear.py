"""Stacks of fully connected layers, each x W + b and ReLU: forward, or forward and backward.

A shape is a stack: the width of its input, then of every layer's output. Forward is 2 x batch x sum of (in x out)
floating-point operations; backward has two products of that size for every layer (the gradients of W and of x, that of
the stack's input included), so forward and backward is 6 x batch x sum of (in x out).

Checked are the output and every gradient, of some rows of the batch: for that the gradient of the output is zero in all
other rows. numpy takes from the stack which values its ReLUs let pass: a value next to zero may round to either side,
and a gradient would then differ as a whole. Values that pass must be above zero in numpy too, or close to it, for the
outputs of every layer are compared. What a whole batch gives is the same after the loop as before it.
"""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.microbenchmarks import checks
from benchmarks.microbenchmarks.operands import float64, last_value, normal, read_sums, tensor
from benchmarks.microbenchmarks.shapes import BYTES_OF, PROCESS_BYTES, Benchmark, Settings, Shape
from benchmarks.microbenchmarks.timed import Work

FORWARD, FORWARD_BACKWARD = "forward", "forward_backward"
_CHECKED_ROWS = 64


def operations(stacks: Sequence[Shape], batch: int, mode: str) -> int:
    """Floating-point operations of a step."""
    weights = sum(inputs * outputs for stack in stacks for inputs, outputs in itertools.pairwise(stack))
    return (6 if mode == FORWARD_BACKWARD else 2) * batch * weights


def moved_bytes(stacks: Sequence[Shape], batch: int, precision: str, mode: str) -> int:
    """What a step must read and write at least.

    Forward reads every weight and every layer's input, and writes every output. Backward reads weights, inputs and the
    gradients of outputs, and writes the gradients of weights and of inputs.
    """
    values = sum(i * o + o + batch * (i + o) for stack in stacks for i, o in itertools.pairwise(stack))
    again = sum(2 * (i * o + o) + batch * (2 * i + o) for stack in stacks for i, o in itertools.pairwise(stack))
    return BYTES_OF[precision] * (values + (again if mode == FORWARD_BACKWARD else 0))


def predicted_bytes(settings: Settings, ranks: int) -> int:
    """Weights and outputs and, of a backward pass, the gradients of three results: before the loop, in it, read back.

    And numpy's float64 of one stack.
    """
    del ranks
    weights = sum(i * o + o for stack in settings.shapes for i, o in itertools.pairwise(stack))
    outputs = settings.batch * sum(sum(stack) for stack in settings.shapes)
    copies = 4 if settings.mode == FORWARD_BACKWARD else 1
    kept = BYTES_OF[settings.precision] * (weights * copies + 2 * copies * outputs)
    largest = max(sum(i * o + o for i, o in itertools.pairwise(stack)) for stack in settings.shapes)
    return PROCESS_BYTES + kept + 8 * largest * (3 if copies > 1 else 1)


def prepare(settings: Settings, comm: Any) -> Work:
    """Every rank has stacks and inputs of its own."""
    import tensorflow as tf

    rng = np.random.default_rng(comm.rank)
    stacks = [_Stack(shape, settings, rng) for shape in settings.shapes]

    @tf.function(autograph=False)
    def forward(arguments):
        outputs = [_outputs(tf, x, layers)[-1] for x, layers, _ in arguments]
        return [{"outputs": [output]} for output in outputs], tf.add_n([last_value(output) for output in outputs])

    @tf.function(autograph=False)
    def forward_backward(arguments):
        results, ends = [], []
        for x, layers, upstream in arguments:
            wanted = [x, *itertools.chain.from_iterable(layers)]
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(wanted)
                outputs = _outputs(tf, x, layers)
            gradients = tape.gradient(outputs[-1], wanted, output_gradients=upstream)
            results.append({"outputs": outputs, "gradients": gradients})
            ends += [last_value(one) for one in (outputs[-1], gradients[0], *gradients[1::2])]  # x, every W
        return results, tf.add_n(ends)

    step = forward_backward if settings.mode == FORWARD_BACKWARD else forward
    whole = [stack.arguments() for stack in stacks]
    first: list[list[np.ndarray]] = []

    def before() -> list[checks.Check]:
        found = []
        results, _ = step([stack.arguments(only_checked=True) for stack in stacks])
        for stack, result in zip(stacks, results, strict=True):
            found += stack.compare(result)
        first.extend(_all(result) for result in step(whole)[0])
        return found

    def after(result: Any) -> list[checks.Check]:
        said = "after, all results of the whole batch, against before"
        found = []
        for stack, one, old in zip(stacks, result[0], first, strict=True):
            pairs = zip(_all(one), old, strict=True)
            found.append(_worst([stack.close(f"{said}: {stack.name}", *pair) for pair in pairs]))
        return found

    amount = operations(settings.shapes, settings.batch, settings.mode)
    moved = moved_bytes(settings.shapes, settings.batch, settings.precision, settings.mode)
    return Work(
        step=lambda: step(whole),
        wait=lambda result: result[1].numpy(),
        read=lambda result: [read_sums(values) for one in result[0] for values in one.values()],
        before=before,
        after=after,
        amount=amount * comm.size,
        figures={
            "gflop_per_step": amount / 1e9,
            "bytes_per_step": moved,
            "layers": sum(len(shape) - 1 for shape in settings.shapes),
        },
    )


class _Stack:
    """A stack of layers with its input and the gradient of its output, and what numpy makes of them."""

    def __init__(self, widths: Shape, settings: Settings, rng: np.random.Generator):
        precision, batch = settings.precision, settings.batch
        self.name = f"{len(widths) - 1} layers {widths[0]} to {widths[-1]}"
        self._precision = precision
        # He et al. (2015): outputs of all layers are then of one size.
        self._layers = [
            (normal(rng, (i, o), precision, math.sqrt(2.0 / i)), normal(rng, (o,), precision, 0.1))
            for i, o in itertools.pairwise(widths)
        ]
        self._x = normal(rng, (batch, widths[0]), precision)
        upstream = rng.standard_normal((batch, widths[-1]), dtype=np.float32)
        self._upstream = tensor(upstream, precision)
        self._rows = checks.sampled(batch, _CHECKED_ROWS)
        masked = np.zeros_like(upstream)
        masked[self._rows] = upstream[self._rows]
        self._masked = tensor(masked, precision)

    def arguments(self, *, only_checked: bool = False) -> tuple:
        """(x, layers, gradient of the output) for a step; only the checked rows have a gradient if that is asked."""
        return self._x, self._layers, self._masked if only_checked else self._upstream

    def compare(self, result: dict[str, list]) -> list[checks.Check]:
        """The result of a step with `arguments(only_checked=True)` beside numpy's."""
        import tensorflow as tf

        rows = self._rows
        what = f"{self.name}, {len(rows):,} of {self._x.shape[0]:,} rows"
        found = [float64(tf.gather(output, rows)) for output in result["outputs"]]
        inputs = [float64(tf.gather(self._x, rows))]
        for kernel, bias in self._layers:
            inputs.append(np.maximum(inputs[-1] @ float64(kernel) + float64(bias), 0.0))
        # Forward has the last output alone.
        pairs = zip(reversed(found), reversed(inputs), strict=False)
        outputs = _worst([self.close(f"output of {what}", *pair) for pair in pairs])
        if "gradients" not in result:
            return [outputs]
        gradient = float64(tf.gather(self._masked, rows))
        expected: list[np.ndarray] = []
        layers = zip(reversed(self._layers), reversed(found), reversed(inputs[:-1]), strict=True)
        for (kernel, _), output, entered in layers:
            gradient = gradient * (output > 0.0)
            expected = [entered.T @ gradient, gradient.sum(axis=0), *expected]
            gradient = gradient @ float64(kernel).T
        mine = [float64(tf.gather(result["gradients"][0], rows)), *map(float64, result["gradients"][1:])]
        pairs = zip(mine, [gradient, *expected], strict=True)
        return [outputs, _worst([self.close(f"gradients of {what}", *pair) for pair in pairs])]

    def close(self, what: str, found: np.ndarray, expected: np.ndarray) -> checks.Check:
        """Whether they are equal but for the rounding of all layers."""
        return checks.close(what, found, expected, self._precision, operations=len(self._layers))


def _worst(found: Sequence[checks.Check]) -> checks.Check:
    """The first that did not hold; the first if all did."""
    return next((check for check in found if not check.held), found[0])


def _outputs(tf: Any, x: Any, layers: Sequence[tuple]) -> list:
    outputs = []
    for kernel, bias in layers:
        x = tf.nn.relu(tf.nn.bias_add(tf.matmul(x, kernel), bias))
        outputs.append(x)
    return outputs


def _all(result: dict[str, list]) -> list[np.ndarray]:
    return [one.numpy() for group in result.values() for one in group]


_WIDTHS = (1024,) * 19  # 18 layers

BENCHMARK = Benchmark(
    name="linear",
    units="TF/s",
    modes=(FORWARD, FORWARD_BACKWARD),
    numbers=("in", "out", "..."),
    presets={"small": (_WIDTHS,)},
    default_batch=128,  # FAMBench has 256 too
    predicted_bytes=predicted_bytes,
    prepare=prepare,
)
