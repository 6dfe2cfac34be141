"""Tables for the tests of placements."""

import random

from trainer.placed_tables import TableShape

THRESHOLDS = (None, 0, 50, 400, 3000)


def table(name="t", *, rows=10, dim=4, hotness=1, feature=None, group=None, **other):
    fields = {"summed": False, "slots_per_weight": 0, "slots_per_row": 0, **other}
    return TableShape(name, feature or name, group or f"embedding_{dim}", rows, dim, hotness, **fields)


def wide_and_deep(rows, dim, hotness):
    """For each feature, as Wide & Deep has them, a table with a slot and a last step, and one of the wide part."""
    features = [(f"f{index}", *sizes) for index, sizes in enumerate(zip(rows, dim, hotness, strict=True))]
    deep = [
        table(f"deep/{name}", rows=r, dim=d, hotness=h, feature=name, slots_per_weight=1, slots_per_row=1)
        for name, r, d, h in features
    ]
    wide = [
        table(f"wide/{name}", rows=r, dim=1, hotness=h, feature=name, group="wide", summed=True, slots_per_weight=2)
        for name, r, _, h in features
    ]
    return [*deep, *wide]


def random_case(seed):
    """Tables and the arguments of a model-parallel plan."""
    draw = random.Random(seed)
    count = draw.randint(1, 12)
    rows = [int(10 ** draw.uniform(0, 3)) for _ in range(count)]
    dim = [draw.choice((2, 4, 7, 16)) for _ in range(count)]
    hotness = [draw.choice((1, 1, 3, 20)) for _ in range(count)]
    tables = wide_and_deep(rows, dim, hotness)
    if draw.random() < 0.5:
        coupled = draw.random() < 0.5
        tables = [
            table(f"main/{t.feature}", rows=t.rows, dim=8, hotness=t.hotness, slots_per_row=1, couples_columns=coupled)
            for t in tables[:count]
        ]
    return tables, {
        "world_size": draw.randint(2, 6),
        "parallelism": "model",
        "global_batch_size": draw.choice((8, 65, 1000)),
        "row_slice_threshold": draw.choice(THRESHOLDS),
        "column_slice_threshold": draw.choice(THRESHOLDS),
        "data_parallel_threshold": draw.choice(THRESHOLDS),
    }
