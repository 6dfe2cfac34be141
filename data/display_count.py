"""How many displays a stream of rows holds, and how many of them have no click or several."""

import numpy as np
import pyarrow as pa


class DisplayCount:
    """Counts displays that come side by side, and their clicks, without keeping them.

    Attributes:
      ascending: no display came before a smaller one; the counts mean nothing otherwise.
      count, without, several: displays that have ended; those without a click and with several.
    """

    def __init__(self):
        self.ascending, self.count, self.without, self.several = True, 0, 0, 0
        # The display that has not ended yet, and its clicks.
        self._open = (np.array([], np.int64), np.array([], np.int64))

    def add(self, displays: pa.Array, labels: pa.Array) -> None:
        """Takes the next rows."""
        if displays.null_count or labels.null_count:
            self.ascending = False
        if not self.ascending or not len(displays):
            return
        # In one type: numpy would join signed and unsigned ids as floats, which are equal too soon.
        ids = np.concatenate([self._open[0], displays.to_numpy(zero_copy_only=False).astype(np.int64)])
        clicked = labels.to_numpy(zero_copy_only=False).astype(np.float64) > 0
        clicks = np.concatenate([self._open[1], clicked.astype(np.int64)])
        if (ids[1:] < ids[:-1]).any():
            self.ascending = False
            return
        starts = np.flatnonzero(np.append(True, ids[1:] != ids[:-1]))
        sums = np.add.reduceat(clicks, starts)
        self._count(sums[:-1])
        self._open = (ids[-1:], sums[-1:])

    def end(self) -> None:
        """No more rows come."""
        self._count(self._open[1])

    def _count(self, clicks: np.ndarray) -> None:
        self.count += len(clicks)
        self.without += int((clicks == 0).sum())
        self.several += int((clicks > 1).sum())
