import json
import math
import pathlib
import re

import numpy as np
import pytest
from checkpoint_states import ArrayTable, specs

from data.errors import InputError
from trainer.checkpoint import restore
from trainer.checkpoint_arrays import DataFile, write_npz
from trainer.checkpoint_manifest import (
    MANIFEST,
    Manifest,
    Piece,
    Rectangle,
    TableRecord,
    flaw_of_cover,
    table_columns,
)

F32 = np.dtype("f4")


def manifest(path, **changes):
    file = DataFile("table.ad_id.npz", 10, {"weights": 1, "rms": 2})
    record = TableRecord(250000, {"weights": ((64,), F32), "rms": ((64,), F32)}, (Piece(0, 250000, 0, 64, file),))
    values = {
        "path": pathlib.Path(path),
        "step": 3,
        "created": 12345678901234567890,
        "run_id": "a",
        "spec_digest": "0123456789abcdef",
        "scalars": {"loss_scale": math.inf, "rows": 2**60 + 1, "10": [1, "ü"], "2": None},
        "tables": {"ad_id": record},
        "dense": {"top/kernel": ((2, 3), F32), "optimizer/top/kernel": ((2, 3), F32)},
        "dense_file": DataFile("dense.npz", 7, {"top/kernel": 3}),
    }
    return Manifest(**{**values, **changes})


MODEL = {
    "tables": {"ad_id": (250000, {"weights": ((64,), F32), "rms": ((64,), F32)})},
    "dense": {"top/kernel": ((2, 3), F32), "optimizer/top/kernel": ((2, 3), F32)},
    "spec_digest": "0123456789abcdef",
    "partial": False,
}


def test_it_is_read_as_it_was_written(tmp_path):
    written = manifest(tmp_path)
    written.write(tmp_path / MANIFEST)
    assert Manifest.read(tmp_path) == written
    assert Manifest.read(str(tmp_path)).tables["ad_id"].arrays["weights"] == ((64,), F32)


def test_keys_that_json_turns_to_text_do_not_spoil_the_checksum(tmp_path):
    manifest(tmp_path, scalars={10: 1, 2: (3, 4)}).write(tmp_path / MANIFEST)
    assert Manifest.read(tmp_path).scalars == {"10": 1, "2": [3, 4]}


def test_altered_bytes_are_reported_or_without_effect(tmp_path):
    path, written = tmp_path / MANIFEST, manifest(tmp_path)
    written.write(path)
    good = path.read_bytes()
    reported = 0
    for position in range(0, len(good), 3):
        path.write_bytes(good[:position] + bytes([good[position] ^ 0x01]) + good[position + 1 :])
        try:
            read = Manifest.read(tmp_path)
        except InputError as error:
            assert str(path) in str(error)
            reported += 1
        else:
            assert read == written, position
    assert reported > len(good) / 6


def test_a_missing_truncated_or_foreign_manifest_is_reported_in_one_line(tmp_path):
    path = tmp_path / MANIFEST
    with pytest.raises(InputError, match="no complete checkpoint here"):
        Manifest.read(tmp_path)
    with pytest.raises(InputError, match="no complete checkpoint here"):
        Manifest.read(tmp_path / "absent")
    manifest(tmp_path).write(path)
    content = path.read_bytes()
    for damaged in (content[:-20], b"", b"[]", b"\xff", b"3"):
        path.write_bytes(damaged)
        with pytest.raises(InputError, match=re.escape(f"delete the folder {tmp_path}")) as caught:
            Manifest.read(tmp_path)
        assert "\n" not in str(caught.value)


def test_another_format_version_is_refused_with_both_versions(tmp_path):
    path = tmp_path / MANIFEST
    manifest(tmp_path).write(path)
    path.write_text(json.dumps({**json.loads(path.read_text()), "format_version": 7}))
    with pytest.raises(InputError, match="checkpoint format 7, and this program reads formats 1 and 2"):
        Manifest.read(tmp_path)


def test_a_matching_model_passes(tmp_path):
    manifest(tmp_path).check(**MODEL)
    # Shapes as lists and types by name are the same shapes and types.
    arrays = {"weights": ([64], "float32"), "rms": ([np.int64(64)], np.float32)}
    manifest(tmp_path).check(**{**MODEL, "tables": {"ad_id": (250000, arrays)}})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"tables": {"ad_id": (1000, MODEL["tables"]["ad_id"][1])}, "spec_digest": "other"},
            "table 'ad_id' has 250000 rows in the checkpoint and 1000 in the model: the same feature specification",
        ),
        ({"tables": {}}, "table 'ad_id' of the checkpoint is not in the model"),
        ({"tables": {**MODEL["tables"], "new": (1, {})}}, "table 'new' of the model is not in the checkpoint"),
        (
            {"tables": {"ad_id": (250000, {"weights": ((32,), F32), "rms": ((64,), F32)})}},
            "one row of table 'ad_id', array 'weights' has the shape (64,) in the checkpoint and (32,) in the model",
        ),
        (
            {"tables": {"ad_id": (250000, {"weights": ((64,), F32), "rms": ((64,), np.dtype("f2"))})}},
            "one row of table 'ad_id', array 'rms' has the type float32 in the checkpoint and float16 in the model",
        ),
        (
            {"tables": {"ad_id": (250000, {"weights": ((64,), F32), "linear": ((64,), F32)})}},
            "has the arrays ['rms', 'weights'] in the checkpoint and ['linear', 'weights'] in the model: it was made "
            "with other optimizer slots",
        ),
        ({"tables": {"ad_id": (250000, {"weights": ((64,), F32)})}}, "made with other optimizer slots"),
        ({"spec_digest": "fedcba9876543210"}, "0123456789ab in the checkpoint and fedcba987654 in the model"),
        ({"dense": {}}, "variable 'top/kernel' of the checkpoint is not in the model"),
        (
            {"dense": {**MODEL["dense"], "b": ((), F32)}},
            "variable 'b' of the model is not in the checkpoint",
        ),
        (
            {"dense": {**MODEL["dense"], "top/kernel": ((3, 2), F32)}},
            "variable 'top/kernel' has the shape (2, 3) in the checkpoint and (3, 2) in the model",
        ),
    ],
)
def test_a_mismatch_is_reported_with_both_values(tmp_path, change, message):
    with pytest.raises(InputError) as caught:
        manifest(tmp_path).check(**{**MODEL, **change})
    assert message in str(caught.value) and str(tmp_path) in str(caught.value)


def test_a_partial_model_may_lack_optimizer_state_and_nothing_else(tmp_path):
    few = {
        "tables": {"ad_id": (250000, {"weights": ((64,), F32)})},
        "dense": {"top/kernel": ((2, 3), F32)},
    }
    manifest(tmp_path).check(**{**MODEL, **few, "partial": True})
    for change in (
        {"dense": {"optimizer/top/kernel": ((2, 3), F32)}},  # lacks a layer
        {"tables": {}},
        {"tables": {"ad_id": (250000, {"weights": ((64,), F32), "adam": ((64,), F32)})}},
    ):
        with pytest.raises(InputError):
            manifest(tmp_path).check(**{**MODEL, **few, "partial": True, **change})


def pieces(bounds):
    return tuple(Piece(*each, DataFile("f", 1, {})) for each in bounds)


def check_cover(path, bounds, rows=10, columns=4):
    arrays = {"weights": ((columns,), F32), "last_step": ((), np.dtype("i4"))}
    tables = {"ad_id": TableRecord(rows, arrays, pieces(bounds))}
    manifest(path, tables=tables).check(**{**MODEL, "tables": {"ad_id": (rows, arrays)}})


@pytest.mark.parametrize(
    ("bounds", "flaw"),
    [
        ([], "0 of 40 values are there"),
        ([(0, 9, 0, 4)], "36 of 40 values"),
        ([(0, 10, 1, 4)], "30 of 40 values"),
        ([(0, 5, 0, 4), (6, 10, 0, 4)], "36 of 40 values"),
        ([(0, 5, 0, 2), (5, 10, 2, 4)], "20 of 40 values"),
        ([(0, 10, 0, 3), (0, 10, 2, 4)], "rows 0..10, columns 0..3 and rows 0..10, columns 2..4 overlap"),
        ([(0, 10, 0, 4), (0, 10, 0, 4)], "overlap"),
        # Of the whole's area, which is not enough.
        ([(0, 5, 0, 4), (0, 5, 0, 4)], "overlap"),
        ([(0, 6, 0, 2), (5, 10, 0, 2), (0, 4, 2, 4), (5, 10, 2, 4)], "overlap"),
        ([(0, 12, 0, 4)], "rows 0..12, columns 0..4 is no part of it"),
        ([(0, 5, 0, 4), (5, 10, 0, 3), (5, 10, 4, 5)], "is no part of it"),
        ([(-1, 9, 0, 4)], "is no part of it"),
        ([(0, 10, 0, 4), (12, 10, 0, 4)], "is no part of it"),
    ],
)
def test_pieces_that_do_not_cover_the_table_once_are_refused(tmp_path, bounds, flaw):
    with pytest.raises(InputError) as caught:
        check_cover(tmp_path, bounds)
    said = "the pieces of table 'ad_id' do not cover its 10 rows of 4 columns exactly once ("
    assert said in str(caught.value) and flaw in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "bounds",
    [
        [(0, 10, 0, 4)],
        [(5, 10, 0, 4), (0, 5, 0, 4)],
        [(0, 10, 3, 4), (0, 10, 0, 3)],
        [(0, 4, 0, 1), (0, 4, 1, 4), (4, 10, 0, 1), (4, 10, 1, 4)],
        [(0, 6, 0, 1), (0, 3, 1, 4), (6, 10, 0, 2), (3, 10, 2, 4), (3, 6, 1, 2)],  # a spiral
        [(0, 4, 0, 4), (4, 4, 0, 4), (4, 10, 0, 4), (2, 8, 1, 1)],  # with empty ones
    ],
)
def test_pieces_that_cover_the_table_once_are_accepted(tmp_path, bounds):
    check_cover(tmp_path, bounds)


def test_a_cover_is_accepted_exactly_if_counting_every_cell_accepts_it():
    rng = np.random.default_rng(0)
    accepted = 0
    for _ in range(3000):
        rows, columns = rng.integers(1, 4, 2)
        bounds = [(*sorted(rng.integers(0, rows + 1, 2)), *sorted(rng.integers(0, columns + 1, 2))) for _ in range(3)]
        cells = np.zeros((rows, columns), int)
        for first_row, stop_row, first_column, stop_column in bounds:
            cells[first_row:stop_row, first_column:stop_column] += 1
        accepts = flaw_of_cover([Rectangle(*each) for each in bounds], rows, columns) is None
        assert accepts == np.all(cells == 1), bounds
        accepted += accepts
    assert accepted > 50


@pytest.mark.parametrize("shapes", [[], [()], [(2, 3)], [(0,)], [(4,), (3,)], [(4,), (4, 1), ()]])
def test_tables_have_rows_of_one_width(tmp_path, shapes):
    arrays = {str(number): (shape, F32) for number, shape in enumerate(shapes)}
    with pytest.raises(ValueError, match="rows of a table's arrays have the shapes"):
        table_columns(arrays)
    manifest(tmp_path, tables={"ad_id": TableRecord(10, arrays, ())}).write(tmp_path / MANIFEST)
    with pytest.raises(InputError, match=re.escape(f"{tmp_path / MANIFEST}: damaged")):
        Manifest.read(tmp_path)


def test_pieces_are_written_with_their_columns(tmp_path):
    grid = pieces([(0, 100000, 0, 24), (0, 100000, 24, 64), (100000, 250000, 0, 64)])
    record = TableRecord(250000, MODEL["tables"]["ad_id"][1], grid)
    written = manifest(tmp_path, tables={"ad_id": record})
    written.write(tmp_path / MANIFEST)
    assert Manifest.read(tmp_path) == written
    body = json.loads((tmp_path / MANIFEST).read_text())
    assert body["format_version"] == 2
    assert [piece["first_column"] for piece in body["tables"]["ad_id"]["pieces"]] == [0, 24, 0]


# Written by the program when the version was 1, with its white space taken out.
VERSION_1 = """{"format_version": 1, "step": 5, "created": 1796099959999713964, "run_id": "old",
"spec_digest": "0123456789abcdef", "scalars": {"precision": "float32"}, "tables": {
"deep/ad": {"rows": 3, "arrays": {"weights": {"shape": [2], "dtype": "<f4"},
    "last_step": {"shape": [], "dtype": "<i4"}},
  "pieces": [{"start": 0, "stop": 3, "file": {"name": "table.deep%2Fad.npz", "size": 554,
    "crc32": {"weights": 3181169356, "last_step": 359373223}}}]},
"wide/ad": {"rows": 3, "arrays": {"weights": {"shape": [1], "dtype": "<f4"}},
  "pieces": [{"start": 0, "stop": 3, "file": {"name": "table.wide%2Fad.npz", "size": 280,
    "crc32": {"weights": 3882592322}}}]}},
"dense": {"arrays": {"top/kernel": {"shape": [2, 2], "dtype": "<f4"}},
  "file": {"name": "dense.npz", "size": 290, "crc32": {"top/kernel": 384826188}}}, "crc32": 1111688870}"""


def test_a_checkpoint_of_version_1_is_read(tmp_path):
    (tmp_path / MANIFEST).write_text(VERSION_1)
    deep = {"weights": np.arange(6, dtype="f4").reshape(3, 2), "last_step": np.array([7, 8, 9], "i4")}
    wide = {"weights": np.arange(3, dtype="f4").reshape(3, 1)}
    dense = {"top/kernel": np.ones((2, 2), "f4")}
    # Data files are what they were: the sizes and checksums of the old manifest are right.
    for name, arrays in [("table.deep%2Fad.npz", deep), ("table.wide%2Fad.npz", wide), ("dense.npz", dense)]:
        write_npz(tmp_path / name, [(key, array.shape, array.dtype, [array]) for key, array in arrays.items()])
    assert Manifest.read(tmp_path).tables["deep/ad"].pieces[0].stop_column == 2
    tables = [ArrayTable("deep/ad", **deep), ArrayTable("wide/ad", **wide)]
    wanted = [tables[0].part(1, 3, 1, 2).empty(), tables[1].empty(), tables[0].part(0, 3, 0, 1).empty()]
    found, scalars, step = restore(tmp_path, tables=wanted, dense=specs(dense), spec_digest="0123456789abcdef")
    assert wanted[0].same(tables[0].part(1, 3, 1, 2)) and wanted[2].same(tables[0].part(0, 3, 0, 1))
    assert wanted[1].same(tables[1])
    np.testing.assert_array_equal(found["top/kernel"], dense["top/kernel"])
    assert (scalars, step) == ({"precision": "float32"}, 5)


def test_a_piece_of_version_1_that_was_altered_is_found(tmp_path):
    (tmp_path / MANIFEST).write_text(VERSION_1.replace('"stop": 3', '"stop": 2', 1))
    with pytest.raises(InputError, match="checksum"):
        Manifest.read(tmp_path)
