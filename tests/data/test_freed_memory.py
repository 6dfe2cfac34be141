import platform
import resource
import subprocess
import sys

import pytest

from data import freed_memory

# Arrays of 1 MiB that come and go; prints how many pages were faulted in.
PROGRAM = """
import resource, sys
import numpy as np
from data.freed_memory import keep_freed_memory
if sys.argv[1] == "keep":
    assert keep_freed_memory()
faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
before = faults()
for _ in range(200):
    np.ones(2**17)
print(faults() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_freed_arrays_cost_no_page_faults():
    def faults(*arguments):
        command = [sys.executable, "-c", PROGRAM, *arguments]
        environment = {"PYTHONPATH": ".", "MALLOC_MMAP_THRESHOLD_": str(2**17), "MALLOC_TRIM_THRESHOLD_": str(2**17)}
        return int(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)

    pages = 200 * 2**20 // resource.getpagesize()
    assert faults("default") > pages / 2
    assert faults("keep") < pages / 20


def test_nothing_is_asked_of_other_libraries(monkeypatch):
    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    monkeypatch.setattr(freed_memory.ctypes, "CDLL", lambda name: pytest.fail("called"))
    assert freed_memory.keep_freed_memory() is False
