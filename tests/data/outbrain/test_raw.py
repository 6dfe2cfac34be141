import itertools
import os
import re

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import OneHotEncoder

from data.click_ranking import average_precision
from data.errors import InputError
from data.outbrain import raw, raw_displays, raw_world

ROWS = 40_000
KAGGLE_HEADERS = {
    "clicks_train.csv": "display_id,ad_id,clicked",
    "events.csv": "display_id,uuid,document_id,timestamp,platform,geo_location",
    "promoted_content.csv": "ad_id,document_id,campaign_id,advertiser_id",
    "documents_meta.csv": "document_id,source_id,publisher_id,publish_time",
    "documents_categories.csv": "document_id,category_id,confidence_level",
    "documents_topics.csv": "document_id,topic_id,confidence_level",
    "documents_entities.csv": "document_id,entity_id,confidence_level",
}
# pandas 1.5 calls a function of numpy that 1.25 deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:np.find_common_type is deprecated:DeprecationWarning")

TAGS = {"categories": "category_id", "topics": "topic_id", "entities": "entity_id"}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """(folder, what `generate` returned), drawn in three chunks."""
    folder = str(tmp_path_factory.mktemp("raw") / "out")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(raw, "_CHUNK_ROWS", 15_000)
        return folder, raw.generate(folder, rows=ROWS, seed=3)


@pytest.fixture(scope="module")
def texts(made):
    """File name without .csv -> its table, all of it text, nothing taken as missing."""
    return {
        name[:-4]: pd.read_csv(os.path.join(made[0], name), dtype=str, keep_default_na=False)
        for name in sorted(os.listdir(made[0]))
    }


@pytest.fixture(scope="module")
def tables(made):
    """The same as plain pandas reads it, `\\N` and empty text being missing."""
    return {
        name[:-4]: pd.read_csv(os.path.join(made[0], name), na_values=["\\N"], low_memory=False)
        for name in sorted(os.listdir(made[0]))
    }


@pytest.fixture(scope="module")
def joined(tables):
    """Clicks with page, promoted document, time, days since publication and the cosine of each kind of tags."""
    promoted = tables["promoted_content"].rename(columns={"document_id": "promoted_id"})
    published = pd.to_datetime(tables["documents_meta"].set_index("document_id")["publish_time"])
    rows = tables["clicks_train"].merge(tables["events"], on="display_id").merge(promoted, on="ad_id", how="left")
    age = pd.to_datetime(rows["timestamp"] + 1465876799998, unit="ms") - rows["promoted_id"].map(published)
    rows["days"] = (age.dt.total_seconds() / 86400.0).clip(0, 3650)
    for name, column in TAGS.items():
        rows[name] = cosines(tables[f"documents_{name}"], column, rows)
    return rows


def cosines(table, column, rows):
    """tf-idf cosine of page and promoted document of each row; 0 where one of them has no tags."""
    document, documents = pd.factorize(table["document_id"])
    tag, tags = pd.factorize(table[column])
    weight = table["confidence_level"] * np.log(len(documents) / np.bincount(tag)[tag])
    # The last line, that of index -1, is a document without tags.
    matrix = sparse.csr_matrix((weight, (document, tag)), shape=(len(documents) + 1, len(tags)))
    length = np.sqrt(matrix.multiply(matrix).sum(axis=1)).A1
    matrix = (sparse.diags(1.0 / np.maximum(length, 1e-300)) @ matrix).tocsr()
    one, other = (pd.Index(documents).get_indexer(rows[name]) for name in ("document_id", "promoted_id"))
    return matrix[one].multiply(matrix[other]).sum(axis=1).A1


def test_headers_are_kaggles_and_nothing_else_is_written(made):
    assert {*os.listdir(made[0])} == {*KAGGLE_HEADERS, "teacher.csv"}
    for name, header in KAGGLE_HEADERS.items():
        with open(os.path.join(made[0], name), encoding="ascii", newline="") as file:
            content = file.read()
        assert content.startswith(f"{header}\n")
        assert content.endswith("\n") and not re.search(r'["\r ]', content if name != "documents_meta.csv" else header)


def test_values_are_written_as_in_kaggles_files(texts):
    confidence = r"(1\.0|1|0\.\d*[1-9]\d*)"
    number = r"[1-9]\d*"
    patterns = {
        "clicks_train": (number, number, "[01]"),
        "events": (number, "[0-9a-f]{14}", number, r"\d+", r"[123]|\\N", r"|\\N|--|[A-Z]{2}(>[A-Z0-9]{2}(>\d{3})?)?"),
        "promoted_content": (number, number, number, number),
        "documents_meta": (
            number,
            rf"|\\N|{number}",
            rf"|\\N|{number}",
            r"|\\N|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d",
        ),
        "documents_categories": (number, number, confidence),
        "documents_topics": (number, r"0|" + number, confidence),
        "documents_entities": (number, "[0-9a-f]{32}", confidence),
        "teacher": (number, r"[01]\.\d+", r"[01]\.\d+"),
    }
    assert patterns.keys() == texts.keys()
    for name, of_columns in patterns.items():
        for column, pattern in zip(texts[name].columns, of_columns, strict=True):
            wrong = texts[name][column][~texts[name][column].str.fullmatch(pattern)]
            assert wrong.empty, (name, column, wrong.iloc[0])
    times = texts["documents_meta"]["publish_time"]
    assert 0.5 < times.str.endswith(" 00:00:00").mean() < 0.8
    locations = texts["events"]["geo_location"]
    assert {"US", "US>CA", "DE>07"} < {*locations} and locations.str.startswith("US>CA>").any()
    assert 0.7 < locations.str.startswith("US").mean() < 0.9


def test_plain_pandas_reads_numbers(tables):
    for name, table in tables.items():
        for column in table.columns:
            kind = table[column].dtype.kind
            expected = "O" if column in ("uuid", "geo_location", "publish_time", "entity_id") else "if"
            assert kind in expected, (name, column)
    for name in TAGS:
        confidence = tables[f"documents_{name}"]["confidence_level"]
        assert confidence.gt(0.0).all() and confidence.le(1.0).all() and confidence.nunique() > 1000
    assert tables["documents_entities"]["confidence_level"].eq(1.0).any()


def test_files_have_kaggles_proportions(made, tables):
    counts = {f"{name}.csv": len(table) for name, table in tables.items()}
    assert counts == dict(made[1].rows)
    assert counts["clicks_train.csv"] == ROWS
    shares = {
        "events": 0.27,
        "documents_meta": 0.03,
        "documents_topics": 0.13,
        "documents_entities": 0.06,
        "documents_categories": 0.06,
        "promoted_content": 0.0064,
    }
    for name, share in shares.items():
        assert counts[f"{name}.csv"] == pytest.approx(share * ROWS, rel=0.05), name
    assert tables["clicks_train"]["display_id"].nunique() == pytest.approx(0.194 * ROWS, rel=0.02)


def test_each_display_has_2_to_12_distinct_ads_and_one_click_at_no_preferred_place(tables):
    clicks = tables["clicks_train"]
    assert clicks["display_id"].is_monotonic_increasing
    of_display = clicks.groupby("display_id")
    assert {*of_display.size()} == {*range(2, 13)}
    assert of_display["clicked"].sum().eq(1).all() and clicks["clicked"].isin([0, 1]).all()
    assert not clicks.duplicated(["display_id", "ad_id"]).any()
    place = of_display.cumcount()[clicks["clicked"] == 1].to_numpy()
    sizes = of_display.size().to_numpy()
    standard_error = np.sqrt(((sizes**2 - 1) / 12).sum()) / len(sizes)
    assert abs((place - (sizes - 1) / 2).mean()) < 4 * standard_error


def test_events_ascend_in_time_over_15_even_days_with_other_displays_in_between(made, tables):
    events = tables["events"]
    assert events["display_id"].tolist() == list(range(1, len(events) + 1))
    assert events["timestamp"].is_monotonic_increasing and events["timestamp"].min() >= 0
    day = events["timestamp"] // 86_400_000
    logged = events["display_id"].isin(tables["clicks_train"]["display_id"])
    assert logged.sum() == tables["clicks_train"]["display_id"].nunique() == made[1].displays
    for of_kind in (day[logged], day[~logged]):
        counts = of_kind.value_counts().sort_index()
        assert counts.index.tolist() == list(range(15))
        assert counts.max() < 1.1 * counts.min()
    assert tuple(day[logged].value_counts().sort_index()) == made[1].displays_of_day
    # Runs of either kind are short.
    assert (~logged).rolling(6).sum().max() < 6 and logged.rolling(12).sum().max() < 12
    hours = events["timestamp"] // 3_600_000
    assert hours.nunique() == 15 * 24


def test_every_nullable_column_has_empty_and_marked_gaps_and_no_other_has_any(texts):
    nullable = {"geo_location", "source_id", "publisher_id", "publish_time"}
    for name, table in texts.items():
        for column in table.columns:
            empty, marked = table[column].eq("").sum(), table[column].eq("\\N").sum()
            if column in nullable:
                assert min(empty, marked) > 5 and empty + marked < 0.3 * len(table), (name, column)
            elif column == "platform":
                assert empty == 0 and 5 < marked < 0.01 * len(table)
            else:
                assert empty == marked == 0, (name, column)


def test_documents_and_ads_are_missing_from_tables(tables, joined):
    promoted = tables["promoted_content"]
    unknown = ~joined["ad_id"].isin(promoted["ad_id"])
    assert 0.002 < unknown.mean() < 0.06
    shown = {"pages": tables["events"]["document_id"], "promoted": promoted["document_id"]}
    for name in ("documents_meta", *(f"documents_{name}" for name in TAGS)):
        for kind, documents in shown.items():
            known = documents.drop_duplicates().isin(tables[name]["document_id"])
            assert 0.01 < 1.0 - known.mean() < 0.1, (name, kind)
        # And some that nobody saw.
        assert (~tables[name]["document_id"].isin(pd.concat(shown.values()))).mean() > 0.1
    assert promoted["ad_id"].is_unique and promoted["ad_id"].is_monotonic_increasing
    assert tables["documents_meta"]["document_id"].is_unique
    for name, column in TAGS.items():
        assert not tables[f"documents_{name}"].duplicated(["document_id", column]).any()
    days = joined["days"].dropna()
    assert days.eq(0).any() and days.eq(3650).any() and 5 < days.median() < 200


def test_ids_are_large_and_have_gaps(tables):
    for table, column, largest in (
        ("promoted_content", "ad_id", 573_098),
        ("promoted_content", "document_id", 2_999_334),
        ("promoted_content", "campaign_id", 35_554),
        ("promoted_content", "advertiser_id", 4_532),
        ("documents_meta", "document_id", 2_999_334),
        ("documents_meta", "source_id", 14_404),
    ):
        ids = tables[table][column].dropna()
        assert 0.5 * largest < ids.max() <= largest and ids.min() >= 1
        assert ids.nunique() < 0.2 * ids.max()
    content = tables["promoted_content"]
    assert content.groupby("campaign_id")["advertiser_id"].nunique().eq(1).all()
    assert content["document_id"].nunique() < len(content) / 2


def test_ids_are_distinct_and_hexadecimal_ones_use_all_their_bits(texts):
    world = raw_world.draw_world(np.random.default_rng(1), 300_000)
    for ids in (world.documents.ids, world.ads.ids, world.ads.campaign_ids, world.ads.advertiser_ids):
        assert len(np.unique(ids)) == len(ids)
    for texts_of, digits in ((texts["events"]["uuid"], 14), (texts["documents_entities"]["entity_id"], 32)):
        characters = np.array([list(text) for text in texts_of.unique()])
        assert characters.shape[1] == digits and len(characters) > 100
        assert all({*column} == {*"0123456789abcdef"} for column in characters.T)
    # Some users come back.
    assert 0.5 < texts["events"]["uuid"].nunique() / len(texts["events"]) < 0.9


def test_pages_and_promoted_documents_share_tags(tables, joined):
    for name in TAGS:
        assert 0.3 < (joined[name] > 0.0).mean() < 0.8, name
    held = {
        name: tables[f"documents_{name}"].groupby("document_id")[column].agg(frozenset)
        for name, column in TAGS.items()
        if name != "entities"
    }
    share = np.zeros(1000, dtype=bool)
    pairs = joined[["document_id", "promoted_id"]].sample(1000, random_state=0)
    for of_document in held.values():
        one, other = (pairs[column].map(of_document) for column in pairs)
        share |= [
            isinstance(a, frozenset) and isinstance(b, frozenset) and bool(a & b)
            for a, b in zip(one, other, strict=True)
        ]
    assert share.mean() > 0.4


def test_teacher_csv_has_the_precision_of_chance_and_better_ones(made, tables):
    teacher = tables["teacher"]
    sizes = tables["clicks_train"].groupby("display_id").size()
    assert teacher["display_id"].tolist() == sizes.index.tolist()
    chance = {size: np.mean([1 / rank for rank in range(1, size + 1)]) for size in range(2, 13)}
    np.testing.assert_allclose(teacher["chance_average_precision"], sizes.map(chance), atol=1e-6)
    # The teacher ranks by the very probabilities of the clicks, so no display has less than chance.
    assert (teacher["teacher_average_precision"] > teacher["chance_average_precision"]).all()
    assert teacher["teacher_average_precision"].le(1.0).all()
    assert made[1].teacher_map_at_12 == pytest.approx(teacher["teacher_average_precision"].mean(), abs=1e-6)
    assert made[1].chance_map_at_12 == pytest.approx(teacher["chance_average_precision"].mean(), abs=1e-6)
    assert 0.68 < made[1].teacher_map_at_12 < 0.72
    assert 0.47 < made[1].chance_map_at_12 < 0.50


@pytest.fixture(scope="module")
def chosen():
    """Utilities, shown ads and choices, as `generate` draws them."""
    rng = np.random.default_rng(8)
    world = raw_world.draw_world(rng, 20_000)
    teacher = raw_displays.plant(world, rng)
    events, shown = raw_displays.draw_events(world, rng, rows=20_000, span=(0.0, 1.0))
    utility = teacher.utility(events, shown)
    return utility, shown, raw_displays.choose(utility, shown, rng)


def test_expected_precision_is_the_mean_over_all_clicks(chosen):
    utility, shown, choices = chosen
    ends = np.cumsum(shown.sizes)
    for display, (size, end) in enumerate(zip(shown.sizes[:200], ends[:200], strict=True)):
        of_ads = utility[end - size : end]
        probability = np.exp(of_ads) / np.exp(of_ads).sum()
        rank = [1 + sum(other > own for other in of_ads) for own in of_ads]
        expected = sum(p / r for p, r in zip(probability, rank, strict=True))
        assert choices.teacher_average_precision[display] == pytest.approx(expected, rel=1e-12)


def test_clicks_are_drawn_from_the_softmax_of_the_utility(chosen):
    utility, shown, choices = chosen
    seen = average_precision(utility, choices.clicks, shown.sizes) - choices.teacher_average_precision
    assert abs(seen.mean()) < 4 * seen.std() / np.sqrt(len(seen))
    starts = np.cumsum(shown.sizes) - shown.sizes
    odds = np.exp(utility)
    probability = odds / np.repeat(np.add.reduceat(odds, starts), shown.sizes)
    for low, high in itertools.pairwise([0.0, 0.05, 0.1, 0.2, 0.4, 0.7, 1.0]):
        inside = (probability > low) & (probability <= high)
        error = (choices.clicks - probability)[inside]
        bound = 4 * np.sqrt((probability * (1 - probability))[inside].sum())
        assert inside.sum() > 100 and abs(error.sum()) < bound


def test_a_model_of_ids_freshness_and_topics_reaches_80_percent_of_the_teachers_margin(tables, joined):
    """A plain logistic regression, on the displays that Kaggle's split would hold out."""
    day = joined["timestamp"] // 86_400_000
    held_out = (day > 10) | (joined["display_id"] % 5 == 0)
    ids = ["ad_id", "campaign_id", "advertiser_id"]
    encoder = OneHotEncoder(handle_unknown="ignore").fit(joined.loc[~held_out, ids].fillna(-1))
    days = np.log1p(joined["days"])
    dense = np.stack([days.fillna(3.0), joined["topics"], joined["categories"]], axis=1)
    features = sparse.hstack([encoder.transform(joined[ids].fillna(-1)), dense]).tocsr()
    train = np.flatnonzero(~held_out)
    model = LogisticRegression(C=0.5, solver="liblinear").fit(features[train], joined["clicked"].to_numpy()[train])
    scores = model.decision_function(features)
    teacher = tables["teacher"].set_index("display_id")
    # Other displays of the training days, and all of later days, each by itself.
    for part in (held_out & (day <= 10), day > 10):
        rows = joined[part]
        sizes = rows.groupby("display_id").size()
        reached = average_precision(scores[np.flatnonzero(part)], rows["clicked"].to_numpy(), sizes.to_numpy()).mean()
        best, chance = teacher.loc[sizes.index, ["teacher_average_precision", "chance_average_precision"]].mean()
        assert (reached - chance) / (best - chance) > 0.82
    # Each kind of signal is there by itself: the clicked ad's topics are nearer and its page is fresher.
    for signal, sign in ((joined["topics"], 1), (days, -1)):
        rest = signal - signal.groupby(joined["display_id"]).transform("mean")
        clicked = rest[joined["clicked"] == 1].dropna()
        assert sign * clicked.mean() > 10 * clicked.std() / np.sqrt(len(clicked))


def contents(folder):
    found = {}
    for name in os.listdir(folder):
        with open(os.path.join(folder, name), "rb") as file:
            found[name] = file.read()
    return found


def test_a_dataset_is_a_function_of_rows_and_seed(tmp_path):
    made = {}
    for name, rows, seed in (("a", 3000, 1), ("again", 3000, 1), ("seed", 3000, 2), ("rows", 3300, 1)):
        raw.generate(str(tmp_path / name), rows=rows, seed=seed)
        made[name] = contents(tmp_path / name)
    assert made["a"] == made["again"]
    for other in ("seed", "rows"):
        assert all(made["a"][name] != made[other][name] for name in KAGGLE_HEADERS), other


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("rows", [raw.MIN_ROWS, 317])
def test_the_smallest_datasets_are_whole(tmp_path, rows, seed):
    made = raw.generate(str(tmp_path / "out"), rows=rows, seed=seed)
    assert made.rows["clicks_train.csv"] == rows
    assert min(made.displays_of_day) > 0 and len(made.displays_of_day) == 15
    tables = {name[:-4]: pd.read_csv(tmp_path / "out" / name, na_values=["\\N"]) for name in made.rows}
    clicks = tables["clicks_train"]
    assert clicks.groupby("display_id")["clicked"].sum().eq(1).all()
    assert not clicks.duplicated(["display_id", "ad_id"]).any()
    assert clicks["display_id"].isin(tables["events"]["display_id"]).all()
    assert made.teacher_map_at_12 > made.chance_map_at_12 + 0.1
    for name, columns in {
        "events": ["platform", "geo_location"],
        "documents_meta": ["source_id", "publisher_id", "publish_time"],
    }.items():
        assert tables[name][columns].isna().any().all()


@pytest.mark.parametrize(
    ("rows", "seed", "message"),
    [
        (199, 1, "rows=199: at least 200 rows can be generated; ask for more"),
        (-5, 1, "rows=-5: at least 200 rows can be generated; ask for more"),
        (200, -1, "seed=-1: a seed is a non-negative integer; give another"),
    ],
)
def test_arguments_out_of_range_are_refused(tmp_path, rows, seed, message):
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        raw.generate(str(tmp_path / "out"), rows=rows, seed=seed)
    assert os.listdir(tmp_path) == []


def test_a_folder_that_holds_data_is_refused_and_raw_data_replaced_on_demand(tmp_path):
    output = tmp_path / "out"
    output.mkdir()
    (output / "thesis.txt").write_text("years of work")
    for overwrite in (False, True):
        with pytest.raises(InputError, match=r"out: holds .*thesis\.txt"):
            raw.generate(str(output), rows=200, seed=1, overwrite=overwrite)
    assert contents(output) == {"thesis.txt": b"years of work"}
    (output / "thesis.txt").unlink()
    raw.generate(str(output), rows=200, seed=1)
    before = contents(output)
    with pytest.raises(InputError, match="holds other data"):
        raw.generate(str(output), rows=200, seed=2)
    assert contents(output) == before
    raw.generate(str(output), rows=200, seed=2, overwrite=True)
    assert contents(output).keys() == before.keys() and contents(output) != before
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_a_failure_halfway_leaves_nothing_behind(tmp_path, monkeypatch, error):
    choose, calls = raw.choose, []

    def fail_at_the_second_chunk(*arguments):
        calls.append(sorted(os.listdir(tmp_path / "out.partial")))
        if len(calls) == 2:
            raise error
        return choose(*arguments)

    monkeypatch.setattr(raw, "_CHUNK_ROWS", 100)
    monkeypatch.setattr(raw, "choose", fail_at_the_second_chunk)
    with pytest.raises(InputError if isinstance(error, OSError) else KeyboardInterrupt):
        raw.generate(str(tmp_path / "out"), rows=300, seed=1)
    assert "clicks_train.csv" in calls[1]
    assert os.listdir(tmp_path) == []


def test_the_command_prints_a_summary(tmp_path, capsys):
    output = str(tmp_path / "out")
    assert raw.main(["--rows", "1000", "--seed", "5", "--output", output]) == 0
    printed = capsys.readouterr().out
    assert "clicks_train.csv: 1,000 rows\nevents.csv: 270 rows\n" in printed
    teacher = pd.read_csv(os.path.join(output, "teacher.csv"))
    assert f"teacher.csv: {len(teacher)} rows" in printed
    assert f"displays with clicks: {len(teacher)}; of days 0 to 14: " in printed
    best, chance = teacher["teacher_average_precision"].mean(), teacher["chance_average_precision"].mean()
    assert f"MAP@12 of the teacher {best:.4f}, of random order {chance:.4f} (expected)" in printed
    assert raw.main(["--rows", "1000", "--seed", "5", "--output", output]) == 2
    assert raw.main(["--rows", "1000", "--seed", "6", "--output", output, "--overwrite"]) == 0
    assert raw.main(["--rows", "few", "--seed", "6", "--output", output]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 2 and "holds other data" in errors[0] and "invalid int value: 'few'" in errors[1]
