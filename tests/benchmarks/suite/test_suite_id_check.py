"""Ids as the generator draws them pass, for every law; ids of another law do not."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.suite import id_check
from data import power_law, synthetic
from data.feature_spec import Feature, FeatureSpec
from data.flat_spec import flat_spec
from data.id_draw import DEFAULT_DRAW, IdDraw

ROWS = 6000
SPEC = flat_spec([3000, 40, 1, 500], [1, 1, 1, 4], 2)


def write(folder, draw=DEFAULT_DRAW, spec=SPEC):
    return synthetic.generate(str(folder), rows=ROWS, seed=3, spec=spec, draw=draw)


def rewritten(spec, name, change):
    """The dataset with other ids in one column."""
    for path in spec.source_files("train"):
        table = pq.read_table(path)
        place = table.schema.get_field_index(name)
        pq.write_table(table.set_column(place, name, change(table.column(name).combine_chunks())), path)
    return spec


@pytest.mark.parametrize(
    "draw",
    [
        IdDraw(),
        IdDraw(0.0),
        IdDraw(1.0),
        IdDraw(2.0),
        IdDraw(0.0, "distinct"),
        IdDraw(1.1, "fixed"),
        IdDraw(0.0, "fixed"),
    ],
    ids=str,
)
def test_generated_ids_follow_their_law(tmp_path, draw):
    found = id_check.check(write(tmp_path / "d", draw), draw)
    assert found.wrong == () and found.features == 4 and found.ids > 3 * 0.7 * ROWS


def test_outbrains_features_follow_theirs_shared_by_the_ads_of_a_page(tmp_path):
    spec = synthetic.generate(str(tmp_path / "d"), rows=ROWS, seed=3)
    found = id_check.check(spec, IdDraw())
    assert found.wrong == () and found.features >= 12


@pytest.mark.parametrize("name", ["cat_0", "cat_1", "cat_3"])
@pytest.mark.parametrize("constant", [0, 7])
def test_constant_ids_are_found_out(tmp_path, name, constant):
    def constants(column):
        if pa.types.is_list(column.type):
            return pa.ListArray.from_arrays(column.offsets, pa.array(np.full(len(column.flatten()), constant)))
        return pa.array(np.full(len(column), constant))

    found = id_check.check(rewritten(write(tmp_path / "d"), name, constants), IdDraw())
    assert found.wrong and all(line.startswith(f"{name}: ") for line in found.wrong)


def test_ids_of_another_law_are_found_out(tmp_path):
    draw = IdDraw(0.0)
    found = id_check.check(write(tmp_path / "d", draw), IdDraw())
    assert any("most frequent ids are" in line for line in found.wrong)
    found = id_check.check(write(tmp_path / "e"), draw)
    assert any("different ids among" in line for line in found.wrong)


def test_few_ids_again_and_again_are_found_out_whatever_their_share(tmp_path):
    """Thirty ids whose frequencies fit: only their number is wrong."""
    rng = np.random.default_rng(0)

    def repeated(column):
        ranks = power_law.draw_ranks(rng, 3000, 30)
        return pa.array(power_law.rank_to_id(rng.choice(ranks, len(column)), 3000))

    found = id_check.check(rewritten(write(tmp_path / "d"), "cat_0", repeated), IdDraw())
    assert any("different ids among" in line for line in found.wrong)


def test_ids_outside_of_the_table_are_found_out(tmp_path):
    spec = rewritten(write(tmp_path / "d"), "cat_1", lambda column: pa.array(np.asarray(column) + 5))
    assert id_check.check(spec, IdDraw()).wrong[0].startswith("cat_1: ids ")


def test_only_so_many_rows_are_read(tmp_path):
    spec = FeatureSpec(
        {name: Feature(name, *rest) for name, *rest in (("a", 100), ("n",), ("label",))}, ("a",), (), ("n",), "label"
    )
    spec = synthetic.generate(str(tmp_path / "d"), rows=ROWS, seed=1, spec=spec, rows_per_group=200)
    assert id_check.check(spec, IdDraw(), rows=300).ids == 400
