import json

import pytest

from data.errors import InputError
from data.outbrain.schema import outbrain_feature_spec
from models import registry
from models.registry import build_model, default_embedding_dim, embedding_dims

SPEC = outbrain_feature_spec()


@pytest.mark.parametrize(
    ("cardinality", "dim"),
    # 6 * c ** 0.25 at 1, 2, 3, 4, 16, 100, 1000, 10000 and above: 6, 7.1, 7.9, 8.5, 12, 19, 33.7, 60, 189.7
    [(1, 8), (2, 8), (3, 8), (4, 16), (16, 16), (100, 24), (1000, 40), (10_000, 64), (1_000_000, 128), (10**12, 128)],
)
def test_default_dimension(cardinality, dim):
    assert default_embedding_dim(cardinality) == dim


def test_stated_dimensions_go_before_the_rule(tmp_path):
    file = tmp_path / "sizes.json"
    file.write_text(json.dumps({"platform": 19, "not_in_this_dataset": 5}))
    dims = embedding_dims(SPEC, str(file))
    assert set(dims) == set(SPEC.categorical)
    assert dims["platform"] == 19
    assert dims["ad_id"] == 128 and dims["geo_location_country"] == 32  # 6 * 300 ** 0.25 = 25.0
    assert embedding_dims(SPEC, None)["platform"] == 16


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"platform": 0}', "embedding size of 'platform' must be a positive integer, got 0"),
        ('{"platform": true}', "embedding size of 'platform' must be a positive integer, got True"),
        ('{"platform": 8.0}', "embedding size of 'platform' must be a positive integer, got 8.0"),
        ('{"platform": "8"}', "embedding size of 'platform' must be a positive integer, got '8'"),
        ("[1, 2]", "must map feature names to dimensions, got list"),
        ("{", "not JSON"),
        (b"\xff\xfe", "not JSON"),
    ],
)
def test_a_bad_file_is_named(tmp_path, text, says):
    file = tmp_path / "sizes.json"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(InputError) as caught:
        embedding_dims(SPEC, str(file))
    assert str(file) in str(caught.value) and says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InputError, match=r"nothing.json: cannot read the embedding sizes: No such file"):
        embedding_dims(SPEC, str(tmp_path / "nothing.json"))


def test_an_unknown_model_is_refused():
    with pytest.raises(InputError, match=r"model 'dlmr' is not known; choose one of wide_deep"):
        build_model("dlmr", SPEC, dims={}, hidden_units=(), dropout=0.0, combiner="sum", seed=0)


def test_every_known_model_is_built_as_asked(monkeypatch):
    asked = {}
    monkeypatch.setattr("models.wide_deep.WideDeep", lambda *args, **options: asked.update(args=args, **options))
    for name in registry.MODELS:
        build_model(name, SPEC, dims={"a": 8}, hidden_units=(4, 2), dropout=0.25, combiner="mean", seed=3)
    assert asked == {
        "args": (SPEC, {"a": 8}),
        "hidden_units": (4, 2),
        "dropout": 0.25,
        "combiner": "mean",
        "seed": 3,
    }
