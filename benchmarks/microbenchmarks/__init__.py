"""Microbenchmarks: one operation each, checked against numpy, then timed. See `benchmarks.microbenchmarks.__main__`."""
