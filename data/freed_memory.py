"""What the C library does with memory that is freed.

Arrays of some hundred kilobytes come and go with every batch, gradients of megabytes with every step. By default glibc
gives such blocks back to the system, and getting them anew costs a page fault for each 4 KiB: about a third of the
input pipeline's time, and two of the twelve milliseconds of a step of DLRM "tiny". (TensorFlow's generator datasets
even ask for that, with M_TRIM_THRESHOLD = 128 KiB.)
"""

import ctypes
import platform

# From glibc's malloc.h. The second may be at most 32 MiB; what is larger is given back as ever.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGEST_KEPT = 32 * 2**20


def keep_freed_memory() -> bool:
    """Lets glibc keep freed blocks of up to 32 MiB for their next use; whether that is done (False without glibc).

    The process then holds on to the most that it ever used of them.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return bool(mallopt(_M_MMAP_THRESHOLD, _LARGEST_KEPT) and mallopt(_M_TRIM_THRESHOLD, 2**31 - 1))
