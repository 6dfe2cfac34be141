import dataclasses
import os

import pytest

from benchmarks.microbenchmarks import catalogue, ranks
from data.errors import InputError
from trainer import distributed, machine, nvml, runtime
from trainer.distributed import SingleProcess


class Observed(SingleProcess):
    def __init__(self, size=1):
        super().__init__(size=size, local_size=size)
        self.calls = []

    def barrier(self):
        self.calls.append("barrier")

    def shutdown(self):
        self.calls.append("shutdown")


def test_a_run_closes_its_work(monkeypatch):
    gemm = catalogue.find("gemm")
    closed = []

    def prepare(settings, comm):
        return dataclasses.replace(gemm.prepare(settings, comm), close=lambda: closed.append(True))

    monkeypatch.setattr(catalogue, "BENCHMARKS", {"gemm": dataclasses.replace(gemm, prepare=prepare)})
    settings = catalogue.settings("gemm", "forward", shapes="8,8,8")
    found = ranks.run(settings, SingleProcess(), seconds=0.01, most_steps=5)
    assert len(found.step_ms) == 5 and closed == [True] and found.peak_memory_bytes[0] > 1 << 20


def test_what_does_not_fit_is_not_begun(monkeypatch):
    monkeypatch.setattr(ranks, "_free_bytes", lambda comm: 10**9)
    settings = catalogue.settings("gemm", "forward", shapes="100000,100000,100000")
    with pytest.raises(InputError, match=r"needs about .* GB on each rank, and 1.0 GB are free"):
        ranks.run(settings, SingleProcess(), seconds=1, most_steps=5)


def test_free_memory_is_shared_by_the_ranks_of_a_machine(monkeypatch):
    monkeypatch.setattr(machine, "read_available_memory_bytes", lambda: 12 << 30)
    monkeypatch.setattr(runtime, "has_gpu", lambda: False)
    assert ranks._free_bytes(SingleProcess(local_size=3)) == 4 << 30
    monkeypatch.setattr(runtime, "has_gpu", lambda: True)
    monkeypatch.setattr(nvml, "free_memory_bytes", lambda environ: 1 << 30)
    assert ranks._free_bytes(SingleProcess(local_size=3)) == 1 << 30
    monkeypatch.setattr(machine, "read_available_memory_bytes", lambda: None)
    monkeypatch.setattr(nvml, "free_memory_bytes", lambda environ: None)
    assert ranks._free_bytes(SingleProcess()) is None


@pytest.fixture
def started(monkeypatch):
    """connect() without changing this process."""
    import tensorflow as tf

    monkeypatch.setattr(runtime, "import_tensorflow", lambda device: tf)

    def configure(device, *, threads):
        tf.config.experimental.enable_tensor_float_32_execution(device.tf32)
        return runtime.Device(False, "a test", warnings=("something cannot be had",))

    monkeypatch.setattr(runtime, "configure", configure)
    monkeypatch.setattr(distributed, "connect", SingleProcess)
    before = tf.config.experimental.tensor_float_32_execution_enabled()
    yield tf
    tf.config.experimental.enable_tensor_float_32_execution(before)


def test_products_are_not_rounded_unless_that_is_asked_for(monkeypatch, started):
    enabled = started.config.experimental.tensor_float_32_execution_enabled
    ranks.connect(catalogue.settings("gemm", "forward", precision="fp32", cpu=True))
    assert not enabled()
    tf32 = catalogue.settings("gemm", "forward", precision="tf32")
    monkeypatch.setattr(runtime, "has_gpu", lambda: False)
    with pytest.raises(InputError, match="gemm: precision tf32 needs a GPU, and there is none; give fp32"):
        ranks.connect(tf32)
    assert not enabled()
    monkeypatch.setattr(runtime, "has_gpu", lambda: True)
    ranks.connect(tf32)
    assert enabled()


def test_what_a_gpu_cannot_have_is_said(started, capsys):
    ranks.connect(catalogue.settings("gemm", "forward", precision="fp32", cpu=True))
    assert capsys.readouterr().err == "benchmarks.microbenchmarks: warning: something cannot be had\n"


def test_ranks_leave_together():
    comm = Observed()
    assert ranks.as_rank(comm, lambda: "said") == "said" and comm.calls == ["shutdown"]
    comm = Observed(size=2)

    def refuse():
        raise InputError("bad size")

    with pytest.raises(InputError, match="bad size"):
        ranks.as_rank(comm, refuse)
    assert comm.calls == ["barrier", "shutdown"]


def test_a_mistake_ends_one_of_several_ranks_at_once(monkeypatch, capsys):
    codes = []
    monkeypatch.setattr(os, "_exit", lambda code: codes.append(code) or (_ for _ in ()).throw(SystemExit(code)))
    comm = Observed(size=2)
    with pytest.raises(SystemExit):
        ranks.as_rank(comm, lambda: 1 // 0)
    assert codes == [1] and comm.calls == [] and "ZeroDivisionError" in capsys.readouterr().err
    with pytest.raises(ZeroDivisionError):
        ranks.as_rank(Observed(), lambda: 1 // 0)
