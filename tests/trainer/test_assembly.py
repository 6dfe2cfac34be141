"""Placement as a configuration and the machines of a job decide it."""

import pytest
import small_runs

from data.errors import InputError
from trainer import assembly, experiment, placement
from trainer.config import RunConfig
from trainer.distributed import SingleProcess

GIB = 2**30


class Machines(SingleProcess):
    """A rank of a job whose ranks, one a machine, have these memories."""

    def __init__(self, rank, memories, local_rank=0, local_size=1):
        super().__init__(rank=rank, size=len(memories), local_rank=local_rank, local_size=local_size)
        self.answers = [list(memories)]

    def allgather_object(self, value):
        # Ranks first tell each other their memories, then whether they met an error.
        return self.answers.pop() if self.answers else [value] * self.size


def place(dataset, tmp_path, rank, memories, **settings):
    config = small_runs.configure(dataset, tmp_path, **settings)
    comm = Machines(rank, memories)
    return assembly.place_tables(config, experiment.open_spec(config), comm, memories[rank])


def test_ranks_with_different_memories_come_to_the_same_plan(dataset, tmp_path):
    """The plan that fits the smallest memory; an unknown one has no say."""
    for memories in ((GIB, 5 * GIB), (GIB, None), (None, None)):
        plans = [place(dataset, tmp_path, rank, memories, embedding_parallelism="auto") for rank in range(2)]
        assert plans[0] == plans[1]
    assert place(dataset, tmp_path, 0, (GIB, GIB)).is_replicated
    assert not place(
        dataset, tmp_path, 0, (GIB, GIB), embedding_parallelism="model", data_parallel_threshold=0
    ).is_replicated


def test_auto_is_told_the_smallest_share_of_memory(dataset, tmp_path, monkeypatch):
    told = []

    def plan(tables, *, memory_bytes_per_rank, **arguments):
        told.append(memory_bytes_per_rank)
        return placement.plan(tables, memory_bytes_per_rank=memory_bytes_per_rank, **arguments)

    monkeypatch.setattr(assembly, "plan", plan)
    for memories in ((3 * GIB, GIB), (None, GIB), (None, None)):
        place(dataset, tmp_path, 0, memories)
    assert told == [GIB, GIB, None]


def test_a_device_of_its_own_need_not_hold_the_tables_of_its_neighbours(dataset, tmp_path):
    config = small_runs.configure(dataset, tmp_path)
    spec = experiment.open_spec(config)
    two = SingleProcess(size=2, local_size=2)
    one = assembly.place_tables(config, spec, two, None)
    enough = one.table_bytes(0) + one.batch_bytes(0, small_runs.BATCH)
    assembly.place_tables(config, spec, two, enough, own_device=True)
    with pytest.raises(InputError):
        assembly.place_tables(config, spec, two, enough)
    with pytest.raises(InputError):
        assembly.place_tables(config, spec, two, enough - 1, own_device=True)


def test_optimizer_slots_count_in_training_alone(dataset, tmp_path):
    train, evaluate = (place(dataset, tmp_path, 0, (GIB,), evaluate=mode) for mode in (False, True))
    rows = 7 + 40 + 12
    assert evaluate.table_bytes(0) == 4 * (4 + 1) * rows
    assert train.table_bytes(0) == 4 * (2 * 4 + 1 + 3) * rows


@pytest.mark.parametrize(("world_size", "sizes"), [(1, [65]), (2, [32, 33]), (3, [21, 22, 22])])
def test_local_batch_sizes(world_size, sizes):
    for settings in ({"global_batch_size": 65}, {"evaluate": True, "eval_batch_size": 65}):
        config = RunConfig.from_flat(settings)
        found = assembly.local_batch_sizes(config, SingleProcess(size=world_size))
        assert sum(found) == 65 and sorted(found) == sorted(sizes)
