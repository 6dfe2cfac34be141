"""The report of a study, made of its records alone: report.md, report.html and figures."""

from benchmarks.study.report.written import Written, write_report

__all__ = ["Written", "write_report"]
