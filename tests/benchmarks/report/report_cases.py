"""Results made by hand, and the files that hold them."""

import json

from benchmarks.suite.results import OK, Cell, Result, append

MACHINE = {"cpu_model": "Abacus", "cpus": 2, "memory_bytes": 2**34, "gpus": [], "versions": {"tensorflow": "2.21.0"}}
CELL = Cell("dlrm", "optimized", "training", "tiny", "1", 64)


def result(score=100.0, *, repeat=1, status=OK, fingerprint=MACHINE, step_ms=(10.0, 20.0), units="samples/s", **given):
    """A result; fields of its cell are given beside its own."""
    cell = {name: given.pop(name) for name in list(given) if name in Cell.__dataclass_fields__}
    return Result(
        cell=Cell(**{**CELL.__dict__, **cell}),
        **{"status": status, "score": score if status == OK else None, "repeat": repeat, "units": units},
        **{"step_ms": step_ms, "fingerprint": fingerprint, **given},
    )


def repeats(*scores, **given):
    """Repeats 1, 2, ... of a cell."""
    return [result(score, repeat=number, **given) for number, score in enumerate(scores, start=1)]


def turns(scores_a, scores_b, **given):
    """Repeats of out of the box and of optimized that were run in turns."""
    found = []
    for number, pair in enumerate(zip(scores_a, scores_b, strict=True), start=1):
        for second, (implementation, score) in enumerate(zip(("ootb", "optimized"), pair, strict=True)):
            start = f"2026-01-01T00:{number:02}:{second:02}+00:00"
            given |= {"implementation": implementation, "start_time": start}
            found.append(result(score, repeat=number, **given))
    return found


def folder(path, results, *further_lines):
    """A folder of records; lines that are given are added as they are."""
    path.mkdir(exist_ok=True)
    append(results, str(path))
    with open(path / "records.jsonl", "a", encoding="utf-8") as file:
        file.writelines(further_lines)
    return path


def log(path, *entries):
    """A log, one entry a line; texts are written as they are."""
    path.write_text("".join(entry if isinstance(entry, str) else json.dumps(entry) + "\n" for entry in entries))
    return path


def whole_log(**header):
    """Entries of a finished run: 3 batches of 8 rows in 2 s, 12 samples a second, batches of 500, 600 and 900 ms."""
    times = [(1000, 1500), (1500, 2100), (2100, 3000)]
    batches = [
        {"time_ms": time, "key": key}
        for pair in times
        for time, key in zip(pair, ("batch_start", "batch_stop"), strict=True)
    ]
    return [
        {
            **{"benchmark": "dlrm", "implementation": "ootb", "mode": "train", "config": "A.1dev-embed32-fp32"},
            **{"score_metric": "exps", "key": "header", **header},
        },
        {"time_ms": 1000, "key": "run_start"},
        *batches,
        {"time_ms": 3000, "num_batches": 3, "batch_size": 8, "key": "run_stop"},
    ]
