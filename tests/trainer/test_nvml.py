"""NVML hints against a faked binding, and against both real bindings with a faked library: what is understood, and
that nothing ever raises."""

import ctypes
import importlib.metadata
import importlib.util
import sys
import types
from pathlib import Path

import pytest

from trainer import nvml

UUIDS = ["GPU-aaaa1111-0000", "GPU-aabb2222-0000", "GPU-cccc3333-0000"]
MIG_UUID = "MIG-1234-5678"


class NvmlError(Exception):
    pass


class FakeNvml:
    """Three GPUs; device i is near the CPUs of `near[i]`; a handle is the GPU's index, a MIG slice's handle a text."""

    def __init__(self, near=({0, 1}, {64, 65, 130}, set()), *, fails_in=None, names=("Fake",) * 3):
        self.near, self.fails_in, self.names, self.open_sessions = near, fails_in, names, 0

    def __getattribute__(self, name):
        if name == object.__getattribute__(self, "fails_in"):

            def refuse(*_):
                raise NvmlError("Unknown Error")

            return refuse
        return object.__getattribute__(self, name)

    def nvmlInit(self):
        self.open_sessions += 1

    def nvmlShutdown(self):
        self.open_sessions -= 1

    def nvmlDeviceGetCount(self):
        return len(self.near)

    def nvmlDeviceGetHandleByIndex(self, index):
        if index >= len(self.near):
            raise NvmlError("Invalid Argument")
        return index

    def nvmlDeviceGetHandleByUUID(self, uuid):
        if uuid != MIG_UUID.encode():  # pynvml 11 takes nothing but bytes.
            raise NvmlError("Not Found")
        return "slice of 1"

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, handle):
        return int(handle.removeprefix("slice of "))

    def nvmlDeviceGetUUID(self, handle):
        return UUIDS[handle].encode() if handle == 1 else UUIDS[handle]  # Old bindings give bytes.

    def nvmlDeviceGetCpuAffinity(self, handle, words):
        return [sum(1 << cpu - 64 * i for cpu in self.near[handle] if cpu // 64 == i) for i in range(words)]

    def nvmlDeviceGetName(self, handle):
        return self.names[handle].encode()

    def nvmlDeviceGetMemoryInfo(self, handle):
        return types.SimpleNamespace(total=1000, free=100 + handle, used=900 - handle)

    def nvmlSystemGetDriverVersion(self):
        return "570.1"


@pytest.mark.parametrize(
    ("device", "cpus"),
    [("0", {0, 1}), ("1", {64, 65, 130}), (UUIDS[1], {64, 65, 130}), ("GPU-aaaa", {0, 1})],
)
def test_index_uuid_and_unique_beginning_find_the_device(device, cpus):
    fake = FakeNvml()
    assert nvml.cpus_near(device, nvml=fake) == nvml.Locality(frozenset(cpus))
    assert fake.open_sessions == 0


@pytest.mark.parametrize("device", [MIG_UUID, f"MIG-{UUIDS[1]}/7/0"])
def test_mig_slice_stands_for_its_gpu_and_says_so(device):
    found = nvml.cpus_near(device, nvml=FakeNvml())
    assert found.cpus == {64, 65, 130}
    assert "MIG" in found.warning and device in found.warning


@pytest.mark.parametrize("device", ["7", "GPU-dddd", "GPU-aa", "MIG-unknown", "0:1", "nonsense", "2"])
def test_unknown_ambiguous_and_empty_devices_are_a_warning(device):
    fake = FakeNvml()
    found = nvml.cpus_near(device, nvml=fake)
    assert found.cpus is None
    assert device in found.warning and "\n" not in found.warning
    assert fake.open_sessions == 0


@pytest.mark.parametrize(
    "function", ["nvmlInit", "nvmlDeviceGetHandleByIndex", "nvmlDeviceGetCpuAffinity", "nvmlShutdown"]
)
def test_every_failing_call_is_a_warning(function):
    found = nvml.cpus_near("0", nvml=FakeNvml(fails_in=function))
    assert found.cpus is None and "Unknown Error" in found.warning


def test_an_index_among_gpus_that_differ_needs_an_order():
    fake = FakeNvml(names=("Fast", "Fast", "Slow"))
    by_bus = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    for environ in ({}, {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}):
        found = nvml.cpus_near("1", nvml=fake, environ=environ)
        assert found.cpus is None and "CUDA_DEVICE_ORDER=PCI_BUS_ID" in found.warning
        assert nvml.free_memory_bytes(environ | {"CUDA_VISIBLE_DEVICES": "1"}, nvml=fake) is None
        assert nvml.cpus_near(UUIDS[1], nvml=fake, environ=environ).cpus == {64, 65, 130}
    assert nvml.cpus_near("1", nvml=fake, environ=by_bus).cpus == {64, 65, 130}
    assert nvml.free_memory_bytes(by_bus | {"CUDA_VISIBLE_DEVICES": "1"}, nvml=fake) == 101


def test_cpus_near_each_gpu_or_none_at_all(monkeypatch):
    near = [frozenset({0, 1}), frozenset({64})]
    assert nvml.cpus_near_each(nvml=FakeNvml(near)) == near
    assert nvml.cpus_near_each(nvml=FakeNvml()) == []  # the last one is near no CPU
    assert nvml.cpus_near_each(nvml=FakeNvml(near, fails_in="nvmlDeviceGetCpuAffinity")) == []
    monkeypatch.setattr(nvml, "load", lambda: None)
    assert nvml.cpus_near_each() == []


def test_old_binding_without_a_function_is_a_warning():
    assert nvml.cpus_near("0", nvml=types.SimpleNamespace(nvmlInit=lambda: None)).cpus is None


def test_without_a_binding(monkeypatch):
    monkeypatch.setattr(nvml, "load", lambda: None)
    assert "no NVML binding" in nvml.cpus_near("0").warning
    assert nvml.gpus() == nvml.Gpus((), None)


def test_names_and_driver():
    names = ("Fake 0", "Fake 1", "Fake 2")
    assert nvml.gpus(nvml=FakeNvml(names=names)) == nvml.Gpus(names, "570.1")
    assert nvml.gpus(nvml=FakeNvml(fails_in="nvmlInit")) == nvml.Gpus()


@pytest.mark.parametrize(
    ("value", "devices"),
    [(None, None), ("", []), ("-1", []), ("3", ["3"]), ("2, 0,1", ["2", "0", "1"]), ("0,-1,1", ["0"]), ("0,,1", ["0"])],
)
def test_visible_devices(value, devices):
    assert nvml.visible_devices({} if value is None else {"CUDA_VISIBLE_DEVICES": value}) == devices


@pytest.mark.parametrize(
    ("value", "free"),
    [(None, 100), ("2,0", 102), (UUIDS[1], 101), ("", None), ("-1", None), ("7", None), (MIG_UUID, None)],
)
def test_free_memory_of_the_first_visible_gpu(value, free):
    environ = {} if value is None else {"CUDA_VISIBLE_DEVICES": value}
    assert nvml.free_memory_bytes(environ, nvml=FakeNvml()) == free


@pytest.mark.parametrize("function", ["nvmlInit", "nvmlDeviceGetHandleByIndex", "nvmlDeviceGetMemoryInfo"])
def test_memory_that_nobody_tells_is_not_known(function):
    assert nvml.free_memory_bytes({}, nvml=FakeNvml(fails_in=function)) is None


# Where each distribution keeps its binding. pynvml's folder hides nvidia-ml-py's file where both are installed.
BINDINGS = {"nvidia-ml-py": "pynvml.py", "pynvml": "pynvml/nvml.py"}
NOT_FOUND = 6  # NVML_ERROR_NOT_FOUND


class FakeLibrary:
    """libnvidia-ml.so.1 with the GPUs of FakeNvml, as ctypes calls it: results are written, a status is returned.

    GPU i has the handle i + 1, its MIG slice i + 101.
    """

    near = ({0, 1}, {64, 65, 130}, set())

    def nvmlInitWithFlags(self, flags):
        return 0

    def nvmlShutdown(self):
        return 0

    def nvmlDeviceGetCount_v2(self, count):
        count._obj.value = len(self.near)
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index, handle):
        return self._give(handle, index.value + 1) if index.value < len(self.near) else NOT_FOUND

    def nvmlDeviceGetHandleByUUID(self, uuid, handle):
        return self._give(handle, 102) if uuid.value == MIG_UUID.encode() else NOT_FOUND

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, slice_handle, handle):
        return self._give(handle, self._number(slice_handle) - 100)

    def nvmlDeviceGetUUID(self, handle, text, size):
        text.value = UUIDS[self._number(handle) - 1].encode()
        return 0

    def nvmlDeviceGetName(self, handle, text, size):
        text.value = f"Fake {self._number(handle) - 1}".encode()
        return 0

    def nvmlSystemGetDriverVersion(self, text, size):
        text.value = b"570.1"
        return 0

    def nvmlDeviceGetCpuAffinity(self, handle, size, words):
        for cpu in self.near[self._number(handle) - 1]:
            words._obj[cpu // 64] |= 1 << cpu % 64
        return 0

    @staticmethod
    def _give(handle, number):
        ctypes.cast(ctypes.pointer(handle._obj), ctypes.POINTER(ctypes.c_void_p))[0] = number
        return 0

    @staticmethod
    def _number(handle):
        return ctypes.cast(handle, ctypes.c_void_p).value


@pytest.fixture(params=BINDINGS)
def binding(request, monkeypatch):
    """A real binding, whichever of the two `import pynvml` would give, that has loaded the faked library."""
    try:
        distribution = importlib.metadata.distribution(request.param)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{request.param} is not installed (PREPROC=0)")
    name = f"binding_of_{request.param.replace('-', '_')}"
    specification = importlib.util.spec_from_file_location(name, distribution.locate_file(BINDINGS[request.param]))
    module = importlib.util.module_from_spec(specification)
    monkeypatch.setitem(sys.modules, name, module)  # Both look themselves up there.
    specification.loader.exec_module(module)
    module.nvmlLib = FakeLibrary()
    return module


@pytest.mark.parametrize("device", ["1", UUIDS[1], "GPU-aabb", MIG_UUID, f"MIG-{UUIDS[1]}/7/0"])
def test_both_bindings_find_the_device(binding, device):
    by_bus = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert nvml.cpus_near(device, nvml=binding, environ=by_bus).cpus == {64, 65, 130}


def test_both_bindings_tell_gpus_that_differ(binding):
    assert "the GPUs differ" in nvml.cpus_near("1", nvml=binding, environ={}).warning


def test_both_bindings_name_gpus_and_driver_in_text(binding):
    assert nvml.gpus(nvml=binding) == nvml.Gpus(("Fake 0", "Fake 1", "Fake 2"), "570.1")


@pytest.mark.parametrize("device", ["7", "GPU-dddd", "MIG-unknown"])
def test_both_bindings_errors_are_a_warning(binding, device):
    found = nvml.cpus_near(device, nvml=binding)
    assert found.cpus is None and device in found.warning and "\n" not in found.warning
    assert "TypeError" not in found.warning and "AttributeError" not in found.warning


def test_the_folder_wins_over_the_file():
    installed = {name for name in BINDINGS if list(importlib.metadata.distributions(name=name))}
    if not installed:
        pytest.skip("no NVML binding is installed")
    expected = "__init__.py" if "pynvml" in installed else "pynvml.py"
    assert Path(nvml.load().__file__).name == expected
