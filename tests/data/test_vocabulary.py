"""Vocabularies against plain counting."""

import collections
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data.errors import InputError
from data.vocabulary import ValueCounter, Vocabulary


def counted(batches, min_count=1):
    counter = ValueCounter()
    for batch in batches:
        counter.add(pa.array(batch, pa.string()))
    return Vocabulary.of_counts(counter.counts(), min_count=min_count)


def test_ids_fall_with_the_count_and_ties_go_by_value():
    vocabulary = counted([["b", "a", None, "é"], ["c", "b", "Z", "10", "9"]])
    assert vocabulary.values.to_pylist() == ["b", "10", "9", "Z", "a", "c", "é"]
    assert vocabulary.counts.tolist() == [2, 1, 1, 1, 1, 1, 1]
    assert vocabulary.ids(pa.array(["c", None, "b", "new", "b"])).to_pylist() == [6, None, 1, 0, 1]
    assert vocabulary.size == 8


@pytest.mark.parametrize("min_count", [1, 3])
def test_against_counting(min_count, monkeypatch):
    """Enough distinct values that counts are merged several times."""
    rng = random.Random(5)
    values = [str(int(rng.paretovariate(0.4)) % 10**20) for _ in range(400_000)]
    batches = [values[i : i + 1000] for i in range(0, len(values), 1000)]
    counts = {v: n for v, n in collections.Counter(values).items() if n >= min_count}
    expected = sorted(counts, key=lambda v: (-counts[v], v))
    vocabulary = counted(batches, min_count)
    assert vocabulary.values.to_pylist() == expected
    assert vocabulary.counts.tolist() == [counts[v] for v in expected]
    asked = [*values[:500], "never"]
    ids = {v: n for n, v in enumerate(expected, start=1)}
    assert vocabulary.ids(pa.array(asked)).to_pylist() == [ids.get(v, 0) for v in asked]


def test_the_order_and_the_batches_do_not_matter():
    values = ["a", "b", "b", "c", "c"] * 3
    assert counted([values]).values.equals(counted([[v] for v in reversed(values)]).values)


def test_an_empty_one():
    vocabulary = counted([])
    assert vocabulary.size == 1
    assert vocabulary.ids(pa.array(["a", None])).to_pylist() == [0, None]
    assert counted([["a"]], min_count=2).size == 1


def test_saved_and_loaded(tmp_path):
    path = str(tmp_path / "vocabulary" / "x.parquet")
    vocabulary = counted([["b", "a", "b", "18446744073709551616"]])
    vocabulary.save(path)
    assert pq.read_table(path).to_pylist() == [
        {"value": "b", "id": 1, "count": 2},
        {"value": "18446744073709551616", "id": 2, "count": 1},
        {"value": "a", "id": 3, "count": 1},
    ]
    loaded = Vocabulary.load(path)
    assert loaded.values.equals(vocabulary.values) and loaded.counts.tolist() == [2, 1, 1]
    assert loaded.ids(pa.array(["a"])).to_pylist() == [3]
    counted([]).save(path)
    assert Vocabulary.load(path).size == 1


def test_what_is_no_vocabulary(tmp_path):
    path = str(tmp_path / "x.parquet")
    with pytest.raises(InputError, match=r"x\.parquet: not a readable vocabulary"):
        Vocabulary.load(path)
    pq.write_table(pa.table({"value": ["a"], "id": [2], "count": [1]}), path)
    with pytest.raises(InputError, match="its ids are not 1 to 1 in order"):
        Vocabulary.load(path)
