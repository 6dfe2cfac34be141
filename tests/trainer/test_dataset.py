import pytest

from data.errors import InputError
from data.feature_spec import Feature, FeatureSpec
from data.outbrain.schema import outbrain_feature_spec
from trainer.config import RunConfig
from trainer.dataset import open_spec


def generate(folder, **settings):
    settings = {"dataset_type": "synthetic", "synthetic_rows": 300, "synthetic_cache_dir": str(folder)} | settings
    return open_spec(RunConfig.from_flat(settings, frozenset(settings)))


def test_without_a_shape_outbrains_features_are_generated(tmp_path):
    spec = generate(tmp_path)
    assert spec.digest() == outbrain_feature_spec().digest()
    assert {"exponent", "pooling"}.isdisjoint(spec.metadata["synthetic"])


def test_the_shape_and_the_law_follow_the_flags(tmp_path):
    spec = generate(
        tmp_path,
        synthetic_dataset_cardinalities=(10, 20, 30),
        synthetic_dataset_hotness=(1, 4, 1),
        synthetic_dataset_num_numerical_features=2,
        synthetic_dataset_power_law_exponent=0.0,
        synthetic_dataset_pooling="fixed",
    )
    assert spec.onehot == ("cat_0", "cat_2") and spec.multihot == ("cat_1",) and spec.numerical == ("num_0", "num_1")
    assert [spec.features[name].cardinality for name in spec.categorical] == [10, 30, 20]
    assert spec.metadata["synthetic"]["exponent"] == 0.0 and spec.metadata["synthetic"]["pooling"] == "fixed"


def test_tables_alone_are_one_hot_with_13_numericals(tmp_path):
    spec = generate(tmp_path, synthetic_dataset_cardinalities=(10, 20))
    assert spec.onehot == ("cat_0", "cat_1") and len(spec.numerical) == 13
    assert not generate(
        tmp_path, synthetic_dataset_cardinalities=(10, 20), synthetic_dataset_num_numerical_features=0
    ).numerical


def test_any_feature_specification_can_be_generated(tmp_path):
    path = str(tmp_path / "given.yaml")
    given = FeatureSpec({"y": Feature("y"), "a": Feature("a", 9), "m": Feature("m", 5, 2)}, ("a",), ("m",), (), "y")
    given.to_yaml(path)
    assert generate(tmp_path / "cache", synthetic_feature_spec=path).digest() == given.digest()
    # Nothing says the same twice, or what nothing heeds.
    for settings in (
        {"synthetic_feature_spec": path, "synthetic_dataset_cardinalities": (3,)},
        {"synthetic_dataset_hotness": (2,)},
    ):
        with pytest.raises(InputError, match="--synthetic_dataset_cardinalities"):
            generate(tmp_path / "cache", **settings)
