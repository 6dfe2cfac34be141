import dataclasses

import numpy as np
import pytest
import scipy.sparse
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from data.displays import Displays, IdLists, draw_displays
from data.feature_spec import Feature, FeatureSpec
from data.outbrain.schema import outbrain_feature_spec
from data.teacher import draw_clicks, plant, roc_auc


def make_spec(onehot=(), multihot=(), numerical=0):
    """A specification with one-hot cardinalities, multi-hot (cardinality, hotness) and a number of numericals."""
    features = {"y": Feature("y")}
    features |= {f"o{i}": Feature(f"o{i}", c) for i, c in enumerate(onehot)}
    features |= {f"m{i}": Feature(f"m{i}", c, h) for i, (c, h) in enumerate(multihot)}
    features |= {f"n{i}": Feature(f"n{i}") for i in range(numerical)}
    names = {kind: tuple(n for n in features if n[0] == kind) for kind in "omn"}
    return FeatureSpec(features, names["o"], names["m"], names["n"], "y")


class World:
    """Rows of the Outbrain specification with their utility and clicks."""

    def __init__(self, spec, rows, seed):
        self.spec = spec
        self.teacher = plant(spec, draw_displays(spec, np.random.default_rng(100), 60_000))
        rng = np.random.default_rng(seed)
        self.displays = draw_displays(spec, rng, rows)
        self.columns = self.displays.columns
        self.utility = self.teacher.utility(self.columns)
        self.clicks = draw_clicks(self.utility, self.displays, rng)

    def numericals(self):
        return np.stack([self.columns[name] for name in self.spec.numerical], axis=1)

    def everything(self):
        """One column per id, then the numericals: what a linear model with one weight per id sees."""
        parts = []
        for name in self.spec.categorical:
            column = self.columns[name]
            ids, lengths = column if isinstance(column, IdLists) else (column, np.ones(len(column), np.int64))
            shape = (len(lengths), self.spec.features[name].cardinality)
            parts.append(
                scipy.sparse.csr_matrix((np.ones(len(ids)), ids, np.concatenate([[0], lengths.cumsum()])), shape)
            )
        return scipy.sparse.hstack([*parts, scipy.sparse.csr_matrix(self.numericals())]).tocsr()


@pytest.fixture(scope="module")
def train():
    return World(outbrain_feature_spec(), 60_000, 1)


@pytest.fixture(scope="module")
def valid():
    return World(outbrain_feature_spec(), 60_000, 2)


def margin_share(world, scores):
    return (roc_auc_score(world.clicks, scores) - 0.5) / (roc_auc_score(world.clicks, world.utility) - 0.5)


def test_one_ad_of_each_display_is_clicked(valid):
    clicks = np.add.reduceat(valid.clicks, valid.displays.starts)
    assert (clicks == 1).all() and valid.clicks.sum() == len(valid.displays.sizes)


def test_clicks_are_drawn_by_softmax():
    displays = Displays(np.full(40_000, 3), {})
    utility = np.tile(np.log([1.0, 2.0, 5.0]), 40_000)
    clicks = draw_clicks(utility, displays, np.random.default_rng(0)).reshape(-1, 3)
    assert (clicks.sum(axis=1) == 1).all()
    np.testing.assert_allclose(clicks.mean(axis=0), [0.125, 0.25, 0.625], atol=0.01)


def test_teacher_is_neither_trivial_nor_perfect(valid):
    assert 0.65 < roc_auc_score(valid.clicks, valid.utility) < 0.80


def test_numericals_alone_reach_at_most_half_of_the_margin(train, valid):
    model = LogisticRegression().fit(train.numericals(), train.clicks)
    share = margin_share(valid, model.decision_function(valid.numericals()))
    assert 0.2 < share <= 0.5


def test_a_linear_model_on_everything_reaches_at_most_three_quarters_of_the_margin(train, valid):
    model = LogisticRegression(C=0.05, solver="lbfgs", max_iter=30, tol=1e-2).fit(train.everything(), train.clicks)
    share = margin_share(valid, model.decision_function(valid.everything()))
    assert 0.4 < share <= 0.75
    # With rows without end: the utility's own terms of one signal.
    linear = dataclasses.replace(valid.teacher, terms=tuple(t for t in valid.teacher.terms if len(t.factors) == 1))
    linear = dataclasses.replace(linear, terms=tuple(t for t in linear.terms if t.factors[0].kind != "square"))
    assert margin_share(valid, linear.utility(valid.columns)) <= 0.75


def test_ids_and_lists_and_interactions_count(valid):
    kinds = {tuple(factor.kind for factor in term.factors) for term in valid.teacher.terms}
    assert kinds == {("numerical",), ("id",), ("list",), ("id", "numerical"), ("numerical", "numerical"), ("square",)}


def test_terms_have_the_variance_they_claim(valid):
    total = 0.0
    for term in valid.teacher.terms:
        one = dataclasses.replace(valid.teacher, terms=(term,), scale=1.0)
        assert one.utility(valid.columns).std() == pytest.approx(term.weight, rel=0.06)
        total += term.weight**2
    assert total == pytest.approx(1.0)


def test_page_columns_enter_only_by_interaction(valid):
    page = {"platform", "publisher_id"}
    for term in valid.teacher.terms:
        names = [factor.feature.name for factor in term.factors]
        assert set(names[1:]).isdisjoint(page) and (len(names) == 2 or names[0] not in page)
    assert {term.factors[0].feature.name for term in valid.teacher.terms if len(term.factors) == 2} >= page


def test_click_probability_is_calibrated(valid):
    predicted = valid.teacher.click_probability(valid.utility)
    for part in np.array_split(np.argsort(valid.utility), 10):
        error = valid.clicks[part].mean() - predicted[part].mean()
        assert abs(error) < 4 * np.sqrt(predicted[part].mean() / len(part))
    assert (np.diff(valid.teacher.click_probability(np.linspace(-6, 6, 1000))) >= 0).all()


@pytest.mark.parametrize("name", ["platform", "publisher_id", "geo_location_country"])
def test_the_page_tells_nothing_beyond_the_utility(valid, name):
    predicted = valid.teacher.click_probability(valid.utility)
    column = valid.columns[name]
    ids, counts = np.unique(column, return_counts=True)
    for chosen in ids[np.argsort(-counts)[:4]]:
        rows = column == chosen
        expected = predicted[rows].sum()
        assert abs(valid.clicks[rows].sum() - expected) < 4 * np.sqrt(expected)
        # Nor is the utility worth more or less there.
        assert valid.utility[rows].std() == pytest.approx(valid.utility.std(), rel=0.06)


def test_the_teacher_depends_on_the_specification_alone(train, valid):
    assert [t.weight for t in train.teacher.terms] == [t.weight for t in valid.teacher.terms]
    np.testing.assert_array_equal(train.teacher.utility(valid.columns), valid.utility)


@pytest.mark.parametrize(
    "spec",
    [
        make_spec(numerical=13),
        make_spec(numerical=1),
        make_spec(onehot=[2]),
        make_spec(onehot=[1_000_000]),
        make_spec(onehot=[10, 100, 1000]),
        make_spec(multihot=[(1000, 20), (50, 1)]),
        make_spec(onehot=[5, 1, 70_000], multihot=[(10, 2)], numerical=2),
    ],
    ids=["numericals", "one-numerical", "one-binary", "one-huge", "onehots", "multihots", "mixed"],
)
def test_any_specification_gets_a_teacher_of_the_same_strength(spec):
    world = World(spec, 20_000, 3)
    assert 0.65 < roc_auc_score(world.clicks, world.utility) < 0.80
    assert np.isfinite(world.teacher.click_probability(world.utility)).all()


@pytest.mark.parametrize(
    "spec", [make_spec(numerical=2), make_spec(onehot=[10, 100, 1000]), make_spec(multihot=[(100, 3)] * 2)]
)
def test_most_of_the_utility_is_not_linear_where_features_can_interact(spec):
    teacher = World(spec, 2_000, 0).teacher
    products = [t.weight**2 for t in teacher.terms if len(t.factors) == 2 or t.factors[0].kind == "square"]
    assert sum(products) > 0.5


def test_features_without_information_leave_chance():
    world = World(make_spec(onehot=[1]), 2_000, 0)
    assert not world.utility.any()
    assert roc_auc(world.utility, world.clicks) == 0.5
    np.testing.assert_allclose(world.teacher.click_probability(world.utility), world.clicks.mean(), atol=0.02)


def test_auc_equals_scikit_learns(valid):
    assert roc_auc(valid.utility, valid.clicks) == pytest.approx(roc_auc_score(valid.clicks, valid.utility), abs=1e-12)
    coarse = np.round(valid.utility)
    assert roc_auc(coarse, valid.clicks) == pytest.approx(roc_auc_score(valid.clicks, coarse), abs=1e-12)
    assert np.isnan(roc_auc(np.arange(3.0), np.ones(3)))
