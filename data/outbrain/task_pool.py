"""Runs tasks one after the other here, or side by side in the processes of a dask cluster."""

import collections
import contextlib
import signal
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

import dask
from merlin.core.utils import set_dask_client

from data.errors import InputError


class TaskPool(Protocol):
    """Where tasks run."""

    def map(self, function: Callable[..., Any], *arguments: Iterable[Any]) -> Iterator[Any]:
        """`function` of each tuple of arguments; results in order, only a few of them waiting at a time."""


class LocalTasks:
    """Tasks run in this process, each when its result is asked for."""

    def map(self, function: Callable[..., Any], *arguments: Iterable[Any]) -> Iterator[Any]:
        return map(function, *arguments)


class DaskTasks:
    """Tasks run by a cluster's workers."""

    def __init__(self, client: Any):
        self._client = client

    def map(self, function: Callable[..., Any], *arguments: Iterable[Any]) -> Iterator[Any]:
        # Two for each worker: one to work on, one to go on with. What is done and not yet taken is bounded by that.
        most = 2 * max(1, len(self._client.nthreads()))
        waiting: collections.deque = collections.deque()
        for values in zip(*arguments, strict=True):
            waiting.append(self._client.submit(function, *values, pure=False))
            if len(waiting) >= most:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


@contextlib.contextmanager
def task_pool(*, workers: int, scheduler: str | None, scratch: str) -> Iterator[TaskPool]:
    """The pool for the options of a command line; NVTabular's fitting runs on the same workers.

    Args:
      workers: with 1 and no scheduler all runs in this process; more are processes on this machine.
      scheduler: address of the scheduler of a running dask cluster, whose workers see the same files and have this
        program's environment.
      scratch: folder for what the workers spill.

    Raises:
      InputError: no scheduler answers at the address, or it has no workers.
    """
    if scheduler is None and workers == 1:
        yield LocalTasks()
        return
    from distributed import Client, LocalCluster

    # Merlin would import TensorFlow where it is installed, 500 MB in each worker, and needs none; what it says of that
    # is for nobody. A task's exception is raised here: workers need not log it too.
    preload = (
        "import logging, sys, warnings; sys.modules.setdefault('tensorflow', None); "
        "warnings.filterwarnings('ignore', message='.*dtype mappings did not load'); "
        "logging.getLogger('distributed.worker').setLevel(logging.ERROR)"
    )
    with contextlib.ExitStack() as stack:
        if scheduler is None:
            stack.enter_context(
                dask.config.set({"distributed.worker.preload": [preload], "temporary-directory": scratch})
            )
            try:
                with _interrupts_ignored():
                    address = stack.enter_context(
                        LocalCluster(
                            n_workers=workers,
                            threads_per_worker=1,
                            processes=True,
                            memory_limit=0,  # our own bounds hold; dask's would pause and restart workers
                            dashboard_address="127.0.0.1:0",  # any free port: two runs on one machine must not meet
                        )
                    )
            except (OSError, RuntimeError) as error:
                reason = str(error) or type(error).__name__
                raise InputError(f"--workers={workers}: the processes did not start ({reason}); give fewer") from error
        else:
            address = scheduler
        try:
            client = stack.enter_context(Client(address, timeout=30))
        except (OSError, ValueError) as error:
            raise InputError(f"--scheduler={scheduler}: no dask scheduler answers there: {error}; start one") from error
        if not client.nthreads():
            raise InputError(f"--scheduler={scheduler}: the cluster has no workers; start some (dask worker ADDRESS)")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            set_dask_client(client)
        stack.callback(set_dask_client, None)
        yield DaskTasks(client)


@contextlib.contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """Processes that start meanwhile ignore Ctrl-C for good; one that comes in these seconds is lost to this one too.

    A terminal sends it to all processes, and a worker that dies of it is replaced while the others are being ended.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # handlers are the main thread's
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
