"""Cases: evaluation, and the metrics alone, over the rows of several ranks."""

import dataclasses

import numpy as np
from rank_cases import Context, case
from scored_rows import scored_rows

from data.feature_spec import TEST, FeatureSpec
from data.input_pipeline import ParquetInput
from models.registry import build_model, embedding_dims
from trainer.distributed import SingleProcess
from trainer.evaluate import displays_are_sorted, evaluate
from trainer.metrics import AucState, LossState, MapState
from trainer.steps import make_eval_step

BATCH_SIZES = (64, 4096)


@case(2, 3)
def evaluation(context: Context) -> dict:
    """(dataset, batch size) -> figures; and on rank 0 of two also those of a process alone, under (..., "alone")."""
    found = {}
    for name in ("plain", "unsorted"):
        spec = FeatureSpec.from_yaml(str(context.datasets[name] / "feature_spec.yaml"))
        rows = ParquetInput(spec, TEST, with_display=True)
        model = build_model(
            "wide_deep",
            spec,
            dims=embedding_dims(spec, None),
            hidden_units=(32, 16),
            dropout=0.1,
            combiner="sum",
            seed=5,
        )
        eval_step = make_eval_step(model)
        found[name, "sorted"] = displays_are_sorted(rows, context.comm)
        for size in BATCH_SIZES:
            figures = evaluate(rows, eval_step, context.comm, global_batch_size=size, with_map=True)
            found[name, size] = dataclasses.asdict(figures)
        if context.comm.size == 2 and context.comm.rank == 0:
            figures = evaluate(rows, eval_step, SingleProcess(), global_batch_size=512, with_map=True)
            found[name, "alone"] = dataclasses.asdict(figures)
    return found


# How rows are dealt: (ids, labels, world size) -> rank of each row.
DEALS = {
    "runs cut inside displays": lambda ids, labels, size: np.arange(len(ids)) * size // (len(ids) + 7),
    "one by one": lambda ids, labels, size: np.arange(len(ids)) % size,
    "nothing on rank 0": lambda ids, labels, size: np.full(len(ids), size - 1),
    "one class a rank": lambda ids, labels, size: np.where(labels, 0, size - 1),
}
# Those that leave each display on one rank but for the ends, as MapState is told.
IN_ORDER = ("runs cut inside displays", "nothing on rank 0")


@case(2, 3)
def metric_states(context: Context) -> dict:
    """(deal, whether MapState is told of sorted displays) -> map, displays, without click, auc, log loss and so on."""
    comm = context.comm
    ids, labels, scores = scored_rows()
    found = {}
    for name, deal in DEALS.items():
        mine = deal(ids, labels, comm.size) == comm.rank
        for in_order in (False, True):
            if in_order and name not in IN_ORDER:
                continue
            ranking, auc, loss = MapState(12, sorted_by_display=in_order), AucState(), LossState()
            own = np.flatnonzero(mine)
            if not in_order:
                own = np.random.default_rng(comm.rank).permutation(own)
            for part in np.array_split(own, 7):
                ranking.update(ids[part], labels[part], scores[part])
                auc.update(labels[part], scores[part])
                loss.update(labels[part], scores[part])
            result = ranking.compute(comm)
            found[name, in_order] = {
                "map": result.map,
                "displays": result.displays,
                "displays_without_click": result.displays_without_click,
                "auc": auc.compute(comm),
                **dataclasses.asdict(loss.compute(comm)),
            }
    return found
