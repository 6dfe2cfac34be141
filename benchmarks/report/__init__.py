"""Tables, plots, comparisons and bundles of what the suite has kept. All of it is made from records alone."""

from benchmarks.report.outputs import write_all

__all__ = ["write_all"]
