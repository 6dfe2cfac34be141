import subprocess
import sys

import pytest

from benchmarks.microbenchmarks import catalogue
from data.errors import InputError

PLAN = """
import sys
from benchmarks.microbenchmarks import catalogue
for name, benchmark in catalogue.BENCHMARKS.items():
    for mode in benchmark.modes:
        assert catalogue.predicted_bytes(catalogue.settings(name, mode), 2) > 700 << 20
print("tensorflow" in sys.modules)
"""


def test_a_plan_needs_no_tensorflow(pytestconfig):
    done = subprocess.run([sys.executable, "-c", PLAN], cwd=pytestconfig.rootpath, capture_output=True, text=True)
    assert (done.stdout.strip(), done.returncode) == ("False", 0), done.stderr


@pytest.mark.parametrize("name", sorted(set(catalogue.BENCHMARKS) - {"harness_overhead"}))
def test_more_of_it_takes_more_memory(name):
    benchmark = catalogue.find(name)
    mode = benchmark.modes[-1]
    small = catalogue.settings(name, mode, batch=1 << 10)
    large = catalogue.settings(name, mode, batch=1 << 20)
    assert catalogue.predicted_bytes(large, 2) > catalogue.predicted_bytes(small, 2)


def test_an_unknown_name():
    with pytest.raises(InputError, match="there is no microbenchmark 'conv'; give one of gemm, linear"):
        catalogue.find("conv")


def test_everything_can_be_run_in_one_way():
    for benchmark in catalogue.BENCHMARKS.values():
        assert (benchmark.prepare is None) != (benchmark.run is None)
        assert bool(benchmark.numbers) == bool(benchmark.presets)
