"""A summary as one page: no file beside it, nothing from elsewhere, and no scripts. Light, dark, and on paper."""

from collections.abc import Callable, Sequence

from benchmarks.report import compare_tables, drawing, machines, plots, tables
from benchmarks.report.compare import compare_implementations
from benchmarks.report.drawing import Plot
from benchmarks.report.html_parts import document, items, picture, section, table
from benchmarks.report.roofline import rooflines
from benchmarks.report.rows import Row, Summary, describe
from benchmarks.report.scaling import scaling_steps
from benchmarks.report.tables import Grid
from data.errors import InputError


def page(summary: Summary, problems: Sequence[str] = (), title: str = "Benchmark results") -> str:
    """The page.

    Args:
      summary: of one machine.
      problems: lines that name what could not be read.
      title: of the page.
    """
    rows = summary.rows
    parts = []
    if problems:
        parts.append(section("Could not be read", items(problems)))
    scores = table(tables.score_grid(summary), "Scores") if rows else "<p>No scores.</p>"
    parts.append(section("Results", scores + items(tables.notes(summary))))
    if summary.unscored:
        parts.append(
            section("Without a score", table(tables.unscored_grid(summary.unscored), "Failed, unsound and skipped"))
        )
    parts += _implementations(summary)
    parts.append(
        _plots(
            "Throughput and latency against batch size",
            plots.batch_size_plots,
            rows,
            "No benchmark has several batch sizes.",
        )
    )
    parts.append(_roofline(rows))
    if steps := scaling_steps(rows):
        content = table(tables.scaling_grid(steps), "Speed-up and efficiency")
        content += (
            "<p>Strong: the batch over all ranks is that of one rank. Weak: the batch of each rank is. Efficiency: "
            "speed-up over ranks. Ranks on one machine without an accelerator each share its CPU, which one rank has "
            "to itself: there, efficiency shows what sharing costs and not what more machines would bring.</p>"
        )
        parts.append(_plots("Scaling against world size", plots.scaling_plots, rows, "", before=content))
    else:
        parts.append(section("Scaling against world size", "<p>No benchmark was run at several ranks.</p>"))
    parts += _ranks(rows)
    described = machines.described(summary.machine)
    machine = table(Grid(["Property", "Value"], described), "The machine") if described else "<p>Not known.</p>"
    parts.append(section("Machine", machine))
    return document(title, parts)


def _implementations(summary: Summary) -> list[str]:
    """OOTB beside optimized, if both have scores of something."""
    try:
        comparison = compare_implementations(summary, "ootb", "optimized")
    except InputError:
        return []
    content = table(compare_tables.grid(comparison), "Optimized (B) over out of the box (A)")
    return [section("Out of the box and optimized", content + items(compare_tables.notes(comparison)))]


def _roofline(rows: Sequence[Row]) -> str:
    about = (
        "<p>Both roofs are measured by the microbenchmarks of this table. The memory roof is the bandwidth of "
        "looked-up rows, which caches can raise above what memory gives. Placed are microbenchmarks, whose operations "
        "and bytes are known by formula; models are not, for what their steps move depends on caches and on ids.</p>"
    )
    left_out = sorted({name for roofline in rooflines(rows) for name in roofline.left_out})
    after = f"<p>Not placed:</p>{items(left_out)}" if left_out else ""
    none = "No precision has scores of both GEMM and EmbeddingBag at one rank."
    return _plots("Roofline", plots.roofline_plots, rows, none, before=about, after=after)


def _plots(
    title: str,
    draw: Callable[[Sequence[Row]], list[Plot]],
    rows: Sequence[Row],
    none: str,
    before: str = "",
    after: str = "",
) -> str:
    """A section with what `draw` draws, or else what `none` says."""
    if not drawing.can_draw():
        missing = "<p>Plots are left out: matplotlib is not installed (requirements.txt has its version).</p>"
        return section(title, before + missing + after)
    drawn = "".join(map(picture, draw(rows)))
    return section(title, before + (drawn or (f"<p>{none}</p>" if none else "")) + after)


def _ranks(rows: Sequence[Row]) -> list[str]:
    """Each rank's median step time and memory, of the repeat whose score is the median."""
    found = []
    for row in rows:
        result = row.median_repeat
        for rank, step_ms in enumerate(result.rank_step_ms):
            found.append(
                [
                    describe(row.cell),
                    str(rank),
                    f"{step_ms:,.2f}",
                    _mebibytes(result.peak_memory_bytes, rank),
                    _mebibytes(result.peak_device_memory_bytes, rank),
                ]
            )
    if not found:
        return []
    right = ["Rank", "Median step (ms)", "Peak memory (MiB)", "Peak device memory (MiB)"]
    return [section("Ranks", table(Grid(["Benchmark", *right], found, right), "Step time and memory of each rank"))]


def _mebibytes(sizes: Sequence[int], rank: int) -> str:
    return f"{sizes[rank] / 2**20:,.0f}" if rank < len(sizes) else ""
