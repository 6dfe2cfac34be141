import keras
import numpy as np
import pytest
import tensorflow as tf

from models import custom_ops, embedding
from models.embedding import FusedTable, LogicalTable, glorot_normal, initial_rows, sum_by_row, uniform_by_rows

DIM = 2


@pytest.fixture(autouse=True, params=["our kernels", "TensorFlow's"])
def kernels(request, monkeypatch):
    """Every test runs with both: TensorFlow's are the reference."""
    if request.param == "TensorFlow's":
        monkeypatch.setattr(custom_ops, "embedding_ops", lambda: None)
    elif custom_ops.embedding_ops() is None:
        pytest.skip("the kernels are not built: python -m models.custom_ops")
    return request.param


# Hotness 1, 1, 3, 3, 1, 2; a table of one row; columns in another order than the features, with a gap (columns 3, 4).
TABLES = (
    LogicalTable("page", 7, 12, 1),
    LogicalTable("platform", 1, 0, 1),
    LogicalTable("topics", 5, 5, 3),
    LogicalTable("entities", 4, 9, 3),
    LogicalTable("ad", 3, 8, 1),
    LogicalTable("words", 2, 1, 2),
)


def make_table(combiner="sum", *, sum_features=False, tables=TABLES, dim=DIM, seed=0):
    """A fused table of random rows, and the rows of each feature as float64 arrays."""
    fused = FusedTable(tables, dim, combiner=combiner, group="deep", sum_features=sum_features, name="table")
    rng = np.random.default_rng(seed)
    rows = {table.name: rng.standard_normal((table.rows, dim)).astype("f4") for table in tables}
    fused.variable.assign(np.concatenate([*rows.values(), np.zeros((1, dim), "f4")]))
    return fused, {name: values.astype("f8") for name, values in rows.items()}


def make_ids(rows=40, *, absent=0.35, tables=TABLES, dtype="i4", seed=1):
    """Packed ids with absent ones in any place; the first row has none at all, the second all of them."""
    rng = np.random.default_rng(seed)
    ids = np.full((rows, 13), 77, dtype)  # a column of no feature must not be read
    for table in tables:
        columns = slice(table.column, table.column + table.hotness)
        ids[:, columns] = rng.integers(0, table.rows, (rows, table.hotness))
        ids[:, columns][rng.random((rows, table.hotness)) < absent] = -1
        ids[0, columns] = -1
        ids[1, columns] = rng.integers(0, table.rows, table.hotness)
    return ids


def pooled(weights, ids, combiner, *, sum_features=False, tables=TABLES):
    """What a lookup means, written as loops over single ids."""
    features = []
    for table in tables:
        values = np.zeros((len(ids), weights[table.name].shape[1]))
        for row in range(len(ids)):
            present = [i for i in ids[row, table.column : table.column + table.hotness] if i >= 0]
            for i in present:
                values[row] += weights[table.name][i]
            if combiner == "mean" and present:
                values[row] /= len(present)
        features.append(values)
    return sum(features) if sum_features else np.concatenate(features, axis=1)


def dense(slices):
    """Slices as a float64 array; fails where a row occurs twice."""
    rows, values = slices.indices.numpy(), slices.values.numpy()
    assert len(np.unique(rows)) == len(rows) and values.dtype == np.float32
    total = np.zeros(slices.dense_shape.numpy())
    total[rows] = values
    return total


COMBINERS = pytest.mark.parametrize("combiner", ["sum", "mean"])
SUM_FEATURES = pytest.mark.parametrize("sum_features", [False, True])


@COMBINERS
@SUM_FEATURES
@pytest.mark.parametrize("dtype", ["i4", "i8"])
def test_lookup_equals_loops_over_ids(combiner, sum_features, dtype):
    fused, weights = make_table(combiner, sum_features=sum_features)
    ids = make_ids(dtype=dtype)
    found = fused(tf.constant(ids)).numpy()
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, pooled(weights, ids, combiner, sum_features=sum_features), rtol=0, atol=2e-6)
    assert not found[0].any()  # all absent


@COMBINERS
@pytest.mark.parametrize("place", [0, 1, 2])
def test_an_absent_id_counts_for_nothing_in_any_place(combiner, place):
    tables = (LogicalTable("topics", 5, 0, 3),)
    fused, weights = make_table(combiner, tables=tables)
    ids = np.array([[3, 1, 3]], "i4")
    ids[0, place] = -1
    others = [weights["topics"][i] for i in ids[0] if i >= 0]
    wanted = np.sum(others, axis=0) / (2 if combiner == "mean" else 1)
    np.testing.assert_allclose(fused(tf.constant(ids)).numpy()[0], wanted, rtol=0, atol=1e-6)


def test_one_feature_alone_and_no_rows():
    for hotness in (1, 3):
        tables = (LogicalTable("topics", 5, 0, hotness),)
        fused, _ = make_table("mean", tables=tables)
        ids = tf.zeros((0, hotness), tf.int32)
        assert fused(ids).shape == (0, DIM)
        slices = fused.row_gradients(ids, tf.zeros((0, DIM)))
        assert slices.values.shape == (0, DIM) and slices.dense_shape.numpy().tolist() == [6, DIM]


@COMBINERS
@SUM_FEATURES
def test_row_gradients_equal_differences_and_the_tape(kernels, combiner, sum_features):
    fused, weights = make_table(combiner, sum_features=sum_features)
    ids = make_ids()
    width = DIM if sum_features else DIM * len(TABLES)
    upstream = np.random.default_rng(2).standard_normal((len(ids), width)).astype("f4")
    gradient = dense(fused.row_gradients(tf.constant(ids), tf.constant(upstream)))

    # A lookup is linear in the table, so a difference of any size is the derivative.
    differences = []
    for table in TABLES:
        for row in range(table.rows):
            for column in range(DIM):
                moved = {name: np.zeros_like(values) for name, values in weights.items()}
                moved[table.name][row, column] = 1.0
                differences.append(np.sum(upstream * pooled(moved, ids, combiner, sum_features=sum_features)))
    differences = np.reshape(differences, (-1, DIM))
    np.testing.assert_allclose(gradient[:-1], differences, rtol=0, atol=1e-5)
    assert not gradient[-1].any()

    with tf.GradientTape() as tape:
        total = tf.reduce_sum(fused(tf.constant(ids)) * upstream)
    taped = tf.convert_to_tensor(tape.gradient(total, fused.variable)).numpy()
    np.testing.assert_allclose(gradient[:-1], taped[:-1], rtol=0, atol=1e-5)
    if kernels == "TensorFlow's":
        assert np.abs(taped[-1]).max() > 0.1  # which is why the gradient of absent ids has to be dropped


def test_equal_rows_are_added_up():
    values = np.array([[1.0, 2.0], [10.0, 20.0], [100.0, 200.0], [1000.0, 2000.0]], "f4")
    slices = sum_by_row(tf.constant([4, 0, 4, 5]), tf.constant(values), 5, tf.TensorShape([6, 2]))
    assert dense(slices).tolist() == [[10, 20], [0, 0], [0, 0], [0, 0], [101, 202], [0, 0]]


@COMBINERS
@SUM_FEATURES
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_a_gradient_that_is_not_finite_stays_out_of_the_padding_row(combiner, sum_features, bad):
    fused, _ = make_table(combiner, sum_features=sum_features)
    ids = make_ids()
    upstream = np.ones((len(ids), DIM if sum_features else DIM * len(TABLES)), "f4")
    upstream[0] = bad  # the row whose ids are all absent
    gradient = dense(fused.row_gradients(tf.constant(ids), tf.constant(upstream)))
    assert np.isfinite(gradient).all() and gradient[:-1].any() and not gradient[-1].any()

    upstream[1] = bad  # of present ids it must be seen
    assert not np.isfinite(dense(fused.row_gradients(tf.constant(ids), tf.constant(upstream)))[:-1]).all()


def whole_table(draw, name, rows, dim, seed, **part):
    """Initial rows as one array, and the first row of each block."""
    blocks = list(initial_rows(draw, name, rows, dim, seed, **part))
    return np.concatenate([values for _, values in blocks]), [first for first, _ in blocks]


DRAWS = pytest.mark.parametrize("draw", [glorot_normal, uniform_by_rows])


@DRAWS
def test_initial_rows_depend_on_seed_and_feature_alone(draw):
    def rows_of(name, tables, seed):
        fused = FusedTable(tables, 4, combiner="sum", group="deep", name="table")
        fused.initialize_rows(seed, draw)
        assert not fused.variable.numpy()[-1].any()
        start = fused.row_offsets[name]
        return fused.variable.numpy()[start : start + 7]

    page, other = LogicalTable("page", 7, 0, 1), LogicalTable("other", 7, 1, 3)
    alone = rows_of("page", (page,), 3)
    keras.utils.set_random_seed(99)
    assert rows_of("page", (other, page), 3).tobytes() == alone.tobytes()
    assert rows_of("page", (page, other), 3).tobytes() == alone.tobytes()
    assert np.abs(rows_of("other", (other, page), 3) - alone).max() > 0.1
    assert np.abs(rows_of("page", (page,), 4) - alone).max() > 0.1
    assert alone.tobytes() == whole_table(draw, "page", 7, 4, 3)[0].tobytes()


@DRAWS
def test_a_slice_of_a_table_starts_as_the_whole_does(draw, monkeypatch):
    monkeypatch.setattr(embedding, "_BLOCK_VALUES", 40)  # ten rows of four
    whole, firsts = whole_table(draw, "page", 37, 4, 3)
    assert whole.shape == (37, 4) and firsts == [0, 10, 20, 30]
    assert len(np.unique(whole)) == whole.size  # no block repeats another
    for start in range(0, 37, 3):
        for stop in range(start + 1, 38, 4):
            part, firsts = whole_table(draw, "page", 37, 4, 3, start=start, stop=stop)
            assert (part == whole[start:stop]).all()
            assert firsts == [start, *range(start // 10 * 10 + 10, stop, 10)]


@DRAWS
def test_a_large_table_is_drawn_in_blocks(draw):
    """Of the size that is in use."""
    rows, dim = 20_000, 128
    whole, firsts = whole_table(draw, "page", rows, dim, 3)
    assert firsts == [0, 8192, 16384]  # 2**20 values each
    assert len(np.unique(whole[::100, 0])) == len(whole[::100])
    assert abs(np.corrcoef(whole[:3000].ravel(), whole[8192:11192].ravel())[0, 1]) < 0.01
    part, _ = whole_table(draw, "page", rows, dim, 3, start=8000, stop=8400)
    assert (part == whole[8000:8400]).all()


def test_rectangles_start_as_the_whole_does(monkeypatch):
    monkeypatch.setattr(embedding, "_BLOCK_VALUES", 40)
    whole, _ = whole_table(uniform_by_rows, "page", 25, 4, 3)
    parts = (
        LogicalTable("page", 11, 0, 1, first_row=7, first_column=1, whole=(25, 4)),
        LogicalTable("page", 7, 0, 1, first_row=18, first_column=2, whole=(25, 4)),
    )
    for part in parts:
        other = LogicalTable("other", 5, 1, 1)
        fused = FusedTable((other, part), 2, combiner="sum", group="main", name="table")
        fused.initialize_rows(3, uniform_by_rows)
        columns = slice(part.first_column, part.first_column + 2)
        wanted = whole[part.first_row : part.first_row + part.rows, columns]
        assert (fused.variable.numpy()[5:-1] == wanted).all()
        assert not fused.variable.numpy()[-1].any()


def test_initial_rows_are_distributed_as_those_of_keras():
    rows, dim = 20000, 16
    ours = whole_table(glorot_normal, "page", rows, dim, 0)[0].ravel()
    keras_own = keras.initializers.GlorotNormal(seed=1)((rows, dim)).numpy().ravel()
    wanted = np.sqrt(2 / (rows + dim))
    # The standard error of a standard deviation of n values is below 1 / sqrt(2 n) of it: 0.13 % here.
    assert abs(ours.std() / wanted - 1) < 0.006
    assert abs(ours.mean()) < 0.01 * wanted
    levels = [0.001, 0.05, 0.25, 0.5, 0.75, 0.95, 0.999]
    np.testing.assert_allclose(np.quantile(ours, levels), np.quantile(keras_own, levels), atol=0.03 * wanted)
    np.testing.assert_allclose([ours.min(), ours.max()], [keras_own.min(), keras_own.max()], rtol=0.01)


def test_uniform_rows_are_within_their_limit():
    rows, dim = 2500, 64  # the limit is 1 / 50
    ours = whole_table(uniform_by_rows, "page", rows, dim, 0)[0].ravel()
    assert ours.min() >= -0.02 and ours.max() <= 0.02
    levels = np.linspace(0, 1, 21)
    np.testing.assert_allclose(np.quantile(ours, levels), -0.02 + 0.04 * levels, atol=0.0002)


def test_the_distribution_is_that_of_the_whole_table(monkeypatch):
    """A slice of a hundred rows has the variance of the table of ten thousand that it belongs to."""
    monkeypatch.setattr(embedding, "_BLOCK_VALUES", 1000)
    part, _ = whole_table(uniform_by_rows, "page", 10_000, 8, 0, start=500, stop=600)
    assert 0.0095 < np.abs(part).max() <= 0.01
    part, _ = whole_table(glorot_normal, "page", 10_000, 8, 0, start=500, stop=600)
    assert abs(part.std() / np.sqrt(2 / 10_008) - 1) < 0.1


@COMBINERS
@SUM_FEATURES
def test_parts_of_a_table_sum_to_the_whole(combiner, sum_features):
    """Each owner of some rows pools those alone; the sum over owners is the lookup, absent ids and means included."""
    tables = (LogicalTable("topics", 9, 5, 3), LogicalTable("ad", 9, 8, 1))
    fused, weights = make_table(combiner, sum_features=sum_features, tables=tables)
    ids = make_ids(tables=tables)
    upstream = np.random.default_rng(2).standard_normal(fused(tf.constant(ids)).shape).astype("f4")
    gradient = dense(fused.row_gradients(tf.constant(ids), tf.constant(upstream)))

    total = 0
    for first, last in ((0, 4), (4, 5), (5, 9)):
        parts = [
            LogicalTable(t.name, last - first, t.column, t.hotness, first_row=first, whole=(9, DIM)) for t in tables
        ]
        owner = FusedTable(parts, DIM, combiner=combiner, group="deep", sum_features=sum_features, name="table")
        rows = [weights[t.name][first:last] for t in tables]
        owner.variable.assign(np.concatenate([*rows, np.zeros((1, DIM))]))
        total = total + owner(tf.constant(ids)).numpy()
        # Its gradients are the rows of the whole's.
        own = dense(owner.row_gradients(tf.constant(ids), tf.constant(upstream)))
        wanted = np.concatenate([gradient[first:last], gradient[9 + first : 9 + last]])
        np.testing.assert_allclose(own[:-1], wanted, rtol=0, atol=1e-6)
        assert not own[-1].any()
    wanted = pooled(weights, ids, combiner, sum_features=sum_features, tables=tables)
    np.testing.assert_allclose(total, wanted, rtol=0, atol=2e-6)


def test_an_owner_of_other_rows_finds_nothing():
    part = LogicalTable("topics", 2, 0, 3, first_row=4, whole=(9, DIM))
    fused = FusedTable((part,), DIM, combiner="mean", group="deep", name="table")
    fused.variable.assign([[1.0, 2.0], [10.0, 20.0], [0.0, 0.0]])
    found = fused(tf.constant([[3, 6, -1], [4, 5, 8], [4, -1, -1]])).numpy()
    np.testing.assert_allclose(found, [[0, 0], [11 / 3, 22 / 3], [1, 2]], rtol=1e-6)


def test_a_table_is_float32_whatever_the_policy(half_precision):
    fused, _ = make_table()
    assert fused.variable.dtype == tf.float32
    assert fused(tf.constant(make_ids())).dtype == tf.float32


@pytest.mark.parametrize(("least", "asked"), [(1, 1), (1 << 20, 0)])
def test_huge_pages_are_asked_for_under_large_tables(kernels, monkeypatch, least, asked):
    monkeypatch.setattr(embedding, "_HUGE_PAGES_FROM", least)
    tables = []
    ops = custom_ops.embedding_ops()
    if ops is not None:
        monkeypatch.setattr(ops, "recsys_use_huge_pages", lambda table: tables.append(table))
    make_table()
    assert len(tables) == (asked if kernels == "our kernels" else 0)


def test_ids_per_sample():
    assert make_table()[0].ids_per_sample() == 1 + 1 + 3 + 3 + 1 + 2


# Updates straight from the gradients of pools, for which TensorFlow has no kernel.

only_ours = pytest.mark.parametrize("kernels", ["our kernels"], indirect=True)


def test_only_our_kernels_subtract_pools(kernels):
    assert make_table()[0].subtracts_pools == (kernels == "our kernels")


def after_descent(fused, ids, upstream, rate):
    """The fused table's rows w - rate * gradient in float64, id by id."""
    expected = fused.variable.numpy().astype("f8")
    for row in range(len(ids)):
        column = 0
        for table in fused.tables:
            own = upstream[row] if fused.sum_features else upstream[row, column : column + fused.dim]
            column += fused.dim
            present = [i for i in ids[row, table.column : table.column + table.hotness] if i >= 0]
            share = 1 / len(present) if fused.combiner == "mean" and present else 1
            for i in present:
                if table.first_row <= i < table.first_row + table.rows:
                    expected[fused.row_offsets[table.name] + i - table.first_row] -= rate * share * own
    return expected


PARTS = (
    LogicalTable("page", 4, 12, 1, first_row=2, whole=(7, DIM)),
    LogicalTable("topics", 2, 5, 3, first_row=1, whole=(5, DIM)),
)


@only_ours
@pytest.mark.parametrize("tables", [TABLES, PARTS], ids=["whole", "parts"])
@pytest.mark.parametrize("dtype", ["i4", "i8"])
@pytest.mark.parametrize("combiner", ["sum", "mean"])
@pytest.mark.parametrize("sum_features", [False, True])
def test_rows_descend_by_the_gradients_of_their_pools(tables, dtype, combiner, sum_features):
    fused, _ = make_table(combiner, sum_features=sum_features, tables=tables)
    ids = make_ids(dtype=dtype)
    width = DIM if sum_features else DIM * len(tables)
    upstream = np.random.default_rng(3).standard_normal((len(ids), width)).astype("f4")
    expected = after_descent(fused, ids, upstream, 0.25)
    read = fused.variable.read_value()
    before = read.numpy().copy()
    fused.subtract_pools(tf.constant(ids), tf.constant(upstream), tf.constant(0.25))
    np.testing.assert_allclose(fused.variable, expected, atol=1e-5)
    np.testing.assert_array_equal(read, before)  # whoever has read the table keeps what was there
    assert not fused.variable.numpy()[-1].any()  # the row of absent ids


@only_ours
def test_descents_of_many_rows_have_the_same_bits_each_time():
    """More samples and rows than parts of either, so that threads share them out differently."""
    tables = (LogicalTable("a", 5000, 0, 7), LogicalTable("b", 40, 7, 6))
    rng = np.random.default_rng(0)
    ids = tf.constant(np.concatenate([rng.integers(-1, 5000, (301, 7)), rng.integers(-1, 40, (301, 6))], axis=1))
    upstream = tf.constant(rng.standard_normal((301, 2 * 16)).astype("f4"))
    found = set()
    for _ in range(5):
        fused, _ = make_table(tables=tables, dim=16)
        expected = after_descent(fused, ids.numpy(), upstream.numpy(), 0.5)
        fused.subtract_pools(ids, upstream, tf.constant(0.5))
        np.testing.assert_allclose(fused.variable, expected, atol=1e-4)
        found.add(fused.variable.numpy().tobytes())
    assert len(found) == 1


@only_ours
def test_an_empty_batch_changes_no_row():
    fused, _ = make_table()
    before = fused.variable.numpy()
    fused.subtract_pools(tf.constant(make_ids()[:0]), tf.zeros((0, DIM * len(TABLES))), tf.constant(1.0))
    np.testing.assert_array_equal(fused.variable, before)


@only_ours
def test_a_gradient_of_another_shape_is_refused():
    fused, _ = make_table()
    with pytest.raises(tf.errors.InvalidArgumentError, match="for 40 rows of width 12"):
        fused.subtract_pools(tf.constant(make_ids()), tf.zeros((40, 3)), tf.constant(1.0))


@only_ours
def test_ids_without_the_columns_of_a_feature_are_refused():
    fused, _ = make_table()
    few, upstream = tf.constant(make_ids()[:, :-1]), tf.zeros((40, DIM * len(TABLES)))
    for use in (
        lambda: fused(few),
        lambda: fused.row_gradients(few, upstream),
        lambda: fused.subtract_pools(few, upstream, tf.constant(1.0)),
    ):
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"at least 13 columns, got \[40,12\]"):
            use()
