"""Rows of generated clicks: drawn chunk by chunk, scored by the teacher, and laid out as arrow tables.

Chunk c of a dataset is drawn from a random stream of its own, that of (seed, c), so that its rows depend on the seed
and c alone; only the last chunk, where it is cut short, depends on the number of rows too.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from data.click_ranking import average_precision, chance_average_precision
from data.displays import MIN_ADS, Displays, IdLists, draw_displays
from data.feature_spec import FeatureSpec
from data.id_draw import DEFAULT_DRAW, IdDraw
from data.teacher import Teacher, draw_clicks, plant, roc_auc

CHUNK_ROWS = 65536
CHUNK_VALUES = 2**22

_SAMPLE_STREAM, _ROW_STREAM = 0, 1


@dataclasses.dataclass(frozen=True)
class ClickRows:
    """A chunk of generated rows.

    Attributes:
      displays: their features, ads of a display side by side.
      utility, clicks: of each row, (rows,) float64 and int8; one click per display.
      display_ids, evaluated: of each display, (displays,): its increasing id and whether it is for evaluation.
    """

    displays: Displays
    utility: np.ndarray
    clicks: np.ndarray
    display_ids: np.ndarray
    evaluated: np.ndarray


class TeacherScore:
    """Gathers what the teacher scores on the evaluation rows."""

    def __init__(self, teacher: Teacher):
        self._teacher = teacher
        self._utility: list[np.ndarray] = []
        self._clicks: list[np.ndarray] = []
        self._sums = np.zeros(4)  # displays, average precision, its chance, log loss

    def add(self, chunk: ClickRows) -> None:
        """Takes in the evaluation rows of a chunk."""
        of_display = chunk.evaluated
        of_row = np.repeat(of_display, chunk.displays.sizes)
        utility, clicks = chunk.utility[of_row], chunk.clicks[of_row]
        probability = self._teacher.click_probability(utility)
        self._sums += (
            np.count_nonzero(of_display),
            average_precision(chunk.utility, chunk.clicks, chunk.displays.sizes)[of_display].sum(),
            chance_average_precision(chunk.displays.sizes)[of_display].sum(),
            -np.log(np.where(clicks == 1, probability, 1.0 - probability)).sum(),
        )
        self._utility.append(utility)
        self._clicks.append(clicks)

    def figures(self) -> dict[str, float | int]:
        """AUC and MAP@12 of the utility, log loss (nats per row) of its click probability, and what to compare with."""
        utility, clicks = np.concatenate(self._utility), np.concatenate(self._clicks)
        displays, precision, chance, loss = self._sums
        rate = clicks.mean()
        return {
            "auc": roc_auc(utility, clicks),
            "map_at_12": float(precision / displays),
            "log_loss": float(loss / len(clicks)),
            "rows": len(clicks),
            "displays": int(displays),
            "chance_map_at_12": float(chance / displays),
            "base_rate_log_loss": float(-rate * np.log(rate) - (1.0 - rate) * np.log1p(-rate)),
        }


def plant_teacher(spec: FeatureSpec, draw: IdDraw = DEFAULT_DRAW) -> Teacher:
    """The teacher of `spec`, calibrated on a chunk of rows that no dataset holds."""
    return plant(spec, draw_displays(spec, _generator(_SAMPLE_STREAM, 0, 0), _rows_per_chunk(spec), draw), draw)


def draw_chunks(
    spec: FeatureSpec, teacher: Teacher, *, rows: int, seed: int, valid_fraction: float, draw: IdDraw = DEFAULT_DRAW
) -> Iterator[ClickRows]:
    """Yields `rows` rows in all; of the displays of each chunk, evenly spread, `valid_fraction` are for evaluation."""
    chunk_rows = _rows_per_chunk(spec)
    starts = list(range(0, rows, chunk_rows))
    if len(starts) > 1 and rows - starts[-1] < MIN_ADS:
        starts.pop()  # a single ad makes no display; the last chunk takes it
    for number, (start, end) in enumerate(zip(starts, [*starts[1:], rows], strict=True)):
        rng = _generator(_ROW_STREAM, seed, number)
        displays = draw_displays(spec, rng, end - start, draw)
        utility = teacher.utility(displays.columns)
        count = np.arange(len(displays.sizes) + 1)
        yield ClickRows(
            displays=displays,
            utility=utility,
            clicks=draw_clicks(utility, displays, rng),
            display_ids=number * chunk_rows + count[1:],
            evaluated=np.diff(np.floor(count * valid_fraction)) > 0,
        )


def to_table(spec: FeatureSpec, chunk: ClickRows) -> pa.Table:
    """The columns of `spec`, which has a display column, in the types of `column_dtype`; multi-hot ones are lists."""
    sizes = chunk.displays.sizes
    columns: dict[str, Any] = {spec.label: chunk.clicks, spec.display: np.repeat(chunk.display_ids, sizes)}
    for name in spec.columns(with_display=True):
        column = columns.get(name, chunk.displays.columns.get(name))
        if isinstance(column, IdLists):
            offsets = np.concatenate([[0], np.cumsum(column.lengths)]).astype(np.int32)
            columns[name] = pa.ListArray.from_arrays(pa.array(offsets), pa.array(column.ids))
        else:
            columns[name] = pa.array(column)
    return pa.table({name: columns[name] for name in spec.columns(with_display=True)})


def column_dtype(spec: FeatureSpec, name: str) -> str:
    """Type of a generated column, or of the items of its lists."""
    return "int8" if name == spec.label else "float32" if name in spec.numerical else "int64"


def row_bytes(spec: FeatureSpec) -> int:
    """Bytes of the features of a generated row that holds all the ids it can."""
    return 8 * spec.total_hotness + 4 * len(spec.numerical)


def _rows_per_chunk(spec: FeatureSpec) -> int:
    """Rows drawn at a time: the same for every dataset of `spec`, less where rows are wide."""
    width = spec.total_hotness + len(spec.numerical)
    return max(1024, min(CHUNK_ROWS, CHUNK_VALUES // width))


def _generator(stream: int, seed: int, chunk: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([stream, seed, chunk])))
