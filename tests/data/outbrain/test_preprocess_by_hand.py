"""A dataset small enough to be worked out by hand: the numbers below come from paper, not from a second program."""

import itertools
import math

import numpy as np
import pyarrow.parquet as pq
import pytest

pytest.importorskip("nvtabular")

from data.outbrain.preprocess import Options, preprocess

# With seed 0 and a share of 0.2 the hash holds out the displays 0, 4 and 8. It puts the others into these folds:
# 3, 5, 20 -> 7; 9 -> 1; 12 -> 0; 13, 16, 17 -> 4. Display 38 is of day 11. Rows of display 4 are apart.
CLICKS = """display_id,ad_id,clicked
4,0,0
20,0,0
20,1,1
17,0,0
17,1,1
16,0,0
16,2,1
13,1,0
13,0,1
12,0,1
9,0,1
9,2,0
5,0,0
5,1,1
3,0,1
3,1,0
4,3,1
38,0,0
38,77,1
8,0,1
0,2,1
4,1,0
"""
EVENTS = """display_id,uuid,document_id,timestamp,platform,geo_location
3,u,11,0,1,US>CA>803
4,u,11,1,2,US>CA>803
0,u,11,2,3,US
5,u,11,691200002,\\N,
8,u,12,61,1,GB>H9
9,u,13,61,1,\\N
12,u,14,61,1,--
13,u,,61,1,US
16,u,11,61,1,US
17,u,11,61,1,US
20,u,11,61,1,US
38,u,11,950400000,0,US
999,u,11,61,1,US
"""
PROMOTED = """ad_id,document_id,campaign_id,advertiser_id
0,21,7,7
1,22,8,7
2,0,,
3,24,8,\\N
"""
# Document 24 has none. Events count from 2016-06-14 03:59:59.998.
META = """document_id,source_id,publisher_id,publish_time
11,0,5,2016-06-13 04:00:00
12,1,5,2016-06-20 00:00:00
13,1,,1990-01-01 00:00:00
14,\\N,5,
21,2,6,2016-06-01 00:00:00
22,2,6,2016-06-01 00:00:00
0,3,6,\\N
"""
CATEGORIES = """document_id,category_id,confidence_level
21,1,0.5
11,2,0.6
22,2,0.5
11,1,0.8
22,3,0.5
23,9,1
"""
TOPICS = """document_id,topic_id,confidence_level
21,5,0.2
21,7,0.9
21,6,0.1
21,0,0.2
"""
ENTITIES = """document_id,entity_id,confidence_level
22,f9eec25663db4cd83183f5c805186f16,0.4
"""


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    """(display, ad) -> row of the dataset."""
    folder = tmp_path_factory.mktemp("by_hand")
    (folder / "raw").mkdir()
    files = {"clicks_train": CLICKS, "events": EVENTS, "promoted_content": PROMOTED, "documents_meta": META}
    files |= {"documents_categories": CATEGORIES, "documents_topics": TOPICS, "documents_entities": ENTITIES}
    for name, text in files.items():
        (folder / "raw" / f"{name}.csv").write_text(text)
    report = preprocess(str(folder / "raw"), str(folder / "out"), Options(rows_per_part=5, keep_joined=True))
    return folder / "out", report


@pytest.fixture(scope="module")
def rows(dataset):
    """source -> rows in order."""
    return {source: pq.read_table(dataset[0] / source).to_pylist() for source in ("train", "valid")}


def of(rows, ad, display):
    """The row of an ad in a display; ads are known by their hashed ids."""
    (row,) = (r for r in rows if r["display_id"] == display and r["ad_id"] == AD_ROWS[ad])
    return row


# SplitMix64's finaliser of (id + 0x9E3779B97F4A7C15) mod 2^64, mod 250,000.
AD_ROWS = {0: 107535, 1: 72465, 2: 98110, 3: 139053, 77: 56257}


def test_sides_and_order(rows):
    assert [row["display_id"] for row in rows["valid"]] == [0, 4, 4, 4, 8, 38, 38]
    assert [row["ad_id"] for row in rows["valid"][1:4]] == [AD_ROWS[ad] for ad in (0, 3, 1)]
    assert sorted({row["display_id"] for row in rows["train"]}) == [3, 5, 9, 12, 13, 16, 17, 20]
    displays = [row["display_id"] for row in rows["train"]]
    # Rows of a display are together, displays by their hash and not by number.
    assert sum(a != b for a, b in itertools.pairwise(displays)) == 7 and displays != sorted(displays)
    assert [row["clicked"] for row in rows["train"] if row["display_id"] == 13] == [0, 1]


def test_rates(rows):
    # Ad 0 was shown in all eight training displays and clicked in 3, 9, 12 and 13.
    for display in (4, 8, 38):
        assert of(rows["valid"], 0, display)["ad_id_ctr"] == 0.5
    # Without fold 7 (displays 3, 5, 20), and without fold 4 (13, 16, 17): 3 of 5. Without display 9: 3 of 7.
    for display, rate in ((3, 3 / 5), (5, 3 / 5), (20, 3 / 5), (13, 3 / 5), (16, 3 / 5), (9, 3 / 7), (12, 3 / 7)):
        assert of(rows["train"], 0, display)["ad_id_ctr"] == np.float32(rate)
    # Ad 1: clicked in 5, 17 and 20 of 3, 5, 13, 17 and 20. Without fold 4 it is left with three shows.
    assert of(rows["valid"], 1, 4)["ad_id_ctr"] == np.float32(3 / 5)
    assert of(rows["train"], 1, 13)["ad_id_ctr"] == 0.0
    # Its campaign 8 is below ten shows; advertiser 7 has those of ads 0 and 1, 7 clicks of 13.
    assert of(rows["valid"], 1, 4)["campaign_id_ctr"] == 0.0
    assert of(rows["valid"], 1, 4)["advertiser_id_ctr"] == np.float32(7 / 13)
    assert of(rows["valid"], 3, 4)["ad_id_ctr"] == of(rows["valid"], 77, 38)["ad_id_ctr"] == 0.0
    assert of(rows["valid"], 77, 38)["advertiser_id_ctr"] == 0.0


def test_counts(rows):
    # Shows of ads 0, 1, 2 and 77: 8, 5, 2 and 0. Standardising keeps the proportion of differences.
    values = {ad: of(rows["valid"], ad, d)["ad_id_count"] for ad, d in ((0, 4), (1, 4), (2, 0), (77, 38))}
    for ad, shows in ((1, 5), (2, 2)):
        share = (values[ad] - values[77]) / (values[0] - values[77])
        assert share == pytest.approx(math.log(1 + shows) / math.log(9), abs=1e-6)
    counts = np.array([row["ad_id_count"] for row in rows["train"]])
    assert counts.mean() == pytest.approx(0, abs=1e-6) and counts.std(ddof=1) == pytest.approx(1, abs=1e-6)


def test_days_since_publication(rows):
    def value(ad, display, source="train"):
        return of(rows[source], ad, display)["publish_time_days_since_published"]

    # Page 11, published on 2016-06-13 at 04:00: display 3 comes 2 ms short of a day later, display 0 on the dot.
    none, one = value(0, 3), value(2, 0, "valid")
    assert value(0, 4, "valid") == none < one
    unit = (one - none) / math.log(2)
    # Display 5 comes nine days after; page 12 is of the future; page 13, of 1990, counts as of 3650 days ago.
    assert value(0, 5) - none == pytest.approx(unit * math.log(10), rel=1e-5)
    assert value(0, 8, "valid") == none
    assert value(0, 9) - none == pytest.approx(unit * math.log(3651), rel=1e-5)
    # Pages without a date, and no page, are at the mean of the others.
    assert value(0, 12) == value(0, 13) == 0.0
    dated = {3: (0, 1), 5: (0, 1), 9: (0, 2), 16: (0, 2), 17: (0, 1), 20: (0, 1)}
    known = [value(ad, display) for display, ads in dated.items() for ad in ads]
    assert np.mean(known) == pytest.approx(0, abs=1e-6) and np.std(known, ddof=1) == pytest.approx(1, abs=1e-6)


def test_similarities(rows):
    def value(ad, display, kind="categories", source="train"):
        return of(rows[source], ad, display)[f"document_id_document_id_promo_sim_{kind}"]

    # Of four documents two have category 1 and two have 2 (weight ln 2), one has 3 (ln 4 = 2 ln 2). Over ln 2: page 11
    # is (0.8, 0.6, 0), document 21 (0.5, 0, 0), document 22 (0, 0.5, 1).
    assert value(0, 3) == pytest.approx(0.8, abs=1e-6)
    assert value(1, 3) == pytest.approx(0.3 / math.sqrt(1.25), abs=1e-6)
    assert value(0, 9) == value(2, 16) == value(0, 13) == 0.0  # a page, a promoted page, and no page: no categories
    assert value(77, 38, source="valid") == 0.0
    # The one document that has topics cannot be told from others by them.
    assert {value(ad, 5, kind) for ad in (0, 1) for kind in ("topics", "entities")} == {0.0}


def test_ids(rows):
    row = of(rows["valid"], 0, 4)
    golden = {
        "document_id": 138813,  # of 11
        "document_id_promo": 69543,  # of 21
        "campaign_id": 4487,  # of 7
        "advertiser_id": 1987,  # of 7
        "source_id": 3535,  # of 0
        "source_id_promo": 110,  # of 2
        "publisher_id": 618,  # of 5
        "publisher_id_promo": 592,  # of 6
        "platform": 2,
        "geo_location": 2139,
        "geo_location_state": 813,
        "geo_location_country": 157,
        "category_id_list": [65],  # of 1
        "topic_id_list": [37, 135, 318],  # of 7, 0 and 5: by confidence and then by id
        "entity_id_list": [],
    }
    assert {name: row[name] for name in golden} == golden
    assert of(rows["valid"], 1, 4)["entity_id_list"] == [2926]
    unknown = of(rows["valid"], 77, 38)
    gone = ("document_id_promo", "campaign_id", "advertiser_id", "source_id_promo", "publisher_id_promo")
    assert all(unknown[name] == -1 for name in gone) and unknown["platform"] == 0
    assert unknown["category_id_list"] == unknown["topic_id_list"] == unknown["entity_id_list"] == []
    empty = of(rows["train"], 0, 5)
    assert empty["platform"] == empty["geo_location"] == empty["geo_location_state"] == -1
    assert of(rows["train"], 0, 13)["document_id"] == of(rows["train"], 0, 13)["source_id"] == -1
    assert of(rows["train"], 2, 16)["document_id_promo"] >= 0 > of(rows["train"], 2, 16)["campaign_id"]


def test_report(dataset):
    report = dataset[1]
    assert report["rows_in"]["clicks_train"] == 22 and report["rows_in"]["events"] == 13
    assert (report["displays"], report["train_displays"], report["train_rows"], report["test_rows"]) == (12, 8, 15, 7)
    assert report["missing_joins"] == {
        "without_event": 0,
        "without_promoted_content": 1,
        "without_meta_of_page": 2,
        "without_meta_of_ad": 2,
        "without_category_of_ad": 5,
        "without_topic_of_ad": 11,
        "without_entity_of_ad": 16,
    }
    assert {name: n for name, n in report["unseen_in_training"].items() if n} == {"document_id_promo": 1, "ad_id": 2}


def test_rates_begin_at_their_numbers_of_shows(tmp_path):
    """Ad n, with a document, campaign, advertiser, source and publisher of its own, is shown n times and clicked."""
    shows = (4, 5, 9, 10)
    trained = (3, 5, 9, 12, 13, 16, 17, 20, 21, 25)
    clicked = (4, 5, 9, *[10] * 7)
    clicks = []
    for i, (display, hit) in enumerate(zip(trained, clicked, strict=True)):
        clicks += [f"{display},{n},{int(n == hit)}" for n in shows if i < n]
    clicks += [f"38,{n},{int(n == 4)}" for n in shows]
    files = {
        "clicks_train": ["display_id,ad_id,clicked", *clicks],
        "events": [EVENTS.split()[0], *(f"{display},u,1,61,1,US" for display in trained), "38,u,1,950400000,1,US"],
        "promoted_content": [PROMOTED.split()[0], *(f"{n},{n},{n},{n}" for n in shows)],
        "documents_meta": [META.split()[0], *(f"{n},{n},{n}," for n in shows)],
    }
    (tmp_path / "raw").mkdir()
    for name, lines in files.items():
        (tmp_path / "raw" / f"{name}.csv").write_text("\n".join(lines) + "\n")
    options = Options(ctr="in_sample", allow_missing_tables=True)
    preprocess(str(tmp_path / "raw"), str(tmp_path / "out"), options)
    rows = pq.read_table(tmp_path / "out/valid").to_pydict()
    for name, least in (
        ("ad_id", 5),
        ("document_id_promo", 5),
        ("campaign_id", 10),
        ("advertiser_id", 10),
        ("source_id_promo", 10),
        ("publisher_id_promo", 10),
    ):
        rates = dict(zip(shows, rows[f"{name}_ctr"], strict=True))
        assert [n for n in shows if rates[n] > 0] == [n for n in shows if n >= least], name
    assert rows["ad_id_ctr"] == [np.float32(rate) for rate in (0, 1 / 5, 1 / 9, 7 / 10)]
