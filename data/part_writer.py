"""Parquet files with row groups of one size from a stream of tables."""

import os

import pyarrow as pa
import pyarrow.parquet as pq


class PartWriter:
    """Writes tables, one after the other, as `root/folder/part-00000.parquet`, ... of whole row groups.

    How the rows are cut into tables does not show in the files. Holds less than a row group between calls.

    Attributes:
      rows: rows written so far; all of them after `close`.
      files: the files written, relative to `root`.
    """

    def __init__(self, root: str, folder: str, *, rows_per_group: int, rows_per_file: int):
        self._root, self._folder, self._rows_per_group = root, folder, rows_per_group
        self._groups_per_file = max(1, rows_per_file // rows_per_group)
        self._pending: pa.Table | None = None
        self._writer: pq.ParquetWriter | None = None
        self._groups = 0
        self.rows = 0
        self.files: list[str] = []
        os.makedirs(os.path.join(root, folder))

    def add(self, table: pa.Table) -> None:
        """Writes the row groups that `table` completes."""
        pending = table if self._pending is None else pa.concat_tables([self._pending, table])
        while pending.num_rows >= self._rows_per_group:
            self._write(pending.slice(0, self._rows_per_group))
            pending = pending.slice(self._rows_per_group)
        self._pending = pending

    def close(self) -> None:
        """Writes what is left as a last, shorter row group and ends the file."""
        if self._pending is not None and self._pending.num_rows:
            self._write(self._pending)
        if self._writer is not None:
            self._writer.close()

    def _write(self, table: pa.Table) -> None:
        if self._groups % self._groups_per_file == 0:
            if self._writer is not None:
                self._writer.close()
            self.files.append(f"{self._folder}/part-{len(self.files):05d}.parquet")
            self._writer = pq.ParquetWriter(os.path.join(self._root, self.files[-1]), table.schema)
        self._writer.write_table(table, row_group_size=self._rows_per_group)
        self._groups += 1
        self.rows += table.num_rows
