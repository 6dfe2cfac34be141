"""The batch size with the best throughput: by a sweep of all of them, for throughput need not rise and then fall."""

import statistics
from collections.abc import Sequence

from benchmarks.suite.definitions import INFERENCE, Definition
from benchmarks.suite.results import OK, Cell, Result

LEAST_BATCH, LARGEST_BATCH = 64, 8192


def powers_of_two(least: int, largest: int) -> tuple[int, ...]:
    """Those from `least` to `largest`, both included if they are such."""
    exponent = max(0, least - 1).bit_length()
    found = []
    while 2**exponent <= largest:
        found.append(2**exponent)
        exponent += 1
    return tuple(found)


def best(results: Sequence[Result]) -> tuple[Cell, float] | None:
    """The cell with the highest median score of those within their latency limit; None if there is none.

    Of training the limit says nothing. A cell is within its limit if the median of its repeats' p95 is.
    """
    scores: dict[Cell, list[Result]] = {}
    for result in results:
        if result.status == OK:
            scores.setdefault(result.cell, []).append(result)
    within = {}
    for cell, repeats in scores.items():
        limit, times = repeats[0].latency_limit_ms, [one.p95_ms for one in repeats if one.p95_ms is not None]
        if cell.mode == INFERENCE and limit is not None and (not times or statistics.median(times) > limit):
            continue
        within[cell] = statistics.median(one.score for one in repeats)
    if not within:
        return None
    winner = max(within, key=lambda cell: (within[cell], -cell.batch_size))
    return winner, within[winner]


def summary(definitions: Sequence[Definition], results: Sequence[Result]) -> str:
    """A line for each benchmark, implementation and kind of cell: its best batch size."""
    groups: dict[tuple, list[Result]] = {}
    for result in results:
        cell = result.cell
        key = (cell.model, cell.implementation, cell.mode, cell.config, cell.precision, cell.world_size, cell.scaling)
        groups.setdefault(key, []).append(result)
    limits = {(one.model, one.mode, one.config): one.latency_limit_ms for one in definitions}
    lines = []
    for (model, implementation, mode, config, precision, ranks, scaling), found in groups.items():
        several = f", {ranks} ranks ({scaling})" if ranks > 1 else ""
        who = f"{model}-{mode}-{config} {implementation}, {precision}{several}"
        limit = limits.get((model, mode, config))
        under = f" with p95 of at most {limit:g} ms" if mode == INFERENCE and limit is not None else ""
        tried = len({result.cell.batch_size for result in found})
        winner = best(found)
        if winner is None:
            lines.append(f"{who}: none of {tried} batch sizes has a score{under}")
        else:
            cell, score = winner
            units = next(result.units for result in found if result.cell == cell)
            lines.append(f"{who}: best of {tried} batch sizes is {cell.batch_size:,}, {score:,.1f} {units}{under}")
    return "\n".join(lines)
