"""Collectives of ranks that are not there, and faults; tests/ranks has real ones."""

import numpy as np
import pytest
import tensorflow as tf
from micro_cases import outcome_of, work_of

from benchmarks.microbenchmarks import catalogue, collectives
from benchmarks.microbenchmarks.collectives import ALLGATHER, ALLREDUCE, ALLTOALL, MODE
from data.errors import InputError
from trainer.distributed import SingleProcess

NAMES = (ALLREDUCE, ALLTOALL, ALLGATHER)
RANKS = 3


def given(source, target, size, dtype=np.float32):
    return collectives.handed_over(source, target, size, dtype)


class Rank(SingleProcess):
    """Rank 1 of three that hand over what they must."""

    def __init__(self):
        super().__init__(rank=1, size=RANKS)

    def allreduce(self, tensors, *, name):
        dtype = tensors[0].dtype.as_numpy_dtype
        return [tf.add_n([tf.constant(given(r, 0, t.shape[0], dtype)) for r in range(RANKS)]) for t in tensors]

    def allgather(self, tensor, *, name):
        return tf.concat([given(r, 0, tensor.shape[0], tensor.dtype.as_numpy_dtype) for r in range(RANKS)], axis=0)

    def alltoall(self, parts, *, name):
        return [tf.constant(given(r, 1, p.shape[0], p.dtype.as_numpy_dtype)) for r, p in enumerate(parts)]


def of(name, comm=None, **stated):
    return outcome_of(catalogue.find(name), MODE, comm or Rank(), **{"shapes": "1200;60", **stated})


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize(
    ("name", "algorithm", "bus"), [(ALLREDUCE, 1260, 1680), (ALLTOALL, 1260, 840), (ALLGATHER, 3780, 2520)]
)
def test_bandwidths(name, algorithm, bus, precision):
    """With three ranks 2 (n - 1) / n is 4/3 and (n - 1) / n is 2/3; an allgather brings 3 x 1260 bytes."""
    found = of(name, precision=precision)
    assert found.sound, found.reason
    assert found.score == pytest.approx(algorithm / 1e-3 / 1e9) and found.units == "GB/s"
    assert found.figures["bytes_per_step"] == algorithm
    assert found.figures["algorithm_gb_per_s"] == pytest.approx(found.score)
    assert found.figures["bus_gb_per_s"] == pytest.approx(bus / 1e-3 / 1e9)
    assert found.batch == 1260 and found.safeguard.count(f"{name} of") == 4


def test_two_ranks_by_the_formulas():
    assert collectives.bandwidth_bytes(ALLREDUCE, 2200, 2) == (2200, 2200)
    assert collectives.bandwidth_bytes(ALLTOALL, 2200, 2) == (2200, 1100)
    assert collectives.bandwidth_bytes(ALLGATHER, 2200, 2) == (4400, 2200)


@pytest.mark.parametrize("name", NAMES)
def test_an_identity_collective_has_no_score(name):
    found = of(name, SingleProcess(rank=1, size=RANKS))
    assert found.score is None and found.reason.startswith(f"before, {name} of") and not found.step_ms


class OwnOverAndOver(Rank):
    """Right lengths, and nothing came from anybody."""

    def allreduce(self, tensors, *, name):
        return [tensor * RANKS for tensor in tensors]

    def allgather(self, tensor, *, name):
        return tf.tile(tensor, [RANKS])

    def alltoall(self, parts, *, name):
        return [parts[self.rank]] * RANKS


class WrongWay(Rank):
    """Everything arrives, in another order; a sum has no order, so it lacks a rank."""

    def allreduce(self, tensors, *, name):
        return [one - given(0, 0, one.shape[0]) for one in super().allreduce(tensors, name=name)]

    def allgather(self, tensor, *, name):
        return tf.roll(super().allgather(tensor, name=name), tensor.shape[0], axis=0)

    def alltoall(self, parts, *, name):
        return list(reversed(super().alltoall(parts, name=name)))


class OneValue(Rank):
    """The last value is wrong."""

    def _spoil(self, values):
        return tf.concat([values[:-1], values[-1:] + 1], axis=0)

    def allreduce(self, tensors, *, name):
        return [self._spoil(one) for one in super().allreduce(tensors, name=name)]

    def allgather(self, tensor, *, name):
        return self._spoil(super().allgather(tensor, name=name))

    def alltoall(self, parts, *, name):
        return [self._spoil(one) for one in super().alltoall(parts, name=name)]


@pytest.mark.parametrize("comm", [OwnOverAndOver, WrongWay, OneValue])
@pytest.mark.parametrize("name", NAMES)
def test_a_wrong_collective_has_no_score(name, comm):
    found = of(name, comm())
    assert found.score is None and "WRONG" in found.reason and not found.step_ms


@pytest.mark.parametrize("name", NAMES)
def test_of_large_results_some_values_are_checked(monkeypatch, name):
    monkeypatch.setattr(collectives, "_CHECKED_VALUES", 30)
    assert "all of 30 values as expected" in of(name, shapes="1200").safeguard
    assert of(name, OneValue(), shapes="1200").score is None  # the last one is among them


def test_what_is_handed_over_differs_by_pair_and_adds_up_exactly():
    everyone = [tuple(given(source, target, 97)) for source in range(0, 128, 3) for target in range(0, 128, 3)]
    assert len(set(everyone)) == 43 * 43
    ranks = collectives._MOST_RANKS
    total = sum(given(source, 0, 97, np.int64) for source in range(ranks))
    assert total.max() <= 2048 and total.max() == sum(given(s, 0, 97, np.float16) for s in range(ranks)).max()
    assert len(given(1, 2, 500)) == 500 and given(1, 2, 500)[97] == given(1, 2, 500)[0]


@pytest.mark.parametrize("size", [1, 129])
def test_numbers_of_ranks_that_cannot_be(size):
    with pytest.raises(InputError, match=f"allreduce: {size} rank.*: give 2 to 128, as by horovodrun"):
        work_of(catalogue.find(ALLREDUCE), MODE, SingleProcess(size=size))


def test_fewer_bytes_than_a_value_for_each():
    with pytest.raises(InputError, match="alltoall: 11 bytes hold no value for each of 3 ranks; give at least 12"):
        of(ALLTOALL, shapes="11")
