import itertools

import numpy as np
import pytest

from data.errors import InputError
from data.row_plan import EvaluationPlan, TrainingPlan, groups_per_batch, shard_strata


def training_batches(group_rows, batch, *, ranks=1, rank=0, seed=0, shards=96, window=64, steps, start=0, shuffle=True):
    """Batches as arrays of row numbers of the whole source, read off the plan alone."""
    plan = TrainingPlan(group_rows, global_batch_size=batch, seed=seed, min_window_rows=window, shuffle=shuffle)
    first_row = np.cumsum(group_rows) - group_rows
    first, last = shard_strata(batch, shards, rank, ranks)
    batches = []
    for w in plan.windows(first, last, start_step=start):
        rows = np.concatenate([first_row[s.group] + s.first + np.arange(s.rows) for s in w.segments])
        assert len(rows) == w.rows == w.num_batches * w.local_batch_size
        assert w.rows <= plan.max_window_rows
        indices = np.arange(w.rows).reshape(w.num_batches, -1) if w.deal is None else w.deal.row_indices()
        batches += list(rows[indices])[w.skip_batches :]
        if len(batches) >= steps:
            return batches[:steps]


UNEVEN = np.array([1, 50, 7, 200, 33, 64, 0, 90, 12, 120, 77, 80, 45, 3, 118])


@pytest.mark.parametrize("group_rows", [UNEVEN, np.full(30, 30), np.array([900]), np.full(900, 1)])
@pytest.mark.parametrize("batch", [7, 64])
def test_every_epoch_holds_the_same_rows_once_in_another_order(group_rows, batch):
    steps = 900 // batch
    batches = training_batches(group_rows, batch, steps=3 * steps)
    epochs = [np.concatenate(batches[e * steps : (e + 1) * steps]) for e in range(3)]
    for epoch in epochs:
        np.testing.assert_array_equal(np.sort(epoch), np.arange(steps * batch))  # the tail in file order is dropped
    assert not (epochs[0] == epochs[1]).all()
    assert not (epochs[1] == epochs[2]).all()
    other = np.concatenate(training_batches(group_rows, batch, seed=1, steps=steps))
    assert not (epochs[0] == other).all()


@pytest.mark.parametrize("ranks", [2, 3, 8])
@pytest.mark.parametrize("batch", [13, 64])
@pytest.mark.parametrize("shuffle", [True, False])
def test_ranks_share_out_the_batches_of_one_rank(ranks, batch, shuffle):
    steps = 2 * (900 // batch) + 1
    whole = training_batches(UNEVEN, batch, steps=steps, shuffle=shuffle)
    parts = [training_batches(UNEVEN, batch, ranks=ranks, rank=r, steps=steps, shuffle=shuffle) for r in range(ranks)]
    for step in range(steps):
        union = np.concatenate([part[step] for part in parts])
        np.testing.assert_array_equal(np.sort(union), np.sort(whole[step]))


def test_number_of_shards_does_not_change_the_batches():
    whole = training_batches(UNEVEN, 64, steps=14)
    parts = [training_batches(UNEVEN, 64, ranks=2, rank=r, shards=5, steps=14) for r in range(2)]
    assert len(parts[0][0]) == 2 * 64 // 5
    for step in range(14):
        np.testing.assert_array_equal(np.sort(np.concatenate([p[step] for p in parts])), np.sort(whole[step]))


@pytest.mark.parametrize("start", [1, 5, 13, 14, 15, 40])
def test_start_step_gives_the_batches_of_an_uninterrupted_run(start):
    whole = training_batches(UNEVEN, 64, steps=start + 6)
    resumed = training_batches(UNEVEN, 64, start=start, steps=6)
    np.testing.assert_array_equal(resumed, whole[start:])


def test_a_resumed_plan_begins_in_the_window_of_its_step():
    plan = TrainingPlan(UNEVEN, global_batch_size=10, seed=0, min_window_rows=100, shuffle=False)
    for start in range(plan.steps_per_epoch):
        window = next(plan.windows(0, 10, start_step=start))
        assert window.skip_batches < window.num_batches


def test_without_shuffle_rows_come_in_file_order():
    batches = training_batches(UNEVEN, 64, steps=14, shuffle=False)
    np.testing.assert_array_equal(np.concatenate(batches), np.arange(14 * 64))


@pytest.mark.parametrize(
    ("group_rows", "batch"),
    [
        (np.full(8, 112), 16),
        (np.full(40, 100), 16),
        (np.full(40, 100), 100),
        (np.full(400, 3), 17),
        (np.array([40, 40, 40, 40, 40, 40, 40, 3000]), 400),  # eight groups, one of them nearly everything
        (np.array([500, 30] * 20), 64),
        (np.arange(1, 60), 32),
    ],
)
@pytest.mark.parametrize("window", [1, 256])
def test_every_batch_mixes_rows_of_eight_row_groups(group_rows, batch, window):
    steps = 2 * (group_rows.sum() // batch)
    owner = np.repeat(np.arange(len(group_rows)), group_rows)
    for rows in training_batches(group_rows, batch, window=window, steps=steps):
        assert len(np.unique(owner[rows])) >= 8


def test_windows_stay_small_where_row_groups_are_small():
    plan = TrainingPlan(np.full(1000, 10), global_batch_size=20, seed=0, min_window_rows=400)
    sizes = [w.rows for w in itertools.islice(plan.windows(0, 20), 40)]
    assert min(sizes) >= 400
    assert max(sizes) <= plan.max_window_rows <= 820


def test_a_batch_takes_one_row_of_each_stratum_in_an_unpredictable_place():
    plan = TrainingPlan([6400], global_batch_size=64, seed=0, min_window_rows=6400)
    deal = next(plan.windows(0, 64)).deal
    places = deal.row_indices() - 100 * np.arange(64)
    assert places.min() == 0
    assert places.max() == 99
    np.testing.assert_array_equal(np.sort(places, axis=0), np.tile(np.arange(100)[:, None], (1, 64)))
    steps = np.arange(100)
    correlations = [np.corrcoef(steps, places[:, s])[0, 1] for s in range(64)]
    assert abs(np.mean(correlations)) < 0.05  # standard deviation 0.0125
    assert len(np.unique(places[0])) > 30  # and not the same place in every stratum


def test_groups_per_batch_is_the_fewest_that_a_batch_can_mix():
    rng = np.random.default_rng(0)
    for _ in range(200):
        batch, batches = int(rng.integers(1, 7)), int(rng.integers(1, 6))
        ends = np.cumsum(rng.integers(1, 9, 40))
        start = int(rng.integers(0, 20))
        owner = np.repeat(np.arange(40), np.diff(ends, prepend=0))
        strata = [set(owner[start + s * batches : start + (s + 1) * batches]) for s in range(batch)]
        fewest = min(len(set(choice)) for choice in itertools.product(*strata))
        assert groups_per_batch(ends.tolist(), start, batches, batch, 99) == fewest


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("ranks", [1, 3])
def test_continues_says_whether_the_next_window_begins_in_the_same_row_group(shuffle, ranks):
    plan = TrainingPlan(np.tile(UNEVEN, 10), global_batch_size=9, seed=3, min_window_rows=40, shuffle=shuffle)
    windows = list(itertools.islice(plan.windows(*shard_strata(9, 96, ranks - 1, ranks)), 60))
    seen = set()
    for window, following in itertools.pairwise(windows):
        end, begin = window.segments[-1], following.segments[0]
        same = end.group == begin.group and begin.first >= end.first + end.rows
        assert window.continues == same
        seen.add(window.continues)
    # The last third of the next window begins two thirds of a window on, and windows are wider than row groups.
    assert seen == ({False} if shuffle and ranks == 3 else {True, False})


@pytest.mark.parametrize(
    ("batch", "shards", "ranks", "message"),
    [
        (64, 4, 5, "5 ranks for 4 data shards"),
        (4, 96, 5, "5 ranks for a global batch of 4"),
        (64, 96, 64, "rank 0 of 64 gets no row of a global batch of 64 rows cut in 96"),
        (0, 96, 1, "at least 1, got 0 and 96"),
    ],
)
def test_shares_that_cannot_be_are_refused(batch, shards, ranks, message):
    for rank in range(ranks):
        with pytest.raises(InputError, match=message):
            shard_strata(batch, shards, rank, ranks)


def test_strata_follow_the_shards():
    batch, shards, ranks = 131072, 96, 5
    sizes = [(s + 1) * batch // shards - s * batch // shards for s in range(shards)]
    bounds = [r * shards // ranks for r in range(ranks + 1)]
    for rank in range(ranks):
        first, last = shard_strata(batch, shards, rank, ranks)
        assert last - first == sum(sizes[bounds[rank] : bounds[rank + 1]])
        assert first == sum(sizes[: bounds[rank]])


def test_fewer_rows_than_a_batch_are_refused():
    with pytest.raises(InputError, match="30 training rows are fewer than one global batch of 31"):
        TrainingPlan([10, 20], global_batch_size=31, seed=0, min_window_rows=1)


@pytest.mark.parametrize("group_rows", [UNEVEN, np.array([5]), np.array([2]), np.full(50, 7)])
@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
@pytest.mark.parametrize("batch", [8, 13, 1000])
def test_evaluation_reads_each_row_once_in_order(group_rows, ranks, batch, monkeypatch):
    monkeypatch.setattr("data.row_plan.EVALUATION_WINDOW_ROWS", 40)
    first_row = np.cumsum(group_rows) - group_rows
    rows, steps, batch_rows = [], set(), 0
    for rank in range(ranks):
        plan = EvaluationPlan(group_rows, global_batch_size=batch, rank=rank, world_size=ranks)
        windows = list(plan.windows())
        mine = [first_row[s.group] + s.first + np.arange(s.rows) for w in windows for s in w.segments]
        assert sum(w.num_batches for w in windows) == plan.steps
        assert sum(map(len, mine)) <= plan.steps * plan.local_batch_size
        assert max(w.rows for w in windows) <= plan.max_window_rows
        for window, following in itertools.pairwise(windows):
            same = bool(following.segments) and window.segments[-1].group == following.segments[0].group
            assert window.continues == same
        rows += mine
        steps.add(plan.steps)
        batch_rows += plan.local_batch_size
    np.testing.assert_array_equal(np.concatenate(rows), np.arange(sum(group_rows)))
    assert len(steps) == 1
    assert batch_rows == batch


def test_evaluation_batches_smaller_than_the_ranks_are_refused():
    with pytest.raises(InputError, match="3 ranks for an evaluation batch of 2 rows"):
        EvaluationPlan([10], global_batch_size=2, rank=0, world_size=3)


def test_the_batches_of_a_seed_stay_the_same():
    window = next(TrainingPlan([40, 24], global_batch_size=4, seed=3, min_window_rows=64).windows(0, 4))
    assert [segment.group for segment in window.segments] == [1, 0]
    expected = [[4, 25, 36, 57], [12, 30, 40, 60], [15, 29, 44, 52], [0, 17, 45, 48]]
    assert window.deal.row_indices()[:4].tolist() == expected  # else a resumed run would read other rows
