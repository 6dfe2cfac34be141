import json
import pathlib

from data.feature_spec import FeatureSpec
from data.outbrain import schema

EMBEDDING_SIZES = pathlib.Path(schema.__file__).with_name("embedding_sizes.json")


def test_the_specification_has_the_published_features():
    spec = schema.outbrain_feature_spec()
    assert (len(spec.onehot), len(spec.multihot), len(spec.numerical)) == (13, 3, 13)
    assert spec.total_hotness == 13 + 3 * 3
    assert (spec.label, spec.display) == ("clicked", "display_id")
    assert sum(spec.features[name].cardinality for name in spec.categorical) == 682754
    assert spec.features["document_id"].cardinality == 300000
    assert spec.features["entity_id_list"].cardinality == 10000


def test_the_deep_part_is_1235_wide():
    sizes = json.loads(EMBEDDING_SIZES.read_text(encoding="utf-8"))
    assert set(sizes) == set(schema.outbrain_feature_spec().categorical)
    assert sum(sizes.values()) == 1235
    assert sizes["platform"] == 19


def test_the_published_model_has_92_million_parameters():
    spec = schema.outbrain_feature_spec()
    sizes = json.loads(EMBEDDING_SIZES.read_text(encoding="utf-8"))
    embeddings = sum(spec.features[name].cardinality * size for name, size in sizes.items())
    layers = (1235 + 13 + 1) * 1024 + 4 * 1025 * 1024 + 1025
    wide = sum(spec.features[name].cardinality for name in spec.categorical) + 13 + 1
    assert round((embeddings + layers + wide) / 1e6) == 92


def test_page_and_derived_features_are_features():
    spec = schema.outbrain_feature_spec()
    assert set(spec.categorical + spec.numerical) > schema.PAGE_FEATURES
    for child, parent in schema.DERIVED_FROM.items():
        assert {child, parent} <= set(spec.onehot)
        assert (child in schema.PAGE_FEATURES) == (parent in schema.PAGE_FEATURES)


def test_the_specification_survives_its_file(tmp_path):
    path = str(tmp_path / "feature_spec.yaml")
    spec = schema.outbrain_feature_spec()
    spec.to_yaml(path)
    assert FeatureSpec.from_yaml(path).to_dict() == spec.to_dict()
