"""One rank of a job that runs cases: `rank_worker.py FOLDER DATASETS`, DATASETS as JSON, name -> folder.

FOLDER/CASE.RANK.pickle holds what a case returned. A rank in which a case raises leaves its trace in
FOLDER/CASE.RANK.error and ends at once: the others would wait for it in the next collective.
"""

import importlib
import json
import os
import pathlib
import pickle
import sys
import time
import traceback

FOLDER = pathlib.Path(__file__).parent
sys.path[:0] = [str(FOLDER.parents[1]), str(FOLDER)]


def main(folder: pathlib.Path, datasets: dict[str, pathlib.Path]) -> None:
    from trainer import runtime
    from trainer.config import DeviceConfig

    device = DeviceConfig(cpu=True)
    runtime.import_tensorflow(device)
    runtime.configure(device, threads=1)
    for module in (
        "cases_exchange",
        "cases_figures",
        "cases_training",
        "cases_sharded",
        "cases_ootb",
        "cases_collectives",
    ):
        importlib.import_module(module)  # registers its cases
    from rank_cases import CASES, Context

    from trainer import distributed

    comm = distributed.connect()
    for name, (function, sizes) in CASES.items():
        if comm.size not in sizes:
            continue
        started = time.perf_counter()
        own = folder / f"{name}-files"
        own.mkdir(exist_ok=True)
        try:
            result = function(Context(comm, datasets, own))
        except BaseException:
            (folder / f"{name}.{comm.rank}.error").write_text(traceback.format_exc())
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)
        with open(folder / f"{name}.{comm.rank}.pickle", "wb") as file:
            pickle.dump(result, file)
        print(f"case {name}: {time.perf_counter() - started:.1f} s", flush=True)
        comm.barrier()
    comm.shutdown()


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), {name: pathlib.Path(path) for name, path in json.loads(sys.argv[2]).items()})
