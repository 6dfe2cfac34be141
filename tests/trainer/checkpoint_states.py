"""Tables in numpy arrays and a state with the awkward cases, for the tests of checkpoints."""

import pickle
import threading

import numpy as np

from trainer.checkpoint import State, restore, save

DIGEST = "0123456789abcdef"
ROWS, COLUMNS = 11, 6  # of whole_table

SPLITS = {
    "whole": [(0, 11, 0, 6)],
    "2 row slices": [(0, 5, 0, 6), (5, 11, 0, 6)],
    "3 row slices": [(0, 1, 0, 6), (1, 8, 0, 6), (8, 11, 0, 6)],
    "columns": [(0, 11, 0, 1), (0, 11, 1, 4), (0, 11, 4, 6)],
    "grid": [(0, 7, 0, 3), (0, 7, 3, 6), (7, 11, 0, 3), (7, 11, 3, 6)],
    "uneven": [(0, 4, 0, 6), (4, 11, 0, 2), (4, 9, 2, 6), (9, 11, 2, 6)],
}


class ArrayTable:
    """A table, or the rectangle of one, that lives in numpy arrays; these hold the rectangle and nothing else."""

    def __init__(self, name, **arrays):
        self.name = name
        self.values = arrays
        self.rows = self.stop_row = len(next(iter(arrays.values())))
        self.arrays = {key: (values.shape[1:], values.dtype) for key, values in arrays.items()}
        self.stop_column = max(shape for shape, _ in self.arrays.values())[0]
        self.first_row = self.first_column = 0
        self.written = []

    def read(self, array, start, stop):
        assert self.first_row <= start <= stop <= self.stop_row
        return self.values[array][start - self.first_row : stop - self.first_row]

    def write(self, array, start, stop, values, first_column):
        held = self.values[array][start - self.first_row : stop - self.first_row]
        assert self.first_row <= start <= stop <= self.stop_row and values.dtype == held.dtype
        if held.ndim == 2:
            assert self.first_column <= first_column and first_column + values.shape[1] <= self.stop_column
            held = held[:, first_column - self.first_column :][:, : values.shape[1]]
        assert values.shape == held.shape
        held[:] = values
        self.written.append((array, start, stop, first_column))

    def empty(self, *names):
        values = {key: np.zeros_like(self.values[key]) for key in names or self.values}
        table = ArrayTable(self.name, **values)
        table.__dict__.update({key: value for key, value in vars(self).items() if key.startswith(("first", "stop"))})
        table.rows, table.arrays = self.rows, {key: self.arrays[key] for key in values}
        return table

    def part(self, first_row, stop_row, first_column, stop_column):
        """A copy of a rectangle of this whole table."""
        values = {
            key: array[first_row:stop_row].copy()
            if array.ndim == 1
            else array[first_row:stop_row, first_column:stop_column].copy()
            for key, array in self.values.items()
        }
        table = ArrayTable(self.name, **values)
        table.rows, table.arrays = self.rows, self.arrays
        table.first_row, table.stop_row = first_row, stop_row
        table.first_column, table.stop_column = first_column, stop_column
        return table

    def same(self, other):
        return all(self.values[key].tobytes() == values.tobytes() for key, values in other.values.items())


class LostRank(Exception):
    """Another rank has gone and will not come to the collective."""


class ThreadRank:
    """One of the ranks that run_ranks starts; what trainer.checkpoint and trainer.resume need of a communicator."""

    def __init__(self, rank, size, condition, rounds, gone):
        self.rank, self.size = rank, size
        self._condition, self._rounds, self._gone = condition, rounds, gone
        self._round = 0

    def allgather_object(self, value):
        self._round += 1
        with self._condition:
            values = self._rounds.setdefault(self._round, {})
            values[self.rank] = pickle.dumps(value)
            self._condition.notify_all()
            self._condition.wait_for(lambda: len(values) == self.size or self._gone, timeout=60)
            if len(values) < self.size:
                raise LostRank
        return [pickle.loads(values[rank]) for rank in range(self.size)]

    def leave(self):
        with self._condition:
            self._gone.add(self.rank)
            self._condition.notify_all()


def run_ranks(size, action):
    """Runs action(comm) on `size` ranks, which are threads; each rank's result, or what it raised."""
    condition, rounds, gone, outcomes = threading.Condition(), {}, set(), [None] * size

    def run(rank):
        comm = ThreadRank(rank, size, condition, rounds, gone)
        try:
            outcomes[rank] = action(comm)
        except BaseException as error:
            outcomes[rank] = error
        finally:
            comm.leave()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes


def make_state(step=1, seed=0, **scalars):
    rng = np.random.default_rng(seed)
    weights = rng.standard_normal((7, 3)).astype("f4")
    weights[2] = [np.nan, -0.0, np.inf]
    tables = [
        ArrayTable("ad/id ü", weights=weights, rms=rng.random((7, 3), "f4"), last_step=rng.integers(0, 2**60, 7)),
        ArrayTable("empty", weights=np.zeros((0, 4), "f4"), seen=np.zeros(0, "u1")),
        ArrayTable("narrow", weights=rng.random((5, 1)).astype("f2"), seen=rng.random(5) > 0.5),
    ]
    dense = {"top/kernel": rng.standard_normal((4, 2)).astype("f2"), "optimizer/step": np.array(step, "i8")}
    return State(step, tables, dense, {"loss_scale": 2.0**15, "position": [3, 2**53 + 1], **scalars}, DIGEST)


def specs(dense):
    return {name: (values.shape, values.dtype) for name, values in dense.items()}


def holds(checkpoint_, state):
    """Whether the checkpoint, restored into empty tables, gives `state` bit for bit."""
    tables = [table.empty() for table in state.tables]
    dense, scalars, step = restore(
        checkpoint_, tables=tables, dense=specs(state.dense), spec_digest=DIGEST, row_block=2
    )
    return (
        step == state.step
        and scalars == state.scalars
        and all(a.same(b) for a, b in zip(tables, state.tables, strict=True))
        and {k: (v.dtype, v.shape, v.tobytes()) for k, v in dense.items()}
        == {k: (v.dtype, v.shape, v.tobytes()) for k, v in state.dense.items()}
    )


def names(directory):
    return sorted(path.name for path in directory.iterdir() if path.name != ".lock")


class Generated:
    """A rectangle of a table of any size, whose values are a function of row and column; notes what passes through."""

    def __init__(self, rows, columns, *bounds):
        self.name, self.rows = "big", rows
        self.arrays = {"weights": ((columns,), np.dtype("f4")), "last_step": ((), np.dtype("i4"))}
        self.first_row, self.stop_row, self.first_column, self.stop_column = bounds
        self.largest, self.errors, self.values_written = 0, 0, 0

    def read(self, array, start, stop):
        values = self.expected(array, start, stop, self.first_column, self.stop_column)
        self.largest = max(self.largest, values.nbytes)
        return values

    def write(self, array, start, stop, values, first_column):
        last = first_column + (values.shape[1] if values.ndim == 2 else 0)
        self.errors += not np.array_equal(values, self.expected(array, start, stop, first_column, last))
        self.values_written += values.size
        # A view holds all of what it is a view of.
        self.largest = max(self.largest, (values if values.base is None else values.base).nbytes)

    @staticmethod
    def expected(array, start, stop, first_column, stop_column):
        rows = np.arange(start, stop)
        if array == "last_step":
            return rows.astype("i4")
        return (rows[:, None] * 7 + np.arange(first_column, stop_column) * 3).astype("f4")


def whole_table(name="deep/ad id ü", seed=0):
    rng = np.random.default_rng(seed)
    weights = rng.standard_normal((ROWS, COLUMNS)).astype("f4")
    weights[3, :3] = [np.nan, -0.0, np.inf]
    last_step = rng.integers(0, 2**31, ROWS).astype("i4")
    return ArrayTable(name, weights=weights, rms=rng.random((ROWS, COLUMNS), "f4"), last_step=last_step)


def dense_of(seed=0):
    return {"top/kernel": np.random.default_rng(seed).standard_normal((4, 2)).astype("f4")}


def states(tables, step=1, seed=0):
    """The states of the ranks that hold these lists of tables."""
    return [
        State(step, held, dense_of(seed) if rank == 0 else {}, {"world_size": len(tables)}, DIGEST)
        for rank, held in enumerate(tables)
    ]


def save_ranks(directory, per_rank, run_id="a", **options):
    """What save returned or raised on each rank, whose own `run_id`s differ."""
    return run_ranks(
        len(per_rank),
        lambda comm: save(directory, per_rank[comm.rank], run_id=run_id + "x" * comm.rank, ranks=comm, **options),
    )


def restore_ranks(checkpoint, tables, **options):
    return run_ranks(
        len(tables),
        lambda comm: restore(
            checkpoint, tables=tables[comm.rank], dense=specs(dense_of()), spec_digest=DIGEST, ranks=comm, **options
        ),
    )
