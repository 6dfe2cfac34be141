from collections import Counter

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("nvtabular")

import dask.dataframe

from data.outbrain.operators import ClickHistory, HashIds, TagSimilarity, hash_ids
from data.outbrain.similarity import TagVectors


class Selector:
    def __init__(self, *names):
        self.names = list(names)


# Worked out with Python's integers and hashlib, as the documentation says.
GOLDEN = {0: 7535, 1: 22465, 12345: 14944, 2**62: 22075}
GOLDEN_TEXTS = [13, -1, 157]  # of 300 rows: US>CA, none, US


def python_hash(number, rows):
    bits = (number + 0x9E3779B97F4A7C15) % 2**64
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        bits = (bits ^ (bits >> shift)) * factor % 2**64
    return (bits ^ (bits >> 31)) % rows


def test_golden_ids():
    ids = np.array([*GOLDEN, -1], np.int64)
    hashed = hash_ids(ids, np.uint64(50_000))
    assert hashed.dtype == np.int64 and hashed.tolist() == [*GOLDEN.values(), -1]
    assert hashed[:-1].tolist() == [python_hash(number, 50_000) for number in GOLDEN]
    assert ids.tolist() == [*GOLDEN, -1]


def test_columns_of_integers_lists_and_texts():
    frame = pd.DataFrame(
        {
            "ad": np.array([3, -1, 7], np.int64),
            "tags": [np.array([3, 7, 3]), np.array([], np.int64), np.array([-1])],
            "place": ["US>CA", "", "US"],
        }
    )
    sizes = {"ad": 1000, "tags": 50, "place": 300}
    result = HashIds(sizes).transform(Selector("ad", "tags", "place"), frame)
    assert result["ad"].tolist() == [python_hash(3, 1000), -1, python_hash(7, 1000)]
    three, seven = python_hash(3, 50), python_hash(7, 50)
    assert [list(ids) for ids in result["tags"]] == [[three, seven, three], [], [-1]]
    assert result["place"].tolist() == GOLDEN_TEXTS


@pytest.mark.parametrize("lists", [[[5]], [[]], [[], []]])
def test_lists_of_few_rows(lists):
    frame = pd.DataFrame({"tags": pd.Series([np.array(ids, np.int64) for ids in lists], dtype=object)})
    result = HashIds({"tags": 50}).transform(Selector("tags"), frame)
    assert [list(ids) for ids in result["tags"]] == [[python_hash(i, 50) for i in ids] for ids in lists]


@pytest.fixture
def clicks():
    rng = np.random.default_rng(0)
    rows = 2000
    return pd.DataFrame(
        {
            "ad": rng.integers(-1, 60, rows),
            "campaign": rng.integers(-1, 5, rows) * 10**12,
            "fold": rng.integers(0, 4, rows).astype(np.int8),
            "clicked": rng.integers(0, 2, rows).astype(np.int8),
        }
    ).assign(campaign=lambda f: f["campaign"].where(f["campaign"] >= 0, -1))


def fitted(clicks, parts, **options):
    operator = ClickHistory({"ad": 25, "campaign": 300}, folds=4, **options)
    operator.fit_finalize(operator.fit(None, dask.dataframe.from_pandas(clicks, npartitions=parts)).compute())
    return operator


@pytest.mark.parametrize("parts", [1, 3, 20])
@pytest.mark.parametrize("out_of_fold", [True, False])
def test_history_against_counting(clicks, parts, out_of_fold):
    operator = fitted(clicks, parts, out_of_fold=out_of_fold)
    other = pd.DataFrame(
        {"ad": [3, 99, -1], "campaign": [10**12, 5, -1], "fold": np.int8([-1] * 3), "clicked": [1] * 3}
    )
    for name, threshold in (("ad", 25), ("campaign", 300)):
        shows, hits = Counter(), Counter()
        for key, fold, clicked in clicks[[name, "fold", "clicked"]].itertuples(index=False):
            shows[key, fold] += 1
            hits[key, fold] += clicked
        for frame in (clicks, other):
            result = operator.transform(None, frame)
            for row in range(0, len(frame), 7 if len(frame) > 10 else 1):
                key, fold = frame[name][row], frame["fold"][row]
                folds = [f for f in range(4) if not (out_of_fold and f == fold)]
                seen = sum(shows[key, f] for f in folds) if key != -1 else 0
                rate = sum(hits[key, f] for f in folds) / seen if seen >= threshold else 0
                assert result[f"{name}_count"][row] == seen
                assert result[f"{name}_ctr"][row] == np.float32(rate)
            assert result.dtypes.unique().tolist() == [np.dtype(np.float32)]
    rates = operator.transform(None, clicks)
    assert 0 < (rates["ad_ctr"] == 0).mean() < 1 and operator.ids["ad"].tolist() == list(range(60))


def test_history_of_ids_up_to_the_largest():
    ids = np.array([0, 2**63 - 1, 2**62, 0, 2**63 - 1, 2**63 - 1], np.int64)
    clicks = pd.DataFrame({"ad": ids, "fold": np.int8([0, 0, 1, 1, 2, 2]), "clicked": np.int8([1, 0, 1, 0, 1, 1])})
    operator = ClickHistory({"ad": 1}, folds=4)
    operator.fit_finalize(operator.fit(None, dask.dataframe.from_pandas(clicks, npartitions=3)).compute())
    result = operator.transform(None, clicks.assign(fold=np.int8(-1)))
    assert result["ad_count"].tolist() == [2, 3, 1, 2, 3, 3]
    assert result["ad_ctr"].tolist() == [0.5, np.float32(2 / 3), 1, 0.5, np.float32(2 / 3), np.float32(2 / 3)]
    assert operator.transform(None, clicks)["ad_count"].tolist() == [1, 2, 0, 1, 1, 1]


def test_history_of_no_known_id(clicks):
    operator = fitted(clicks.assign(ad=-1), 2)
    result = operator.transform(None, clicks)
    assert not result["ad_ctr"].any() and not result["ad_count"].any() and result["campaign_count"].any()


def test_what_a_row_knows_does_not_change_with_its_fold(clicks):
    before = fitted(clicks, 2).transform(None, clicks)
    flipped = clicks.assign(clicked=clicks["clicked"].where(clicks["fold"] != 2, 1 - clicks["clicked"]))
    after = fitted(flipped, 2).transform(None, clicks)
    mine = (clicks["fold"] == 2).to_numpy()
    pd.testing.assert_frame_equal(after[mine], before[mine])
    assert not after[~mine].equals(before[~mine])


def test_similarity_of_pairs():
    vectors = TagVectors.of_tags(np.array([4, 4, 8, 8, 6]), np.array([1, 2, 2, 3, 9]), np.array([1.0, 1, 1, 1, 1]))
    frame = pd.DataFrame({"page": [4, 8, 4, 5, -1, 6], "promo": [8, 4, 4, 4, 8, 4]})
    result = TagSimilarity({"sim": vectors}).transform(Selector("page", "promo"), frame)
    one, two = np.log(3), np.log(1.5)
    both = two**2 / (one**2 + two**2)
    np.testing.assert_allclose(result["sim"], [both, both, 1, 0, 0, 0], atol=1e-6)
    assert result["sim"].dtype == np.float32
