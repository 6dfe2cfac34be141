"""CPU plans: properties over many machines, hand-worked cases on a machine of 2 sockets, 8 GPUs and hyperthreads."""

import itertools
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from data.errors import InputError
from trainer import affinity
from trainer import nvml as nvml_hints

UNIQUE = ("single_unique", "unique_interleaved", "unique_contiguous")
ROOT = Path(__file__).parents[2]


def machine(sockets=2, cores=8, threads=2):
    """CPU -> (core, socket), numbered as Linux does: all first threads of all sockets, then all second threads.

    Core numbers repeat from socket to socket, which the planner must bear.
    """
    return {
        thread * sockets * cores + socket * cores + core: (core, socket)
        for thread, socket, core in itertools.product(range(threads), range(sockets), range(cores))
    }


def socket_cpus(topology, socket):
    return {cpu for cpu, (_, node) in topology.items() if node == socket}


DGX = machine()  # Socket 0: CPUs 0-7 and 16-23; socket 1: 8-15 and 24-31.
DGX_DEVICES = [socket_cpus(DGX, rank // 4) for rank in range(8)]


def plan_all(mode, size, *, allowed=None, topology=DGX, device_cpus=None):
    allowed = set(topology) if allowed is None else allowed
    return [
        affinity.plan(
            mode, local_rank=rank, local_size=size, allowed_cpus=allowed, topology=topology, device_cpus=device_cpus
        )
        for rank in range(size)
    ]


@pytest.mark.parametrize(
    ("mode", "rank_0", "rank_3", "rank_5"),
    [
        ("all", DGX_DEVICES[0], DGX_DEVICES[0], DGX_DEVICES[5]),
        ("single", {0}, {0}, {8}),
        ("single_unique", {0}, {3}, {9}),
        ("unique_interleaved", {0, 16, 4, 20}, {3, 19, 7, 23}, {9, 25, 13, 29}),
        ("unique_contiguous", {0, 16, 1, 17}, {6, 22, 7, 23}, {10, 26, 11, 27}),
        ("disabled", set(DGX), set(DGX), set(DGX)),
    ],
)
def test_modes_on_two_sockets_with_eight_gpus(mode, rank_0, rank_3, rank_5):
    plans = plan_all(mode, 8, device_cpus=DGX_DEVICES)
    assert [set(plans[rank].cpus) for rank in (0, 3, 5)] == [rank_0, rank_3, rank_5]
    if mode == "single":
        assert "4 ranks share CPU 8" in plans[5].warnings[0]
    else:
        assert all(plan.warnings == () for plan in plans)


def test_ranks_on_cpus_alone_divide_the_machine():
    plans = plan_all("unique_contiguous", 2)
    assert [set(plan.cpus) for plan in plans] == [socket_cpus(DGX, 0), socket_cpus(DGX, 1)]
    plans = plan_all("unique_interleaved", 2, topology=machine(1, 4, 1))
    assert [set(plan.cpus) for plan in plans] == [{0, 2}, {1, 3}]
    assert plan_all("unique_interleaved", 1)[0] == affinity.Plan(frozenset(DGX))


def test_all_modes_are_covered_by_name():
    assert affinity.MODES == (
        "all", "single", "single_unique", "unique_interleaved", "unique_contiguous", "disabled",
    )  # fmt: skip
    with pytest.raises(InputError, match=r"'nearest'.*unique_interleaved"):
        affinity.plan("nearest", local_rank=0, local_size=1, allowed_cpus={0}, topology={})


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("mode", affinity.MODES)
def test_properties_on_many_machines(mode, seed):
    generator = random.Random(seed)
    for _ in range(40):
        topology = machine(generator.randint(1, 3), generator.randint(1, 6), generator.randint(1, 3))
        size = generator.randint(1, 10)
        allowed = set(generator.sample(sorted(topology), generator.randint(1, len(topology))))
        near = [socket_cpus(topology, generator.randint(0, 3)) for _ in range(size)]
        near = [generator.choice([None, set(topology), cpus, cpus, cpus]) for cpus in near]
        known = {cpu: place for cpu, place in topology.items() if generator.random() < 0.95}
        claims = [(allowed if cpus is None else allowed & cpus) or allowed for cpus in near]

        plans = plan_all(mode, size, allowed=allowed, topology=known, device_cpus=near)

        for plan, claim in zip(plans, claims, strict=True):
            assert plan.cpus and plan.cpus <= allowed
            assert mode == "disabled" or plan.cpus <= claim
            assert all("\n" not in warning for warning in plan.warnings)
        if mode not in UNIQUE:
            continue
        shared = any(a.cpus & b.cpus for a, b in itertools.combinations(plans, 2))
        assert shared == any("some ranks share a CPU" in warning for warning in plans[0].warnings)
        if len(set(map(frozenset, claims))) == 1 and len(claims[0]) >= size:
            assert not shared
        if mode == "single_unique":
            assert all(len(plan.cpus) == 1 for plan in plans)
        elif not shared:
            assert frozenset().union(*(plan.cpus for plan in plans)) == frozenset().union(*claims)


@pytest.mark.parametrize("mode", ["unique_interleaved", "unique_contiguous"])
def test_siblings_stay_together_and_shares_are_even(mode):
    for sockets, cores, threads, size in itertools.product((1, 2), (1, 3, 8), (1, 2, 4), (1, 2, 3, 5, 8)):
        topology = machine(sockets, cores, threads)
        plans = plan_all(mode, size, topology=topology)
        if size > sockets * cores:
            continue
        owned = [{topology[cpu] for cpu in plan.cpus} for plan in plans]
        assert sum(map(len, owned)) == sockets * cores
        assert max(map(len, owned)) - min(map(len, owned)) <= 1
        assert all(plan.warnings == () for plan in plans)
        if mode == "unique_contiguous":
            order = [sorted((node, core) for core, node in cores_) for cores_ in owned]
            assert list(itertools.chain(*order)) == sorted((node, core) for core, node in set(topology.values()))


def test_more_ranks_than_cores_split_hyperthreads_and_say_so():
    plans = plan_all("unique_interleaved", 3, topology=machine(1, 2, 2))
    assert sorted(cpu for plan in plans for cpu in plan.cpus) == [0, 1, 2, 3]
    assert all("share a core by hyperthreads" in plan.warnings[0] for plan in plans[:3:2])


def test_more_ranks_than_cpus_share_evenly_and_say_so():
    topology = machine(2, 2, 1)
    near = [socket_cpus(topology, rank % 2) for rank in range(8)]
    for mode in UNIQUE:
        plans = plan_all(mode, 8, topology=topology, device_cpus=near)
        assert sorted(min(plan.cpus) for plan in plans) == [0, 0, 1, 1, 2, 2, 3, 3]
        assert all(len(plan.cpus) == 1 for plan in plans)
        assert all("8 ranks claim 4 CPUs" in plan.warnings[0] for plan in plans)
    assert [set(plan.cpus) for plan in plan_all("unique_interleaved", 3, topology=machine(1, 1, 1))] == [{0}] * 3


def test_device_outside_the_allowed_cpus_is_warned_about():
    plans = plan_all("all", 2, allowed={0, 1, 2}, device_cpus=[{1, 9}, {8, 9}])
    assert set(plans[0].cpus) == {1} and plans[0].warnings == ()
    assert set(plans[1].cpus) == {0, 1, 2}
    assert "near CPUs 8-9" in plans[1].warnings[0] and "only 0-2" in plans[1].warnings[0]


def test_ranks_with_less_choice_are_served_first():
    topology = machine(1, 4, 1)
    plans = plan_all("unique_interleaved", 2, topology=topology, device_cpus=[{0, 1, 2, 3}, {0, 1}])
    assert [set(plan.cpus) for plan in plans] == [{2, 3}, {0, 1}]


def test_impossible_calls():
    with pytest.raises(ValueError, match="local rank 2 of 2"):
        affinity.plan("all", local_rank=2, local_size=2, allowed_cpus={0}, topology={})
    with pytest.raises(ValueError, match="1 devices' CPUs for 2"):
        affinity.plan("all", local_rank=0, local_size=2, allowed_cpus={0}, topology={}, device_cpus=[{0}])
    with pytest.raises(ValueError, match="no allowed CPU"):
        affinity.plan("all", local_rank=0, local_size=1, allowed_cpus=set(), topology={})


@pytest.fixture
def dgx(monkeypatch):
    """The process seems to run on the big machine; returns the set that it was moved onto, by name "cpus"."""
    state = {"cpus": frozenset(DGX), "cpus_near": lambda device: DGX_DEVICES[int(device)]}
    monkeypatch.setattr(affinity.os, "sched_getaffinity", lambda _: set(state["cpus"]))
    monkeypatch.setattr(affinity, "_move_all_threads", lambda cpus: state.update(cpus=cpus))
    monkeypatch.setattr(
        nvml_hints,
        "cpus_near",
        lambda device, **_: nvml_hints.Locality(frozenset(state["cpus_near"](device))),
    )
    return state


def test_exchanged_neighbourhoods_give_the_partition_of_the_plan(dgx):
    for mode in affinity.MODES:
        expected = plan_all(mode, 8, device_cpus=DGX_DEVICES)
        moved = []
        for rank in range(8):
            dgx["cpus"] = frozenset(DGX)
            # As after the launcher's wrapper: each process sees only its own device.
            applied = affinity.apply(
                mode,
                local_rank=rank,
                local_size=8,
                neighbourhoods=[sorted(cpus) for cpus in DGX_DEVICES],
                topology=DGX,
                environ={"CUDA_VISIBLE_DEVICES": str(rank)},
            )
            assert applied.warnings == expected[rank].warnings
            assert applied.changed == (mode != "disabled")
            moved.append(dgx["cpus"])
        assert moved == [plan.cpus for plan in expected]


def test_ranks_that_were_bound_apart_keep_what_they_are_allowed(dgx):
    halves = [set(range(0, 4)), set(range(4, 8))]
    for rank, half in enumerate(halves):
        dgx["cpus"] = frozenset(half)
        arguments = {"local_rank": rank, "local_size": 2, "topology": DGX, "use_gpu": False}
        applied = affinity.apply("unique_interleaved", neighbourhoods=halves, **arguments)
        assert applied == affinity.Applied(frozenset(half), ())


def test_unknown_neighbours_cost_cpus_but_are_never_shared(dgx):
    moved = []
    for rank in range(8):
        dgx["cpus"] = frozenset(DGX)
        environ = {"CUDA_VISIBLE_DEVICES": str(rank)}
        applied = affinity.apply("unique_interleaved", local_rank=rank, local_size=8, topology=DGX, environ=environ)
        assert "other ranks' devices are not known" in applied.warnings[0]
        assert applied.cpus <= DGX_DEVICES[rank]
        moved.append(applied.cpus)
    assert not any(a & b for a, b in itertools.combinations(moved, 2))


def foreseen(monkeypatch, near, *, rank, size, mode="unique_interleaved", use_gpu=True):
    monkeypatch.setattr(nvml_hints, "cpus_near_each", lambda *, nvml=None: near)
    own = near[rank % len(near)] if near else set(DGX)
    return affinity.foresee(mode, local_rank=rank, local_size=size, own=own, use_gpu=use_gpu, topology=DGX)


@pytest.mark.parametrize("mode", affinity.MODES)
def test_ranks_foresee_how_many_cpus_they_get(dgx, monkeypatch, mode):
    """One rank a GPU on all eight: each rank foresees what the ranks agree on later."""
    later = plan_all(mode, 8, device_cpus=DGX_DEVICES)
    for rank in range(8):
        near = [frozenset(cpus) for cpus in DGX_DEVICES]
        assert foreseen(monkeypatch, near, rank=rank, size=8, mode=mode).cpus == later[rank].cpus


@pytest.mark.parametrize(
    ("gpus", "size", "cpus"),
    [
        ([0, 0, 0, 0, 1, 1, 1, 1], 4, 4),  # four ranks, all taken to be on one socket
        ([0, 1], 2, 16),  # a GPU on each socket
        ([0, 1], 4, 8),  # two ranks on each
        ([0, 0, 1], 1, 16),
    ],
)
def test_gpus_near_the_same_cpus_have_a_rank_each(dgx, monkeypatch, gpus, size, cpus):
    near = [frozenset(socket_cpus(DGX, socket)) for socket in gpus]
    assert len(foreseen(monkeypatch, near, rank=0, size=size).cpus) == cpus


def test_without_gpus_or_with_a_silent_driver_all_ranks_share_what_one_may_use(dgx, monkeypatch):
    near = [frozenset(cpus) for cpus in DGX_DEVICES]
    assert len(foreseen(monkeypatch, [], rank=3, size=8).cpus) == 4
    assert len(foreseen(monkeypatch, near, rank=3, size=8, use_gpu=False).cpus) == 2
    dgx["cpus"] = frozenset({40, 41})  # near no GPU
    found = affinity.foresee("unique_interleaved", local_rank=1, local_size=2, own={40, 41}, use_gpu=True, topology={})
    assert found.cpus == {41}


@pytest.mark.parametrize(
    ("environ", "device_uuid", "asked"),
    [
        ({}, None, "5"),
        ({"CUDA_VISIBLE_DEVICES": "3"}, None, "3"),
        ({"CUDA_VISIBLE_DEVICES": "7,6,5,4,3,2,1,0"}, None, "2"),
        ({"CUDA_VISIBLE_DEVICES": "3"}, "6", "6"),
        ({"CUDA_VISIBLE_DEVICES": ""}, None, None),
    ],
)
def test_which_device_is_asked_about(dgx, environ, device_uuid, asked):
    devices = []
    dgx["cpus_near"] = lambda device: devices.append(device) or {0}
    own = affinity.neighbourhood(local_rank=5, device_uuid=device_uuid, environ=environ)
    assert devices == ([] if asked is None else [asked])
    assert own == affinity.Plan(frozenset(DGX) if asked is None else frozenset({0}))


def test_cpu_run_asks_no_driver_and_a_short_device_list_is_warned_about(dgx):
    dgx["cpus_near"] = None  # Would raise if called.
    assert affinity.neighbourhood(local_rank=0, use_gpu=False) == affinity.Plan(frozenset(DGX))
    own = affinity.neighbourhood(local_rank=2, environ={"CUDA_VISIBLE_DEVICES": "0,1"})
    assert own.cpus == set(DGX) and "2 entries, none for local rank 2" in own.warnings[0]


def test_foreign_cpuset_and_missing_nvml_warn_and_go_on(dgx, monkeypatch):
    dgx["cpus"] = frozenset({8, 9})
    own = affinity.neighbourhood(local_rank=0, environ={})
    assert own.cpus == {8, 9} and "near CPUs 0-7,16-23" in own.warnings[0]
    monkeypatch.setattr(nvml_hints, "cpus_near", lambda device, **_: nvml_hints.Locality(None, "no NVML"))
    applied = affinity.apply("unique_interleaved", local_rank=1, local_size=2, topology={}, environ={})
    assert applied == affinity.Applied(frozenset({9}), ("affinity: no NVML",), changed=True)


def test_one_cpu_and_a_refusing_system_are_warnings(dgx, monkeypatch):
    dgx["cpus"] = frozenset({4})
    applied = affinity.apply("unique_contiguous", local_rank=0, local_size=1, topology={}, use_gpu=False)
    assert applied.cpus == {4} and not applied.changed and "nothing to choose" in applied.warnings[0]

    def refuse(_):
        raise PermissionError("Operation not permitted")

    dgx["cpus"] = frozenset(DGX)
    monkeypatch.setattr(affinity, "_move_all_threads", refuse)
    applied = affinity.apply("single_unique", local_rank=1, local_size=2, topology=DGX, use_gpu=False)
    assert applied.cpus == set(DGX) and not applied.changed
    assert "refused CPUs 1: Operation not permitted" in applied.warnings[0]


def test_process_and_its_running_threads_really_move():
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) < 2:
        pytest.skip("one CPU: there is nowhere to move")
    program = """
import json, os, threading
from trainer import affinity
release, ids = threading.Event(), []
started = threading.Barrier(2)
def wait():
    ids.append(threading.get_native_id()); started.wait(); release.wait()
thread = threading.Thread(target=wait); thread.start(); started.wait()
applied = affinity.apply("single_unique", local_rank=1, local_size=2, use_gpu=False)
print(json.dumps([sorted(applied.cpus), sorted(os.sched_getaffinity(0)), sorted(os.sched_getaffinity(ids[0]))]))
release.set(); thread.join()
"""
    result = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    planned, main_thread, other_thread = json.loads(result.stdout)
    assert len(planned) == 1 and planned[0] in allowed
    assert planned == main_thread == other_thread
    assert sorted(os.sched_getaffinity(0)) == allowed
