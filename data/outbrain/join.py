"""Clicks with what the other tables say of them, split into rows to train on and rows to evaluate.

Bounded memory: clicks and events are cut by ranges of display ids into as many buckets as it takes for one to be small;
each bucket is joined by itself, in any process. What is kept of all documents and ads is held whole in each process.

The order of the rows is a function of the files and the seed, not of the buckets: rows to evaluate ascend by display,
rows to train on by a hash of their display, and rows of a display stay in file order. A bucket's training rows go in
pieces into all training parts for that.
"""

import dataclasses
import functools
import os
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq

from data.errors import InputError
from data.feature_spec import TEST, TRAIN
from data.hashing import fractions, seeded_bits, text_bits
from data.outbrain import raw_tables
from data.outbrain.raw_tables import CLICKS, EVENTS, META, MISSING_ID, PROMOTED, read_table, table_path

FOLDS = 10
LAST_TRAINING_DAY = 10
MS_PER_DAY = 86_400_000
# Timestamps of events count from here, in ms of the Unix epoch.
EPOCH_MS = 1465876799998

# Raw table of a list column -> the column and that of its ids.
LISTS: Mapping[str, tuple[str, str]] = {
    raw_tables.CATEGORIES: ("category_id_list", "category_id"),
    raw_tables.TOPICS: ("topic_id_list", "topic_id"),
    raw_tables.ENTITIES: ("entity_id_list", "entity_id"),
}

_SPLIT_STREAM, _FOLD_STREAM, _ORDER_STREAM = 0, 1, 2


@dataclasses.dataclass(frozen=True)
class JoinPlan:
    """What every process needs to know to join a bucket.

    Attributes:
      data_path: folder of the raw files.
      folder: where buckets and joined rows are kept till the end; all processes see it.
      tables: the raw tables there are.
      boundaries: ascending display ids; bucket b holds those from boundaries[b - 1] to below boundaries[b].
      rows: click rows in all.
      test_fraction: share of the displays of days 0 to LAST_TRAINING_DAY that is held out.
    """

    data_path: str
    folder: str
    tables: tuple[str, ...]
    boundaries: tuple[int, ...]
    rows: int
    seed: int
    test_fraction: float

    @property
    def parts(self) -> int:
        """Number of buckets, which is that of training parts too."""
        return len(self.boundaries) + 1

    def path(self, *names: str) -> str:
        """A path in `folder`, whose own folder is there."""
        path = os.path.join(self.folder, *names)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return path


@dataclasses.dataclass(frozen=True)
class JoinedRows:
    """The joined rows on disk.

    Attributes:
      pieces: for each bucket, how many training rows it has for each part.
      evaluated: for each bucket, how many rows it has to evaluate.
    """

    plan: JoinPlan
    pieces: tuple[tuple[int, ...], ...]
    evaluated: tuple[int, ...]

    def parts(self, source: str) -> list[tuple[int, int]]:
        """Number and rows of every part that has rows, in order."""
        sizes = np.sum(self.pieces, axis=0).tolist() if source == TRAIN else self.evaluated
        return [(part, int(rows)) for part, rows in enumerate(sizes) if rows]

    def read(self, source: str, part: int, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows of a part, in order."""
        if source == TEST:
            return pq.read_table(_joined_path(self.plan, TEST, part), columns=columns, use_threads=False)
        tables = []
        for bucket, sizes in enumerate(self.pieces):
            if sizes[part]:
                batch = sum(1 for rows in sizes[:part] if rows)
                with pa.memory_map(_joined_path(self.plan, TRAIN, bucket)) as file:
                    tables.append(pa.Table.from_batches([_read_batch(file, batch, columns)]))
        table = pa.concat_tables(tables)
        order = seeded_bits(table["display_id"].to_numpy(), self.plan.seed, _ORDER_STREAM)
        table = table.take(pa.array(np.argsort(order, kind="stable")))
        return table if columns is None else table.select(list(columns))


class KeyedTable:
    """A table whose rows are found by an integer key."""

    def __init__(self, table: pa.Table, key: str):
        """`table` ascends by its column `key`."""
        self._keys = table[key].to_numpy()
        self._table = table.drop_columns([key])

    @classmethod
    def of_unsorted(cls, table: pa.Table, key: str, path: str) -> "KeyedTable":
        """Raises InputError, naming the file `path`, where a key is there twice."""
        return cls(sort_by_key(table, key, path), key)

    def look_up(self, keys: np.ndarray) -> tuple[pa.Table, np.ndarray]:
        """A row for each key, and which of them are there: the others' rows are null."""
        if not len(self._keys):
            return pa.table({f.name: pa.nulls(len(keys), f.type) for f in self._table.schema}), np.zeros(
                len(keys), bool
            )
        places = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        found = self._keys[places] == keys
        return self._table.take(pa.array(places, mask=~found)), found


def sort_by_key(table: pa.Table, key: str, path: str) -> pa.Table:
    """`table` in ascending order of `key`.

    Raises:
      InputError: a key is there twice.
    """
    order = np.argsort(table[key].to_numpy(), kind="stable")
    ordered = table.take(pa.array(order))
    keys = ordered[key].to_numpy()
    twice = np.flatnonzero(keys[1:] == keys[:-1])
    if len(twice):
        raise InputError(f"{path}: {key} {keys[twice[0]]} is there twice; keep one row for each {key}")
    return ordered


def plan_join(
    data_path: str, folder: str, tables: Sequence[str], *, seed: int, test_fraction: float, rows_per_part: int
) -> JoinPlan:
    """Reads all clicks once, to check them and to find display ids that cut them into buckets of like size."""
    stride = max(1, rows_per_part // 1024)
    rows, sample = 0, []
    for table in read_table(data_path, CLICKS):
        sample.append(table["display_id"].to_numpy()[-rows % stride :: stride])
        rows += table.num_rows
    displays = np.sort(np.concatenate(sample))
    buckets = -(-rows // rows_per_part)
    cuts = displays[[len(displays) * b // buckets for b in range(1, buckets)]] if buckets > 1 else displays[:0]
    return JoinPlan(data_path, folder, tuple(tables), tuple(np.unique(cuts).tolist()), rows, seed, test_fraction)


def spool(plan: JoinPlan, table: str) -> Iterator[int]:
    """Cuts the clicks or the events into buckets; yields the number of rows each time some are done."""
    columns = _spooled_columns(table)
    boundaries = np.array(plan.boundaries, np.int64)
    writers: dict[int, pq.ParquetWriter] = {}
    try:
        for rows in read_table(plan.data_path, table, columns=columns):
            buckets = np.searchsorted(boundaries, rows["display_id"].to_numpy(), side="right")
            if len(boundaries) and (buckets[1:] < buckets[:-1]).any():
                order = np.argsort(buckets, kind="stable")
                rows, buckets = rows.take(pa.array(order)), buckets[order]
            for bucket in np.unique(buckets).tolist():
                first, end = np.searchsorted(buckets, [bucket, bucket + 1])
                if bucket not in writers:
                    writers[bucket] = pq.ParquetWriter(_spooled_path(plan, table, bucket), rows.schema)
                writers[bucket].write_table(rows.slice(first, end - first))
            yield rows.num_rows
    finally:
        for writer in writers.values():
            writer.close()


def keep_side_tables(plan: JoinPlan) -> dict[str, int]:
    """Writes what is known of ads and documents to `plan.folder`, by key; returns the rows of the raw tables."""
    counts = {}
    for name, key in ((PROMOTED, "ad_id"), (META, "document_id")):
        if name in plan.tables:
            table = pa.concat_tables(read_table(plan.data_path, name))
            if name == META:
                times = table["publish_time"].cast(pa.int64())
                table = table.set_column(table.schema.get_field_index("publish_time"), "publish_time", times)
            counts[name] = table.num_rows
            pq.write_table(sort_by_key(table, key, table_path(plan.data_path, name)), _side_path(plan, name))
    for name, (column, tag) in LISTS.items():
        if name in plan.tables:
            tags = read_tags(plan, name)
            counts[name] = tags.num_rows
            pq.write_table(_lists(tags, column, tag), _side_path(plan, name))
    return counts


def read_tags(plan: JoinPlan, name: str) -> pa.Table:
    """A raw table of categories, topics or entities; texts are ids of 63 bits of their hash."""
    _, tag = LISTS[name]
    table = pa.concat_tables(read_table(plan.data_path, name)).combine_chunks()
    if pa.types.is_string(table.schema.field(tag).type):
        encoded = table[tag].combine_chunks().dictionary_encode()
        ids = np.array([text_bits(text) >> 1 for text in encoded.dictionary.to_pylist()], np.int64)
        table = table.set_column(table.schema.get_field_index(tag), tag, pa.array(ids[encoded.indices.to_numpy()]))
    return table


def join_bucket(plan: JoinPlan, bucket: int) -> dict[str, int | tuple[int, ...]]:
    """Joins a bucket and writes its rows.

    Returns:
      Counts: `pieces` and `evaluated` as in JoinedRows, `displays`, `train_displays`, and rows that lack something.

    Raises:
      InputError: a display has not one click, or an event is there twice.
    """
    clicks = _spooled(plan, CLICKS, bucket)
    if clicks is None:
        return {"pieces": (0,) * plan.parts, "evaluated": 0, "displays": 0, "train_displays": 0}
    displays = clicks["display_id"].to_numpy()
    order = np.argsort(displays, kind="stable")
    clicks, displays = clicks.take(pa.array(order)), displays[order]
    _check_clicks(plan, displays, clicks["clicked"].to_numpy())
    columns, counts = _joined_columns(plan, clicks, bucket)
    timestamps = columns["timestamp"].to_numpy()
    bits = fractions(seeded_bits(displays, plan.seed, _SPLIT_STREAM))
    # A display without an event has the timestamp -1, hence no late day.
    train = (bits >= plan.test_fraction) & (timestamps // MS_PER_DAY <= LAST_TRAINING_DAY)
    folds = (fractions(seeded_bits(displays, plan.seed, _FOLD_STREAM)) * FOLDS).astype(np.int8)
    columns["fold"] = pa.array(np.where(train, folds, np.int8(-1)))
    table = pa.table(columns)
    evaluated = table.filter(pa.array(~train))
    pq.write_table(evaluated, _joined_path(plan, TEST, bucket))
    counts |= {
        "displays": len(np.unique(displays)),
        "train_displays": len(np.unique(displays[train])),
        "evaluated": evaluated.num_rows,
        "pieces": _write_training(plan, bucket, table.filter(pa.array(train))),
    }
    return counts


def _write_training(plan: JoinPlan, bucket: int, table: pa.Table) -> tuple[int, ...]:
    """Writes a batch for each part that gets rows; returns the rows of each part.

    In Arrow's file format: its footer is small however many batches there are, and each part opens every bucket's file.
    """
    bits = seeded_bits(table["display_id"].to_numpy(), plan.seed, _ORDER_STREAM)
    order = np.argsort(bits, kind="stable")
    table = table.take(pa.array(order))
    parts = (bits[order] >> np.uint64(32)) * np.uint64(plan.parts) >> np.uint64(32)
    sizes = np.bincount(parts.astype(np.int64), minlength=plan.parts).tolist()
    if table.num_rows:
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        with pa.ipc.new_file(_joined_path(plan, TRAIN, bucket), table.schema, options=options) as writer:
            first = 0
            for rows in sizes:
                if rows:
                    (batch,) = table.slice(first, rows).combine_chunks().to_batches()
                    writer.write_batch(batch)
                first += rows
    return tuple(sizes)


def _joined_columns(plan: JoinPlan, clicks: pa.Table, bucket: int) -> tuple[dict[str, pa.Array], dict[str, int]]:
    events = _spooled(plan, EVENTS, bucket)
    if events is None:
        events = pa.table({name: pa.array([], type_) for name, type_ in _EVENT_TYPES.items()})
    keyed = KeyedTable.of_unsorted(events, "display_id", table_path(plan.data_path, EVENTS))
    event, has_event = keyed.look_up(clicks["display_id"].to_numpy())
    promoted, has_promoted = _side_table(plan, PROMOTED, "ad_id").look_up(clicks["ad_id"].to_numpy())
    columns = {
        "display_id": clicks["display_id"],
        "ad_id": clicks["ad_id"],
        "clicked": clicks["clicked"].cast(pa.int8()),
        "timestamp": event["timestamp"].fill_null(-1),
        "document_id": event["document_id"].fill_null(MISSING_ID),
        "platform": event["platform"].fill_null(MISSING_ID),
        "geo_location": event["geo_location"].fill_null(""),
        "document_id_promo": promoted["document_id"].fill_null(MISSING_ID),
        "campaign_id": promoted["campaign_id"].fill_null(MISSING_ID),
        "advertiser_id": promoted["advertiser_id"].fill_null(MISSING_ID),
    }
    counts = {"without_event": int((~has_event).sum()), "without_promoted_content": int((~has_promoted).sum())}
    promo = columns["document_id_promo"].to_numpy()
    if META in plan.tables:
        meta = _side_table(plan, META, "document_id")
        for suffix, documents in (("", columns["document_id"].to_numpy()), ("_promo", promo)):
            known, found = meta.look_up(documents)
            for name in ("source_id", "publisher_id"):
                columns[f"{name}{suffix}"] = known[name].fill_null(MISSING_ID)
            columns[f"publish_time{suffix}"] = known["publish_time"]
            counts["without_meta_of_ad" if suffix else "without_meta_of_page"] = int((~found).sum())
    for name, (column, _) in LISTS.items():
        if name in plan.tables:
            known, found = _side_table(plan, name, "document_id").look_up(promo)
            columns[column] = known[column].fill_null([])
            counts[f"without_{column.removesuffix('_id_list')}_of_ad"] = int((~found).sum())
    return columns, counts


def _check_clicks(plan: JoinPlan, displays: np.ndarray, clicked: np.ndarray) -> None:
    """Raises InputError unless each display, ascending in `displays`, has one click."""
    starts = np.flatnonzero(np.diff(displays, prepend=-1))
    clicks = np.add.reduceat(clicked, starts)
    wrong = np.flatnonzero(clicks != 1)
    if len(wrong):
        raise InputError(
            f"{table_path(plan.data_path, CLICKS)}: display_id {displays[starts[wrong[0]]]} has {clicks[wrong[0]]} "
            "clicks; in Outbrain's file each display has one, so the file is cut off or is another"
        )


def _lists(tags: pa.Table, column: str, tag: str) -> pa.Table:
    """A row for each document: its ids by falling confidence, equal ones ascending."""
    documents, ids = tags["document_id"].to_numpy(), tags[tag].to_numpy()
    order = np.lexsort((ids, -tags["confidence_level"].to_numpy(), documents))
    keys, starts = np.unique(documents[order], return_index=True)
    offsets = np.append(starts, len(order)).astype(np.int32)
    lists = pa.ListArray.from_arrays(pa.array(offsets), pa.array(ids[order]))
    return pa.table({"document_id": keys, column: lists})


def _spooled_columns(table: str) -> list[str]:
    """All but the user, whom nothing is made of."""
    return [name for name in raw_tables.TABLES[table] if name != "uuid"]


_EVENT_TYPES = {name: raw_tables.TABLES[EVENTS][name].type for name in _spooled_columns(EVENTS)}


@functools.lru_cache(maxsize=8)
def _side_table(plan: JoinPlan, name: str, key: str) -> KeyedTable:
    return KeyedTable(pq.read_table(_side_path(plan, name)), key)


def _spooled(plan: JoinPlan, table: str, bucket: int) -> pa.Table | None:
    path = _spooled_path(plan, table, bucket)
    return pq.read_table(path, use_threads=False) if os.path.exists(path) else None


def _spooled_path(plan: JoinPlan, table: str, bucket: int) -> str:
    return plan.path(table, f"{bucket:05d}.parquet")


def _side_path(plan: JoinPlan, name: str) -> str:
    return plan.path("side", f"{name}.parquet")


def _read_batch(file: pa.NativeFile, number: int, columns: Sequence[str] | None) -> pa.RecordBatch:
    """A batch of a file of training rows: all columns, or these and the display's id."""
    reader = pa.ipc.open_file(file)
    if columns is not None:
        wanted = [i for i, name in enumerate(reader.schema.names) if name in columns or name == "display_id"]
        reader = pa.ipc.open_file(file, options=pa.ipc.IpcReadOptions(included_fields=wanted))
    return reader.get_batch(number)


def _joined_path(plan: JoinPlan, source: str, bucket: int) -> str:
    folder, kind = {TRAIN: ("train", "arrow"), TEST: ("valid", "parquet")}[source]
    return plan.path("joined", folder, f"{bucket:05d}.{kind}")
