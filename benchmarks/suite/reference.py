"""Our model's outputs beside those of the plain Keras model with the same weights, on generated rows.

    python -m benchmarks.suite.reference FLAGS      takes main.py's flags; writes reference.json in --results_dir

Every weight is moved away from its initial value first: a table of zeros would look the same whatever is looked up.
"""

import json
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from data import command_line
from data.errors import InputError
from trainer import flags
from trainer.config import RunConfig

if TYPE_CHECKING:
    from trainer.distributed import SingleProcess
    from trainer.runtime import Surroundings

RESULT = "reference.json"
_NOISE = 0.05


def compare(config: RunConfig, comm: "SingleProcess") -> dict[str, Any]:
    """Scores one evaluation batch with both models.

    Returns:
      rows, largest_difference of logits, largest_logit (absolute values) and spread, their standard deviation.
    """
    import tensorflow as tf

    from benchmarks.ootb import inputs, models
    from benchmarks.ootb import weights as keras_weights
    from benchmarks.our_steps import weights
    from data.feature_spec import TEST
    from data.input_pipeline import ParquetInput
    from trainer.assembly import make_model, place_tables
    from trainer.dataset import open_spec
    from trainer.steps import make_eval_step

    spec = open_spec(config)
    ours = make_model(config, spec, comm, place_tables(config, spec, comm, None))
    rng = np.random.default_rng(config.training.seed)
    for variable in (variable for group in ours.dense_variables().values() for variable in group):
        variable.assign_add(_NOISE * rng.standard_normal(variable.shape).astype(np.float32))
    for fused in ours.tables:
        noise = _NOISE * rng.standard_normal(fused.variable.shape).astype(np.float32)
        noise[fused.padding_row] = 0.0  # what absent ids look up stays zero
        fused.variable.assign_add(noise)
    rows = ParquetInput(spec, TEST, with_display=False)
    with rows.eval_stream(global_batch_size=min(config.training.eval_batch_size, rows.num_rows)) as stream:
        batch = next(stream.arrays())
    plain = models.build_model(config, spec)
    their_inputs = tf.nest.map_structure(tf.constant, inputs.model_inputs(spec, batch))
    plain(their_inputs)
    keras_weights.load(plain, weights(ours), spec)
    step = make_eval_step(ours, xla=config.device.xla)
    found = step({name: tf.constant(array) for name, array in batch.items()}).numpy().ravel()
    expected = np.asarray(plain(their_inputs, training=False)).ravel()
    return {
        "rows": len(found),
        "largest_difference": float(np.abs(found - expected).max()),
        "largest_logit": float(np.abs(expected).max()),
        "spread": float(expected.std()),
    }


def run(config: RunConfig, comm: "SingleProcess", surroundings: "Surroundings") -> None:
    """Compares and writes the result."""
    document = compare(config, comm)
    path = os.path.join(config.output.results_dir, RESULT)
    with open(path, "w", encoding="utf-8") as file:
        json.dump(document, file)
        file.write("\n")
    print(f"{document['rows']} rows, largest difference {document['largest_difference']:.3g}")


def main(arguments: Sequence[str]) -> int:
    """Runs a command line; returns the exit code: 0, or 2 for bad input."""
    try:
        config = flags.parse(arguments)
    except flags.HelpRequested as request:
        return command_line.say(str(request))
    except InputError as error:
        print(f"python -m benchmarks.suite.reference: {error}", file=sys.stderr)
        return 2
    from trainer.launch import run_as_rank  # brings TensorFlow

    return run_as_rank(config, run)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
