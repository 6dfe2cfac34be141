"""The microbenchmarks by name, and what one needs before it is started. Without TensorFlow."""

from collections.abc import Mapping
from typing import Any

from benchmarks.microbenchmarks import collectives, embedding_bag, gemm, harness_overhead, input_rows, linear
from benchmarks.microbenchmarks.shapes import Benchmark, Settings, read_settings
from data.errors import InputError

BENCHMARKS: Mapping[str, Benchmark] = {
    benchmark.name: benchmark
    for benchmark in (
        gemm.BENCHMARK,
        linear.BENCHMARK,
        embedding_bag.BENCHMARK,
        *collectives.BENCHMARKS,
        input_rows.BENCHMARK,
        harness_overhead.BENCHMARK,
    )
}


def find(name: str) -> Benchmark:
    """The microbenchmark of a name; raises InputError if there is none."""
    if name not in BENCHMARKS:
        raise InputError(f"there is no microbenchmark '{name}'; give one of {', '.join(BENCHMARKS)}")
    return BENCHMARKS[name]


def settings(name: str, mode: str, **stated: Any) -> Settings:
    """Settings of a named microbenchmark; see benchmarks.microbenchmarks.shapes.read_settings for the rest."""
    return read_settings(find(name), mode, **stated)


def predicted_bytes(given: Settings, ranks: int) -> int:
    """Memory that a rank is going to take, in bytes, its process included."""
    return find(given.name).predicted_bytes(given, ranks)
