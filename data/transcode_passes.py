"""The three passes over a user's table: what the columns are, what the training rows say, and writing.

What is kept between batches is in proportion to the distinct ids of categorical columns, never to the rows.
"""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
from tqdm import tqdm

from data.column_encoders import ColumnEncoder
from data.column_inference import ColumnObserver
from data.column_values import BadValue, labels
from data.errors import InputError
from data.feature_spec import TEST, TRAIN
from data.part_writer import PartWriter
from data.row_split import RowSplit
from data.transcode_input import Batch, TableFiles

_SHOWN_LETTERS = 60


@dataclasses.dataclass
class Survey:
    """What the first pass finds.

    Attributes:
      observers: column -> what its values have in common.
      rows: source -> rows.
      ones: source -> rows whose label is 1.
    """

    observers: dict[str, ColumnObserver]
    rows: dict[str, int] = dataclasses.field(default_factory=lambda: {TRAIN: 0, TEST: 0})
    ones: dict[str, int] = dataclasses.field(default_factory=lambda: {TRAIN: 0, TEST: 0})

    @property
    def total_rows(self) -> int:
        return sum(self.rows.values())


class Passes:
    """Reads some columns of the files, again and again, with the split known for each batch."""

    def __init__(self, tables: TableFiles, split: RowSplit):
        self._tables, self._split = tables, split

    def survey(self, names: Sequence[str], label: str) -> Survey:
        """The first pass.

        Raises:
          InputError: a file is malformed, a label is not 0 or 1, a row cannot be assigned, or a side has no rows.
        """
        found = Survey({name: ColumnObserver() for name in names})
        for batch, held_out in self._batches(names, "1 of 3: what the columns are", None):
            for name, observer in found.observers.items():
                with located(self._tables, batch, name):
                    observer.observe(_column(batch, name))
            with located(self._tables, batch, label):
                clicked = labels(_column(batch, label)) == 1
            for source, rows in ((TRAIN, ~held_out), (TEST, held_out)):
                found.rows[source] += int(rows.sum())
                found.ones[source] += int((rows & clicked).sum())
        if not found.total_rows:
            raise InputError(f"{self._tables.paths[0]}: {len(self._tables.paths)} file(s) hold no rows")
        for source, side in ((TRAIN, "train on"), (TEST, "test on")):
            if not found.rows[source]:
                raise InputError(f"none of the {found.total_rows} rows is left to {side}; {self._split.remedy()}")
        return found

    def fit(self, encoders: Mapping[str, ColumnEncoder], rows: int) -> None:
        """The second pass: the encoders see every batch and are finished."""
        for batch, held_out in self._batches(list(encoders), "2 of 3: training rows", rows):
            for name, encoder in encoders.items():
                with located(self._tables, batch, name):
                    encoder.observe(_column(batch, name), ~held_out)
        for encoder in encoders.values():
            encoder.finish()

    def write(self, encoders: Mapping[str, ColumnEncoder], writers: Mapping[str, PartWriter], rows: int) -> None:
        """The third pass: every row goes to the writer of its source, rows of a source in the order of the input."""
        names = [feature.name for encoder in encoders.values() for feature in encoder.features]
        for batch, held_out in self._batches(list(encoders), "3 of 3: writing", rows):
            arrays = []
            for name, encoder in encoders.items():
                with located(self._tables, batch, name):
                    arrays += encoder.encode(_column(batch, name))
            table = pa.table(arrays, names=names)
            for source, mask in ((TRAIN, ~held_out), (TEST, held_out)):
                writers[source].add(table.filter(pa.array(mask)))
        for writer in writers.values():
            writer.close()
        if sum(writer.rows for writer in writers.values()) != rows:
            raise InputError(f"{self._tables.paths[0]}: the files changed while they were read; start again")

    def _batches(self, names: Sequence[str], title: str, total: int | None) -> Iterator[tuple[Batch, np.ndarray]]:
        """Batches, and which of their rows are held out."""
        key = self._split.column
        read = names if key is None or key in names else [*names, key]
        first = 0
        with progress(f"pass {title}", total) as advance:
            for batch in self._tables.batches(read):
                rows = batch.table.num_rows
                if not rows:
                    continue
                with located(self._tables, batch, key or ""):
                    array = None if key is None else _column(batch, key)
                    held_out = self._split.held_out(array, first, rows)
                yield batch, held_out
                first += rows
                advance(rows)


@contextlib.contextmanager
def located(tables: TableFiles, batch: Batch, name: str) -> Iterator[None]:
    """Turns a BadValue of a column of the batch into an InputError that names its file and line."""
    try:
        yield
    except BadValue as error:
        shown = "missing" if error.value is None else repr(error.value)
        shown = shown if len(shown) <= _SHOWN_LETTERS else f"{shown[: _SHOWN_LETTERS - 3]}..."
        where = tables.where(batch.path, batch.first_row + error.row)
        raise InputError(f"{where}: column '{name}': {shown}: {error.problem}") from error
    except pa.ArrowException as error:
        where = tables.where(batch.path, batch.first_row)
        raise InputError(f"{where} or after: column '{name}' cannot be converted: {error}; correct it") from error


@contextlib.contextmanager
def progress(title: str, total: int | None) -> Iterator:
    """Gives a function that takes rows done; a bar on stderr if that is a terminal."""
    with tqdm(desc=title, total=total, unit="row", unit_scale=True, disable=None, leave=False) as bar:
        yield bar.update


def _column(batch: Batch, name: str) -> pa.Array:
    column = batch.table.column(name)
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)
