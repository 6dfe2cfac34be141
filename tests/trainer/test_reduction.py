import numpy as np
import pytest
import tensorflow as tf

from trainer.distributed import SingleProcess
from trainer.reduction import Reduction, _touched_rows
from trainer.wire_costs import choose_method

ROWS, DIM = 9, 2  # the last row is that of absent ids
PADDING = ROWS - 1


class _OtherRank(SingleProcess):
    """Rank 1 of two: keeps what it hands to the collectives."""

    def __init__(self):
        super().__init__(rank=1, size=2)
        self.sent = {}

    def allreduce(self, tensors, *, name):
        self.sent[name] = list(tensors)
        return list(tensors)

    def allgather(self, tensor, *, name):
        self.sent[name] = tensor
        return tensor


class _ThisRank(_OtherRank):
    """Rank 0 of two: really exchanges, with what the other rank has left."""

    def __init__(self, other):
        super().__init__()
        self.rank = 0
        self._other = other.sent

    def allreduce(self, tensors, *, name):
        super().allreduce(tensors, name=name)
        return [a + b for a, b in zip(tensors, self._other[name], strict=True)]

    def allgather(self, tensor, *, name):
        super().allgather(tensor, name=name)
        return tf.concat([tensor, self._other[name]], axis=0)


def slices_of(rows, values, dtype=tf.int32):
    values = np.reshape(np.asarray(values, "f4"), (len(rows), DIM))
    return tf.IndexedSlices(tf.constant(values), tf.constant(rows, dtype), tf.constant([ROWS, DIM], dtype))


def dense(slices):
    rows = slices.indices.numpy()
    assert len(set(rows.tolist())) == len(rows)
    total = np.zeros((ROWS, DIM), "f4")
    total[rows] = slices.values.numpy()
    return total


def exchange(methods, gradients, *, half=False, half_scale=1.0):
    """Reduces rank 0's gradients with rank 1's; what comes out, and what rank 0 sent."""
    other = _OtherRank()
    Reduction(other, methods, half, half_scale)(*gradients[1])
    comm = _ThisRank(other)
    return Reduction(comm, methods, half, half_scale)(*gradients[0]), comm.sent


def gradients_of_two_ranks(dtype=tf.int32):
    """A dense gradient, two tables', and signals, of each rank; some rows in common."""
    return [
        (
            [tf.constant([1.0, 2.0])],
            [
                slices_of([4, 0, PADDING], [1, 2, 3, 4, 0, 0], dtype),
                slices_of([2, 7], [0.5, 0.25, 1, 1], dtype),
            ],
            tf.constant([0.1, 1.0]),
        ),
        (
            [tf.constant([10.0, 20.0])],
            [slices_of([3, 4], [30, 40, 10, 20], dtype), slices_of([PADDING, 7], [0, 0, 2, 4], dtype)],
            tf.constant([0.2, 0.0]),
        ),
    ]


WANTED = np.zeros((2, ROWS, DIM))
WANTED[0, [4, 0, 3]] = [[11, 22], [3, 4], [30, 40]]
WANTED[1, [2, 7]] = [[0.5, 0.25], [3, 5]]


@pytest.mark.parametrize(
    ("ids_per_rank", "table_rows", "dim", "world_size", "value_bytes", "method"),
    [
        # 2 ranks, dim 4: a gathered id brings 1 x (4 x 4 + 4) = 20 bytes, the table is 2 x 1/2 x 16 = 16 bytes a row.
        (800, 1000, 4, 2, 4, "gather"),  # 16000 against 16000
        (801, 1000, 4, 2, 4, "allreduce"),  # 16020
        # 8 ranks: 7 x 20 = 140 bytes an id, 2 x 7/8 x 16 = 28 bytes a row.
        (200, 1000, 4, 8, 4, "gather"),  # 28000 against 28000
        (201, 1000, 4, 8, 4, "allreduce"),
        # In half precision ids keep their 4 bytes: 1 x (4 x 2 + 4) = 12 against 8.
        (666, 1000, 4, 2, 2, "gather"),  # 7992 against 8000
        (667, 1000, 4, 2, 2, "allreduce"),  # 8004
        # The wide table: 1 x (4 + 4) = 8 bytes an id against 4 bytes a row.
        (500, 1000, 1, 2, 4, "gather"),
        (501, 1000, 1, 2, 4, "allreduce"),
        (10**9, 3, 4, 2, 4, "allreduce"),
        (1, 10**6, 128, 64, 4, "gather"),
        (10**6, 1, 128, 1, 4, "gather"),  # one rank: nothing either way
    ],
)
def test_the_method_that_moves_fewer_bytes(ids_per_rank, table_rows, dim, world_size, value_bytes, method):
    assert method == choose_method(
        ids_per_rank=ids_per_rank, table_rows=table_rows, dim=dim, world_size=world_size, value_bytes=value_bytes
    )


@pytest.mark.parametrize("dtype", [tf.int32, tf.int64])
@pytest.mark.parametrize(
    "methods", [("gather", "gather"), ("allreduce", "allreduce"), ("gather", "allreduce"), ("allreduce", "gather")]
)
def test_sums_over_two_ranks(methods, dtype):
    (sums, tables, extras), _ = exchange(methods, gradients_of_two_ranks(dtype))
    assert [total.numpy().tolist() for total in sums] == [[11, 22]]
    np.testing.assert_allclose(extras, [0.3, 1.0], rtol=1e-6)
    for table, wanted in zip(tables, WANTED, strict=True):
        np.testing.assert_array_equal(dense(table), wanted)
        assert table.indices.dtype == dtype and table.values.dtype == tf.float32


def test_only_what_the_methods_say_is_sent():
    _, sent = exchange(("gather", "allreduce"), gradients_of_two_ranks())
    assert [t.shape.as_list() for t in sent.pop("gradients")] == [[2], [ROWS, DIM]]
    assert [t.shape.as_list() for t in sent.pop("extras")] == [[2]]
    assert {name: tensor.shape.as_list() for name, tensor in sent.items()} == {
        "table_0_values": [3, DIM],
        "table_0_rows": [3],
    }


@pytest.mark.parametrize("half", [False, True])
def test_precision_on_the_wire(half):
    gradients = gradients_of_two_ranks()
    fine = 1 + 2.0**-13  # no float16
    gradients[0][0][0] = tf.constant([fine, 2.0])
    gradients[0][1][0] = slices_of([4], [fine, 1])
    gradients[0] = (*gradients[0][:2], tf.constant([fine, 1.0]))
    (sums, tables, extras), sent = exchange(("gather", "allreduce"), gradients, half=half)
    wire = tf.float16 if half else tf.float32
    assert {t.dtype for t in (*sent["gradients"], sent["table_0_values"])} == {wire}
    assert sent["table_0_rows"].dtype == tf.int32 and sent["extras"][0].dtype == tf.float32
    assert {t.dtype for t in (*sums, *(s.values for s in tables), extras)} == {tf.float32}
    kept = 1.0 if half else fine
    np.testing.assert_array_equal(dense(tables[0])[4], np.array([10 + kept, 21], "f4"))
    np.testing.assert_array_equal(dense(tables[1]), WANTED[1])
    # Signals and the loss never lose precision.
    assert extras.numpy()[0] == np.float32(fine) + np.float32(0.2)


def test_small_gradients_survive_half_precision_scaled():
    tiny = 2.0**-26  # below float16's smallest number, as the rows' gradients of a mean over 131072 are
    gradients = gradients_of_two_ranks()
    gradients[0][1][0] = slices_of([6], [tiny, 0])
    gradients[0][1][1] = slices_of([6], [tiny, 0])
    (_, lost, _), _ = exchange(("gather", "allreduce"), gradients, half=True)
    (_, kept, _), _ = exchange(("gather", "allreduce"), gradients, half=True, half_scale=1024.0)
    assert [dense(table)[6, 0] for table in lost] == [0.0, 0.0]
    assert [dense(table)[6, 0] for table in kept] == [tiny, tiny]


@pytest.mark.parametrize("method", ["gather", "allreduce"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_gradient_that_is_not_finite_on_the_other_rank_is_seen(method, bad):
    gradients = gradients_of_two_ranks()
    gradients[1][1][0] = slices_of([6], [bad, 0])
    (_, tables, _), _ = exchange((method, method), gradients)
    found = dense(tables[0])
    assert not np.isfinite(found[6, 0]) and np.isfinite(np.delete(found, 6, axis=0)).all()


def test_touched_rows():
    total = np.zeros((ROWS, DIM), "f4")
    total[1] = [0, -1e-30]
    total[2] = [np.nan, 0]
    total[5] = [0, np.inf]
    total[6] = [-0.0, 0.0]
    found = _touched_rows(tf.constant(total), slices_of([0], [0, 0], tf.int64))
    assert found.indices.dtype == tf.int64 and found.indices.numpy().tolist() == [1, 2, 5]
    np.testing.assert_array_equal(found.values.numpy(), total[[1, 2, 5]])
    nothing = _touched_rows(tf.zeros((ROWS, DIM)), slices_of([0], [0, 0]))
    assert nothing.indices.shape == (0,) and nothing.values.shape == (0, DIM)


def test_one_rank_keeps_its_gradients():
    class NoCollectives(SingleProcess):
        def allreduce(self, tensors, *, name):
            raise AssertionError("a collective of one rank")

        allgather = allreduce

    gradients = gradients_of_two_ranks()[0]
    sums, tables, extras = Reduction(NoCollectives(), ("gather", "allreduce"), half=True)(*gradients)
    assert all(
        a is b for a, b in zip((*sums, *tables, extras), (*gradients[0], *gradients[1], gradients[2]), strict=True)
    )
