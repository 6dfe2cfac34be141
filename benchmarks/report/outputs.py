"""What a folder of results is given: the table in each form, the page, and FAMBench's logs."""

import glob
import os

from benchmarks.report import fambench_logs, html_page, tables
from benchmarks.report.rows import Summary, summarise
from benchmarks.report.sources import load
from benchmarks.suite.results import RECORDS_FILE
from data.whole_files import write


def write_all(results_dir: str) -> str:
    """Leaves table.md, table.csv, table.json, report.html and a log for each scored cell in a folder of records.

    Each file is written whole or not at all. Logs that an earlier call left for cells that no longer score are removed.

    Returns:
      The table, for a terminal.

    Raises:
      InputError: there are no records, they are of several machines, or the folder cannot be written.
    """
    # By the name of the file: a folder's old logs must not stand in for records that are missing.
    loaded = load([os.path.join(results_dir, RECORDS_FILE)])
    summary = summarise(loaded.results, results_dir)
    problems = loaded.problems
    files = {
        "table.md": tables.markdown(summary, problems),
        "table.csv": tables.csv_text(summary),
        "table.json": tables.json_text(summary, problems),
        "report.html": html_page.page(summary, problems),
    }
    for name, content in files.items():
        write(os.path.join(results_dir, name), content)
    _write_logs(summary, results_dir)
    return tables.text(summary, problems)


def _write_logs(summary: Summary, folder: str) -> None:
    logs = fambench_logs.logs(summary.rows)
    for name, content in logs.items():
        write(os.path.join(folder, name), content)
    for path in glob.glob(os.path.join(glob.escape(folder), "*.log")):
        if os.path.basename(path) not in logs and fambench_logs.is_ours(path):
            os.unlink(path)
