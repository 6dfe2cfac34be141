import dataclasses

import numpy as np
import pytest

from data.displays import MAX_ADS, MIN_ADS, IdLists, draw_displays, page_features
from data.feature_spec import Feature, FeatureSpec
from data.outbrain.schema import PAGE_FEATURES, outbrain_feature_spec


@pytest.fixture(scope="module")
def outbrain():
    return draw_displays(outbrain_feature_spec(), np.random.default_rng(5), 20_000)


def ids_of(column):
    return column.ids if isinstance(column, IdLists) else column


def varies_within(displays, column):
    """Whether any two ads of one display differ."""
    return bool((np.repeat(column[displays.starts], displays.sizes) != column).any())


def test_display_sizes_add_up_and_stay_in_range():
    spec = FeatureSpec({"y": Feature("y"), "n": Feature("n")}, (), (), ("n",), "y")
    for rows in range(MIN_ADS, 90):
        for seed in range(20):
            displays = draw_displays(spec, np.random.default_rng(seed), rows)
            assert displays.sizes.sum() == rows
            assert displays.sizes.min() >= MIN_ADS and displays.sizes.max() <= MAX_ADS
            assert len(displays.columns["n"]) == rows


def test_all_display_sizes_occur(outbrain):
    assert set(outbrain.sizes) == set(range(MIN_ADS, MAX_ADS + 1))


def test_page_columns_are_constant_inside_a_display_and_the_others_are_not(outbrain):
    spec = outbrain_feature_spec()
    assert page_features(spec) == PAGE_FEATURES
    for name in spec.onehot + spec.numerical:
        assert varies_within(outbrain, outbrain.columns[name]) == (name not in PAGE_FEATURES), name
    assert np.unique(outbrain.columns["document_id"]).size > 1000


def test_ids_lie_in_their_tables_and_lists_hold_up_to_max_hotness(outbrain):
    spec = outbrain_feature_spec()
    for name in spec.categorical:
        ids = ids_of(outbrain.columns[name])
        assert ids.dtype == np.int64
        assert ids.min() >= 0 and ids.max() < spec.features[name].cardinality
    for name in spec.multihot:
        column = outbrain.columns[name]
        assert set(column.lengths) == {0, 1, 2, 3}
        assert column.lengths.sum() == len(column.ids)


def test_a_location_has_one_state_and_a_state_one_country(outbrain):
    columns = outbrain.columns
    for part, whole in (("geo_location_state", "geo_location"), ("geo_location_country", "geo_location_state")):
        pairs = np.unique(np.stack([columns[whole], columns[part]]), axis=1)
        assert np.unique(pairs[0]).size == pairs.shape[1]
        assert np.unique(columns[part]).size > 100


def test_numericals_are_standard_normal(outbrain):
    column = outbrain.columns["ad_id_ctr"]
    assert column.dtype == np.float32
    assert abs(column.mean()) < 0.03 and abs(column.std() - 1.0) < 0.03


def test_a_state_without_location_is_drawn_by_itself():
    spec = outbrain_feature_spec()
    spec = dataclasses.replace(spec, onehot=("geo_location_state", "ad_id"))
    column = draw_displays(spec, np.random.default_rng(0), 5000).columns["geo_location_state"]
    assert column.max() < 2000 and np.unique(column).size > 100


def test_something_tells_ads_apart_when_all_features_are_the_pages():
    spec = dataclasses.replace(outbrain_feature_spec(), onehot=("platform", "source_id"), multihot=(), numerical=())
    assert page_features(spec) == frozenset()
    displays = draw_displays(spec, np.random.default_rng(0), 1000)
    assert varies_within(displays, displays.columns["platform"])


def test_padded_lays_out_one_display_per_line():
    spec = FeatureSpec({"y": Feature("y"), "n": Feature("n")}, (), (), ("n",), "y")
    displays = draw_displays(spec, np.random.default_rng(1), 50)
    table = displays.padded(np.arange(50.0), -1.0)
    for line, start, size in zip(table, displays.starts, displays.sizes, strict=True):
        assert list(line) == list(range(start, start + size)) + [-1.0] * (MAX_ADS - size)
