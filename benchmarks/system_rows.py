"""The rows of `benchmarks.compare_peers` that compare us with ourselves: disk with memory, two ranks with one, metrics.

Functions as in `benchmarks.peer_rows`.
"""

import dataclasses
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import psutil

from benchmarks import workloads
from benchmarks.comparison import Contender, Row, measure
from benchmarks.peer_rows import SAMPLES, Settings, row_of
from benchmarks.workloads import ADS_PER_DISPLAY

_ROOT = Path(__file__).resolve().parents[1]
_PARQUET_ROWS, _METRIC_ROWS, _METRIC_BATCH = 500_000, 10_000_000, 65_536
_RANKS, _RANKS_BATCH, _RANKS_WARMUP, _RANKS_STEPS = 2, 8192, 1, 5


def parquet_input(settings: Settings) -> list[Row]:
    """A small Wide & Deep, 128 and 128, at batch 4096 from generated parquet files: the same from memory."""
    from benchmarks.our_steps import OurSteps
    from data import synthetic
    from data.feature_spec import TRAIN, FeatureSpec
    from data.input_pipeline import ParquetInput

    workload = workloads.wide_deep(shrink=settings.shrink, hidden_units=(128, 128))
    rows = max(20 * workload.batch_size, _PARQUET_ROWS // settings.shrink)
    spec = FeatureSpec.from_yaml(synthetic.cached_dataset(rows=rows, seed=1, spec=workload.spec))
    ours = OurSteps(workload)
    source = ParquetInput(spec, TRAIN, with_display=False)
    with source.train_stream(global_batch_size=workload.batch_size) as stream:
        # Whole epochs: the stream works far ahead, which is not to show.
        steps, batches = stream.steps_per_epoch, iter(stream)
        first_epoch = list(itertools.islice(batches, steps))
        held = itertools.cycle(first_epoch[: workloads.DISTINCT_BATCHES])
        work = {"from memory": ours.trains(held, steps), "from disk": ours.trains(batches, steps)}
        speeds = measure(work, settings.runs, lambda line: settings.say(f"parquet_input: {line}"), SAMPLES)
    memory, disk = (row_of(f"parquet_input: {name}", values) for name, values in speeds.items())
    ratio = disk.figure / memory.figure
    return [memory, dataclasses.replace(disk, ratio=ratio, ratio_is="of the speed from memory", target=0.95)]


def ranks(settings: Settings) -> list[Row]:
    """Wide & Deep at global batch 8192 on two ranks that share the threads: on one rank that has them all."""
    horovodrun = shutil.which("horovodrun", path=os.path.dirname(sys.executable)) or shutil.which("horovodrun")
    names = [f"ranks: 1 x {settings.threads} threads", f"ranks: {_RANKS} x {settings.threads // _RANKS} threads"]
    problem = "horovodrun is not there: bash scripts/setup.sh builds Horovod" if horovodrun is None else ""
    if settings.threads < _RANKS:
        problem = f"needs {_RANKS} threads, got {settings.threads}"
    if problem:
        return [Row(names[0], None, SAMPLES, note=problem), Row(names[1], None, SAMPLES, target=0.92, note=problem)]
    launcher = [horovodrun, "-np", str(_RANKS), "sh", "hvd_wrapper.sh"]
    work = {
        names[0]: _benchmarked_by_main([], settings.threads, settings),
        names[1]: _benchmarked_by_main(launcher, settings.threads // _RANKS, settings),
    }
    # Each turn is a process of its own, so there is no first pass to leave out.
    speeds = measure(work, settings.runs, settings.say, SAMPLES, left_out=0)
    one, several = (row_of(name, values) for name, values in speeds.items())
    ratio = several.figure / one.figure
    return [one, dataclasses.replace(several, ratio=ratio, ratio_is="of the speed of one rank", target=0.92)]


def _benchmarked_by_main(launcher: Sequence[str], threads: int, settings: Settings) -> Contender:
    """`python main.py --benchmark` as its users start it."""
    batch = max(16, _RANKS_BATCH // settings.shrink)
    flags = {
        "dataset_type": "synthetic",
        "synthetic_rows": 8 * batch,
        "global_batch_size": batch,
        "deep_hidden_units": ",".join([str(max(8, 1024 // settings.shrink))] * 5),
        "benchmark_warmup_steps": _RANKS_WARMUP,
        "benchmark_steps": _RANKS_WARMUP + settings.steps(_RANKS_STEPS),
        "intra_op_threads": threads,
    }

    def work() -> tuple[float, float]:
        with tempfile.TemporaryDirectory(prefix="recsys-harness-ranks.") as folder:
            where = [f"--results_dir={folder}", f"--model_dir={folder}"]
            stated = [f"--{name}={value}" for name, value in flags.items()]
            command = [*launcher, sys.executable, "main.py", "--cpu", "--benchmark", *stated, *where]
            _run(command + (["--xla"] if settings.xla else []))
            with open(os.path.join(folder, "result.json"), encoding="utf-8") as file:
                return json.load(file)["samples_per_sec"], 1.0

    return work


def _run(command: Sequence[str]) -> None:
    """Runs a command in the project's folder, ended with this process.

    Raises:
      RuntimeError: it failed; the message has its last lines.
    """
    process = subprocess.Popen(command, cwd=_ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        output, _ = process.communicate()
    except BaseException:
        process.terminate()
        process.wait()
        raise
    if process.returncode:
        raise RuntimeError(f"{' '.join(command[:4])} ended with code {process.returncode}: {output[-500:]}")


def metrics(settings: Settings) -> list[Row]:
    """MAP@12 and AUC of 10 million rows on one CPU: seconds, and what they add to the memory of the process."""
    from trainer.metrics import AucState, MapState

    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    rows = _METRIC_ROWS // settings.shrink
    before, seconds, memory = psutil.Process().memory_info().rss, [], 0
    for run in range(settings.runs):
        rng = np.random.default_rng(run)
        ranking, auc, elapsed = MapState(12), AucState(), 0.0
        for start in range(0, rows, _METRIC_BATCH):
            row = np.arange(start, min(start + _METRIC_BATCH, rows))
            scores = rng.standard_normal(len(row), dtype=np.float32)
            labels = (row % ADS_PER_DISPLAY == 0).astype(np.float32)
            started = time.perf_counter()
            ranking.update(row // ADS_PER_DISPLAY, labels, scores)
            auc.update(labels, scores)
            elapsed += time.perf_counter() - started
        started = time.perf_counter()
        ranking.compute()
        auc.compute()
        seconds.append(elapsed + time.perf_counter() - started)
        del ranking, auc
        memory = max(memory, _peak_memory() - before)
        settings.say(f"metrics: run {run + 1} of {settings.runs}: {seconds[-1]:.2f} s")
    time_row = row_of(f"metrics: MAP@12 and AUC of {rows:,} rows", seconds, "s")
    memory_row = Row("metrics: memory", memory / 1e9, "GB")
    return [
        dataclasses.replace(row, ratio=row.figure, ratio_is=f"{row.unit}, one CPU", target=target, at_most=True)
        for row, target in ((time_row, 8.0), (memory_row, 0.8))
    ]


def _peak_memory() -> int:
    from trainer.machine import peak_memory_bytes

    return peak_memory_bytes()
