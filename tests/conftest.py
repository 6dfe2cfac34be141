"""Fixtures shared by all tests."""

import pathlib
import threading

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def shared_data() -> pathlib.Path:
    """Folder of data sets that are kept beside the checkout, not in it."""
    for folder in (ROOT.parent / "shared" / "data", ROOT / "shared" / "data"):
        if folder.is_dir():
            return folder
    pytest.skip("no data folder: ../shared/data does not exist")


class _Meeting:
    """Where the threads of one `run_ranks` meet: each leaves a value, all see all of them."""

    def __init__(self, size: int):
        self._values = [None] * size
        self.barrier = threading.Barrier(size, timeout=60)

    def exchange(self, rank: int, operation: str, value) -> list:
        self._values[rank] = (operation, value)
        self.barrier.wait()
        values = list(self._values)
        self.barrier.wait()
        operations = [name for name, _ in values]
        if len(set(operations)) > 1:
            raise AssertionError(f"the ranks called different collectives: {operations}")
        return [value for _, value in values]


class _ThreadCommunicator:
    """One rank's communicator; as strict about types and shapes as a real one, and hands out copies."""

    def __init__(self, rank: int, size: int, meeting: _Meeting):
        self.rank = rank
        self.size = size
        self._meeting = meeting

    def allreduce_sum(self, values: np.ndarray) -> np.ndarray:
        arrays = self._meeting.exchange(self.rank, "allreduce", values)
        if any((a.dtype, a.shape) != (values.dtype, values.shape) for a in arrays):
            raise AssertionError(f"allreduce of {[(a.dtype, a.shape) for a in arrays]}")
        if values.dtype not in (np.int64, np.float64):
            raise AssertionError(f"allreduce of {values.dtype}")
        return np.sum(arrays, axis=0)

    def allgather_object(self, value: object) -> list:
        return self._meeting.exchange(self.rank, "allgather", value)

    def alltoall_arrays(self, arrays: list[np.ndarray]) -> list[np.ndarray]:
        everyone = self._meeting.exchange(self.rank, "alltoall", arrays)
        if any(len(sent) != self.size for sent in everyone):
            raise AssertionError(f"alltoall needs {self.size} arrays, got {[len(sent) for sent in everyone]}")
        if len({array.dtype for sent in everyone for array in sent}) > 1 or any(a.ndim != 1 for a in arrays):
            raise AssertionError("alltoall needs 1-D arrays of one dtype")
        return [sent[self.rank].copy() for sent in everyone]

    def broadcast_array(self, array: np.ndarray | None, root: int) -> np.ndarray:
        return self._meeting.exchange(self.rank, f"broadcast from {root}", array)[root].copy()


@pytest.fixture
def run_ranks():
    """run_ranks(size, work): calls work(communicator) on `size` ranks, threads of this process; their results."""

    def run(size, work):
        meeting = _Meeting(size)
        results, errors = [None] * size, []

        def target(rank):
            try:
                results[rank] = work(_ThreadCommunicator(rank, size, meeting))
            except threading.BrokenBarrierError:
                pass  # another rank raised
            except BaseException as error:
                errors.append(error)
                meeting.barrier.abort()

        threads = [threading.Thread(target=target, args=(rank,)) for rank in range(size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        if meeting.barrier.broken:
            raise TimeoutError("a rank did not come to a collective")
        return results

    return run
