"""Dense layers that are trained by the very operation that works out their gradients.

Plain SGD needs the gradient of a weight once: w -= rate * g. Where nothing else has to see it, no other rank and no
slot, it is taken off as soon as it is known and never written to memory: a pass over the weights and two over their
gradients less, 5 to 8 % of a training step of DLRM "tiny".
"""

import contextlib
import contextvars
from collections.abc import Iterator, Sequence

import tensorflow as tf

from models import custom_ops

_current: contextvars.ContextVar["BackwardTrainer | None"] = contextvars.ContextVar("backward_trainer", default=None)


class BackwardTrainer:
    """Which variables a step trains in its backward pass, and how fast. Entered, it is what layers ask for.

    A layer that can be trained so takes its variables when it is called. When a gradient is asked for that leads
    through it, they are trained, and have no gradient of their own. The tape must watch them: it does not see that they
    are read.
    """

    def __init__(self, variables: Sequence[tf.Variable], rate: tf.Tensor):
        """
        Args:
          variables: those that may be taken.
          rate: scalar float32, the learning rate.
        """
        self.rate = rate
        self._offered = {variable.ref() for variable in variables}
        self._taken = set()

    def take(self, variables: Sequence[tf.Variable]) -> bool:
        """Whether the caller is to train these variables; all of them or none.

        Raises:
          ValueError: one of them has been taken before, and would change before its other reader has its gradient.
        """
        wanted = {variable.ref() for variable in variables}
        if not wanted <= self._offered:
            return False
        if wanted & self._taken:
            raise ValueError("a layer that is called twice in a step cannot be trained in its backward pass")
        self._taken |= wanted
        return True

    def trains(self, variable: tf.Variable) -> bool:
        """Whether the variable was taken."""
        return variable.ref() in self._taken

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Where layers are called and their gradients asked for."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)


def take(variables: Sequence[tf.Variable]) -> bool:
    """`BackwardTrainer.take` of the one that is entered; False if none is."""
    trainer = _current.get()
    return trainer is not None and trainer.take(variables)


@tf.RegisterGradient("RecsysTrainedMlp")
def _train_mlp(op: tf.Operation, upstream: tf.Tensor, *of_panels: None) -> list[tf.Tensor | None]:
    del of_panels  # they are there for this function alone
    trainer = _current.get()
    if trainer is None:
        raise RuntimeError("the gradient of a layer that is trained by it was asked for where nobody trains")
    layers, of_inputs, linear_last = (op.get_attr(name) for name in ("N", "of_inputs", "linear_last"))
    # The rate comes in here and not in the forward pass, which need not wait for a schedule's operations.
    of_input = custom_ops.mlp_ops().recsys_train_mlp(
        upstream=upstream,
        outputs=op.outputs[0],
        kernels=list(op.inputs[1 : 1 + layers]),
        biases=list(op.inputs[1 + layers :]),
        panels=list(op.outputs[1:]),
        rate=trainer.rate,
        of_inputs=of_inputs,
        linear_last=linear_last,
    )
    return [of_input if of_inputs else None, *[None] * (2 * layers)]
