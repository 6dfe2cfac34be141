import gc
import itertools
import threading
import tracemalloc

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data.errors import InputError
from data.feature_spec import FeatureSpec
from data.input_pipeline import ParquetInput

CARDINALITY = 2000


def make_spec(files, *, onehot=("row", "half"), multihot=("list",), numerical=("x", "y"), display="display"):
    features = {name: {"cardinality": CARDINALITY} for name in onehot}
    features |= {name: {"cardinality": CARDINALITY, "max_hotness": 3} for name in multihot}
    features |= {name: {} for name in (*numerical, "label", *([display] if display else []))}
    chunk = {"type": "parquet", "features": list(features), "files": [str(file) for file in files]}
    return FeatureSpec.from_dict(
        {
            "feature_spec": features,
            "channel_spec": {
                "onehot_categorical": list(onehot),
                "multihot_categorical": list(multihot),
                "numerical": list(numerical),
                "label": ["label"],
                "map": [display] if display else [],
            },
            "source_spec": {"train": [chunk], "test": [chunk]},
        }
    )


def make_table(rows):
    """Every column is a function of the row number, which is the id `row`."""
    row = np.arange(rows)
    return pa.table(
        {
            "row": row,
            "half": pd.array(np.where(row % 5 == 0, None, row // 2), dtype="Int64"),
            "list": [[int(r) for _ in range(r % 5)] if r % 7 else None for r in row],
            "x": row / 10,
            "y": (row % 3).astype(np.int8),
            "label": (row % 4 == 0).astype(np.int64),
            "display": row // 4 + 2**40,
        }
    )


def write(tmp_path, sizes, *, row_group_size=37, **options):
    """Files of so many rows each; returns their paths and the whole table."""
    table, paths, start = make_table(sum(sizes)), [], 0
    for number, size in enumerate(sizes):
        paths.append(tmp_path / f"part-{number}.parquet")
        pq.write_table(table.slice(start, size), paths[-1], row_group_size=row_group_size, **options)
        start += size
    return paths, table


@pytest.fixture
def source(tmp_path):
    paths, _ = write(tmp_path, [400, 90, 510])
    return ParquetInput(make_spec(paths), "train", with_display=True)


def take(stream, count):
    with stream:
        return list(itertools.islice(stream.arrays(), count))


def rows_of(batches):
    return np.concatenate([batch["ids"][:, 0] for batch in batches])


def check_against_pandas(batch, paths):
    """Compares with what pandas reads, row by row, in plain Python."""
    frame = pd.concat([pd.read_parquet(path) for path in paths])
    frame = {row["row"]: row for row in frame.to_dict("records")}
    real = batch["mask"] > 0 if "mask" in batch else np.ones(len(batch["labels"]), bool)
    for ids, numerical, label in zip(
        batch["ids"][real], batch["numerical"][real], batch["labels"][real], strict=True
    ):  # fmt: skip
        expected = frame[ids[0]]
        items = [] if expected["list"] is None else list(expected["list"])[:3]
        assert ids[1] == (-1 if pd.isna(expected["half"]) else expected["half"])
        assert list(ids[2:]) == items + [-1] * (3 - len(items))
        assert list(numerical) == [np.float32(expected["x"]), expected["y"]]
        assert label == expected["label"]
    if "group_ids" in batch:
        assert list(batch["group_ids"][real]) == [frame[row]["display"] for row in batch["ids"][real, 0]]


def test_attributes(source):
    assert (source.num_rows, source.num_row_groups, len(source.files)) == (1000, 11 + 3 + 14, 3)
    with source.train_stream(global_batch_size=64, rank=1, world_size=3) as stream:
        assert (stream.steps_per_epoch, stream.dropped_rows, stream.local_batch_size) == (15, 40, 21)
    with source.eval_stream(global_batch_size=64, rank=1, world_size=3) as stream:
        assert (stream.steps_per_epoch, stream.dropped_rows, stream.local_batch_size) == (16, 0, 21)


@pytest.mark.parametrize("codec", ["snappy", "zstd"])
@pytest.mark.parametrize("row_group_size", [1, 30, 1000])
def test_training_batches_hold_what_pandas_reads(tmp_path, codec, row_group_size):
    paths, _ = write(tmp_path, [100, 60], row_group_size=row_group_size, compression=codec)
    source = ParquetInput(make_spec(paths), "train", with_display=True)
    batches = take(source.train_stream(global_batch_size=32, shuffle_buffer_rows=64), 5)
    np.testing.assert_array_equal(np.sort(rows_of(batches)), np.arange(160))
    for batch in batches:
        assert {name: (array.dtype, array.shape) for name, array in batch.items()} == {
            "ids": (np.int32, (32, 5)),
            "numerical": (np.float32, (32, 2)),
            "labels": (np.float32, (32,)),
        }
        check_against_pandas(batch, paths)


def test_every_epoch_reads_the_same_rows_in_another_order(source):
    batches = take(source.train_stream(global_batch_size=64, shuffle_buffer_rows=200), 45)
    epochs = [rows_of(batches[e * 15 : (e + 1) * 15]) for e in range(3)]
    for epoch in epochs:
        np.testing.assert_array_equal(np.sort(epoch), np.arange(960))
    assert not (epochs[0] == epochs[1]).all()
    same = rows_of(take(source.train_stream(global_batch_size=64, shuffle_buffer_rows=200), 15))
    other = rows_of(take(source.train_stream(global_batch_size=64, shuffle_buffer_rows=200, seed=1), 15))
    np.testing.assert_array_equal(same, epochs[0])
    assert not (other == epochs[0]).all()


@pytest.mark.parametrize("ranks", [2, 3, 8])
@pytest.mark.parametrize("row_group_size", [37, 1000])
def test_ranks_share_one_file(tmp_path, ranks, row_group_size):
    paths, _ = write(tmp_path, [1000], row_group_size=row_group_size)
    source = ParquetInput(make_spec(paths), "train", with_display=False)
    arguments = {"global_batch_size": 50, "shuffle_buffer_rows": 150}
    whole = take(source.train_stream(**arguments), 23)
    parts = [take(source.train_stream(**arguments, rank=r, world_size=ranks), 23) for r in range(ranks)]
    for step in range(23):
        union = rows_of([part[step] for part in parts])
        np.testing.assert_array_equal(np.sort(union), np.sort(whole[step]["ids"][:, 0]))


def test_a_batch_mixes_eight_row_groups(source):
    owner = np.concatenate([np.arange(400) // 37, 100 + np.arange(90) // 37, 200 + np.arange(510) // 37])
    for batch in take(source.train_stream(global_batch_size=40, shuffle_buffer_rows=1), 50):
        assert len(np.unique(owner[batch["ids"][:, 0]])) >= 8


@pytest.mark.parametrize("start", [1, 14, 15, 38])
def test_resuming_gives_the_batches_of_an_uninterrupted_run(source, start):
    arguments = {"global_batch_size": 64, "rank": 1, "world_size": 2, "shuffle_buffer_rows": 200}
    whole = take(source.train_stream(**arguments), start + 5)[start:]
    resumed = take(source.train_stream(**arguments, start_step=start), 5)
    for a, b in zip(whole, resumed, strict=True):
        for name in a:
            np.testing.assert_array_equal(a[name], b[name])


def decoded_groups(monkeypatch):
    """The row groups that are decoded, as they are."""
    import data.window_loader as loader

    decoded, original = [], loader.decode_row_groups

    def decode_row_groups(files, groups, columns):
        decoded.extend((group, column.name) for group in groups for column in columns)
        return original(files, groups, columns)

    monkeypatch.setattr(loader, "decode_row_groups", decode_row_groups)
    return decoded


def test_resuming_does_not_decode_what_it_skips(source, monkeypatch):
    decoded = decoded_groups(monkeypatch)
    with source.train_stream(global_batch_size=50, shuffle_buffer_rows=100, shuffle=False, start_step=18) as stream:
        next(stream.arrays())
    assert decoded[0][0] == 11 + 3 + 11  # row 900 is row 410 of the last file
    assert 11 + 3 + 10 not in [group for group, _ in decoded]


@pytest.mark.parametrize("row_group_size", [37, 333, 1000])
@pytest.mark.parametrize("shuffle", [True, False])
def test_a_pass_decodes_each_column_of_a_row_group_once(tmp_path, monkeypatch, row_group_size, shuffle):
    monkeypatch.setattr("data.window_loader._TASK_ROWS", 100)
    monkeypatch.setattr("data.window_loader._TASK_VALUES", 900)
    monkeypatch.setattr("data.row_plan.EVALUATION_WINDOW_ROWS", 100)
    paths, _ = write(tmp_path, [1000], row_group_size=row_group_size)
    source = ParquetInput(make_spec(paths), "train", with_display=True, decode_threads=1)
    decoded = decoded_groups(monkeypatch)
    with source.train_stream(global_batch_size=50, shuffle_buffer_rows=100, shuffle=shuffle) as stream:
        seen = list(itertools.islice(stream.arrays(), 20))
        assert stream.steps_per_epoch == 20
    np.testing.assert_array_equal(np.sort(rows_of(seen)), np.arange(1000))
    first_pass = decoded[: 6 * source.num_row_groups]  # one thread decodes in order; the next pass may be on its way
    assert len(set(first_pass)) == 6 * source.num_row_groups
    decoded.clear()
    take(source.eval_stream(global_batch_size=50), 100)
    assert len(decoded) == len(set(decoded)) == 7 * source.num_row_groups


def test_threads_and_task_sizes_do_not_change_the_batches(tmp_path, monkeypatch):
    paths, _ = write(tmp_path, [300, 5, 95], row_group_size=23)
    reference = None
    for threads, rows, values in ((1, 65536, 2**22), (5, 65536, 2**22), (3, 60, 2**22), (2, 60, 100)):
        monkeypatch.setattr("data.window_loader._TASK_ROWS", rows)
        monkeypatch.setattr("data.window_loader._TASK_VALUES", values)
        source = ParquetInput(make_spec(paths), "train", with_display=False, decode_threads=threads)
        stream = source.train_stream(global_batch_size=20, shuffle_buffer_rows=100)
        batches = take(stream, 40)
        assert stream.counts["ids_cut"] == {"list": 2 * sum(r % 5 == 4 and r % 7 != 0 for r in range(400))}
        reference = reference or batches
        for a, b in zip(reference, batches, strict=True):
            for name in a:
                np.testing.assert_array_equal(a[name], b[name])


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
@pytest.mark.parametrize("sizes", [[400, 90, 510], [5]])
def test_evaluation_scores_every_row_once(tmp_path, ranks, sizes, monkeypatch):
    monkeypatch.setattr("data.row_plan.EVALUATION_WINDOW_ROWS", 90)
    paths, _ = write(tmp_path, sizes)
    source = ParquetInput(make_spec(paths), "test", with_display=True)
    seen, steps, cut = [], set(), 0
    for rank in range(ranks):
        stream = source.eval_stream(global_batch_size=64, rank=rank, world_size=ranks)
        batches = take(stream, 1000)
        steps.add(len(batches))
        assert len(batches) == stream.steps_per_epoch
        for batch in batches:
            assert len(batch["labels"]) == stream.local_batch_size
            padded = batch["mask"] == 0
            assert (batch["ids"][padded] == -1).all()
            assert not any(batch[name][padded].any() for name in ("numerical", "labels", "group_ids"))
        seen += [batch["ids"][batch["mask"] == 1, 0] for batch in batches]
        for batch in (batches[0], batches[-1]):
            check_against_pandas(batch, paths)
        assert stream.counts["rows"] == sum(batch["mask"].sum() for batch in batches)
        cut += stream.counts["ids_cut"].get("list", 0)
    np.testing.assert_array_equal(np.concatenate(seen), np.arange(sum(sizes)))
    assert len(steps) == 1
    assert cut == sum(r % 5 == 4 and r % 7 != 0 for r in range(sum(sizes)))


def test_evaluation_repeats(source):
    stream = source.eval_stream(global_batch_size=300, repeat=True)
    batches = take(stream, 9)
    assert stream.steps_per_epoch == 4
    np.testing.assert_array_equal(batches[8]["ids"], batches[0]["ids"])
    np.testing.assert_array_equal(batches[7]["mask"], batches[3]["mask"])


def test_tensors_are_the_arrays_and_stay_so(source, monkeypatch):
    """Also when all are kept: the arrays that are handed to TensorFlow are used again."""
    monkeypatch.setattr("data.input_pipeline._RUN_ROWS", 40)
    for make in (
        lambda: source.train_stream(global_batch_size=10, shuffle_buffer_rows=200),
        lambda: source.train_stream(global_batch_size=10, shuffle_buffer_rows=200, shuffle=False),
        lambda: source.train_stream(global_batch_size=500),
        lambda: source.eval_stream(global_batch_size=13, rank=3, world_size=4, repeat=True),
    ):
        expected = take(make(), 30)
        with make() as stream:
            assert all(spec.shape.is_fully_defined() for spec in stream.dataset.element_spec.values())
            kept = list(itertools.islice(stream, 30))
            again = list(stream.dataset.take(30))
            for got in (kept, again):
                for batch, arrays in zip(got, expected, strict=True):
                    assert set(batch) == set(arrays) == set(stream.dataset.element_spec)
                    for name, tensor in batch.items():
                        assert tensor.shape == stream.dataset.element_spec[name].shape
                        np.testing.assert_array_equal(tensor.numpy(), arrays[name])


@pytest.mark.parametrize(
    "channels",
    [
        {"onehot": (), "multihot": ()},
        {"numerical": (), "multihot": ()},
        {"onehot": (), "numerical": (), "display": None},
    ],
)
def test_no_feature_of_a_kind(tmp_path, channels):
    paths, _ = write(tmp_path, [100])
    source = ParquetInput(make_spec(paths, **channels), "train", with_display=True)
    hotness = len(channels.get("onehot", ("row", "half"))) + 3 * len(channels.get("multihot", ("list",)))
    for stream in (source.train_stream(global_batch_size=30), source.eval_stream(global_batch_size=30)):
        with stream:
            batch = next(iter(stream))
            assert batch["ids"].shape == (30, hotness)
            assert batch["numerical"].shape == (30, len(channels.get("numerical", "xy")))
            assert ("group_ids" in batch) == ("mask" in batch and channels.get("display", "") is not None)


def test_large_cardinalities_give_wide_ids(tmp_path):
    path = tmp_path / "wide.parquet"
    pq.write_table(pa.table({"row": [2**33, 5], "label": [0, 1]}), path)
    spec = make_spec([path], onehot=("row",), multihot=(), numerical=(), display=None)
    document = spec.to_dict()
    document["feature_spec"]["row"]["cardinality"] = 2**34
    source = ParquetInput(FeatureSpec.from_dict(document), "train", with_display=False)
    with source.train_stream(global_batch_size=2, shuffle=False) as stream:
        np.testing.assert_array_equal(next(iter(stream))["ids"].numpy(), [[2**33], [5]])


@pytest.mark.parametrize("read", ["arrays", "stream"])
def test_bad_values_end_a_stream_with_the_error_itself(tmp_path, read, capfd):
    paths, table = write(tmp_path, [200, 200])
    bad = table.slice(200).set_column(0, "row", pa.array([CARDINALITY] * 200))
    pq.write_table(bad, paths[1], row_group_size=50, write_statistics=False)
    source = ParquetInput(make_spec(paths), "test", with_display=False)
    with source.eval_stream(global_batch_size=20) as stream:
        with pytest.raises(InputError, match=r"part-1.parquet: column 'row' .*is 2000; ids are 0\.\.1999"):
            for _ in stream if read == "stream" else stream.arrays():
                pass
        assert isinstance(stream.error, InputError)
    assert "Traceback" not in capfd.readouterr().err


def test_the_dataset_fails_too_and_keeps_the_cause(tmp_path):
    import tensorflow as tf

    paths, table = write(tmp_path, [50])
    without_y = table.set_column(4, "y", pa.array([None] * 50, pa.float32()))
    pq.write_table(without_y, paths[0], write_statistics=False)
    source = ParquetInput(make_spec(paths), "train", with_display=False)
    with source.train_stream(global_batch_size=10) as stream:
        with pytest.raises(tf.errors.OpError):
            next(iter(stream.dataset))
        assert "column 'y' (numerical), row group 0: 50 bad value(s), the first is null" in str(stream.error)


def decode_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("parquet")]


def test_close_ends_the_threads_and_the_iterations(source):
    before = len(decode_threads())
    streams = [source.train_stream(global_batch_size=64, shuffle_buffer_rows=100) for _ in range(2)]
    iterators = [iter(streams[0]), streams[1].arrays()]
    for iterator in iterators:
        next(iterator)
    assert len(decode_threads()) > before
    for stream in streams:
        stream.close()
        stream.close()
    assert len(decode_threads()) == before
    for iterator in iterators:
        assert sum(1 for _ in iterator) < 70  # what was made ahead, and no error
    with pytest.raises(ValueError, match="closed"):
        next(streams[0].arrays())
    assert all(stream.error is None for stream in streams)


def test_memory_is_flat_over_epochs_and_within_the_stated_buffer(tmp_path, monkeypatch):
    # Small tasks, so that what is measured is the windows and not the allowance for decoding.
    monkeypatch.setattr("data.window_loader._TASK_ROWS", 500)
    monkeypatch.setattr("data.window_loader._TASK_VALUES", 10_000)
    rows = 16_000
    path = tmp_path / "big.parquet"
    columns = {"row": np.arange(rows) % CARDINALITY, "label": np.arange(rows) % 2}
    columns |= {f"x{i}": np.arange(rows, dtype=np.float32) for i in range(30)}
    pq.write_table(pa.table(columns), path, row_group_size=500)
    spec = make_spec([path], onehot=("row",), multihot=(), numerical=[f"x{i}" for i in range(30)], display=None)
    source = ParquetInput(spec, "train", with_display=False)
    with source.train_stream(global_batch_size=500, shuffle_buffer_rows=4000) as stream:
        batches = stream.arrays()
        gc.collect()
        tracemalloc.start()
        peaks = []
        try:
            for _ in range(4):
                tracemalloc.reset_peak()
                for _ in range(stream.steps_per_epoch):
                    next(batches)
                peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
        windows = 2 * 4000 * 4 * (1 + 30 + 1)
        assert windows < max(peaks) < stream.buffer_bytes < 5 * windows
        assert peaks[3] < 1.05 * peaks[1]


def test_displays_sorted(tmp_path):
    paths, table = write(tmp_path, [100, 60])
    source = ParquetInput(make_spec(paths), "test", with_display=True)
    base = 2**40
    assert source.displays_sorted(0, 1) == (True, base, base + 39)
    assert source.displays_sorted(1, 3) == (True, base + 53 // 4, base + 105 // 4)
    displays = table["display"].to_numpy().copy()
    displays[110] = 7
    pq.write_table(table.slice(100).set_column(6, "display", pa.array(displays[100:])), paths[1])
    source = ParquetInput(make_spec(paths), "test", with_display=True)
    assert source.displays_sorted(0, 1) == (False, base, base + 39)
    assert source.displays_sorted(0, 2) == (True, base, base + 19)
    assert source.displays_sorted(1, 2)[0] is False
    source = ParquetInput(make_spec(paths[:1]), "test", with_display=True)
    assert source.displays_sorted(0, 300) == (True, None, None)
    with pytest.raises(ValueError, match="map channel"):
        ParquetInput(make_spec(paths), "test", with_display=False).displays_sorted(0, 1)


def test_displays_that_fall_at_a_border_of_row_groups_are_not_sorted(tmp_path):
    paths, _ = write(tmp_path, [100, 60])
    source = ParquetInput(make_spec(paths[::-1]), "test", with_display=True)
    assert source.displays_sorted(0, 1)[0] is False


def test_arguments_that_cannot_be_are_refused(source):
    with pytest.raises(InputError, match="1000 training rows are fewer than one global batch of 1001"):
        source.train_stream(global_batch_size=1001)
    with pytest.raises(InputError, match="8 ranks for 7 data shards"):
        source.train_stream(global_batch_size=64, rank=0, world_size=8, data_shards=7)
    with pytest.raises(InputError, match="8 ranks for a global batch of 7"):
        source.train_stream(global_batch_size=7, rank=0, world_size=8)
    with pytest.raises(InputError, match="shuffle_buffer_rows must be at least 1, got 0"):
        source.train_stream(global_batch_size=7, shuffle_buffer_rows=0)
    with pytest.raises(InputError, match="3 ranks for an evaluation batch of 2"):
        source.eval_stream(global_batch_size=2, rank=0, world_size=3)
