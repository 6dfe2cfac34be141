"""Ranks that are threads of one process, to try what ranks exchange without starting any."""

import threading

import tensorflow as tf

from trainer.distributed import SingleProcess

_PATIENCE_S = 60  # a rank that fails leaves the others waiting; they end with a BrokenBarrierError


class ThreadRank(SingleProcess):
    """A rank that exchanges tensors eagerly with the other threads.

    Attributes:
      calls: (name, number of values that left for other ranks, dtype) of each alltoall, in order.
    """

    def __init__(self, rank, size, barrier, board):
        super().__init__(rank=rank, size=size, local_rank=rank, local_size=size)
        self._barrier, self._board = barrier, board
        self.calls = []

    def alltoall(self, parts, *, name):
        assert len(parts) == self.size and len({part.dtype for part in parts}) == 1
        assert all(part.shape.rank == 1 for part in parts)
        self.calls.append((name, sum(int(tf.size(p)) for r, p in enumerate(parts) if r != self.rank), parts[0].dtype))
        self._board[self.rank] = (name, list(parts))
        self._barrier.wait(_PATIENCE_S)
        assert {sent for sent, _ in self._board.values()} == {name}
        received = [self._board[rank][1][self.rank] for rank in range(self.size)]
        self._barrier.wait(_PATIENCE_S)
        return received


def on_ranks(size, function):
    """function(rank's communicator) of every rank, by rank; raises what the first that failed raised."""
    barrier, board = threading.Barrier(size), {}
    results, errors = [None] * size, [None] * size

    def run(rank):
        try:
            results[rank] = function(ThreadRank(rank, size, barrier, board))
        except BaseException as error:
            errors[rank] = error
            barrier.abort()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    real = [error for error in errors if error is not None and not isinstance(error, threading.BrokenBarrierError)]
    for error in real or [error for error in errors if error is not None]:
        raise error
    return results
