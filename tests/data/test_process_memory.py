import subprocess
import sys

from data.process_memory import PeakMemory

CHILD = """
import sys
import numpy as np
held = np.ones(25_000_000)
print("held", flush=True)
sys.stdin.read()
"""


def test_memory_of_children_counts():
    with PeakMemory() as alone:
        pass
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", CHILD], text=True, **pipes) as process:
        assert process.stdout.readline() == "held\n"
        with PeakMemory() as peak:
            pass
        process.communicate("")
    assert alone.bytes > 10e6 and peak.bytes > alone.bytes + 200e6


def test_what_was_freed_before_the_end_counts_too():
    with PeakMemory(interval_seconds=0.001) as peak:
        before = peak.bytes
        held = bytearray(b"x") * 200_000_000
        peak._look()
        del held
    assert peak.bytes > before + 150e6
