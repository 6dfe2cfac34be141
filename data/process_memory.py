"""How much memory a program and the processes that it starts take."""

import contextlib
import threading

import psutil


class PeakMemory:
    """Watches the resident memory of this process and all below it while a `with` block runs.

    Pages that processes share are counted for each of them, so the sum errs upwards.

    Attributes:
      bytes: the largest sum seen so far.
    """

    def __init__(self, interval_seconds: float = 0.05):
        self.bytes = 0
        self._interval = interval_seconds
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="peak-memory", daemon=True)

    def __enter__(self) -> "PeakMemory":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._look()

    def _watch(self) -> None:
        self._look()
        while not self._ended.wait(self._interval):
            self._look()

    def _look(self) -> None:
        process, total = psutil.Process(), 0
        for one in [process, *process.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                total += one.memory_info().rss
        self.bytes = max(self.bytes, total)
