"""What is printed of a placement, and the refusal of one that does not fit."""

import placement_cases as cases
import pytest

from data.errors import InputError
from trainer.placed_tables import Piece, Placement
from trainer.placement import plan
from trainer.placement_report import check_memory, render

SPEC = "/data/feature_spec.yaml"


def test_render():
    tables = (
        cases.table("deep/advertisement", rows=1_000_000, dim=8, slots_per_weight=1, slots_per_row=1),
        cases.table("deep/b", rows=70_000, dim=128, slots_per_row=1),
        cases.table("deep/c", rows=40_000, dim=64),
        cases.table("deep/d", rows=3, dim=64),
    )
    pieces = (
        *(Piece("deep/advertisement", rank, 250_000 * rank, 250_000 * (rank + 1), 0, 8) for rank in range(4)),
        Piece("deep/b", 0, 0, 70_000, 0, 42),
        Piece("deep/b", 3, 0, 70_000, 42, 85),
        Piece("deep/b", 2, 0, 70_000, 85, 128),
        Piece("deep/c", 1, 0, 40_000, 0, 64),
    )
    placement = Placement(4, tables, frozenset({"deep/d"}), pieces)
    # MiB: 1,000,000 x 17, 70,000 x (128 + 3), 40,000 x 64 and 192 values of 4 bytes.
    text = render(placement, (10, 10, 10, 20), training=True)
    assert text.splitlines() == [
        "table                    rows  dimension   MiB  ranks",
        "deep/advertisement  1,000,000          8  64.8  0-3 by rows",
        "deep/b                 70,000        128  35.0  0,2-3 by columns",
        "deep/c                 40,000         64   9.8  1",
        "deep/d                      3         64   0.0  all",
        "rank  MiB of tables  alltoall bytes a step",
        *(
            f"{rank:>4}  {mib:>13}  {placement.wire_bytes(rank, (10, 10, 10, 20), training=True):>21,}"
            for rank, mib in enumerate(("27.7", "26.0", "28.0", "28.0"))
        ),
    ]


def test_rendered_bytes_are_those_of_the_step():
    tables = [cases.table("a", rows=10), cases.table("b", rows=9)]
    placement = plan(tables, world_size=2, parallelism="model", global_batch_size=4, data_parallel_threshold=0)

    def last_cells(**arguments):
        return [line.split()[-1] for line in render(placement, (300, 500), **arguments).splitlines()[-2:]]

    # One id and a vector of 4 values a row each way.
    assert last_cells(training=True) == [f"{4 * (300 + 4 * 800):,}", f"{4 * (500 + 4 * 800):,}"]
    assert last_cells(training=False) == [f"{4 * (300 + 4 * 500):,}", f"{4 * (500 + 4 * 300):,}"]
    half = last_cells(training=True, id_bytes=8, value_bytes=2)
    assert half == [f"{8 * 300 + 2 * 4 * 800:,}", f"{8 * 500 + 2 * 4 * 800:,}"]


def test_replicated_tables_are_rendered_too():
    placement = plan([cases.table("a")] * 1, world_size=2, parallelism="data", global_batch_size=4)
    lines = render(placement, 4, training=True).splitlines()
    assert lines[1].split() == ["a", "10", "4", "0.0", "all"]
    assert lines[-1].split() == ["1", "0.0", "0"]


def refusal(placement, available, **arguments):
    arguments = {"ranks": range(placement.world_size), "batch_size": 8, "source": SPEC, **arguments}
    with pytest.raises(InputError) as caught:
        check_memory(placement, available_bytes=available, **arguments)
    return str(caught.value)


def test_memory_is_that_of_the_tables_and_the_batch_on_the_ranks_of_the_machine():
    tables = cases.wide_and_deep([50, 40, 3], [4, 4, 4], [1, 2, 1])
    placement = plan(tables, world_size=3, parallelism="model", global_batch_size=8, data_parallel_threshold=30)
    for ranks in (range(0, 2), range(2, 3), range(0, 3)):
        for training in (True, False):
            needed = sum(placement.table_bytes(r) + placement.batch_bytes(r, 8, training=training) for r in ranks)
            arguments = {"ranks": ranks, "batch_size": 8, "training": training}
            check_memory(placement, available_bytes=needed, source=SPEC, **arguments)
            refusal(placement, needed - 1, **arguments)
    check_memory(placement, available_bytes=None, ranks=range(3), batch_size=8, source=SPEC)
    ids = sum(placement.batch_bytes(r, 8, id_bytes=8) for r in range(3)) + sum(map(placement.table_bytes, range(3)))
    check_memory(placement, available_bytes=ids, ranks=range(3), batch_size=8, source=SPEC, id_bytes=8)
    refusal(placement, ids - 1, id_bytes=8)


def test_the_refusal_has_the_amounts_the_largest_table_and_remedies():
    tables = cases.wide_and_deep([2**22, 2**23], [64, 128], [1, 1])
    placement = plan(tables, world_size=2, parallelism="data", global_batch_size=8)
    message = refusal(placement, 2**30, ranks=[0])
    # 2^22 x (2 x 64 + 1 + 3) and 2^23 x (2 x 128 + 1 + 3) values of 4 bytes.
    assert message == (
        f"{SPEC}: tables and batches need at least 10.2 GiB on the rank of this machine, where 1.0 GiB are available; "
        "the largest share is that of table 'deep/f1' of feature 'f1' (cardinality 8388608, dimension 128, "
        "max_hotness 1; 8.0 GiB here with optimizer state): lower one of these or the batch size, or spread the tables "
        "over ranks of more machines with --embedding_parallelism=model"
    )
    both = refusal(placement, 2**30)
    assert "20.4 GiB on the 2 ranks" in both and "16.1 GiB here" in both
    assert both.endswith(
        "start fewer ranks on this machine, or hold each table once with --embedding_parallelism=model"
    )


def test_remedies_where_tables_are_spread():
    tables = [cases.table("a", rows=2**20), cases.table("b", rows=10)]
    whole = plan(tables, world_size=2, parallelism="model", global_batch_size=8)
    assert refusal(whole, 2**20).endswith(
        "or spread the tables over ranks of more machines, with --row_slice_threshold below 4194304 to cut this one"
    )
    cut = plan(tables, world_size=2, parallelism="model", global_batch_size=8, row_slice_threshold=2**20)
    assert refusal(cut, 2**20).endswith("the batch size, or spread the tables over ranks of more machines")


@pytest.mark.parametrize(("sizes", "named"), [({"rows": 2**64}, "cardinality 18446744073709551616"),
                                              ({"hotness": 10**12}, "max_hotness 1000000000000")])  # fmt: skip
@pytest.mark.parametrize("parallelism", ["data", "model"])
def test_the_table_to_blame_is_named(sizes, named, parallelism):
    tables = [cases.table("a", rows=1000), cases.table("b", **sizes), cases.table("c", rows=2000)]
    placement = plan(tables, world_size=2, parallelism=parallelism, global_batch_size=8)
    message = refusal(placement, 2**40)
    assert "of table 'b' of feature 'b'" in message and named in message
