"""What an evaluation found, as a record names it."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from trainer.evaluate import Figures


def evaluation_fields(figures: Figures, teacher: Mapping[str, Any] | None) -> dict[str, Any]:
    """Fields of a record: the figures and, of generated data, the shares of what its teacher reaches above chance.

    Args:
      figures: of an evaluation.
      teacher: `metadata.teacher` of the dataset; None of real data.
    """
    fields = dataclasses.asdict(figures)
    del fields["rows"], fields["ids_cut"]
    if teacher is not None:
        if teacher.get("auc") is not None:
            fields["auc_margin_share"] = _share(figures.auc, 0.5, teacher["auc"])
        if figures.map_at_12 is not None:
            fields["map_margin_share"] = _share(figures.map_at_12, teacher["chance_map_at_12"], teacher["map_at_12"])
    return fields


def _share(reached: float, chance: float, best: float) -> float:
    """How far from chance to the best; NaN where the best is no better than chance."""
    return (reached - chance) / (best - chance) if best > chance else math.nan
