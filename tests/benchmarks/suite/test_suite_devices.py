"""What a faked NVML says of GPUs during a run, and that nothing that it does costs the run."""

import types

import pytest

from benchmarks.suite import devices
from benchmarks.suite.devices import Reading, Seen, summarise, watched


class FakeNvml:
    """Three GPUs; a handle is the GPU's index. Each reading of memory takes the next of `used`, GPU by GPU."""

    NVML_CLOCK_SM = 1

    def __init__(self, used=range(100, 10_000), *, fails_in=None, names=("Fake",) * 3, fails_after=0):
        self.used, self.names, self.open_sessions = iter(used), names, 0
        self.fails_in, self.left = fails_in, fails_after

    def _may_fail(self, name):
        if name == self.fails_in:
            self.left -= 1
            if self.left < 0:
                raise RuntimeError("Unknown Error")

    def nvmlInit(self):
        self._may_fail("nvmlInit")
        self.open_sessions += 1

    def nvmlShutdown(self):
        self.open_sessions -= 1
        self._may_fail("nvmlShutdown")

    def nvmlDeviceGetCount(self):
        return 3

    def nvmlDeviceGetHandleByIndex(self, index):
        return index

    def nvmlDeviceGetHandleByUUID(self, uuid):
        return {b"GPU-b": 1, b"GPU-c": 2}[uuid]

    def nvmlDeviceGetName(self, handle):
        return self.names[handle]

    def nvmlDeviceGetMemoryInfo(self, handle):
        self._may_fail("nvmlDeviceGetMemoryInfo")
        return types.SimpleNamespace(used=1000 * handle + next(self.used))

    def nvmlDeviceGetClockInfo(self, handle, kind):
        assert kind == self.NVML_CLOCK_SM
        return 1400 + 100 * handle

    def nvmlDeviceGetPowerUsage(self, handle):
        return 300_000 + 1000 * handle


def seen_by(fake, ranks, **environ):
    with watched(ranks, environ, nvml=fake, every_s=3600.0) as seen:
        assert seen == Seen()
    assert fake.open_sessions == 0
    return seen


def test_readings_become_peaks_and_figures():
    readings = [Reading((5, 70), (1000.0, 1200.0), (100.0, 300.0)), Reading((9, 60), (1400.0, 1400.0), (250.0, 250.0))]
    found = summarise(readings)
    assert found.peak_memory_bytes == (9, 70)
    assert found.figures == {
        **{"gpu_clock_mhz": 1250.0, "gpu_clock_mhz_highest": 1400.0},
        **{"gpu_power_w": 225.0, "gpu_power_w_highest": 300.0},
    }


def test_a_run_is_read_at_its_beginning_and_its_end():
    found = seen_by(FakeNvml([700, 300]), 1)
    assert found.peak_memory_bytes == (700,)
    assert seen_by(FakeNvml([300, 700]), 1).peak_memory_bytes == (700,)
    assert found.figures["gpu_clock_mhz"] == 1400.0 and found.figures["gpu_power_w_highest"] == 300.0


@pytest.mark.parametrize(
    ("ranks", "environ", "gpus"),
    [
        (2, {}, [0, 1]),
        (1, {"CUDA_VISIBLE_DEVICES": "2,0"}, [2]),
        (2, {"CUDA_VISIBLE_DEVICES": "GPU-c,GPU-b"}, [2, 1]),
        (2, {"CUDA_VISIBLE_DEVICES": "1"}, []),
        (1, {"CUDA_VISIBLE_DEVICES": "MIG-1234"}, []),
        (1, {"CUDA_VISIBLE_DEVICES": ""}, []),
        (1, {"CUDA_VISIBLE_DEVICES": "7"}, []),
        (1, {"CUDA_VISIBLE_DEVICES": "GPU-x"}, []),
        (4, {}, []),
        (0, {}, []),
    ],
)
def test_ranks_have_the_gpus_that_are_visible_in_their_order(ranks, environ, gpus):
    found = seen_by(FakeNvml(), ranks, **environ)
    assert [size // 1000 for size in found.peak_memory_bytes] == gpus and bool(found.figures) == bool(gpus)


def test_an_index_among_gpus_that_differ_needs_an_order():
    names = ("Fast", "Fast", "Slow")
    assert seen_by(FakeNvml(names=names), 1) == Seen()
    assert len(seen_by(FakeNvml(names=names), 1, CUDA_DEVICE_ORDER="PCI_BUS_ID").peak_memory_bytes) == 1
    assert len(seen_by(FakeNvml(names=names), 1, CUDA_VISIBLE_DEVICES="GPU-b").peak_memory_bytes) == 1


@pytest.mark.parametrize("function", ["nvmlInit", "nvmlDeviceGetMemoryInfo"])
def test_a_driver_that_refuses_costs_the_figures_alone(function):
    assert seen_by(FakeNvml(fails_in=function), 1) == Seen()


def test_what_was_read_before_the_driver_refused_is_kept():
    found = seen_by(FakeNvml(fails_in="nvmlDeviceGetMemoryInfo", fails_after=1), 1)
    assert found.peak_memory_bytes == (100,)
    assert seen_by(FakeNvml(fails_in="nvmlShutdown"), 1).peak_memory_bytes


def test_a_run_is_read_in_between(monkeypatch):
    fake, enough = FakeNvml(), devices.threading.Event()
    real = devices.read

    def read(*given):
        if next(count) == 5:
            enough.set()
        return real(*given)

    count = iter(range(10**9))
    monkeypatch.setattr(devices, "read", read)
    with watched(1, {}, nvml=fake, every_s=0.001) as seen:
        assert enough.wait(60)
    assert seen.peak_memory_bytes[0] >= 106


def test_a_run_that_ends_by_an_exception_passes_it_on():
    fake = FakeNvml()
    with pytest.raises(KeyboardInterrupt), watched(1, {}, nvml=fake, every_s=3600.0) as seen:
        raise KeyboardInterrupt
    assert seen.peak_memory_bytes and fake.open_sessions == 0


def test_without_a_binding_or_gpus_nothing_is_asked(monkeypatch):
    monkeypatch.setattr(devices.nvml_binding, "load", lambda: None)
    with watched(1, {}) as seen:
        pass
    assert seen == Seen()
    monkeypatch.setattr(devices.nvml_binding, "load", lambda: pytest.fail("loaded"))
    with watched(0, {}) as seen:
        pass
    assert seen == Seen()
