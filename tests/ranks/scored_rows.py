"""Rows that ranks and tests score alike; without TensorFlow, which only ranks need."""

import numpy as np


def scored_rows(rows: int = 6000) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Display ids that rise, labels and float32 scores with many ties; all kinds of displays."""
    rng = np.random.default_rng(11)
    sizes = rng.integers(1, 13, rows)
    ids = np.repeat(np.sort(rng.choice(2**62, rows, replace=False)) * 2 + 1, sizes)[:rows]
    ids[ids == ids[-1]] = 2**63 - 1
    return ids, rng.random(rows) < 0.2, rng.normal(size=rows).round(1).astype(np.float32)
