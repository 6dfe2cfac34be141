import signal

import pytest

pytest.importorskip("nvtabular")

from data.errors import InputError
from data.outbrain import task_pool
from data.outbrain.task_pool import DaskTasks, LocalTasks


def half(number):
    if number == 9:
        raise InputError("9: is odd; give an even number")
    return number / 2


class Client:
    """Stands in for dask's: notes what is submitted and what is asked for."""

    def __init__(self):
        self.log = []

    def nthreads(self):
        return {"a": 1, "b": 1}

    def submit(self, function, *values, pure):
        self.log.append(("submit", *values))
        client = self

        class Future:
            def result(self):
                client.log.append(("result", *values))
                return function(*values)

        return Future()


def test_here_one_after_the_other():
    done = []
    results = LocalTasks().map(lambda number: done.append(number) or number, [1, 2, 3])
    assert next(results) == 1 and done == [1]
    assert list(results) == [2, 3]


def test_few_results_wait():
    client = Client()
    results = DaskTasks(client).map(half, range(0, 8))
    assert next(results) == 0
    assert client.log == [("submit", 0), ("submit", 1), ("submit", 2), ("submit", 3), ("result", 0)]
    assert list(results) == [0.5, 1, 1.5, 2, 2.5, 3, 3.5]


def test_processes_of_this_machine(tmp_path):
    with task_pool.task_pool(workers=2, scheduler=None, scratch=str(tmp_path)) as pool:
        assert list(pool.map(half, range(0, 8))) == [n / 2 for n in range(8)]
        with pytest.raises(InputError, match="9: is odd; give an even number"):
            list(pool.map(half, [2, 9]))


def test_a_scheduler_that_does_not_answer(tmp_path, monkeypatch):
    import distributed

    def refuse(address, timeout):
        raise OSError(f"no answer from {address}")

    monkeypatch.setattr(distributed, "Client", refuse)
    with (
        pytest.raises(InputError, match=r"--scheduler=tcp://nowhere:1: no dask scheduler answers there"),
        task_pool.task_pool(workers=1, scheduler="tcp://nowhere:1", scratch=str(tmp_path)),
    ):
        pytest.fail("entered")


def handler_of_interrupts():
    return signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_workers_ignore_what_a_terminal_sends_to_all(tmp_path):
    before = signal.getsignal(signal.SIGINT)
    with task_pool.task_pool(workers=1 + 1, scheduler=None, scratch=str(tmp_path)) as pool:
        assert signal.getsignal(signal.SIGINT) is before
        assert list(pool.map(lambda _: handler_of_interrupts(), range(2))) == [True, True]


@pytest.mark.parametrize("error", [TimeoutError(), RuntimeError("no room")])
def test_processes_that_do_not_start(tmp_path, monkeypatch, error):
    import distributed

    def refuse(**options):
        raise error

    monkeypatch.setattr(distributed, "LocalCluster", refuse)
    with (
        pytest.raises(InputError, match=r"the processes did not start \((TimeoutError|no room)\); give fewer"),
        task_pool.task_pool(workers=3, scheduler=None, scratch=str(tmp_path)),
    ):
        pytest.fail("entered")


def test_a_cluster_without_workers(tmp_path, monkeypatch):
    import distributed

    class Empty:
        def __init__(self, address, timeout):
            pass

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def nthreads(self):
            return {}

    monkeypatch.setattr(distributed, "Client", Empty)
    with (
        pytest.raises(InputError, match="--scheduler=tcp://x:1: the cluster has no workers; start some"),
        task_pool.task_pool(workers=1, scheduler="tcp://x:1", scratch=str(tmp_path)),
    ):
        pytest.fail("entered")
