"""Tables in numpy arrays and a state with the awkward cases, for the tests of checkpoints."""

import numpy as np

from trainer.checkpoint import State, restore

DIGEST = "0123456789abcdef"


class ArrayTable:
    """A table that lives in numpy arrays."""

    def __init__(self, name, **arrays):
        self.name = name
        self.values = arrays
        self.rows = len(next(iter(arrays.values())))
        self.arrays = {key: (values.shape[1:], values.dtype) for key, values in arrays.items()}
        self.written = []

    def read(self, array, start, stop):
        return self.values[array][start:stop]

    def write(self, array, start, stop, values):
        assert values.shape == (stop - start, *self.arrays[array][0])
        self.values[array][start:stop] = values
        self.written.append((array, start, stop))

    def empty(self, *names):
        return ArrayTable(self.name, **{key: np.zeros_like(self.values[key]) for key in names or self.values})

    def same(self, other):
        return all(self.values[key].tobytes() == values.tobytes() for key, values in other.values.items())


def make_state(step=1, seed=0, **scalars):
    rng = np.random.default_rng(seed)
    weights = rng.standard_normal((7, 3)).astype("f4")
    weights[2] = [np.nan, -0.0, np.inf]
    tables = [
        ArrayTable("ad/id ü", weights=weights, rms=rng.random((7, 3), "f4"), last_step=rng.integers(0, 2**60, 7)),
        ArrayTable("empty", weights=np.zeros((0, 4), "f4"), seen=np.zeros(0, "u1")),
        ArrayTable("narrow", weights=np.zeros((5, 0), "f2"), seen=rng.random(5) > 0.5),
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
