"""Generated raw click data in the layout of the Kaggle Outbrain files.

    python -m data.outbrain.raw --rows N --seed S --output DIR

Writes the seven CSV files named in `HEADERS`, with Kaggle's headers, formats, proportions and gaps, and `teacher.csv`:
for each display of clicks_train the average precision at 12 that is to be expected of ranking its ads by the planted
teacher's utility (`data.outbrain.raw_displays`), and of random order. The mean over whatever displays an evaluation
holds out is what a model can reach there, and the chance level.

  events.csv        display ids 1, 2, ... ascend in time, evenly over days 0 to 14. Displays that are not in
                    clicks_train.csv (Kaggle's test displays) lie between those that are.
  gaps              every column that may lack values does in some rows, as empty text and as `\\N` in turn; platform as
                    `\\N` alone. Documents are missing from each documents_* table, and ads from promoted_content.csv.
  small N           the tables other than clicks_train and events have more than their share of rows below some 7,000
                    rows, for want of documents and ads

A dataset is a function of its rows and seed, to the byte for one version of numpy and pyarrow; the chunks in which it
is drawn are a part of that function. Documents and ads are held in memory, displays only one chunk at a time.
"""

import argparse
import contextlib
import dataclasses
import os
import sys
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from data import command_line
from data.errors import InputError
from data.hashing import WEYL_STEP, mix
from data.outbrain.raw_displays import Choices, Events, Shown, choose, draw_events, plant
from data.outbrain.raw_world import DAYS, MILLISECONDS_PER_DAY, Tags, World, draw_world, some
from data.staging import staged_folder

MIN_ROWS = 200
CLICKS, EVENTS, TEACHER = "clicks_train.csv", "events.csv", "teacher.csv"
PROMOTED, META = "promoted_content.csv", "documents_meta.csv"
TAG_FILES = {name: f"documents_{name}.csv" for name in ("categories", "topics", "entities")}
HEADERS = {
    CLICKS: ("display_id", "ad_id", "clicked"),
    EVENTS: ("display_id", "uuid", "document_id", "timestamp", "platform", "geo_location"),
    PROMOTED: ("ad_id", "document_id", "campaign_id", "advertiser_id"),
    META: ("document_id", "source_id", "publisher_id", "publish_time"),
    TAG_FILES["categories"]: ("document_id", "category_id", "confidence_level"),
    TAG_FILES["topics"]: ("document_id", "topic_id", "confidence_level"),
    TAG_FILES["entities"]: ("document_id", "entity_id", "confidence_level"),
}
TEACHER_HEADER = ("display_id", "teacher_average_precision", "chance_average_precision")

_MISSING = "\\N"
_PLATFORMS = pa.array(["1", "2", "3", _MISSING])
_CHUNK_ROWS = 1 << 17
_NO_LOCATION_SHARE = 0.002

_US_STATES = (
    "AL AK AZ AR CA CO CT DE FL GA HI ID IL IN IA KS KY LA ME MD MA MI MN MS MO MT NE NV NH NJ NM NY NC ND OH OK OR PA "
    "RI SC SD TN TX UT VT VA WA WV WI WY"
)
_ABROAD = (
    "CA>AB CA>BC CA>ON CA>QC CA GB>H9 GB>I2 GB>P3 GB AU>02 AU>04 AU>07 DE>01 DE>07 FR>A8 IN>10 IN>16 IN IE>07 NZ>E7 "
    "ZA>06 ZA SG>00 PH>D9 JP>40 MX>09 BR>27 NL>07 SE>26 MY>14 AE>03 IT>07 ES>29 --"
)


@dataclasses.dataclass(frozen=True)
class RawData:
    """What was generated.

    Attributes:
      rows: file name -> rows.
      displays: displays in clicks_train.
      displays_of_day: of each day 0 to 14, those of clicks_train.
      teacher_map_at_12: expected MAP@12 of the teacher over the displays of clicks_train.
      chance_map_at_12: the same for random order.
    """

    rows: Mapping[str, int]
    displays: int
    displays_of_day: tuple[int, ...]
    teacher_map_at_12: float
    chance_map_at_12: float


def generate(output_dir: str, *, rows: int, seed: int, overwrite: bool = False) -> RawData:
    """Writes the files of `HEADERS` and `teacher.csv` to `output_dir`, all of them or nothing.

    Args:
      output_dir: a folder that does not exist or is empty.
      rows: rows of clicks_train.csv, at least MIN_ROWS.
      seed: a non-negative integer.
      overwrite: replaces an `output_dir` that holds raw data.

    Raises:
      InputError: an argument is out of range, or `output_dir` holds other data or cannot be written.
    """
    if rows < MIN_ROWS:
        raise InputError(f"rows={rows}: at least {MIN_ROWS} rows can be generated; ask for more")
    if seed < 0:
        raise InputError(f"seed={seed}: a seed is a non-negative integer; give another")
    with staged_folder(output_dir, overwrite=overwrite, marker=CLICKS) as folder:
        return _write(folder, rows, seed)


def summary(raw: RawData) -> str:
    """The figures of a dataset as lines of text."""
    of_day = ", ".join(f"{count:,}" for count in raw.displays_of_day)
    return "\n".join(
        [f"{name}: {count:,} rows" for name, count in raw.rows.items()]
        + [
            f"displays with clicks: {raw.displays:,}; of days 0 to {DAYS - 1}: {of_day}",
            f"MAP@12 of the teacher {raw.teacher_map_at_12:.4f}, of random order {raw.chance_map_at_12:.4f} (expected)",
        ]
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code."""
    parser = command_line.Parser(
        prog="python -m data.outbrain.raw",
        description="Generates raw CSV files in the layout of Kaggle's Outbrain data.",
    )
    parser.add_argument("--rows", required=True, type=int, metavar="N", help="rows of clicks_train.csv")
    parser.add_argument("--seed", required=True, type=int, metavar="S", help="non-negative integer")
    parser.add_argument("--output", required=True, metavar="DIR", help="folder to write; must not exist or be empty")
    parser.add_argument("--overwrite", action="store_true", help="replace raw data that DIR holds")

    def work(options: argparse.Namespace) -> str:
        return summary(generate(options.output, rows=options.rows, seed=options.seed, overwrite=options.overwrite))

    return command_line.run(parser, work, arguments)


def _write(folder: str, rows: int, seed: int) -> RawData:
    world_stream, teacher_stream, *chunk_streams = np.random.SeedSequence(seed).spawn(2 + -(-rows // _CHUNK_ROWS))
    world_rng = np.random.default_rng(world_stream)
    world = draw_world(world_rng, rows)
    counts: dict[str, int] = {}
    for name, table in _world_tables(world, world_rng):
        with _csv_file(folder, name, HEADERS[name], table.schema) as writer:
            writer.write_table(table)
        counts[name] = len(table)
    teacher = plant(world, np.random.default_rng(teacher_stream))

    displays = np.zeros(DAYS, dtype=np.int64)
    precision = np.zeros(2)
    events_before = 0
    bounds = np.linspace(0, rows, len(chunk_streams) + 1).astype(np.int64)
    with contextlib.ExitStack() as stack:
        writers: dict[str, pa.csv.CSVWriter] = {}
        for start, end, stream in zip(bounds[:-1], bounds[1:], chunk_streams, strict=True):
            rng = np.random.default_rng(stream)
            events, shown = draw_events(world, rng, rows=int(end - start), span=(start / rows, end / rows))
            choices = choose(teacher.utility(events, shown), shown, rng)
            for name, table in _display_tables(world, rng, events_before, events, shown, choices):
                if name not in writers:
                    header = TEACHER_HEADER if name == TEACHER else HEADERS[name]
                    writers[name] = stack.enter_context(_csv_file(folder, name, header, table.schema))
                writers[name].write_table(table)
                counts[name] = counts.get(name, 0) + len(table)
            events_before += len(events.time)
            displays += np.bincount(events.time[events.logged] // MILLISECONDS_PER_DAY, minlength=DAYS)
            precision += [choices.teacher_average_precision.sum(), choices.chance_average_precision.sum()]
    teacher_map, chance_map = (precision / displays.sum()).tolist()
    return RawData(
        rows={name: counts[name] for name in (*HEADERS, TEACHER)},
        displays=int(displays.sum()),
        displays_of_day=tuple(displays.tolist()),
        teacher_map_at_12=teacher_map,
        chance_map_at_12=chance_map,
    )


@contextlib.contextmanager
def _csv_file(folder: str, name: str, header: Sequence[str], schema: pa.Schema) -> Iterator[pa.csv.CSVWriter]:
    with open(os.path.join(folder, name), "wb") as file:
        # pyarrow would put the names into quotes, which Kaggle's files do not.
        file.write(f"{','.join(header)}\n".encode())
        options = pa.csv.WriteOptions(include_header=False, quoting_style="none")
        with pa.csv.CSVWriter(file, schema, write_options=options) as writer:
            yield writer


def _world_tables(world: World, rng: np.random.Generator) -> Iterator[tuple[str, pa.Table]]:
    documents, ads = world.documents, world.ads
    # As in Kaggle's files, ads are in order and documents are not.
    order = np.argsort(ads.ids)
    order = order[ads.has_content[order]]
    promoted = (
        ads.ids[order],
        documents.ids[ads.document[order]],
        ads.campaign_ids[ads.campaign[order]],
        ads.advertiser_ids[ads.advertiser[order]],
    )
    yield PROMOTED, pa.table(promoted, names=HEADERS[PROMOTED])
    known = rng.permutation(np.flatnonzero(documents.has_meta))
    published = pa.array(documents.published[known]).cast(pa.timestamp("s"))
    meta = (
        documents.ids[known],
        _with_gaps(pa.array(documents.source_id[known]), documents.source_id[known] < 0),
        _with_gaps(pa.array(documents.publisher_id[known]), documents.publisher_id[known] < 0),
        _with_gaps(published, ~documents.has_time[known]),
    )
    yield META, pa.table(meta, names=HEADERS[META])
    for name, file in TAG_FILES.items():
        yield file, _tag_table(file, rng, documents.ids, getattr(documents, name))


def _tag_table(file: str, rng: np.random.Generator, document_ids: np.ndarray, tags: Tags) -> pa.Table:
    order = rng.permutation(np.flatnonzero((tags.index >= 0).any(axis=1)))
    held = tags.index[order] >= 0
    of_tag = pa.array(tags.vocabulary) if tags.vocabulary.ndim == 1 else _hexadecimal(tags.vocabulary, digits=32)
    columns = (
        np.repeat(document_ids[order], held.sum(axis=1)),
        of_tag.take(pa.array(tags.index[order][held])),
        tags.confidence[order][held],
    )
    return pa.table(columns, names=HEADERS[file])


def _display_tables(
    world: World, rng: np.random.Generator, events_before: int, events: Events, shown: Shown, choices: Choices
) -> Iterator[tuple[str, pa.Table]]:
    display_id = events_before + 1 + np.arange(len(events.time))
    clicked_id = display_id[events.logged]
    clicks = (np.repeat(clicked_id, shown.sizes), world.ads.ids[shown.ads], choices.clicks)
    yield CLICKS, pa.table(clicks, names=HEADERS[CLICKS])
    user = mix(world.user_salt + events.user.astype(np.uint64) * WEYL_STEP)
    columns = (
        display_id,
        _hexadecimal(user[:, None], digits=14),
        world.documents.ids[events.page],
        events.time,
        _PLATFORMS.take(pa.array(events.platform)),
        _draw_locations(rng, len(display_id)),
    )
    yield EVENTS, pa.table(columns, names=HEADERS[EVENTS])
    precision = (
        clicked_id,
        choices.teacher_average_precision.round(6),
        choices.chance_average_precision.round(6),
    )
    yield TEACHER, pa.table(precision, names=TEACHER_HEADER)


def _draw_locations(rng: np.random.Generator, size: int) -> pa.Array:
    # Each state with 4 of the markets 500 to 881, by itself, and the whole country; then other countries.
    states = [f"US>{state}" for state in _US_STATES.split()]
    markets = [f"{state}>{500 + (4 * i + k) * 7 % 382}" for i, state in enumerate(states) for k in range(4)]
    groups = [(markets, 0.76), (states, 0.03), (["US"], 0.02), (_ABROAD.split(), 0.19)]
    names = [name for group, _ in groups for name in group]
    weights = np.concatenate([share * _falling(len(group)) for group, share in groups])
    drawn = pa.array(names).take(pa.array(rng.choice(len(names), size=size, p=weights / weights.sum())))
    return _with_gaps(drawn, some(rng, size, _NO_LOCATION_SHARE))


def _falling(size: int) -> np.ndarray:
    weights = 1.0 / (np.arange(size) + 5.0)
    return weights / weights.sum()


def _with_gaps(values: pa.Array, missing: np.ndarray) -> pa.Array:
    """The values as text; where they are `missing`, empty and `\\N` in turn."""
    marked = missing & (np.cumsum(missing) % 2 == 0)
    text = pc.if_else(pa.array(marked), _MISSING, values.cast(pa.string()))
    return pc.if_else(pa.array(missing & ~marked), pa.scalar(None, pa.string()), text)


def _hexadecimal(words: np.ndarray, digits: int) -> pa.Array:
    """The first `digits` (an even number) hexadecimal digits of each row of (rows, words) uint64, as text."""
    pairs = np.frombuffer("".join(f"{byte:02x}" for byte in range(256)).encode(), np.uint8).reshape(256, 2)
    octets = np.ascontiguousarray(words, dtype=">u8").view(np.uint8)[:, : digits // 2]
    offsets = np.arange(len(words) + 1, dtype=np.int32) * digits
    text = pairs[octets].tobytes()
    return pa.StringArray.from_buffers(len(words), pa.py_buffer(offsets.tobytes()), pa.py_buffer(text))


if __name__ == "__main__":
    sys.exit(main())
