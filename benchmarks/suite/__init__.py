"""The benchmark suite: which benchmarks there are, how one is run, and what is kept of it."""
