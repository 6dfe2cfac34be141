"""Trains, evaluates and benchmarks recommender models: `python main.py --help`."""

import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from data.errors import InputError
from trainer import flags
from trainer.config import RunConfig

if TYPE_CHECKING:
    from trainer.distributed import SingleProcess
    from trainer.records import Record
    from trainer.runtime import Surroundings


def run(config: RunConfig, comm: "SingleProcess", surroundings: "Surroundings") -> "Record":
    """Trains, evaluates or benchmarks on an initialised rank; see trainer.launch for what comes before and after.

    Args:
      config: what to do.
      comm: the ranks.
      surroundings: the device, and what the first line of output has to say.

    Returns:
      The record of the run, the same on every rank.
    """
    from trainer.experiment import Experiment

    experiment = Experiment.open(config, comm, surroundings)
    if config.mode.benchmark:
        return experiment.benchmark_inference() if config.mode.evaluate else experiment.benchmark_training()
    return experiment.evaluate() if config.mode.evaluate else experiment.train()


def main(arguments: Sequence[str]) -> int:
    """Runs a command line; returns the exit code: 0, or 2 for bad input."""
    try:
        config = flags.parse(arguments)
    except flags.HelpRequested as request:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # so that `--help | head` ends quietly
        print(request)
        return 0
    except InputError as error:
        print(f"main.py: {error}", file=sys.stderr)
        return 2
    # TensorFlow comes with these: only now, because --help and bad flags must not wait for it.
    from trainer.launch import run_as_rank

    return run_as_rank(config, run)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
