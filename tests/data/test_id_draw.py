import numpy as np
import pytest

from data import power_law
from data.errors import InputError
from data.feature_spec import Feature
from data.flat_spec import flat_spec
from data.id_draw import DEFAULT_DRAW, IdDraw

FEATURE = Feature("m", 1000, max_hotness=6)


def rows_of(draw, feature=FEATURE, rows=6000):
    ids, lengths = draw.id_lists(np.random.default_rng(0), feature, rows)
    assert ids.dtype == lengths.dtype == np.int64 and len(ids) == lengths.sum() and len(lengths) == rows
    assert ids.min() >= 0 and ids.max() < feature.cardinality
    return np.split(ids, np.cumsum(lengths)[:-1]), lengths


@pytest.mark.parametrize(("pooling", "least"), [("any", 0), ("distinct", 1)])
def test_every_length_is_as_likely(pooling, least):
    _, lengths = rows_of(IdDraw(pooling=pooling))
    counts = np.bincount(lengths, minlength=7)
    assert not counts[:least].any() and len(counts) == 7
    expected = 6000 / (7 - least)
    assert np.abs(counts[least:] - expected).max() < 4 * np.sqrt(expected)


def test_fixed_rows_all_have_the_same_length():
    assert set(rows_of(IdDraw(pooling="fixed"))[1]) == {6}


def test_ids_repeat_only_where_any_are_allowed():
    def with_repeats(pooling):
        return sum(len(set(row)) < len(row) for row in rows_of(IdDraw(pooling=pooling))[0])

    assert with_repeats("any") > 500
    assert with_repeats("distinct") == with_repeats("fixed") == 0


def test_rows_of_a_table_smaller_than_the_hotness():
    small = Feature("m", 4, max_hotness=6)
    assert set(rows_of(IdDraw(pooling="distinct"), small)[1]) == {1, 2, 3, 4}
    assert set(rows_of(IdDraw(pooling="any"), small)[1]) == set(range(7))


@pytest.mark.parametrize("exponent", [0.0, 1.1, 2.0])
@pytest.mark.parametrize("pooling", ["any", "distinct"])
def test_ids_follow_the_exponent(exponent, pooling):
    """In a wide table under a flat law repeats hardly matter; under a steep one the first rank is in most rows."""
    draw = IdDraw(exponent, pooling)
    ids = draw.ids(np.random.default_rng(2), 1000, 50_000)
    share = np.bincount(power_law.id_to_rank(ids, 1000), minlength=1000)[:5] / 50_000
    np.testing.assert_allclose(share, power_law.probabilities(5, 1000, exponent), atol=0.01)
    rows, _ = rows_of(draw)
    first = np.mean([0 in power_law.id_to_rank(row, 1000) for row in rows])
    once = power_law.probabilities(1, 1000, exponent)[0]
    lengths = np.arange(0 if pooling == "any" else 1, 7)
    # With repeats the formula is exact; without, a row sees more draws than it has ids.
    expected = np.mean(1.0 - (1.0 - once) ** lengths)
    assert first > expected - 0.02 and (first < expected + 0.02 or pooling == "distinct")


def test_a_table_too_small_for_fixed_rows_is_refused():
    spec = flat_spec([100, 50], [100, 51], 0)
    IdDraw(pooling="distinct").check(spec)
    DEFAULT_DRAW.check(spec)
    with pytest.raises(InputError, match=r"'cat_1'.* 51 .* 50 .*distinct"):
        IdDraw(pooling="fixed").check(spec)
    IdDraw(pooling="fixed").check(flat_spec([100, 51], [100, 51], 0))


@pytest.mark.parametrize("exponent", [-0.1, float("nan"), float("inf")])
def test_an_exponent_that_makes_no_law_is_refused(exponent):
    with pytest.raises(InputError, match=f"exponent={exponent}"):
        IdDraw(exponent)


def test_an_unknown_pooling_is_refused():
    with pytest.raises(InputError, match=r"'mean'.*any, distinct, fixed"):
        IdDraw(pooling="mean")


def test_settings_that_draw_alike_are_equal():
    assert IdDraw(0) == IdDraw(0.0) == IdDraw(-0.0)
    assert {repr(IdDraw(value).exponent) for value in (0, 0.0, -0.0)} == {"0.0"}
    assert IdDraw(1.1, "any") == DEFAULT_DRAW == IdDraw()
