"""The driver's calls against a fake that is called through C, as the real one: types, order, and every failure."""

import ctypes

import pytest

from trainer import cuda_driver

HANDLE = 0x7F00_DEAD_BEE0  # needs more than 32 bits, as a pointer of the real driver
INT, SIZE, POINTER = ctypes.c_int, ctypes.c_size_t, ctypes.POINTER
SIGNATURES = {
    "cuInit": (ctypes.c_uint,),
    "cuDeviceGet": (POINTER(INT), INT),
    "cuDevicePrimaryCtxRetain": (POINTER(ctypes.c_void_p), INT),
    "cuDevicePrimaryCtxRelease_v2": (INT,),
    "cuCtxPushCurrent_v2": (ctypes.c_void_p,),
    "cuCtxPopCurrent_v2": (POINTER(ctypes.c_void_p),),
    "cuCtxSetLimit": (INT, SIZE),
    "cuCtxGetLimit": (POINTER(SIZE), INT),
    "cuGetErrorName": (INT, POINTER(ctypes.c_char_p)),
}


class FakeDriver:
    """A GPU whose L2 fetches are at most `most` bytes; `fails` maps the names of calls to the codes that they return.

    As in the real one a limit is one of the current context, and there is none before one is pushed.
    """

    def __init__(self, *, most=128, fails=None, without=()):
        self.most, self.fails = most, fails or {}
        self.calls, self.retained, self.stack, self.limits = [], 0, [], {}
        for name, arguments in SIGNATURES.items():
            if name not in without:
                # Kept: C does not.
                setattr(self, name, ctypes.CFUNCTYPE(INT, *arguments)(self._counted(name, getattr(self, f"_{name}"))))

    def _counted(self, name, function):
        def call(*arguments):
            self.calls.append(name)
            return self.fails[name] if name in self.fails else function(*arguments) or 0

        return call

    def _cuInit(self, flags):
        return 0 if flags == 0 else 1

    def _cuDeviceGet(self, device, ordinal):
        device[0] = ordinal + 40

    def _cuDevicePrimaryCtxRetain(self, context, device):
        if device != 40:
            return 101
        self.retained += 1
        context[0] = HANDLE

    def _cuDevicePrimaryCtxRelease_v2(self, device):
        self.retained -= device == 40

    def _cuCtxPushCurrent_v2(self, context):
        self.stack.append(context)

    def _cuCtxPopCurrent_v2(self, context):
        context[0] = self.stack.pop()

    def _cuCtxSetLimit(self, limit, value):
        if self.stack != [HANDLE]:
            return 201
        self.limits[limit] = min(value, self.most)

    def _cuCtxGetLimit(self, value, limit):
        value[0] = self.limits[limit]

    def _cuGetErrorName(self, code, text):
        if code != 215:
            return 1
        text[0] = b"CUDA_ERROR_UNSUPPORTED_LIMIT"


def test_the_limit_is_one_of_tensorflows_context_and_the_context_is_given_back():
    driver = FakeDriver()
    assert cuda_driver.set_l2_fetch_granularity(128, library=driver) is None
    assert driver.limits == {5: 128} and driver.calls[0] == "cuInit"
    assert driver.stack == [] and driver.retained == 0


def test_a_driver_that_makes_less_of_it():
    assert cuda_driver.set_l2_fetch_granularity(128, library=FakeDriver(most=64)) == "the driver made it 64"


@pytest.mark.parametrize("name", [name for name in SIGNATURES if name not in ("cuGetErrorName",)])
def test_every_failing_call_is_a_reason_and_leaves_nothing_behind(name):
    driver = FakeDriver(fails={name: 215})
    reason = cuda_driver.set_l2_fetch_granularity(128, library=driver)
    assert reason == f"{name} failed: CUDA_ERROR_UNSUPPORTED_LIMIT"
    gave_back = {"cuCtxPopCurrent_v2": "stack", "cuDevicePrimaryCtxRelease_v2": "retained"}
    assert {"stack": len(driver.stack), "retained": driver.retained} == {
        kept: int(gave_back.get(name) == kept) for kept in ("stack", "retained")
    }


def test_an_error_without_a_name_keeps_its_number():
    driver = FakeDriver(fails={"cuInit": 999})
    assert cuda_driver.set_l2_fetch_granularity(128, library=driver) == "cuInit failed: error 999"


def test_a_driver_without_a_function_and_no_driver(monkeypatch):
    old = FakeDriver(without=("cuCtxSetLimit",))
    assert "cuCtxSetLimit" in cuda_driver.set_l2_fetch_granularity(128, library=old)
    assert old.stack == [] and old.retained == 0
    monkeypatch.setattr(cuda_driver, "_LIBRARY", "libcuda-that-is-not-there.so.1")
    assert "libcuda-that-is-not-there.so.1" in cuda_driver.set_l2_fetch_granularity(128)
