import json
import math
import pathlib
import re

import numpy as np
import pytest

from data.errors import InputError
from trainer.checkpoint_arrays import DataFile
from trainer.checkpoint_manifest import MANIFEST, Manifest, Piece, TableRecord

F32 = np.dtype("f4")


def manifest(path, **changes):
    file = DataFile("table.ad_id.npz", 10, {"weights": 1, "rms": 2})
    record = TableRecord(250000, {"weights": ((64,), F32), "rms": ((64,), F32)}, (Piece(0, 250000, file),))
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
    with pytest.raises(InputError, match="checkpoint format 7, and this program reads format 1"):
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


@pytest.mark.parametrize("bounds", [[], [(0, 9)], [(0, 5), (6, 10)], [(5, 10), (0, 5)], [(0, 12), (12, 10)], [(1, 10)]])
def test_pieces_that_do_not_cover_the_rows_are_refused(tmp_path, bounds):
    file = DataFile("f", 1, {})
    record = TableRecord(10, {}, tuple(Piece(start, stop, file) for start, stop in bounds))
    with pytest.raises(InputError, match="the pieces of table 'ad_id' do not cover its 10 rows"):
        manifest(tmp_path, tables={"ad_id": record}).check(**{**MODEL, "tables": {"ad_id": (10, {})}})


def test_pieces_in_order_are_accepted_an_empty_one_included(tmp_path):
    pieces = tuple(Piece(start, stop, DataFile("f", 1, {})) for start, stop in [(0, 4), (4, 4), (4, 10)])
    record = TableRecord(10, {}, pieces)
    manifest(tmp_path, tables={"ad_id": record}).check(**{**MODEL, "tables": {"ad_id": (10, {})}})
