import functools

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data.errors import InputError
from data.outbrain import join, raw_tables
from data.outbrain.join import KeyedTable, sort_by_key


def write(folder, clicks, events=()):
    rows = {"clicks_train": clicks, "events": events or [(d, "u", 5, 61, 3, "US") for d in {row[0] for row in clicks}]}
    rows["promoted_content"] = [(10, 5, 7, 9)]
    for table, lines in rows.items():
        header = ",".join(raw_tables.TABLES[table])
        body = "".join(",".join(map(str, line)) + "\n" for line in lines)
        (folder / f"{table}.csv").write_text(f"{header}\n{body}")
    return str(folder)


def plan(folder, clicks, events=(), *, rows_per_part=10):
    (folder / "raw").mkdir()
    path = write(folder / "raw", clicks, events)
    made = join.plan_join(
        path, str(folder / "work"), raw_tables.REQUIRED_TABLES, seed=0, test_fraction=0.2, rows_per_part=rows_per_part
    )
    join.keep_side_tables(made)
    for table in ("clicks_train", "events"):
        sum(join.spool(made, table))
    return made


def test_rows_by_key():
    table = KeyedTable.of_unsorted(pa.table({"key": [9, 2, 5], "value": ["nine", "two", "five"]}), "key", "file")
    rows, found = table.look_up(np.array([5, 1, 9, 9, 10, 2]))
    assert rows.to_pydict() == {"value": ["five", None, "nine", "nine", None, "two"]}
    assert found.tolist() == [True, False, True, True, False, True]
    empty = KeyedTable(pa.table({"key": pa.array([], pa.int64()), "value": pa.array([], pa.list_(pa.int64()))}), "key")
    rows, found = empty.look_up(np.array([1, 2]))
    assert rows.to_pydict() == {"value": [None, None]} and not found.any()


def test_a_key_that_is_there_twice():
    assert sort_by_key(pa.table({"key": [3, 1, 2]}), "key", "file")["key"].to_pylist() == [1, 2, 3]
    with pytest.raises(InputError, match=r"^file: key 3 is there twice; keep one row for each key$"):
        sort_by_key(pa.table({"key": [3, 1, 3]}), "key", "file")


@pytest.mark.parametrize("order", ["ascending", "shuffled"])
def test_buckets_hold_whole_displays_and_are_of_like_size(tmp_path, order):
    displays = np.arange(0, 900, 3)
    clicks = [(int(d), 10 + a, int(a == 0)) for d in displays for a in range(d % 4 + 1)]
    if order == "shuffled":
        clicks = [clicks[i] for i in np.random.default_rng(0).permutation(len(clicks))]
    made = plan(tmp_path, clicks, rows_per_part=100)
    assert made.rows == len(clicks) and made.parts == -(-len(clicks) // 100)
    sizes, seen = [], []
    for bucket in range(made.parts):
        rows = pq.read_table(tmp_path / "work/clicks_train" / f"{bucket:05d}.parquet").to_pydict()
        events = pq.read_table(tmp_path / "work/events" / f"{bucket:05d}.parquet")["display_id"].to_pylist()
        assert sorted(events) == sorted(set(rows["display_id"]))
        sizes.append(len(rows["ad_id"]))
        seen += zip(rows["display_id"], rows["ad_id"], rows["clicked"], strict=True)
        assert not set(rows["display_id"]) & {d for d, *_ in seen[: -sizes[-1]]}
        # Rows of a display stay in the order of the file.
        for d in set(rows["display_id"]):
            mine = [a for e, a in zip(rows["display_id"], rows["ad_id"], strict=True) if e == d]
            assert mine == [a for e, a, _ in clicks if e == d]
    assert sorted(seen) == sorted(clicks) and max(sizes) < 130 and min(sizes) > 60


@pytest.mark.parametrize("hits", [0, 2])
def test_a_display_needs_one_click(tmp_path, hits):
    clicks = [(1, 10, 1), (1, 11, 0), (2, 10, int(hits > 0)), (2, 11, int(hits > 1))]
    made = plan(tmp_path, clicks)
    with pytest.raises(InputError, match=rf"clicks_train\.csv: display_id 2 has {hits} clicks; .* cut off"):
        join.join_bucket(made, 0)


def test_an_event_that_is_there_twice(tmp_path):
    made = plan(tmp_path, [(1, 10, 1)], [(1, "u", 5, 61, 3, "US"), (1, "v", 6, 62, 3, "US")])
    with pytest.raises(InputError, match=r"events\.csv: display_id 1 is there twice"):
        join.join_bucket(made, 0)


def test_an_ad_or_a_document_that_is_there_twice(tmp_path):
    write(tmp_path, [(1, 10, 1)])
    (tmp_path / "promoted_content.csv").write_text("ad_id,document_id,campaign_id,advertiser_id\n4,5,6,7\n4,5,6,7\n")
    tables = raw_tables.REQUIRED_TABLES
    made = join.plan_join(str(tmp_path), str(tmp_path / "w"), tables, seed=0, test_fraction=0.2, rows_per_part=10)
    with pytest.raises(InputError, match=r"promoted_content\.csv: ad_id 4 is there twice"):
        join.keep_side_tables(made)


def test_no_events_and_no_promoted_content_at_all_for_the_rows(tmp_path):
    made = plan(tmp_path, [(1, 77, 1), (1, 78, 0)], [(5, "u", 5, 61, 3, "US")])
    counts = join.join_bucket(made, 0)
    assert counts["without_event"] == 2 and counts["without_promoted_content"] == 2 and counts["displays"] == 1
    joined = join.JoinedRows(made, (counts["pieces"],), (counts["evaluated"],))
    (source,) = (source for source in ("train", "test") if joined.parts(source))
    rows = joined.read(source, 0).to_pydict()
    assert rows["timestamp"] == [-1, -1] and rows["document_id_promo"] == [-1, -1] and rows["geo_location"] == ["", ""]
    assert joined.read(source, 0, ["ad_id"]).to_pydict() == {"ad_id": [77, 78]}


def test_cuts_come_from_a_sample_of_all_blocks(tmp_path, monkeypatch):
    rows = 20_000
    write(tmp_path, [(d, 10, 1) for d in range(rows)])
    small = functools.partial(raw_tables.read_table, block_bytes=8192)
    monkeypatch.setattr(join, "read_table", small)
    made = join.plan_join(
        str(tmp_path), str(tmp_path), raw_tables.REQUIRED_TABLES, seed=0, test_fraction=0.2, rows_per_part=5000
    )
    assert made.rows == rows and made.parts == 4
    np.testing.assert_allclose(made.boundaries, [5000, 10000, 15000], atol=10)
