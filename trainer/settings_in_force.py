"""What settings a run had in force, read from the objects that ran and not from its configuration.

A comparison of two settings says nothing where both runs had the same one, whatever they were asked for.
"""

import zlib
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np

from models.click_model import ClickModel
from trainer.distributed import SingleProcess
from trainer.state import dense_weights


def settings_in_force(model: ClickModel, steps: Mapping[str, Callable], comm: SingleProcess) -> dict[str, Any]:
    """Settings as the model, the steps and the ranks show them, for a record; all ranks call it.

    - compute_dtype: of the dense layers but the last, which always computes in float32; several are joined by "+".
      None where there are no others.
    - variable_dtype: of the weights outside tables.
    - jit_compiled: of the steps' functions, those that XLA compiles and that were traced, so that they ran.
    - world_size: ranks that answered.

    Args:
      model: as built.
      steps: name -> step of trainer.steps, after it has run.
      comm: the ranks.
    """
    layers = model._flatten_layers(include_self=False)  # Keras has no public way to nested layers
    dense = [layer for layer in layers if isinstance(layer, keras.layers.Dense) and layer is not model.head]
    return {
        "compute_dtype": _joined(layer.compute_dtype for layer in dense),
        "variable_dtype": _joined(variable.dtype.name for variable in dense_weights(model).values()),
        "jit_compiled": compiled_functions(steps),
        "world_size": int(comm.allreduce_sum(np.ones(1))[0]),
    }


def compiled_functions(steps: Mapping[str, Callable]) -> list[str]:
    """Functions of steps that were made with jit_compile and traced, as "train_step.dense_part"; see settings_in_force.

    Steps without a `dense_part`, of which nothing is known, have none.
    """
    found = []
    for name, step in steps.items():
        for part, function in ((name, step), (f"{name}.dense_part", getattr(step, "dense_part", None))):
            # TensorFlow has no public way to ask a function for jit_compile.
            if getattr(function, "_jit_compile", None) and function.experimental_get_tracing_count() > 0:
                found.append(part)
    return found


def weights_digest(model: ClickModel) -> int:
    """A checksum of the weights outside tables, which every training step changes."""
    checksum = 0
    for variable in dense_weights(model).values():
        checksum = zlib.crc32(np.ascontiguousarray(variable.numpy()).tobytes(), checksum)
    return checksum


def _joined(names) -> str | None:
    return "+".join(sorted(set(names))) or None
