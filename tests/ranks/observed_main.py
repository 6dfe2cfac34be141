"""main.py with each rank's CPUs written down, and something that happens in one rank before one of its steps.

observed_main.py FOLDER RANK:STEP:ACTION FLAGS...    ACTION: kill, term or raise

The time of it (seconds since the epoch) is left in FOLDER/fault-at.
"""

import json
import os
import pathlib
import signal
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))

import main

FOLDER, FAULT, *FLAGS = sys.argv[1:]


def act(action: str) -> None:
    pathlib.Path(FOLDER, "fault-at").write_text(repr(time.time()))
    if action == "raise":
        raise ZeroDivisionError("a mistake of ours")
    os.kill(os.getpid(), {"kill": signal.SIGKILL, "term": signal.SIGTERM}[action])


def observed_run(config, comm, surroundings, *, run=main.run):
    from trainer import assembly

    make_train_step = assembly.make_train_step
    rank, at, action = FAULT.split(":")

    def make_faulty_step(*args, **kwargs):
        train_step = make_train_step(*args, **kwargs)

        def step(batch, signals, number):
            if comm.rank == int(rank) and int(number) == int(at):
                act(action)
            return train_step(batch, signals, number)

        return step

    cpus = sorted(os.sched_getaffinity(0))
    pathlib.Path(FOLDER, f"cpus-{comm.rank}.json").write_text(json.dumps(cpus))
    assembly.make_train_step = make_faulty_step
    return run(config, comm, surroundings)


if __name__ == "__main__":
    main.run = observed_run
    sys.exit(main.main(FLAGS))
