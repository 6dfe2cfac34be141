import dataclasses
import json

import numpy as np
import pytest

from data.errors import InputError
from data.feature_spec import Feature, FeatureSpec
from data.outbrain.schema import outbrain_feature_spec
from models import registry
from models.registry import build_model, default_embedding_dim, embedding_dims, embedding_dims_from, table_groups

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


def test_one_dimension_for_all_or_one_for_each():
    assert embedding_dims_from(SPEC, (16,)) == dict.fromkeys(SPEC.categorical, 16)
    sizes = tuple(range(1, len(SPEC.categorical) + 1))
    assert list(embedding_dims_from(SPEC, sizes).items()) == list(zip(SPEC.categorical, sizes, strict=True))


@pytest.mark.parametrize("sizes", [(), (8, 8), (8,) * 99])
def test_another_number_of_dimensions_is_refused(sizes):
    both = f"--embedding_dim has {len(sizes)} numbers for {len(SPEC.categorical)} categorical features"
    with pytest.raises(InputError, match=both):
        embedding_dims_from(SPEC, sizes)


def test_the_file_of_the_features_is_named():
    spec = dataclasses.replace(SPEC, path="some/feature_spec.yaml")
    with pytest.raises(InputError, match=r"^some/feature_spec.yaml: --embedding_dim has 2 numbers"):
        embedding_dims_from(spec, (8, 8))


def test_an_unknown_model_is_refused():
    says = r"model 'dlmr' is not known; choose one of wide_deep, dlrm, dcnv2"
    with pytest.raises(InputError, match=says):
        build_model("dlmr", SPEC, dims={}, combiner="sum", seed=0)
    with pytest.raises(InputError, match=says):
        table_groups("dlmr", SPEC, dims={}, combiner="sum", seed=0)


BOTH_MLPS = {"bottom_mlp_dims": (4, 2), "top_mlp_dims": (3, 1)}
SETTINGS = {
    "wide_deep": {"hidden_units": (4, 2), "dropout": 0.25},
    "dlrm": {**BOTH_MLPS, "interaction": "dot", "self_interaction": True},
    "dcnv2": {**BOTH_MLPS, "num_cross_layers": 2, "cross_layer_projection_dim": 5},
}


@pytest.mark.parametrize("name", registry.MODELS)
@pytest.mark.parametrize("embeddings", [None, lambda groups: None])
def test_every_known_model_is_built_as_asked(monkeypatch, name, embeddings):
    asked = []
    for known in ("models.wide_deep.WideDeep", "models.dlrm.DLRM"):
        monkeypatch.setattr(known, lambda *args, known=known, **options: asked.append((known, args, options)))
    build_model(name, SPEC, dims={"a": 8}, combiner="mean", seed=3, embeddings=embeddings, **SETTINGS[name])
    options = {"combiner": "mean", "seed": 3, **SETTINGS[name]}
    if embeddings is not None:
        options["embeddings"] = embeddings
    if name == "dcnv2":
        options |= {"interaction": "cross", "name": "dcnv2"}
    known = "models.wide_deep.WideDeep" if name == "wide_deep" else "models.dlrm.DLRM"
    assert asked == [(known, (SPEC, {"a": 8}), options)]


@pytest.mark.parametrize("name", registry.MODELS)
def test_every_known_model_takes_its_settings_and_no_other(name):
    spec = make_spec()
    common = {"dims": {"page": 2, "topics": 2}, "combiner": "sum", "seed": 0}
    model = build_model(name, spec, **common, **SETTINGS[name])
    assert model.name == name
    assert model({"ids": np.array([[0, -1, 1]]), "numerical": np.array([[0.5]])}).shape == (1,)
    with pytest.raises(TypeError):
        build_model(name, spec, **common, **SETTINGS[name], colour="red")


def test_the_interaction_of_dcnv2_is_not_a_choice():
    with pytest.raises(TypeError, match="interaction"):
        build_model("dcnv2", SPEC, dims={}, combiner="sum", seed=0, **SETTINGS["dcnv2"], interaction="dot")


@pytest.mark.parametrize("name", registry.MODELS)
def test_tables_are_described_without_being_made(monkeypatch, name):
    def refuse(*args, **options):
        raise AssertionError("a table was made")

    monkeypatch.setattr("models.embedding.FusedTable.__init__", refuse)
    groups = table_groups(name, make_spec(), dims={"page": 2, "topics": 3}, combiner="mean", seed=3)
    assert {group.combiner for group in groups} == {"mean"} and groups[-1].seed == 3
    assert [[table.name for table in group.tables] for group in groups][-2:] == [["topics"], ["page"]]
    assert {group.optimizer_group for group in groups} == ({"wide", "deep"} if name == "wide_deep" else {"main"})


def make_spec():
    features = [Feature("page", 7), Feature("topics", 4, max_hotness=2), Feature("ctr"), Feature("clicked")]
    return FeatureSpec(
        features={feature.name: feature for feature in features},
        onehot=("page",),
        multihot=("topics",),
        numerical=("ctr",),
        label="clicked",
    )
