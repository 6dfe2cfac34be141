"""Texts -> dense ids: counted while rows stream by, ordered once, saved beside the dataset.

Id 0 stands for every value that the vocabulary lacks; the others have ids from 1, by falling count and then by value
(order of code points), so that the same rows in any order give the same ids. Memory: the distinct values, some 150
bytes each beside the text itself.
"""

import os

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from data.errors import InputError

UNSEEN_ID = 0
_SCHEMA = pa.schema([("value", pa.string()), ("id", pa.int64()), ("count", pa.int64())])


class ValueCounter:
    """Counts texts that come in batches."""

    def __init__(self):
        self._total = pa.table({"value": pa.array([], pa.string()), "count": pa.array([], pa.int64())})
        self._pending: list[pa.Table] = []
        self._pending_rows = 0

    def add(self, values: pa.Array) -> None:
        """Counts these strings, nulls left out."""
        counts = values.drop_null().value_counts()
        table = pa.table({"value": counts.field("values"), "count": counts.field("counts")})
        self._pending.append(table)
        self._pending_rows += table.num_rows
        # Merging when as much has come as is there keeps the work in proportion to the values.
        if self._pending_rows > max(1 << 16, self._total.num_rows):
            self._merge()

    def counts(self) -> pa.Table:
        """A row for each distinct value: `value`, `count`; in no particular order."""
        self._merge()
        return self._total

    def _merge(self) -> None:
        tables = pa.concat_tables([self._total, *self._pending])
        merged = tables.group_by("value", use_threads=False).aggregate([("count", "sum")])
        self._total = pa.table({"value": merged["value"], "count": merged["count_sum"]})
        self._pending, self._pending_rows = [], 0


class Vocabulary:
    """Values in the order of their ids; the first has id 1.

    Attributes:
      values: pa.Array of strings.
      counts: how often each occurs in the training rows; int64 array.
    """

    def __init__(self, values: pa.Array, counts: np.ndarray):
        self.values, self.counts = values, counts
        self._ids: dict[str, int] | None = None

    @classmethod
    def of_counts(cls, counts: pa.Table, *, min_count: int = 1) -> "Vocabulary":
        """The values that occur at least `min_count` times; `counts` as `ValueCounter.counts` gives them."""
        kept = counts.filter(pc.greater_equal(counts["count"], min_count))
        kept = kept.sort_by([("count", "descending"), ("value", "ascending")]).combine_chunks()
        values = kept["value"].combine_chunks() if kept.num_rows else pa.array([], pa.string())
        values = values.chunk(0) if isinstance(values, pa.ChunkedArray) else values
        return cls(values, kept["count"].to_numpy())

    @property
    def size(self) -> int:
        """Ids in use, 0 included."""
        return len(self.values) + 1

    def ids(self, values: pa.Array) -> pa.Array:
        """int64 ids of strings: null where null, 0 where unseen."""
        if self._ids is None:
            self._ids = dict(zip(self.values.to_pylist(), range(1, self.size), strict=True))
        encoded = values.dictionary_encode()
        known = self._ids
        ids = pa.array([known.get(value, UNSEEN_ID) for value in encoded.dictionary.to_pylist()], pa.int64())
        return ids.take(encoded.indices)

    def save(self, path: str) -> None:
        """Writes parquet of the columns value, id and count."""
        os.makedirs(os.path.dirname(path), exist_ok=True)
        columns = [self.values, pa.array(np.arange(1, self.size)), pa.array(self.counts, pa.int64())]
        pq.write_table(pa.table(columns, schema=_SCHEMA), path)

    @classmethod
    def load(cls, path: str) -> "Vocabulary":
        """Reads what `save` wrote.

        Raises:
          InputError: the file is missing or is no such file.
        """
        try:
            table = pq.read_table(path, schema=_SCHEMA).combine_chunks()
        except (pa.ArrowException, OSError) as error:
            raise InputError(f"{path}: not a readable vocabulary ({error}); transcode the data again") from error
        ids = table["id"].to_numpy()
        if not np.array_equal(ids, np.arange(1, len(ids) + 1)):
            raise InputError(f"{path}: its ids are not 1 to {len(ids)} in order; transcode the data again")
        values = table["value"].combine_chunks()
        return cls(values.chunk(0) if isinstance(values, pa.ChunkedArray) else values, table["count"].to_numpy())
