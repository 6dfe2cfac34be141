"""Evaluation: every row of the evaluation source scored once, and the figures over all ranks."""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import tensorflow as tf

from data.errors import InputError
from data.input_pipeline import BatchStream, ParquetInput, blank_batch
from trainer.agreement import agree
from trainer.distributed import SingleProcess
from trainer.metrics import AucState, LossState, MapState


@dataclasses.dataclass(frozen=True)
class Figures:
    """What an evaluation found; NaN where a figure is undefined, None where it was not asked for.

    Attributes:
      log_loss, normalized_entropy, calibration, auc: over all rows.
      map_at_12: over displays with a click; None without display ids.
      displays, displays_without_click: how many displays there are of both kinds; None without display ids.
      rows: rows scored.
      ids_cut: feature -> ids beyond its max_hotness, which were not read.
    """

    log_loss: float
    normalized_entropy: float
    calibration: float
    auc: float
    map_at_12: float | None
    displays: int | None
    displays_without_click: int | None
    rows: int
    ids_cut: Mapping[str, int] = dataclasses.field(default_factory=dict)


class Scoreboard:
    """The states of all metrics on one rank.

    Args:
      with_map: keep what MAP@12 needs; batches must then carry `group_ids`.
      sorted_by_display: see MapState.
    """

    def __init__(self, *, with_map: bool, sorted_by_display: bool = False):
        self._map = MapState(12, sorted_by_display=sorted_by_display) if with_map else None
        self._auc = AucState()
        self._loss = LossState()

    def update(self, batch: Mapping[str, tf.Tensor], logits: tf.Tensor) -> int:
        """Counts the rows of a batch that are not padding; returns how many they are."""
        real = batch["mask"].numpy() > 0
        labels, scores = batch["labels"].numpy()[real], logits.numpy()[real]
        # Logits are ranked, not probabilities, of which the extreme ones are all equal in float32.
        self._loss.update(labels, scores)
        self._auc.update(labels, scores)
        if self._map is not None:
            self._map.update(batch["group_ids"].numpy()[real], labels, scores)
        return int(np.count_nonzero(real))

    def compute(self, comm: SingleProcess) -> Figures:
        """The figures over all ranks, which must all call it."""
        loss = self._loss.compute(comm)
        ranking = None if self._map is None else self._map.compute(comm)
        return Figures(
            log_loss=loss.log_loss,
            normalized_entropy=loss.normalized_entropy,
            calibration=loss.calibration,
            auc=self._auc.compute(comm),
            map_at_12=None if ranking is None else ranking.map,
            displays=None if ranking is None else ranking.displays,
            displays_without_click=None if ranking is None else ranking.displays_without_click,
            rows=loss.rows,
        )


def displays_are_sorted(rows: ParquetInput, comm: SingleProcess) -> bool:
    """Whether display ids never fall through the whole source, so that ranks share displays at their ends alone."""
    parts = comm.allgather_object(agree(comm, lambda: rows.displays_sorted(comm.rank, comm.size)))
    ends = [end for _, first, last in parts if first is not None for end in (first, last)]
    return all(in_order for in_order, _, _ in parts) and ends == sorted(ends)


def evaluate(
    rows: ParquetInput,
    eval_step: Callable[[Mapping[str, tf.Tensor]], tf.Tensor],
    comm: SingleProcess,
    *,
    global_batch_size: int,
    with_map: bool,
    together: bool = False,
) -> Figures:
    """Scores every row once.

    Args:
      rows: the evaluation source; with display ids if `with_map`.
      eval_step: batch -> logits.
      comm: the ranks, each of which scores its part.
      global_batch_size: rows of a batch over all ranks.
      with_map: whether to rank displays.
      together: `eval_step` is a collective, which all ranks must call equally often.
    """
    in_order = with_map and displays_are_sorted(rows, comm)

    def score() -> tuple[Scoreboard, dict[str, int]]:
        board = Scoreboard(with_map=with_map, sorted_by_display=in_order)
        with rows.eval_stream(global_batch_size=global_batch_size, rank=comm.rank, world_size=comm.size) as stream:
            batches = scored_batches(stream, stream.steps_per_epoch, together=True) if together else stream
            for batch in batches:
                board.update(batch, eval_step(batch))
        return board, stream.counts["ids_cut"]

    # Bad values on one rank wait until all have finished.
    board, ids_cut = agree(comm, score)
    return dataclasses.replace(board.compute(comm), ids_cut=sum_counts(ids_cut, comm))


def scored_batches(
    stream: BatchStream, steps: int, *, together: bool, batches: Iterator[dict[str, tf.Tensor]] | None = None
) -> Iterator[dict[str, tf.Tensor]]:
    """The next `steps` batches of an evaluation stream.

    Args:
      batches: an iteration of the stream to go on with; by default a new one.
      together: other ranks wait for this one in every step. Where the stream fails it yields blank batches, whose rows
        are masked, for the steps that remain, and only then raises what the stream raised.
    """
    batches, failed = iter(stream) if batches is None else batches, None
    if not together:
        yield from itertools.islice(batches, steps)
        return
    for _ in range(steps):
        try:
            batch = blank_batch(stream) if failed else next(batches)
        except InputError as error:
            batch, failed = blank_batch(stream), error
        yield batch
    if failed:
        raise failed


def sum_counts(counts: Mapping[str, int], comm: SingleProcess) -> dict[str, int]:
    """Counts by name, added up over the ranks, which must all call it."""
    total: dict[str, int] = {}
    for of_rank in comm.allgather_object(dict(counts)):
        for name, count in of_rank.items():
            total[name] = total.get(name, 0) + count
    return total
