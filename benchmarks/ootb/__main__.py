"""Benchmarks plain Keras: `python -m benchmarks.ootb --benchmark FLAGS`, with main.py's flags."""

import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from benchmarks.ootb import settings
from data.errors import InputError
from trainer import flags
from trainer.config import RunConfig

if TYPE_CHECKING:
    from trainer.distributed import SingleProcess
    from trainer.records import Record
    from trainer.runtime import Surroundings


def run(config: RunConfig, comm: "SingleProcess", surroundings: "Surroundings") -> "Record":
    """See benchmarks.ootb.benchmark.run."""
    from benchmarks.ootb import benchmark  # brings TensorFlow, after the environment is set

    return benchmark.run(config, comm, surroundings)


def main(arguments: Sequence[str]) -> int:
    """Runs a command line; returns the exit code: 0, or 2 for bad input."""
    try:
        config = flags.parse(arguments)
        settings.check(config)
    except flags.HelpRequested as request:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # so that `--help | head` ends quietly
        print(request)
        return 0
    except InputError as error:
        print(f"benchmarks.ootb: {error}", file=sys.stderr)
        return 2
    from trainer.launch import run_as_rank

    return run_as_rank(config, run)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
