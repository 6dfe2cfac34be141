import dataclasses
import os
import re

import pytest
import yaml

from data.errors import InputError
from data.feature_spec import TEST, TRAIN, Chunk, Feature, FeatureSpec

# As the preprocessing of existing users writes it: empty descriptions, dtypes, display_id described but in no channel.
EXISTING = """
channel_spec:
  label: [clicked]
  map: []
  multihot_categorical: [topic_id_list]
  numerical: [ad_id_ctr, ad_id_count]
  onehot_categorical: [ad_id, platform]
feature_spec:
  ad_id: {cardinality: 250000, dtype: int64}
  ad_id_count: {}
  ad_id_ctr:
  clicked: {}
  display_id: {}
  platform: {cardinality: 4}
  topic_id_list: {cardinality: 350, max_hotness: 3, dtype: int64}
metadata: {}
source_spec:
  train:
  - features: [clicked, ad_id, platform, topic_id_list, ad_id_ctr, ad_id_count]
    files: [train/part_0.parquet, train/part_1.parquet]
    type: parquet
  test:
  - features: [clicked, ad_id, platform, topic_id_list, ad_id_ctr, ad_id_count, display_id]
    files: [valid/part_0.parquet]
    type: parquet
"""


def document(**channels):
    """The document above with some channels replaced."""
    made = yaml.safe_load(EXISTING)
    made["channel_spec"] |= channels
    return made


def described(**features):
    """The document above with some features described anew."""
    made = document()
    made["feature_spec"] |= features
    return made


def without(section):
    made = document()
    del made[section]
    return made


def sourced(*chunks, **changes):
    """The document above with these chunks to train on, by default its own, changed."""
    made = document()
    own = made["source_spec"][TRAIN][0] | changes
    made["source_spec"][TRAIN] = list(chunks) or [{key: value for key, value in own.items() if value is not None}]
    return made


def spec(**changes):
    return dataclasses.replace(FeatureSpec.from_dict(document(map=["display_id"])), **changes)


def test_a_file_as_existing_users_have_it(tmp_path):
    path = tmp_path / "feature_spec.yaml"
    path.write_text(EXISTING)
    read = FeatureSpec.from_yaml(str(path))
    assert dict(read.features) == {
        "ad_id": Feature("ad_id", cardinality=250000, dtype="int64"),
        "ad_id_count": Feature("ad_id_count"),
        "ad_id_ctr": Feature("ad_id_ctr"),
        "clicked": Feature("clicked"),
        "display_id": Feature("display_id"),
        "platform": Feature("platform", cardinality=4),
        "topic_id_list": Feature("topic_id_list", cardinality=350, max_hotness=3, dtype="int64"),
    }
    assert read.categorical == ("ad_id", "platform", "topic_id_list")
    assert read.total_hotness == 1 + 1 + 3
    assert read.numerical == ("ad_id_ctr", "ad_id_count")
    assert (read.label, read.display, read.path) == ("clicked", None, str(path))
    without_display = ("ad_id", "platform", "topic_id_list", "ad_id_ctr", "ad_id_count", "clicked")
    assert read.columns(with_display=False) == read.columns(with_display=True) == without_display
    path.write_text(EXISTING.replace("map: []", "map: [display_id]"))
    read = FeatureSpec.from_yaml(str(path))
    assert read.display == "display_id"
    assert read.columns(with_display=False) == without_display
    assert read.columns(with_display=True) == (*without_display, "display_id")


def test_channels_and_sections_that_may_be_left_out():
    made = without("metadata")
    for channel in ("map", "multihot_categorical", "onehot_categorical"):
        del made["channel_spec"][channel]
    read = FeatureSpec.from_dict(made)
    assert (read.categorical, read.total_hotness, read.display, dict(read.metadata)) == ((), 0, None, {})


def test_a_filesystem_that_is_not_there_is_said_to_be_so():
    with pytest.raises(InputError, match=r"^nothing://d/feature_spec.yaml: cannot reach that filesystem"):
        FeatureSpec.from_yaml("nothing://d/feature_spec.yaml")
    with pytest.raises(InputError, match=r"^file:///none/spec.yaml: cannot read the feature specification: .*No such"):
        FeatureSpec.from_yaml("file:///none/spec.yaml")


def test_files_of_a_specification_at_an_address_are_found_from_its_folder():
    made = sourced(files=["train/a.parquet", "/local/b.parquet", "gs://other/c.parquet"])
    read = FeatureSpec.from_dict(made, path="s3://bucket/d/feature_spec.yaml?region=x")
    first = "s3://bucket/d/train/a.parquet?region=x"
    assert read.source_files(TRAIN) == (first, "/local/b.parquet", "gs://other/c.parquet")


def test_files_are_found_from_the_folder_of_the_specification(tmp_path, monkeypatch):
    absolute = str(tmp_path / "elsewhere" / "part.parquet")
    made = sourced(files=["train/part_0.parquet", absolute])
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "feature_spec.yaml").write_text(yaml.safe_dump(made))
    monkeypatch.chdir(tmp_path)
    for path in ("data/feature_spec.yaml", str(tmp_path / "data" / "feature_spec.yaml")):
        folder = os.path.dirname(path)
        read = FeatureSpec.from_yaml(path)
        assert read.source_files(TRAIN) == (os.path.join(folder, "train/part_0.parquet"), absolute)
        assert read.source_files(TEST) == (os.path.join(folder, "valid/part_0.parquet"),)


@pytest.mark.parametrize("display", [[], ["display_id"]])
def test_written_and_read_again_it_is_the_same(tmp_path, display):
    made = document(map=display) | {"metadata": {"teacher": {"auc": 0.775}, "notes": ["a", "b"]}}
    first = FeatureSpec.from_dict(made)
    path = str(tmp_path / "feature_spec.yaml")
    first.to_yaml(path)
    again = FeatureSpec.from_yaml(path)
    assert again == dataclasses.replace(first, path=path)
    assert list(again.features) == list(first.features)
    assert again.metadata["teacher"] == {"auc": 0.775}


def test_a_file_is_written_complete_or_not_at_all(tmp_path):
    path = tmp_path / "feature_spec.yaml"
    spec().to_yaml(str(path))
    before = path.read_text()
    with pytest.raises(yaml.YAMLError):
        spec(metadata={"first": 1, "not plain data": object()}).to_yaml(str(path))
    assert path.read_text() == before
    assert os.listdir(tmp_path) == ["feature_spec.yaml"]


def test_the_digest_is_of_features_and_channels_alone():
    digest = spec().digest()
    assert re.fullmatch("[0-9a-f]{64}", digest)
    other_dtype = {**spec().features, "ad_id": Feature("ad_id", cardinality=250000, dtype="int32")}
    for same in (
        spec(sources={}, metadata={"teacher": 1}, path="elsewhere.yaml"),
        spec(display=None),
        spec(features=other_dtype),
    ):
        assert same.digest() == digest
    features = spec().features
    changed = [
        spec(onehot=("platform", "ad_id")),
        spec(onehot=("ad_id",)),
        spec(numerical=("ad_id_count", "ad_id_ctr")),
        spec(numerical=("ad_id_ctr",)),
        spec(features={**features, "platform": Feature("platform", cardinality=5)}),
        spec(features={**features, "topic_id_list": Feature("topic_id_list", cardinality=350, max_hotness=4)}),
    ]
    assert len({digest, *(other.digest() for other in changed)}) == 1 + len(changed)


def test_a_multihot_feature_of_one_id_is_to_a_model_what_a_onehot_feature_is():
    one = {**spec().features, "topic_id_list": Feature("topic_id_list", cardinality=350, max_hotness=1)}
    multihot = spec(features=one)
    onehot = spec(features=one, onehot=("ad_id", "platform", "topic_id_list"), multihot=())
    assert multihot.digest() == onehot.digest() != spec().digest()


def test_a_specification_does_not_change():
    given = {"notes": 1}
    made = spec(metadata=given)
    given["notes"] = 2
    assert made.metadata["notes"] == 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.label = "platform"
    for mapping in (made.features, made.sources, made.metadata):
        with pytest.raises(TypeError):
            mapping["ad_id"] = None
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.features["ad_id"].cardinality = 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.sources[TRAIN][0].files = ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot read the feature specification: No such file"),
        ("a: [1, 2", "not a YAML file"),
        (b"\xff\xfe\x00junk", "not a YAML file"),
        ("", "the document must be a mapping, got NoneType"),
        ("just words", "the document must be a mapping, got str 'just words'"),
        ("- a\n- b", "the document must be a mapping, got list"),
    ],
)
def test_files_that_hold_no_document(tmp_path, text, message):
    path = tmp_path / "feature_spec.yaml"
    if text is not None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(InputError, match=f"^{re.escape(f'{path}: {message}')}") as raised:
        FeatureSpec.from_yaml(str(path))
    assert "\n" not in str(raised.value)


def test_a_feature_that_stands_twice_is_named_with_its_line(tmp_path):
    path = tmp_path / "feature_spec.yaml"
    path.write_text("feature_spec:\n  price: {}\n  price: {}\n")
    with pytest.raises(InputError, match=rf"^{re.escape(str(path))}:3: the key 'price' stands in line 2 already"):
        FeatureSpec.from_yaml(str(path))


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (without("channel_spec"), "section 'channel_spec' is missing"),
        (without("feature_spec"), "section 'feature_spec' is missing"),
        (without("source_spec"), "section 'source_spec' is missing"),
        (document() | {"channel_spec": ["clicked"]}, "channel_spec must be a mapping, got list \"['clicked']\""),
        (document() | {"feature_spec": "ad_id"}, "feature_spec must be a mapping, got str 'ad_id'"),
        (document() | {"source_spec": 3}, "source_spec must be a mapping, got int '3'"),
        (document() | {"metadata": [1]}, "metadata must be a mapping, got list '[1]'"),
        (described(ad_id=250000), "feature_spec.ad_id must be a mapping, got int '250000'"),
        (document(onehot=["ad_id"]), "channel_spec has the unknown channel 'onehot'"),
        (document(numerical="ad_id_ctr"), "channel_spec.numerical must be a list of names, got 'ad_id_ctr'"),
        (
            document(numerical=["ad_id_ctr", 3]),
            "channel_spec.numerical must be a list of names, got \"['ad_id_ctr', 3]",
        ),
        (document(label=[]), "channel_spec.label needs exactly one feature, got []"),
        (document(label=["clicked", "platform"]), "channel_spec.label needs exactly one feature, got ['clicked', 'pl"),
        (
            document(map=["display_id", "uuid"]),
            "channel_spec.map takes at most one feature, got ['display_id', 'uuid']",
        ),
        (document(numerical=["platform"]), "feature 'platform' is in two channels: onehot_categorical and numerical"),
        (
            document(numerical=["ad_id_ctr"] * 2),
            "feature 'ad_id_ctr' is in two channels: numerical and numerical",
        ),
        (document(map=["clicked"]), "feature 'clicked' is in two channels: label and map"),
        (document(numerical=["ctr"]), "channel_spec.numerical names 'ctr', which feature_spec does not describe"),
        (document(label=["click"]), "channel_spec.label names 'click', which feature_spec does not describe"),
        (document(map=["uuid"]), "channel_spec.map names 'uuid', which feature_spec does not describe"),
        (
            document(onehot_categorical=[], multihot_categorical=None, numerical=[]),
            "channel_spec names no categorical and no numerical feature",
        ),
        (described(platform={}), "feature 'platform' needs a cardinality of at least 1, got None"),
        (described(platform={"cardinality": 0}), "feature 'platform' needs a cardinality of at least 1, got 0"),
        (
            described(platform={"cardinality": "four"}),
            "feature_spec.platform.cardinality must be an integer, got 'four'",
        ),
        (described(platform={"cardinality": True}), "feature_spec.platform.cardinality must be an integer, got True"),
        (described(platform={"cardinality": 4.0}), "feature_spec.platform.cardinality must be an integer, got 4.0"),
        (
            described(topic_id_list={"cardinality": 350, "max_hotness": 0}),
            "feature 'topic_id_list' needs a max_hotness of at least 1, got 0",
        ),
        (
            described(topic_id_list={"cardinality": 350, "max_hotness": "3"}),
            "feature_spec.topic_id_list.max_hotness must be an integer, got '3'",
        ),
        (
            described(platform={"cardinality": 4, "max_hotness": 2}),
            "feature 'platform' has max_hotness 2 but is in onehot_categorical",
        ),
        (document() | {"source_spec": {TRAIN: 3}}, "source_spec.train must be a list of chunks, got '3'"),
        (document() | {"source_spec": {TRAIN: "parquet"}}, "source_spec.train must be a list of chunks, got 'parquet'"),
        (sourced("parquet"), "source_spec.train must be a mapping, got str 'parquet'"),
        (sourced(type=None), "a chunk of source_spec.train lacks 'type'"),
        (sourced(features=None), "a chunk of source_spec.train lacks 'features'"),
        (sourced(files=None), "a chunk of source_spec.train lacks 'files'"),
        (sourced(features="clicked"), "source_spec.train.features must be a list of names, got 'clicked'"),
        (sourced(files="train.parquet"), "source_spec.train.files must be a list of names, got 'train.parquet'"),
        (sourced(files=[["train.parquet"]]), "source_spec.train.files must be a list of names, got"),
    ],
)
def test_documents_that_contradict_the_format(tmp_path, made, message):
    path = tmp_path / "feature_spec.yaml"
    path.write_text(yaml.safe_dump(made))
    with pytest.raises(InputError, match=f"^{re.escape(f'{path}: {message}')}") as raised:
        FeatureSpec.from_yaml(str(path))
    assert "\n" not in str(raised.value)
    with pytest.raises(InputError, match=f"^{re.escape(f'feature specification: {message}')}"):
        FeatureSpec.from_dict(made)


CHUNK = document()["source_spec"][TRAIN][0]


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (document() | {"source_spec": {}}, "source_spec.train has 0 chunks; exactly one"),
        (document() | {"source_spec": {TRAIN: None}}, "source_spec.train has 0 chunks; exactly one"),
        (sourced(CHUNK, CHUNK), "source_spec.train has 2 chunks; exactly one"),
        (sourced(type="csv"), "source_spec.train is of type 'csv'; only parquet is read"),
        (sourced(type="split_binary"), "source_spec.train is of type 'split_binary'; only parquet is read"),
        (sourced(CHUNK | {"type": "split_binary"}, CHUNK), "source_spec.train is of type 'split_binary'; only parquet"),
        (sourced(CHUNK, CHUNK | {"type": "csv"}), "source_spec.train is of type 'csv'; only parquet is read: convert"),
        (sourced(files=[]), "source_spec.train names no files"),
        (sourced(features=["clicked", "ad_id"]), "source_spec.train lacks the feature 'platform'"),
    ],
)
def test_sources_that_cannot_be_read_are_refused_when_they_are_asked_for(tmp_path, made, message):
    path = tmp_path / "feature_spec.yaml"
    path.write_text(yaml.safe_dump(made))
    read = FeatureSpec.from_yaml(str(path))
    with pytest.raises(InputError, match=f"^{re.escape(f'{path}: {message}')}"):
        read.source_files(TRAIN)


def test_specifications_built_in_memory_are_checked_too():
    features = {"label": Feature("label"), "x": Feature("x")}
    chunk = Chunk("parquet", ("x", "label"), ("part.parquet",))
    made = FeatureSpec(features, onehot=(), multihot=(), numerical=("x",), label="label", sources={TRAIN: (chunk,)})
    assert made.source_files(TRAIN) == ("part.parquet",)
    with pytest.raises(InputError, match=r"^feature specification: feature 'x' needs a cardinality"):
        dataclasses.replace(made, onehot=("x",), numerical=())
    with pytest.raises(InputError, match=r"^feature specification: source_spec\.test has 0 chunks"):
        made.source_files(TEST)
