import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from data.displays import IdLists, draw_displays
from data.flat_spec import flat_spec
from data.id_draw import IdDraw
from data.teacher import draw_clicks, plant
from data.teacher_signals import gate_signal, id_signal, list_signal, tells_ids_apart

SPEC = flat_spec([3, 400, 1_000_000, 50, 1_000_000], [1, 1, 1, 12, 12], 0)
EXPONENTS = [0.0, 0.9, 1.1, 1.5, 3.0]


def drawn(draw, seed=0, rows=5000):
    return draw_displays(SPEC, np.random.default_rng(seed), rows, draw).columns


@pytest.mark.parametrize("exponent", EXPONENTS)
def test_effects_of_ids_have_mean_0_and_variance_1_and_are_not_rare(exponent):
    draw = IdDraw(exponent)
    columns = drawn(draw)
    for name in SPEC.onehot:
        values = id_signal(SPEC.features[name], draw).values(columns[name])
        assert abs(values.mean()) < 0.08 and values.std() == pytest.approx(1.0, abs=0.06)
        assert np.abs(values).max() < 8.0 and np.mean(np.abs(values) > 0.05) > 0.15


@pytest.mark.parametrize("exponent", EXPONENTS)
def test_gates_split_rows_as_evenly_as_the_law_allows(exponent):
    draw = IdDraw(exponent)
    columns = drawn(draw)
    for name in SPEC.onehot:
        values = gate_signal(SPEC.features[name], draw).values(columns[name])
        assert set(values) == {-1.0, 1.0}
        # The first id alone can be more than half of a steep law; a third is what a table of three allows.
        assert abs(values.mean()) < (0.8 if exponent > 1.1 else 0.4)
    if exponent <= 1.1:
        assert abs(gate_signal(SPEC.features["cat_2"], draw).values(columns["cat_2"]).mean()) < 0.2


@pytest.mark.parametrize("exponent", EXPONENTS)
@pytest.mark.parametrize("pooling", ["any", "distinct", "fixed"])
def test_effects_of_lists_have_mean_0_and_variance_1_on_other_rows(pooling, exponent):
    draw = IdDraw(exponent, pooling)
    sample, columns = drawn(draw), drawn(draw, seed=1)
    for name in SPEC.multihot:
        signal = list_signal(SPEC.features[name], draw, sample[name])
        if signal is None:
            assert exponent >= 3.0 and pooling == "fixed"  # nearly all rows hold the same few frequent ids
            continue
        values = signal.values(columns[name])
        assert abs(values.mean()) < 0.08 and values.std() == pytest.approx(1.0, abs=0.06)


def test_ids_that_are_alike_share_effects_by_classes_of_equal_mass():
    feature = SPEC.features["cat_2"]
    signal = id_signal(feature, IdDraw(0.0))
    effects, counts = np.unique(signal.effects_of(np.arange(1_000_000)), return_counts=True)
    assert len(effects) == 16 and set(counts) == {62_500}
    # Ids next to each other are of different classes.
    assert len(np.unique(signal.effects_of(np.arange(100)))) > 10


def test_frequent_ids_have_effects_of_their_own_and_rare_ones_none():
    for draw in (IdDraw(), IdDraw(2.0)):
        signal = id_signal(SPEC.features["cat_2"], draw)
        assert len(np.unique(signal.effects)) == 17 and signal.effects[-1] == 0.0
        assert np.count_nonzero(signal.effects_of(np.arange(1_000_000))) == 16


@pytest.mark.parametrize(("exponent", "apart"), [(0.0, True), (1.1, True), (4.0, True), (8.0, False), (1e9, False)])
def test_an_id_that_hardly_varies_tells_nothing_apart(exponent, apart):
    assert tells_ids_apart(SPEC.features["cat_2"], IdDraw(exponent)) is apart
    assert not tells_ids_apart(flat_spec([1], [1], 0).features["cat_0"], IdDraw(exponent))


def test_lists_of_the_whole_table_tell_nothing_apart():
    spec = flat_spec([20, 1], [20, 3], 0)
    for pooling, name in (("fixed", "cat_0"), ("distinct", "cat_1")):
        draw = IdDraw(0.0, pooling)
        sample = IdLists(*draw.id_lists(np.random.default_rng(0), spec.features[name], 500))
        assert list_signal(spec.features[name], draw, sample) is None


@pytest.mark.parametrize("pooling", ["any", "distinct", "fixed"])
@pytest.mark.parametrize("exponent", [0.0, 1.0, 2.0])
@pytest.mark.parametrize(
    "spec",
    [flat_spec([1_000_000] * 3, [10], 9), flat_spec([1_000_000] * 2, [6], 0), flat_spec([1_000_000, 70], [1], 0)],
    ids=["lists-and-numericals", "lists", "ids"],
)
def test_the_teacher_is_as_strong_under_any_law(spec, exponent, pooling):
    draw = IdDraw(exponent, pooling)
    rng = np.random.default_rng(3)
    teacher = plant(spec, draw_displays(spec, np.random.default_rng(100), 10_000, draw), draw)
    displays = draw_displays(spec, rng, 10_000, draw)
    utility = teacher.utility(displays.columns)
    clicks = draw_clicks(utility, displays, rng)
    assert 0.72 < roc_auc_score(clicks, utility) < 0.82
    if spec.numerical:  # else terms share signals, and their variances do not simply add up
        assert (utility / teacher.scale).std() == pytest.approx(1.0, abs=0.06)
    predicted = teacher.click_probability(utility)
    for part in np.array_split(np.argsort(utility), 5):
        assert abs(clicks[part].mean() - predicted[part].mean()) < 4 * np.sqrt(predicted[part].mean() / len(part))


@pytest.mark.parametrize("pooling", ["any", "distinct", "fixed"])
@pytest.mark.parametrize("exponent", [9.0, 60.0, 1e308])
def test_laws_that_leave_one_id_leave_chance_or_the_numericals(exponent, pooling):
    draw = IdDraw(exponent, pooling)
    for numericals, least, most in ((0, 0.4, 0.85), (4, 0.72, 0.82)):
        spec = flat_spec([1000, 1000], [1, 3], numericals)
        displays = draw_displays(spec, np.random.default_rng(0), 4000, draw)
        teacher = plant(spec, displays, draw)
        utility = teacher.utility(displays.columns)
        assert np.isfinite(utility).all() and np.isfinite(teacher.knot_probabilities).all()
        assert least < roc_auc_score(draw_clicks(utility, displays, np.random.default_rng(1)), utility) < most
