"""Collectives between steps, agreement on errors, and CPUs, on real ranks."""

import itertools
import os

import numpy as np
import pytest

JOBS = ("two_ranks", "three_ranks")


@pytest.fixture(params=JOBS)
def job(request):
    return request.getfixturevalue(request.param)


def test_sums(job):
    for found in job.results("host_collectives"):
        size = found["size"]
        ranks = range(size)
        assert found["int64"].dtype == np.int64
        assert found["int64"].tolist() == [sum(2**53 + 1 + rank for rank in ranks), -sum(ranks)]
        assert found["float64"].dtype == np.float64
        assert found["float64"].tolist() == [size + sum(ranks) * 2.0**-40, pytest.approx(size * np.pi, rel=1e-15)]
        assert found["empty_sum"].shape == (0,)


def test_objects_come_by_rank(job):
    for found in job.results("host_collectives"):
        ranks = range(found["size"])
        assert found["objects"] == [{"rank": r, "list": list(range(r)), "text": "ü" * r} for r in ranks]
        assert found["nones"] == [None] * len(ranks)


def test_parts_go_to_their_ranks(job):
    for rank, found in enumerate(job.results("host_collectives")):
        ranks = range(found["size"])
        assert [part.tolist() for part in found["alltoall"]] == [[source * 10 + rank] * rank for source in ranks]
        assert all(part.dtype == np.int64 for part in found["alltoall"])
        one_sender = [part.tolist() for part in found["alltoall_one_sender"]]
        assert one_sender == [[0.0, 1.0, 2.0] if source == 1 else [] for source in ranks]
        assert [part.shape for part in found["alltoall_nothing"]] == [(0,)] * len(ranks)


def test_broadcasts_keep_bits_type_and_shape(job):
    for found in job.results("host_collectives"):
        assert found["broadcast"].dtype == np.float64
        assert found["broadcast"].tolist() == [[1.5, 2**-1074]]
        assert found["broadcast_ids"].dtype == np.int64
        assert found["broadcast_ids"].tolist() == [2**63 - 1, -1]
        assert (found["broadcast_empty"].dtype, found["broadcast_empty"].shape) == (np.float32, (0,))
        assert found["broadcast_bool"].tolist() == [True, False]


def test_bad_input_on_one_rank_is_raised_on_all(job):
    found = job.results("agreement")
    for rank, said in enumerate(found):
        assert said["on none"] == f"returned {rank}"
        assert said["on 1"] == ("bad file 1" if rank == 1 else "stopped because of rank 1: bad file 1")
        assert said["on all"] == f"bad file {rank}"
        assert said["again on 0"] == ("bad file 0" if rank == 0 else "stopped because of rank 0: bad file 0")


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one CPU: nothing to share out")
def test_each_rank_runs_on_its_own_cpus(two_ranks):
    ranks = two_ranks.results("cpus")
    allowed = ranks[0]["allowed"]
    for mode in ("single_unique", "unique_interleaved", "unique_contiguous"):
        sets = [found[mode] for found in ranks]
        assert all(sets)
        assert not any(a & b for a, b in itertools.combinations(sets, 2)), mode
        assert set().union(*sets) <= allowed
    assert all(len(found["single_unique"]) == 1 for found in ranks)
    assert all(found["all"] == found["disabled"] == allowed for found in ranks)
    assert ranks[0]["single"] == ranks[1]["single"] and len(ranks[0]["single"]) == 1
