"""The one setting of a GPU that TensorFlow does not offer: how much its L2 cache fetches at once.

CUDA's driver is asked and not its runtime: `libcuda.so.1` comes with every driver under this one name, while the
runtime's library has its version in its name and stands wherever TensorFlow brought it along. (Not run on hardware by
us.)
"""

import contextlib
import ctypes
from collections.abc import Iterator
from typing import Any

_LIBRARY = "libcuda.so.1"
_MAX_L2_FETCH_GRANULARITY = 5  # CU_LIMIT_MAX_L2_FETCH_GRANULARITY of cuda.h


class _DriverError(Exception):
    """A call of the driver that failed; the message says which and why."""


def set_l2_fetch_granularity(size: int, *, library: Any = None) -> str | None:
    """Asks the GPU that TensorFlow computes on to fetch up to so many bytes at once from memory into its L2 cache.

    Call it once TensorFlow has begun to use the GPU. The limit is one of the process's primary context, which
    TensorFlow and its libraries share; without anybody who holds it, the context and its limit would end with the call.

    Args:
      size: bytes: 32, 64 or 128. Larger ones are a hint that drivers may cut.
      library: the driver's library as ctypes loads it; None loads it.

    Returns:
      None if the limit is set, otherwise why it is not.
    """
    try:
        library = ctypes.CDLL(_LIBRARY) if library is None else library
        with _primary_context(library):
            _call(library, "cuCtxSetLimit", ctypes.c_int(_MAX_L2_FETCH_GRANULARITY), ctypes.c_size_t(size))
            found = ctypes.c_size_t()
            _call(library, "cuCtxGetLimit", ctypes.byref(found), ctypes.c_int(_MAX_L2_FETCH_GRANULARITY))
    # OSError: no such library; AttributeError: one that lacks a function.
    except (OSError, AttributeError, _DriverError) as error:
        return str(error)
    return None if found.value == size else f"the driver made it {found.value}"


@contextlib.contextmanager
def _primary_context(library: Any) -> Iterator[None]:
    """The first visible device's primary context, current in this thread."""
    _call(library, "cuInit", ctypes.c_uint(0))
    device, context, previous = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
    _call(library, "cuDeviceGet", ctypes.byref(device), ctypes.c_int(0))
    _call(library, "cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    try:
        _call(library, "cuCtxPushCurrent_v2", context)
        try:
            yield
        finally:
            _call(library, "cuCtxPopCurrent_v2", ctypes.byref(previous))
    finally:
        _call(library, "cuDevicePrimaryCtxRelease_v2", device)


def _call(library: Any, name: str, *arguments: Any) -> None:
    code = getattr(library, name)(*arguments)
    if code:
        raise _DriverError(f"{name} failed: {_error_name(library, code)}")


def _error_name(library: Any, code: int) -> str:
    text = ctypes.c_char_p()
    if library.cuGetErrorName(ctypes.c_int(code), ctypes.byref(text)) or text.value is None:
        return f"error {code}"
    return text.value.decode()
