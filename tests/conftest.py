"""Fixtures shared by all tests."""

import hashlib
import os
import pathlib
import threading

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
# SHA-256 of clicks_train.csv: 9999 rows of 1959 displays.
KNOWN_CLICKS = "d749ca0da81565134c9f61513b1540caa9373263336347a8a4493e018c9b6738"


@pytest.fixture(scope="session")
def outbrain_sample() -> pathlib.Path:
    """Folder of raw Outbrain files: the one that $OUTBRAIN_SAMPLE names or, if it is not set, one beside the checkout.

    The data are not in the repository; without them the test is skipped.
    """
    named = os.environ.get("OUTBRAIN_SAMPLE")
    beside = (ROOT.parent / "shared" / "data" / "outbrain_sample", ROOT / "shared" / "data" / "outbrain_sample")
    folders = (pathlib.Path(named).absolute(),) if named else beside
    for folder in folders:
        if all((folder / file).is_file() for file in ("clicks_train.csv", "events.csv", "promoted_content.csv")):
            return folder
    pytest.skip(
        "no Outbrain sample: set OUTBRAIN_SAMPLE to a folder that holds clicks_train.csv, events.csv and "
        f"promoted_content.csv (looked in {', '.join(map(str, folders))})"
    )


@pytest.fixture(scope="session")
def known_outbrain_sample(outbrain_sample) -> pathlib.Path:
    """The folder, if it holds the very sample whose counts and figures the tests know."""
    if hashlib.sha256((outbrain_sample / "clicks_train.csv").read_bytes()).hexdigest() != KNOWN_CLICKS:
        pytest.skip(f"{outbrain_sample} (OUTBRAIN_SAMPLE) is another sample than the one whose figures are known")
    return outbrain_sample


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
