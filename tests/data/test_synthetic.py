import fcntl
import hashlib
import os
import pathlib
import subprocess
import sys

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from sklearn.metrics import log_loss, roc_auc_score

from data import synthetic, synthetic_recipe, synthetic_rows
from data.displays import IdLists
from data.errors import InputError
from data.feature_spec import Feature, FeatureSpec
from data.flat_spec import flat_spec
from data.id_draw import IdDraw
from data.outbrain.schema import outbrain_feature_spec
from data.synthetic_rows import plant_teacher

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(synthetic_rows, "CHUNK_ROWS", 2048)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """10,000 Outbrain rows in chunks of 2048 (the last shorter) and row groups of 1000."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(synthetic_rows, "CHUNK_ROWS", 2048)
        patch.setattr(synthetic, "ROWS_PER_FILE", 4000)
        return synthetic.generate(
            str(tmp_path_factory.mktemp("made") / "deep" / "er"), rows=10_000, seed=3, rows_per_group=1000
        )


def small_spec(onehot=None, multihot=None, numerical=(), display=None):
    """A specification from {name: cardinality}, {name: (cardinality, hotness)} and names."""
    features = {"y": Feature("y", dtype="float64")}
    features |= {name: Feature(name, cardinality) for name, cardinality in (onehot or {}).items()}
    features |= {name: Feature(name, *shape) for name, shape in (multihot or {}).items()}
    features |= {name: Feature(name) for name in numerical}
    if display:
        features[display] = Feature(display)
    return FeatureSpec(features, tuple(onehot or ()), tuple(multihot or ()), tuple(numerical), "y", display)


def read(spec, source):
    return pd.concat([pq.read_table(path).to_pandas() for path in spec.source_files(source)], ignore_index=True)


def contents(folder):
    files = sorted(path for path in pathlib.Path(folder).rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_rows_and_displays_add_up(written):
    train, valid = read(written, "train"), read(written, "test")
    counts, teacher = written.metadata["synthetic"], written.metadata["teacher"]
    assert len(train) + len(valid) == counts["rows"] == 10_000
    assert len(train) == counts["train_rows"] and len(valid) == teacher["rows"]
    assert train.display_id.nunique() == counts["train_displays"] and valid.display_id.nunique() == teacher["displays"]
    assert set(train.display_id).isdisjoint(valid.display_id)
    assert valid.display_id.nunique() / (train.display_id.nunique() + valid.display_id.nunique()) == pytest.approx(
        0.2, abs=0.002
    )
    for rows in (train, valid):
        assert rows.display_id.is_monotonic_increasing
        displays = rows.groupby("display_id").clicked
        assert (displays.sum() == 1).all()
        assert displays.size().between(2, 12).all()


def test_files_have_the_declared_columns_and_types(written):
    assert [len(written.source_files(source)) for source in ("train", "test")] == [3, 1]
    for source in ("train", "test"):
        for path in written.source_files(source):
            schema = pq.read_schema(path)
            assert tuple(schema.names) == written.sources[source][0].features
            for name in (*written.onehot, written.display):
                assert str(schema.field(name).type) == written.features[name].dtype == "int64"
            for name in written.multihot:
                assert str(schema.field(name).type.value_type) == written.features[name].dtype == "int64"
            for name in written.numerical:
                assert str(schema.field(name).type) == "float" and written.features[name].dtype == "float32"
            assert str(schema.field("clicked").type) == "int8"
    assert all(
        not os.path.isabs(name) for chunks in written.sources.values() for chunk in chunks for name in chunk.files
    )


def test_row_groups_have_the_asked_size(written):
    groups = []
    for path in written.source_files("train"):
        metadata = pq.read_metadata(path)
        groups += [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
    assert len(groups) >= 8 and set(groups[:-1]) == {1000}


def test_ids_of_the_files_lie_in_their_tables(written):
    rows = read(written, "train")
    for name in written.onehot:
        assert rows[name].between(0, written.features[name].cardinality - 1).all()
    for name in written.multihot:
        ids = np.concatenate(rows[name].to_numpy())
        assert ids.min() >= 0 and ids.max() < written.features[name].cardinality
        assert set(rows[name].map(len)) == {0, 1, 2, 3}
    assert (rows.groupby("display_id").platform.nunique() == 1).all()


def test_the_teachers_figures_are_those_of_its_utility_on_the_evaluation_rows(written):
    spec, figures = outbrain_feature_spec(), written.metadata["teacher"]
    teacher = plant_teacher(spec)
    rows = read(written, "test")
    columns = {name: rows[name].to_numpy() for name in spec.onehot + spec.numerical}
    for name in spec.multihot:
        columns[name] = IdLists(np.concatenate(rows[name].to_numpy()), rows[name].map(len).to_numpy())
    rows["utility"] = teacher.utility(columns)
    probability = teacher.click_probability(rows.utility.to_numpy())
    reciprocal_ranks = [
        1.0 / (1 + ads.sort_values("utility", ascending=False).clicked.tolist().index(1))
        for _, ads in rows.groupby("display_id")
    ]
    assert figures["auc"] == pytest.approx(roc_auc_score(rows.clicked, rows.utility), abs=1e-12)
    assert figures["map_at_12"] == pytest.approx(np.mean(reciprocal_ranks), abs=1e-12)
    assert figures["log_loss"] == pytest.approx(log_loss(rows.clicked, probability), abs=1e-9)
    base_rate = np.full(len(rows), rows.clicked.mean())
    assert figures["base_rate_log_loss"] == pytest.approx(log_loss(rows.clicked, base_rate), abs=1e-9)
    assert figures["log_loss"] < figures["base_rate_log_loss"]
    assert 0.65 < figures["auc"] < 0.80
    assert figures["chance_map_at_12"] + 0.1 < figures["map_at_12"] < 0.9


def test_same_arguments_give_the_same_bytes_and_another_seed_other_rows(tmp_path):
    for name, seed in (("one", 1), ("again", 1), ("two", 2)):
        synthetic.generate(str(tmp_path / name), rows=5000, seed=seed)
    assert contents(tmp_path / "one") == contents(tmp_path / "again")
    one, two = (contents(tmp_path / name) for name in ("one", "two"))
    assert one["train/part-00000.parquet"] != two["train/part-00000.parquet"]


def test_full_chunks_do_not_depend_on_how_many_follow(tmp_path):
    shorter = read(synthetic.generate(str(tmp_path / "shorter"), rows=5000, seed=1), "train")
    longer = read(synthetic.generate(str(tmp_path / "longer"), rows=9000, seed=1), "train")
    full = shorter.display_id <= 2 * 2048
    assert full.sum() > 3000
    pd.testing.assert_frame_equal(shorter[full], longer[: full.sum()])


@pytest.mark.parametrize(
    "spec",
    [
        small_spec(numerical=("n0", "n1")),
        small_spec(onehot={"a": 7, "b": 1}),
        small_spec(multihot={"m": (50, 5), "single": (9, 1)}),
        small_spec(onehot={"a": 3}, multihot={"m": (5, 2)}, numerical=("n",), display="session"),
    ],
    ids=["numerical", "onehot", "multihot", "all"],
)
def test_any_specification_can_be_generated(tmp_path, spec):
    made = synthetic.generate(str(tmp_path / "made"), rows=3000, seed=0, spec=spec)
    assert made.digest() == spec.digest()
    assert made.display == (spec.display or "display_id")
    rows = read(made, "train")
    assert tuple(rows.columns) == made.columns(with_display=True)
    assert (rows.groupby(made.display).y.sum() == 1).all()
    for name in made.multihot:
        assert set(rows[name].map(len)) == set(range(made.features[name].max_hotness + 1))
    assert 0.6 < made.metadata["teacher"]["auc"] < 0.85


def test_the_display_column_gives_way_to_a_feature_of_its_name(tmp_path):
    made = synthetic.generate(str(tmp_path / "made"), rows=500, seed=0, spec=small_spec(onehot={"display_id": 40}))
    assert made.display == "_display_id" and made.onehot == ("display_id",)
    assert read(made, "train").display_id.max() < 40


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"rows": 23}, "rows=23"),
        ({"rows": -1}, "rows=-1"),
        ({"rows": 24, "valid_fraction": 0.01}, "valid_fraction=0.01"),
        ({"seed": -5}, "seed=-5"),
        ({"valid_fraction": 1.0}, "valid_fraction=1.0"),
        ({"rows_per_group": 0}, "rows_per_group=0"),
    ],
)
def test_bad_arguments_are_named_and_leave_nothing(tmp_path, change, named):
    with pytest.raises(InputError, match=named):
        synthetic.generate(str(tmp_path / "made"), **{"rows": 1000, "seed": 0} | change)
    assert not list(tmp_path.iterdir())


def test_a_finished_dataset_of_the_same_arguments_is_kept_and_others_refused(tmp_path):
    output = str(tmp_path / "made")
    first = synthetic.generate(output, rows=1000, seed=0)
    os.utime(first.path, (1, 1))
    again = synthetic.generate(output, rows=1000, seed=0)
    assert again.to_dict() == first.to_dict() and os.path.getmtime(first.path) == 1
    for change in (
        {"rows": 1001},
        {"seed": 1},
        {"valid_fraction": 0.3},
        {"rows_per_group": 500},
        {"spec": small_spec(numerical=("n",))},
        {"draw": IdDraw(0.0)},
    ):
        with pytest.raises(InputError, match="remove it or name another folder"):
            synthetic.generate(output, **{"rows": 1000, "seed": 0} | change)
    assert os.path.getmtime(first.path) == 1


def test_foreign_files_are_not_touched_and_an_empty_folder_is_filled(tmp_path):
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "thesis.txt").write_text("precious", encoding="utf-8")
    with pytest.raises(InputError, match="foreign"):
        synthetic.generate(str(tmp_path / "foreign"), rows=1000, seed=0)
    assert contents(tmp_path / "foreign") == {"thesis.txt": b"precious"}
    (tmp_path / "empty").mkdir()
    assert synthetic.generate(f"{tmp_path}/empty/", rows=1000, seed=0).path == str(tmp_path / "empty/feature_spec.yaml")


def test_a_maker_that_fails_leaves_nothing(tmp_path, monkeypatch):
    def fail(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(synthetic.PartWriter, "close", fail)
    with pytest.raises(KeyboardInterrupt):
        synthetic.generate(str(tmp_path / "made"), rows=1000, seed=0)
    assert not list(tmp_path.iterdir())


def test_the_cache_is_keyed_by_content(tmp_path):
    def cached(**change):
        return synthetic.cached_dataset(**{"rows": 1000, "seed": 0, "cache_dir": str(tmp_path)} | change)

    path = cached()
    assert FeatureSpec.from_yaml(path).metadata["synthetic"]["rows"] == 1000
    os.utime(path, (1, 1))
    assert cached() == path and os.path.getmtime(path) == 1
    same_but_for_the_display = [small_spec(numerical=("n",)), small_spec(numerical=("n",), display="session")]
    others = [cached(rows=1001), cached(seed=1), *(cached(spec=spec) for spec in same_but_for_the_display)]
    assert len({path, *others}) == 5
    assert cached(draw=IdDraw(1.1, "any")) == path
    draws = [cached(draw=draw) for draw in (IdDraw(0), IdDraw(2.0), IdDraw(0, "distinct"), IdDraw(0, "fixed"))]
    assert len({path, *others, *draws}) == 9 and cached(draw=IdDraw(-0.0)) == draws[0]


def test_the_generator_version_is_part_of_the_key(tmp_path, monkeypatch):
    before = synthetic.cached_dataset(rows=500, seed=0, cache_dir=str(tmp_path))
    monkeypatch.setattr(synthetic_recipe, "GENERATOR_VERSION", synthetic_recipe.GENERATOR_VERSION + 1)
    assert synthetic.cached_dataset(rows=500, seed=0, cache_dir=str(tmp_path)) != before


def test_a_change_of_the_content_comes_with_a_new_version(tmp_path):
    """The hash is of ids and clicks for version 1: when it differs, raise GENERATOR_VERSION and renew it."""
    rows = read(synthetic.generate(str(tmp_path / "made"), rows=2000, seed=0), "train")
    names = (*outbrain_feature_spec().onehot, "display_id", "clicked")
    content = hashlib.sha256(np.stack([rows[name].astype("<i8") for name in names]).tobytes()).hexdigest()
    assert (synthetic.GENERATOR_VERSION, content[:16]) == (1, "19ac5f04448944a6")


def lists_and_numericals(rows, spec):
    """The values of a frame of rows as bytes, lists one after the other with their lengths."""
    digest = hashlib.sha256()
    for name in spec.multihot:
        digest.update(np.concatenate(rows[name].to_numpy()).astype("<i8").tobytes())
        digest.update(rows[name].map(len).to_numpy("<i8").tobytes())
    for name in (*spec.numerical, spec.label):
        digest.update(rows[name].to_numpy("<f4").tobytes())
    return digest.hexdigest()[:16]


@pytest.mark.parametrize(
    ("spec", "key", "content"),
    [
        (None, "64d743174c0e154db1d97b16c3434509", "e59657546f9a844b"),
        (
            small_spec(onehot={"a": 5000}, multihot={"m": (50, 5), "one": (9, 1)}),
            "d866ded02c0ba0aa51e9101b7bc3589f",
            "cfc7fa5d9ae71d2f",
        ),
    ],
    ids=["outbrain", "multihot"],
)
def test_data_by_the_default_law_stay_as_they_were_in_version_1(tmp_path, spec, key, content):
    made = synthetic.generate(str(tmp_path / "made"), rows=2000, seed=0, spec=spec)
    assert made.metadata["synthetic"]["content_key"] == key
    assert set(made.metadata["synthetic"]) == {
        "content_key",
        "generator_version",
        "seed",
        "rows",
        "train_rows",
        "train_displays",
    }
    assert lists_and_numericals(read(made, "train"), made) == content


@pytest.mark.parametrize("exponent", [0.0, 2.0])
@pytest.mark.parametrize("pooling", ["any", "distinct", "fixed"])
def test_figures_of_the_teacher_are_right_under_any_law(tmp_path, exponent, pooling):
    draw = IdDraw(exponent, pooling)
    spec = flat_spec([1_000_000, 30, 1_000_000], [1, 5, 20], 4)
    made = synthetic.generate(str(tmp_path / "made"), rows=9000, seed=1, spec=spec, draw=draw)
    rows = read(made, "test")
    columns = {name: rows[name].to_numpy() for name in spec.onehot + spec.numerical}
    for name in spec.multihot:
        columns[name] = IdLists(np.concatenate(rows[name].to_numpy()), rows[name].map(len).to_numpy())
        lengths = set(columns[name].lengths)
        hotness = spec.features[name].max_hotness
        assert lengths == {"any": set(range(hotness + 1)), "distinct": set(range(1, hotness + 1))}.get(
            pooling, {hotness}
        )
        assert (rows[name].map(len) == rows[name].map(lambda ids: len(set(ids)))).all() or pooling == "any"
    teacher = plant_teacher(made, draw)
    utility = teacher.utility(columns)
    figures = made.metadata["teacher"]
    assert figures["auc"] == pytest.approx(roc_auc_score(rows.label, utility), abs=1e-12)
    assert figures["log_loss"] == pytest.approx(log_loss(rows.label, teacher.click_probability(utility)), abs=1e-9)
    assert figures["log_loss"] < figures["base_rate_log_loss"] and 0.7 < figures["auc"] < 0.85
    named = {name: made.metadata["synthetic"].get(name) for name in ("exponent", "pooling")}
    assert named == {"exponent": exponent, "pooling": None if pooling == "any" else pooling}


@pytest.mark.parametrize("pooling", ["distinct", "fixed"])
def test_rows_without_repeats_are_the_same_again_and_chunk_by_chunk(tmp_path, pooling):
    draw, spec = IdDraw(0.5, pooling), flat_spec([300, 40], [8], 1)
    shorter, again, longer = (
        read(synthetic.generate(str(tmp_path / name), rows=rows, seed=1, spec=spec, draw=draw), "train")
        for name, rows in (("shorter", 5000), ("again", 5000), ("longer", 9000))
    )
    pd.testing.assert_frame_equal(shorter, again)
    full = shorter.display_id <= 2 * 2048
    pd.testing.assert_frame_equal(shorter[full], longer[: full.sum()])


def test_a_table_too_small_for_fixed_rows_is_named_and_nothing_is_left(tmp_path):
    with pytest.raises(InputError, match="'cat_0'"):
        synthetic.generate(
            str(tmp_path / "made"), rows=1000, seed=0, spec=flat_spec([5], [6], 0), draw=IdDraw(pooling="fixed")
        )
    assert not list(tmp_path.iterdir())


def group_rows(spec):
    files = [pq.read_metadata(path) for path in spec.source_files("train")]
    return [[file.row_group(number).num_rows for number in range(file.num_row_groups)] for file in files]


def test_row_groups_and_files_of_wide_rows_are_bounded_in_bytes(tmp_path, monkeypatch):
    spec = flat_spec([1000], [20], 8)  # 192 bytes
    monkeypatch.setattr(synthetic_recipe, "MOST_BYTES_PER_GROUP", 192 * 100)
    monkeypatch.setattr(synthetic, "ROWS_PER_FILE", 3 * synthetic_recipe.DEFAULT_ROWS_PER_GROUP)
    groups = group_rows(synthetic.generate(str(tmp_path / "wide"), rows=1000, seed=0, spec=spec))
    assert {rows for file in groups for rows in file[:-1]} == {100} and [len(file) for file in groups[:-1]] == [3, 3]
    # What is asked for comes first; narrow rows are not affected.
    assert (
        len(
            group_rows(synthetic.generate(str(tmp_path / "asked"), rows=1000, seed=0, spec=spec, rows_per_group=900))[0]
        )
        == 1
    )
    narrow = flat_spec([1000], [1], 1)
    assert synthetic_recipe.default_rows_per_group(narrow) == 192 * 100 // 12
    monkeypatch.undo()
    assert synthetic_recipe.default_rows_per_group(outbrain_feature_spec()) == 16384
    assert synthetic_recipe.default_rows_per_group(flat_spec([1_000_000] * 8, [100], 512)) == 992


def test_the_default_cache_is_the_users(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert synthetic.cached_dataset(rows=500, seed=0).startswith(str(tmp_path / "xdg" / "recsys-harness"))
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert synthetic.cached_dataset(rows=500, seed=0).startswith(str(tmp_path / "home" / ".cache" / "recsys-harness"))


def test_the_cached_dataset_is_made_under_a_lock_and_what_a_killed_maker_left_is_removed(tmp_path, monkeypatch):
    path = synthetic.cached_dataset(rows=500, seed=0, cache_dir=str(tmp_path / "dry"))
    key = pathlib.Path(path).parent.name
    folder = tmp_path / "wet" / "synthetic"
    leftover = folder / f"{key}.999.partial"
    (leftover / "train").mkdir(parents=True)
    locked = []
    write = synthetic._write_dataset

    def write_and_look(*arguments):
        assert not leftover.exists()
        with open(folder / f"{key}.lock", encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                locked.append(True)
        write(*arguments)

    monkeypatch.setattr(synthetic, "_write_dataset", write_and_look)
    synthetic.cached_dataset(rows=500, seed=0, cache_dir=str(tmp_path / "wet"))
    assert locked == [True]
    assert sorted(path.name for path in folder.iterdir()) == [key, f"{key}.lock"]


def test_processes_that_start_at_once_share_one_dataset(tmp_path):
    program = (
        "import sys; from data import synthetic\n"
        "print(synthetic.cached_dataset(rows=20_000, seed=0, cache_dir=sys.argv[1]))"
    )
    makers = [
        subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    paths = {maker.communicate()[0].strip() for maker in makers}
    assert [maker.returncode for maker in makers] == [0] * 4
    (path,) = paths
    spec = FeatureSpec.from_yaml(path)
    assert len(read(spec, "train")) + len(read(spec, "test")) == 20_000
    assert len(list((tmp_path / "synthetic").iterdir())) == 2


def test_a_cache_that_cannot_be_written_names_the_flag(tmp_path):
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(InputError, match="--synthetic_cache_dir"):
        synthetic.cached_dataset(rows=1000, seed=0, cache_dir=str(tmp_path / "file" / "cache"))


def test_an_output_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("", encoding="utf-8")
    for output in (tmp_path / "file", tmp_path / "file" / "made"):
        with pytest.raises(InputError, match="file"):
            synthetic.generate(str(output), rows=1000, seed=0)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_command_line(tmp_path):
    spec_file = tmp_path / "given.yaml"
    small_spec(onehot={"a": 5}, numerical=("n",)).to_yaml(str(spec_file))
    command = [sys.executable, "-m", "data.synthetic", "--output", str(tmp_path / "made"), "--rows", "2000"]
    command += ["--seed", "7", "--feature_spec", str(spec_file), "--exponent", "0", "--pooling", "distinct"]
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    spec = FeatureSpec.from_yaml(str(tmp_path / "made" / "feature_spec.yaml"))
    assert spec.onehot == ("a",) and spec.metadata["synthetic"]["seed"] == 7
    assert spec.metadata["synthetic"]["exponent"] == 0.0 and spec.metadata["synthetic"]["pooling"] == "distinct"
    assert str(tmp_path / "made") in finished.stdout
    assert f"AUC {spec.metadata['teacher']['auc']:.5f}" in finished.stdout


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--rows", "1000", "--seed", "0"], "--output"),
        (["--output", "made", "--rows", "many", "--seed", "0"], "many"),
        (["--output", "made", "--rows", "5", "--seed", "0"], "rows=5"),
        (["--output", "made", "--rows", "1000", "--seed", "0", "--feature_spec", "no.yaml"], "no.yaml"),
        (["--output", "made", "--rows", "1000", "--seed", "0", "--colour", "red"], "--colour"),
        (["--output", "made", "--rows", "1000", "--seed", "0", "--exponent", "-1"], "exponent=-1.0"),
        (["--output", "made", "--rows", "1000", "--seed", "0", "--pooling", "mean"], "pooling='mean'"),
    ],
)
def test_command_line_errors_are_one_line_and_code_2(tmp_path, monkeypatch, capsys, arguments, named):
    monkeypatch.chdir(tmp_path)
    assert synthetic.main(arguments) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err.count("\n") == 1 and named in shown.err
    assert not list(tmp_path.iterdir())
