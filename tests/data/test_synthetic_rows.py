import numpy as np
import pytest

from data import synthetic_rows
from data.feature_spec import Feature, FeatureSpec
from data.synthetic_rows import column_dtype, draw_chunks, plant_teacher, to_table

SPEC = FeatureSpec(
    {
        "y": Feature("y"),
        "d": Feature("d"),
        "n": Feature("n"),
        "o": Feature("o", 20),
        "m": Feature("m", 9, max_hotness=4),
    },
    ("o",),
    ("m",),
    ("n",),
    "y",
    "d",
)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(synthetic_rows, "CHUNK_ROWS", 2048)


def draw(rows, seed=0, valid_fraction=0.5):
    return list(draw_chunks(SPEC, plant_teacher(SPEC), rows=rows, seed=seed, valid_fraction=valid_fraction))


@pytest.mark.parametrize("rows", [24, 2047, 2048, 2049, 2050, 4097])
def test_any_number_of_rows_is_drawn_exactly(rows):
    chunks = draw(rows)
    assert sum(len(chunk.clicks) for chunk in chunks) == rows
    for chunk in chunks:
        assert chunk.displays.sizes.sum() == len(chunk.clicks) == len(chunk.utility)
        assert chunk.displays.sizes.min() >= 2 and chunk.displays.sizes.max() <= 12


def test_display_ids_increase_over_chunks():
    ids = np.concatenate([chunk.display_ids for chunk in draw(7000)])
    assert (np.diff(ids) > 0).all()


def test_chunks_differ_and_full_ones_depend_on_the_seed_and_their_number_alone():
    first, second, _ = draw(5000)
    assert not np.array_equal(first.utility[:100], second.utility[:100])
    for other in draw(9000)[:2], draw(4096):
        for chunk, same in zip((first, second), other, strict=True):
            assert to_table(SPEC, chunk).equals(to_table(SPEC, same))
            np.testing.assert_array_equal(chunk.evaluated, same.evaluated)
    assert not to_table(SPEC, draw(2048, seed=1)[0]).equals(to_table(SPEC, first))


@pytest.mark.parametrize("valid_fraction", [0.2, 0.37, 0.9])
def test_evaluation_displays_are_an_even_share(valid_fraction):
    for chunk in draw(6000, valid_fraction=valid_fraction):
        taken = np.cumsum(chunk.evaluated)
        assert np.abs(taken - valid_fraction * np.arange(1, len(taken) + 1)).max() <= 1.0


def test_tables_hold_the_drawn_values():
    (chunk,) = draw(1000)
    table = to_table(SPEC, chunk)
    assert table.column_names == ["o", "m", "n", "y", "d"]
    assert table["d"].to_pylist() == [
        int(number) for number, size in zip(chunk.display_ids, chunk.displays.sizes, strict=True) for _ in range(size)
    ]
    lists = table["m"].to_pylist()
    assert [len(ids) for ids in lists] == chunk.displays.columns["m"].lengths.tolist()
    assert [one for ids in lists for one in ids] == chunk.displays.columns["m"].ids.tolist()
    assert table["y"].to_pylist() == chunk.clicks.tolist()
    assert [column_dtype(SPEC, name) for name in table.column_names] == ["int64", "int64", "float32", "int8", "int64"]


def test_wide_rows_are_drawn_in_smaller_chunks(monkeypatch):
    monkeypatch.setattr(synthetic_rows, "CHUNK_ROWS", 65536)
    monkeypatch.setattr(synthetic_rows, "CHUNK_VALUES", 6 * 1500)
    assert [len(chunk.clicks) for chunk in draw(3500)] == [1500, 1500, 500]
