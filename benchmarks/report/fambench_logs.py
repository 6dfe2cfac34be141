"""FAMBench's log files, written and read: one JSON object a line, told apart by `key`.

    {"benchmark": .., "implementation": .., "mode": .., "config": .., "score_metric": "exps", "key": "header"}
    {"time_ms": .., "key": "run_start"}
    {"time_ms": .., "key": "batch_start"} and {"time_ms": .., "batch_size": .., "key": "batch_stop"}, any number
    {"time_ms": .., "num_batches": .., "batch_size": .., "extra_metadata": {"TF/s": ..}, "key": "run_stop"}

A file holds one run, and its name and header know no batch size. So that several sizes can stand in one folder, which
FAMBench's summary reads flat, what is written has the batch size in its configuration, and ranks, scaling and precision
where they are not one rank in float32: `tiny-b64`, `tiny-b128-r2-strong-bf16`. extra_metadata, of which the summary
takes no more than its score, has the plain names, by which what was written is read again as what it was.

Writing is strict. Reading takes values beside `key` or nested in `value` or `data`, with or without batches.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from benchmarks.report.rows import Row
from benchmarks.suite.results import OK, Cell, Result

UNITS = {"exps": "samples/s", "tfps": "TF/s", "gbps": "GB/s"}
"""Score metric of a header -> units."""

_WRITER = "recsys-harness"
_METRICS = {units: metric for metric, units in UNITS.items()}
_ONCE = ("header", "run_start", "run_stop")
_FAILURES = ("error", "exception", "failure", "failed")


def logs(rows: Iterable[Row]) -> dict[str, str]:
    """File name -> content, one for each row: the repeat whose score is the median.

    Where cells differ in their version alone, the version is in the configuration too.
    """
    rows = list(rows)
    found: dict[str, str] = {}
    names = [(row.cell.model, row.cell.implementation, row.cell.mode, _config(row.cell)) for row in rows]
    for row, name in zip(rows, names, strict=True):
        config = name[-1] if names.count(name) == 1 else f"{name[-1]}-v{row.cell.version}"
        file = _file_name((*name[:-1], config))
        if file in found:
            raise ValueError(f"two cells would be written to {file}: {row.cell}")
        found[file] = content(row.median_repeat, config)
    return found


def content(result: Result, config: str) -> str:
    """The lines of a log, from which FAMBench's summary takes the very score of `result`.

    Its samples a second are batches x batch size over the time from run_start to run_stop, so that time is set by the
    score. Times count from the start of the run, or from 0 where it is not known.

    Args:
      result: with a score.
      config: name of the configuration, for the header.
    """
    cell = result.cell
    batches = max(1, len(result.step_ms))
    start = _epoch_ms(result.start_time)
    took_ms = sum(result.step_ms)
    if result.units == "samples/s":
        took_ms = batches * cell.batch_size / result.score * 1000
    lines: list[dict[str, Any]] = [
        {
            **{"benchmark": cell.model, "implementation": cell.implementation, "mode": cell.mode, "config": config},
            **{"score_metric": _METRICS[result.units], "key": "header"},
        },
        {"time_ms": start, "key": "run_start"},
    ]
    now = start
    for step_ms in result.step_ms:
        lines.append({"time_ms": now, "key": "batch_start"})
        now += step_ms
        lines.append({"time_ms": now, "batch_size": cell.batch_size, "key": "batch_stop"})
    extra = {"writer": _WRITER, "config": cell.config, "version": cell.version, "world_size": cell.world_size}
    extra |= {"precision": cell.precision, "scaling": cell.scaling, "repeat": result.repeat}
    extra |= {"latency_limit_ms": result.latency_limit_ms}
    if result.units != "samples/s":
        extra[result.units] = result.score
    stop = {"time_ms": start + took_ms, "num_batches": batches, "batch_size": cell.batch_size}
    lines.append({**stop, "extra_metadata": extra, "key": "run_stop"})
    return "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines)


def is_ours(path: str) -> bool:
    """Whether a file is a log that this module wrote."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return f'"writer": "{_WRITER}"' in file.read()
    except OSError:
        return False


def read(path: str) -> Result:
    """The result that a log holds: its score by FAMBench's rules, and the times of its batches.

    Raises:
      OSError: it cannot be read.
      ValueError: it does not hold one finished run; the message says why.
    """
    with open(path, encoding="utf-8", errors="replace") as file:
        entries = _entries(file)
    if not entries:
        raise ValueError("empty")
    for entry in entries:
        if entry["key"] in _FAILURES or entry.get("status") in _FAILURES:
            said = next(
                (entry[name] for name in ("message", "value", *_FAILURES) if entry.get(name)), "no reason given"
            )
            raise ValueError(f"the run failed: {' '.join(str(said).split())[:200]}")
    for key in _ONCE:
        count = sum(entry["key"] == key for entry in entries)
        if count > 1:
            raise ValueError(f"several runs in one file: {key} stands {count} times")
        if not count:
            raise ValueError(f"no {key}: {'the run did not finish' if key == 'run_stop' else 'not a whole log'}")
    header, start, stop = (next(entry for entry in entries if entry["key"] == key) for key in _ONCE)
    return _result(header, start, stop, entries)


def _result(header: dict, start: dict, stop: dict, entries: Sequence[dict]) -> Result:
    metric = header.get("score_metric", "exps")
    if metric not in UNITS:
        raise ValueError(f"header: score_metric must be one of {', '.join(UNITS)}, got {metric!r}")
    units = UNITS[metric]
    extra = stop.get("extra_metadata")
    extra = extra if isinstance(extra, Mapping) else {}
    ours = extra if extra.get("writer") == _WRITER else {}
    batch_size = _said("batch_size", stop, entries)
    began, ended = _number(start, "time_ms"), _number(stop, "time_ms")
    if units == "samples/s":
        batches = _said("num_batches", stop, entries)
        if batches is None or batch_size is None:
            raise ValueError(
                f"no {'num_batches' if batches is None else 'batch_size'}: samples a second cannot be told"
            )
        if ended <= began:
            raise ValueError(f"run_stop is not after run_start: {ended - began:g} ms")
        score = batches * batch_size / (ended - began) * 1000
    else:
        score = _number(stop | extra, units)
    if score <= 0:
        raise ValueError(f"the score is {score:g} {units}: the run did nothing")
    repeat, world_size = ours.get("repeat", 1), ours.get("world_size", 1)
    cell = Cell(
        **{name: _text(header, key) for name, key in (("model", "benchmark"), ("implementation",) * 2, ("mode",) * 2)},
        config=str(ours["config"]) if "config" in ours else _text(header, "config"),
        version=str(ours.get("version", "")),
        batch_size=int(batch_size or 0),
        world_size=world_size if isinstance(world_size, int) else 1,
        precision=str(ours.get("precision", "")),
        scaling=str(ours.get("scaling", "single")),
    )
    limit = ours.get("latency_limit_ms")
    return Result(
        cell=cell,
        status=OK,
        repeat=repeat if isinstance(repeat, int) and repeat > 0 else 1,
        score=score,
        units=units,
        step_ms=_batch_ms(entries),
        latency_limit_ms=limit if isinstance(limit, int | float) else None,
    )


def _entries(lines: Iterable[str]) -> list[dict[str, Any]]:
    """The objects of a log, values nested in `value` or `data` brought up beside `key`."""
    found = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            raise ValueError(f"line {number} is not JSON: cut off, or not a log") from None
        if not isinstance(entry, dict) or not isinstance(entry.get("key"), str):
            raise ValueError(f"line {number} has no key: not a log")
        for name in ("value", "data", "metadata"):
            if isinstance(entry.get(name), dict):
                entry = {**entry[name], **entry}
        found.append(entry)
    return found


def _batch_ms(entries: Sequence[dict[str, Any]]) -> tuple[float, ...]:
    """Times of the batches between run_start and run_stop, milliseconds."""
    found: list[float] = []
    running, started = False, None
    for entry in entries:
        key = entry["key"]
        if key in ("run_start", "run_stop"):
            running = key == "run_start"
        elif running and key == "batch_start":
            if started is not None:
                raise ValueError("a batch_start follows a batch_start: a batch has no end")
            started = _number(entry, "time_ms")
        elif running and key == "batch_stop":
            if started is None:
                raise ValueError("a batch_stop without its batch_start")
            found.append(_number(entry, "time_ms") - started)
            started = None
    if started is not None:
        raise ValueError("the last batch_start has no batch_stop: a batch has no end")
    if any(step_ms < 0 for step_ms in found):
        raise ValueError(f"a batch ends {-min(found):g} ms before it starts")
    return tuple(found)


def _said(name: str, stop: Mapping[str, Any], entries: Sequence[Mapping[str, Any]]) -> float | None:
    """A figure that run_stop has, or else a line of its own; None if neither."""
    if stop.get(name) is not None:
        return _number(stop, name)
    for entry in entries:
        if entry["key"] == name:
            return _number({name: entry.get(name, entry.get("value"))}, name)
    return None


def _number(entry: Mapping[str, Any], name: str) -> float:
    try:
        value = float(entry[name])
    except KeyError:
        raise ValueError(f"{entry.get('key', 'the log')} has no {name}") from None
    except (TypeError, ValueError):
        value = float("nan")
    if not abs(value) < float("inf"):
        raise ValueError(f"{name} must be a number, got {entry[name]!r}")
    return value


def _text(entry: Mapping[str, Any], name: str) -> str:
    if not isinstance(entry.get(name), str | int | float):
        raise ValueError(f"{entry['key']} has no {name}")
    return str(entry[name])


def _config(cell: Cell) -> str:
    parts = [cell.config, f"b{cell.batch_size}"]
    if cell.world_size != 1:
        parts += [f"r{cell.world_size}"]
    if cell.scaling != "single":
        parts += [cell.scaling]
    if cell.precision != "fp32":
        parts += [cell.precision]
    return "-".join(part for part in parts if part)


def _file_name(parts: Sequence[str]) -> str:
    # What cannot stand in a name of a file is replaced; blanks may.
    return re.sub(r"[/\\\x00-\x1f]", "-", "_".join(parts)) + ".log"


def _epoch_ms(start_time: str) -> float:
    try:
        began = datetime.fromisoformat(start_time)
    except ValueError:
        return 0.0
    return (began if began.tzinfo else began.replace(tzinfo=UTC)).timestamp() * 1000
