"""MAP@k by hand, against brute force and on real clicks; its states, however rows are split, ordered and ranked."""

import itertools
import math
import tracemalloc

import numpy as np
import pandas as pd
import pytest

from trainer.metrics import MapState, map_at_k


def average_precision(labels_in_order, k):
    hits, total = 0, 0.0
    for position, label in enumerate(labels_in_order[:k], start=1):
        if label:
            hits += 1
            total += hits / position
    return total / min(sum(labels_in_order), k)


def expected_average_precision(labels, scores, k):
    """Mean over all orders of the items in which scores never rise."""
    figures = [
        average_precision([labels[i] for i in order], k)
        for order in itertools.permutations(range(len(labels)))
        if all(scores[i] >= scores[j] for i, j in itertools.pairwise(order))
    ]
    return sum(figures) / len(figures)


@pytest.mark.parametrize(
    ("labels", "scores", "k", "expected"),
    [
        pytest.param([0, 1, 0], [3, 2, 1], 12, 1 / 2, id="one click, second"),
        pytest.param([1, 0, 1, 0], [4, 3, 2, 1], 12, (1 + 2 / 3) / 2, id="two clicks, first and third"),
        pytest.param([1, 1, 1], [3, 2, 1], 12, 1.0, id="all clicked"),
        pytest.param([1, 0, 1, 1], [4, 3, 2, 1], 2, (1 + 0) / 2, id="more clicks than k"),
        pytest.param([0] * 11 + [1, 0], list(range(13, 0, -1)), 12, 1 / 12, id="last place that counts"),
        pytest.param([0] * 12 + [1], list(range(13, 0, -1)), 12, 0.0, id="first place that does not"),
        pytest.param([0, 1, 0], [5, 5, 5], 12, (1 + 1 / 2 + 1 / 3) / 3, id="three tied, one click"),
        pytest.param([0, 1, 0], [5, 5, 5], 2, (1 + 1 / 2) / 3, id="tie across the cut"),
        pytest.param([0, 0, 1], [9, 5, 5], 12, (1 / 2 + 1 / 3) / 2, id="tie below another item"),
        pytest.param([1, 1, 0], [5, 5, 9], 12, (1 / 2 + 2 / 3) / 2, id="tie of clicks alone"),
        pytest.param([1], [-7], 12, 1.0, id="a single ad"),
    ],
)
def test_map_of_one_display_worked_by_hand(labels, scores, k, expected):
    assert map_at_k([4] * len(labels), labels, np.array(scores, np.float32), k) == pytest.approx(expected, abs=1e-15)


def test_map_is_the_mean_over_displays_with_a_click():
    ids = [7, 7, 3, 3, 3, 5]
    labels = [1, 0, 0, 0, 1, 0]
    scores = [2.0, 1.0, 3.0, 2.0, 1.0, 9.0]
    state = MapState()
    state.update(ids, labels, scores)
    result = state.compute()
    assert result.map == pytest.approx((1 + 1 / 3) / 2, abs=1e-15)
    assert (result.displays, result.displays_without_click, result.nonfinite_scores) == (2, 1, 0)


def test_map_without_any_click_or_row_is_nan():
    assert math.isnan(map_at_k([1, 1, 2], [0, 0, 0], [1.0, 2.0, 3.0]))
    assert math.isnan(map_at_k(np.empty(0, np.int64), [], []))


def test_ties_are_expected_values_over_all_orders():
    rng = np.random.default_rng(1)
    ids, labels, scores, figures = [], [], [], {k: [] for k in (1, 2, 3, 4, 12)}
    clicks_seen = set()
    for display in range(120):
        size = int(rng.integers(1, 7))
        display_labels = (rng.random(size) < 0.5).astype(int).tolist()
        display_scores = rng.integers(0, 3, size).tolist()
        ids += [display] * size
        labels += display_labels
        scores += display_scores
        if sum(display_labels):
            clicks_seen.add(sum(display_labels))
            for k, expected in figures.items():
                expected.append(expected_average_precision(display_labels, display_scores, k))
                one = map_at_k([display] * size, display_labels, display_scores, k)
                assert one == pytest.approx(expected[-1], abs=1e-12), (display_labels, display_scores, k)
    assert clicks_seen >= {1, 2, 3, 4}
    for k, expected in figures.items():
        assert map_at_k(ids, labels, scores, k) == pytest.approx(np.mean(expected), abs=1e-12)


def test_a_constant_model_gets_chance():
    rng = np.random.default_rng(2)
    sizes = rng.integers(2, 13, 400)
    ids = np.repeat(np.arange(400), sizes)
    labels = np.zeros(len(ids), np.int8)
    labels[np.cumsum(sizes) - sizes] = 1  # always the first row: the order of rows must not help
    chance = np.mean([sum(1 / i for i in range(1, size + 1)) / size for size in sizes])
    assert map_at_k(ids, labels, np.full(len(ids), -3.5)) == pytest.approx(chance, abs=1e-12)
    drawn = np.mean([map_at_k(ids, labels, rng.random(len(ids))) for _ in range(100)])
    assert drawn == pytest.approx(chance, abs=0.005)  # standard error 0.0015


def test_known_answers_on_real_clicks(known_outbrain_sample):
    clicks = pd.read_csv(known_outbrain_sample / "clicks_train.csv")
    ids, labels = clicks["display_id"].to_numpy(), clicks["clicked"].to_numpy()
    row = np.arange(len(clicks))
    assert (len(clicks), len(np.unique(ids))) == (9999, 1959)
    for name, scores, expected in [
        ("perfect", labels, 1.0),
        ("worst", -labels, 0.230543),
        ("minus row number", -row, 0.489620),
        ("row number", row, 0.471826),
        ("constant", np.zeros(len(clicks)), 0.481269),
    ]:
        assert map_at_k(ids, labels, scores) == pytest.approx(expected, abs=5e-7), name


# Defects of the ancestors.


def test_sums_start_at_zero_and_starting_over_forgets():
    for _ in range(2):
        state = MapState()
        state.update([1, 1, 1, 1], [0, 0, 0, 1], [4.0, 3.0, 2.0, 1.0])
        for _ in range(2):
            assert state.compute().map == pytest.approx(0.25, abs=1e-12)


@pytest.mark.parametrize("sorted_by_display", [False, True])
def test_a_display_cut_by_a_batch_or_rank_boundary_is_ranked_once(run_ranks, sorted_by_display):
    ids, labels, scores = np.array([8, 8, 8, 8]), np.array([0, 0, 0, 1]), np.array([4.0, 3.0, 2.0, 1.0])
    cuts = [slice(0, 2), slice(2, 4)]  # ranked by halves: 1/2, over one display with a click

    by_batch = MapState(sorted_by_display=sorted_by_display)
    for cut in cuts:
        by_batch.update(ids[cut], labels[cut], scores[cut])

    def work(comm):
        state = MapState(sorted_by_display=sorted_by_display)
        state.update(ids[cuts[comm.rank]], labels[cuts[comm.rank]], scores[cuts[comm.rank]])
        return state.compute(comm)

    for result in [by_batch.compute(), *run_ranks(2, work)]:
        assert result.map == pytest.approx(0.25, abs=1e-12)
        assert (result.displays, result.displays_without_click) == (1, 0)


@pytest.mark.parametrize("shift", [-1.0, -50.0, -1e30])
def test_negative_logits_do_not_lose_to_padding(shift):
    logits = np.array([1.0, 3.0, 2.0], np.float32) * np.float32(abs(shift)) + np.float32(4 * shift)
    assert (logits < 0).all()
    assert map_at_k([1, 1, 1], [0, 0, 1], logits) == 0.5


def test_logits_rank_where_probabilities_underflow():
    logits = np.array([-300.0, -200.0, -250.0], np.float32)
    probabilities = (1 / (1 + np.exp(-logits.astype(np.float64)))).astype(np.float16)
    assert (probabilities == 0).all()
    assert map_at_k([1, 1, 1], [0, 1, 0], logits) == 1.0
    assert map_at_k([1, 1, 1], [0, 1, 0], probabilities) == pytest.approx(11 / 18, abs=1e-15)


# States: the same rows, split and ordered in any way.


def displays(rows, seed=8, dtype=np.float32):
    """Rows of displays of 1 to 14 ads with ties and 0 to 5 clicks; ids of the whole range of int64, unsorted."""
    rng = np.random.default_rng(seed)
    names = rng.integers(-(2**63), 2**63 - 1, rows, endpoint=True)
    ids = np.repeat(names, rng.integers(1, 15, rows))[:rows]
    return ids, (rng.random(rows) < 0.15).astype(np.int8), rng.normal(size=rows).round(1).astype(dtype)


def one_by_one(ids, labels, scores):
    """(mean, displays, displays without a click) from each display alone, which other tests check by brute force."""
    figures = [map_at_k(ids[ids == name], labels[ids == name], scores[ids == name]) for name in np.unique(ids)]
    return np.nanmean(figures), np.count_nonzero(~np.isnan(figures)), np.count_nonzero(np.isnan(figures))


def fill(state, columns, rows, batch):
    for start in range(0, len(rows), batch):
        state.update(*(column[rows[start : start + batch]] for column in columns))
    return state


def check(result, expected):
    assert result.map == pytest.approx(expected[0], abs=1e-12)
    assert (result.displays, result.displays_without_click) == expected[1:]


@pytest.fixture(scope="module")
def mixed_displays():
    columns = displays(1200)
    return columns, one_by_one(*columns)


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
@pytest.mark.parametrize("batch", [7, 64, 4096])
@pytest.mark.parametrize("order", ["as it comes", "shuffled", "sorted", "empty rank"])
def test_map_does_not_depend_on_ranks_batches_and_order(run_ranks, mixed_displays, ranks, batch, order):
    columns, expected = mixed_displays
    rows = np.arange(1200)
    if order == "shuffled":
        rows = np.random.default_rng(9).permutation(1200)
    elif order == "sorted":
        rows = np.argsort(columns[0], kind="stable")
    shares = np.array_split(rows, ranks)
    if order == "empty rank":
        shares = [rows[:0], *np.array_split(rows, max(ranks - 1, 1))][-ranks:]

    def work(comm):
        state = fill(MapState(sorted_by_display=order == "sorted"), columns, shares[comm.rank], batch)
        return [state.compute(comm), state.compute(comm)]

    for results in run_ranks(ranks, work):
        for result in results:
            check(result, expected)


def test_rounds_of_many_rows_add_up(run_ranks):
    rows = 150_000  # several blocks and rounds
    ids = np.random.default_rng(10).permutation(np.repeat(np.arange(rows // 6), 6))
    labels = np.zeros(rows, np.int8)
    labels[np.unique(ids, return_index=True)[1]] = 1
    scores = np.random.default_rng(11).random(rows, np.float32)
    better = pd.Series(-scores).groupby(ids).rank("min").to_numpy()[labels == 1]  # no ties: 1/rank of the click
    assert map_at_k(ids, labels, scores) == pytest.approx(np.mean(1 / better), abs=1e-12)
    shares = [np.arange(100_000), np.arange(100_000, rows)]
    results = run_ranks(2, lambda comm: fill(MapState(), (ids, labels, scores), shares[comm.rank], 9999).compute(comm))
    for result in results:
        check(result, (np.mean(1 / better), rows // 6, 0))


def test_sorted_displays_may_span_several_ranks(run_ranks):
    ids = np.array([1, 1, 2, 2, 2, 2, 2, 2, 3])
    labels = np.array([0, 1, 0, 0, 0, 1, 0, 0, 1])
    scores = np.array([2, 1, 4, 9, 8, 5, 7, 6, 1.0])
    shares = [np.arange(0, 4), np.arange(4, 6), np.arange(0), np.arange(6, 7), np.arange(7, 9)]
    for batch in (1, 2, 9):

        def work(comm, batch=batch):
            state = MapState(sorted_by_display=True)
            return fill(state, (ids, labels, scores), shares[comm.rank], batch).compute(comm)

        for result in run_ranks(5, work):
            check(result, ((1 / 2 + 1 / 5 + 1) / 3, 3, 0))


def test_an_id_that_decreases_is_refused_when_sorted():
    state = MapState(sorted_by_display=True)
    state.update([1, 4, 4], [0, 1, 0], [1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match="display id 3 comes after a greater one"):
        state.update([3, 5], [0, 1], [1.0, 2.0])
    with pytest.raises(ValueError, match="display id -7 comes after a greater one"):
        MapState(sorted_by_display=True).update([2**63 - 1, -7], [0, 1], [1.0, 2.0])
    MapState().update([2, 1], [0, 1], [1.0, 2.0])


@pytest.mark.parametrize("sorted_by_display", [False, True])
@pytest.mark.parametrize("backwards", [False, True])
def test_map_states_merge(sorted_by_display, backwards):
    columns = displays(900)
    if sorted_by_display:
        columns = tuple(column[np.argsort(columns[0], kind="stable")] for column in columns)
    shares = np.array_split(np.arange(900), [0, 300, 303, 305, 600])
    states = [fill(MapState(sorted_by_display=sorted_by_display), columns, share, 50) for share in shares]
    before = states[3].compute()
    merged = MapState(sorted_by_display=sorted_by_display)
    for state in reversed(states) if backwards else states:
        merged.merge(state)
    check(merged.compute(), one_by_one(*columns))
    assert states[3].compute() == before


def test_states_that_do_not_fit_are_not_merged():
    with pytest.raises(ValueError, match=r"MapState\(k=12, .*MapState\(k=3"):
        MapState().merge(MapState(k=3))
    first, second = MapState(sorted_by_display=True), MapState(sorted_by_display=True)
    first.update([1, 5], [0, 1], [1.0, 2.0])
    second.update([3, 9], [0, 1], [1.0, 2.0])
    with pytest.raises(ValueError, match="overlap: displays 1 to 5 and 3 to 9"):
        first.merge(second)


@pytest.mark.parametrize("sorted_by_display", [False, True])
def test_states_keep_copies(sorted_by_display):
    ids, labels, scores = np.array([1, 1, 2]), np.array([0, 1, 1]), np.array([1.0, 2.0, 3.0], np.float32)
    state = MapState(sorted_by_display=sorted_by_display)
    state.update(ids, labels, scores)
    ids[:], labels[:], scores[:] = 9, 0, -scores
    check(state.compute(), (1.0, 2, 0))
    state.update([2], [0], [4.0])  # goes on after a figure was read
    check(state.compute(), (0.75, 2, 0))


def test_ids_of_the_whole_range():
    near = [2**63 - 1, 2**63 - 2, -(2**63), -(2**63) + 1, 0, -1]  # the same in pairs as float64
    ids = np.repeat(near, 2)
    labels, scores = np.tile([0, 1], 6), np.tile([2.0, 1.0], 6)
    for order in (slice(None), slice(None, None, -1)):
        assert map_at_k(ids[order], labels[order], scores[order]) == pytest.approx(0.5, abs=1e-12)
    assert map_at_k(np.array([2**63 - 1] * 2, np.uint64), [0, 1], [2.0, 1.0]) == pytest.approx(0.5, abs=1e-12)
    with pytest.raises(ValueError, match="at most 2"):
        map_at_k(np.array([2**63], np.uint64), [1], [1.0])
    with pytest.raises(ValueError, match="must be integers, got float64"):
        map_at_k(np.array([1.0]), [1], [1.0])


def test_zeros_of_both_signs_tie():
    assert map_at_k([1, 1], [1, 0], [-0.0, 0.0]) == pytest.approx(0.75, abs=1e-12)
    assert map_at_k([1, 1], [0, 1], [-0.0, 0.0]) == pytest.approx(0.75, abs=1e-12)


def test_ranks_with_different_score_types(run_ranks):
    scores = [np.array([0.1, 0.3]), np.array([0.1, 0.2], np.float32)]  # float32(0.1) > 0.1
    labels = [[1, 0], [0, 0]]

    def work(comm):
        state = MapState()
        state.update([6, 6], labels[comm.rank], scores[comm.rank])
        return state.compute(comm)

    for result in run_ranks(2, work):
        check(result, (1 / 4, 1, 0))


def traced_peak(work):
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_memory_per_row_of_unsorted_displays(dtype):
    rows, batch = 1_000_000, 4096
    columns = displays(rows, dtype=dtype)
    columns = tuple(column[np.random.default_rng(12).permutation(rows)] for column in columns)
    index = np.arange(rows)
    peak = traced_peak(lambda: fill(MapState(), columns, index, batch).compute())
    assert peak / rows < 24


def test_memory_per_row_while_ranks_exchange_displays(run_ranks):
    rows = 1_000_000
    columns = displays(rows)
    columns = tuple(column[np.random.default_rng(12).permutation(rows)] for column in columns)
    shares = np.array_split(np.arange(rows), 2)
    # Both ranks live in this process.
    peak = traced_peak(
        lambda: run_ranks(2, lambda comm: fill(MapState(), columns, shares[comm.rank], 4096).compute(comm))
    )
    assert peak / rows < 24


def test_memory_of_sorted_displays_does_not_grow():
    rows, batch = 600_000, 4096
    columns = displays(rows)
    columns = (np.sort(columns[0]), *columns[1:])
    index = np.arange(rows)
    peak = traced_peak(lambda: fill(MapState(sorted_by_display=True), columns, index, batch).compute())
    assert peak < 2 * 2**20
