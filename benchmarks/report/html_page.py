"""A summary as one page: no file beside it, nothing from elsewhere, and no scripts. Light, dark, and on paper."""

import html
from collections.abc import Callable, Sequence

from benchmarks.report import compare_tables, machines, plots, tables
from benchmarks.report.compare import compare_implementations
from benchmarks.report.plots import Plot
from benchmarks.report.roofline import rooflines
from benchmarks.report.rows import Row, Summary, describe
from benchmarks.report.scaling import scaling_steps
from benchmarks.report.tables import Grid
from data.errors import InputError

# svg: what matplotlib would say to the whole page.
_STYLE = """
:root { color-scheme: light dark; --line: #9994; --soft: #8881; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; padding: 0 1.5rem; max-width: 90rem;
  color: #1a1a1a; background: #fff; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.5rem; } h3 { font-size: 1rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 14px; font-variant-numeric: tabular-nums; }
caption { text-align: left; padding: .3rem 0; font-weight: 600; }
th, td { padding: .25rem .5rem; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top; }
thead th { border-bottom: 2px solid currentColor; } tbody tr:nth-child(even) { background: var(--soft); }
th { font-weight: 600; } tbody th { font-weight: 400; } .right { text-align: right; }
td.right, .whole { white-space: nowrap; }
figure { margin: 1.5rem 0; } figcaption { max-width: 60rem; }
figure svg { max-width: 100%; height: auto; } figure svg * { stroke-linejoin: round; stroke-linecap: butt; }
@media (prefers-color-scheme: dark) { body { color: #e8e8e8; background: #16181c; } }
@media print { body { max-width: none; margin: 0; padding: 0; font-size: 9pt; color: #000; background: #fff; }
  figure, tr { break-inside: avoid; } h2, h3 { break-after: avoid; } .wide { overflow: visible; }
  table { font-size: 8pt; } th, td { padding: .1rem .3rem; } }
"""


def page(summary: Summary, problems: Sequence[str] = (), title: str = "Benchmark results") -> str:
    """The page.

    Args:
      summary: of one machine.
      problems: lines that name what could not be read.
      title: of the page.
    """
    rows = summary.rows
    parts = [f"<h1>{_escape(title)}</h1>"]
    if problems:
        parts.append(_section("Could not be read", _items(problems)))
    scores = _table(tables.score_grid(summary), "Scores") if rows else "<p>No scores.</p>"
    parts.append(_section("Results", scores + _items(tables.notes(summary))))
    if summary.unscored:
        parts.append(
            _section("Without a score", _table(tables.unscored_grid(summary.unscored), "Failed, unsound and skipped"))
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
        content = _table(tables.scaling_grid(steps), "Speed-up and efficiency")
        content += (
            "<p>Strong: the batch over all ranks is that of one rank. Weak: the batch of each rank is. Efficiency: "
            "speed-up over ranks. Ranks on one machine without an accelerator each share its CPU, which one rank has "
            "to itself: there, efficiency shows what sharing costs and not what more machines would bring.</p>"
        )
        parts.append(_plots("Scaling against world size", plots.scaling_plots, rows, "", before=content))
    else:
        parts.append(_section("Scaling against world size", "<p>No benchmark was run at several ranks.</p>"))
    parts += _ranks(rows)
    described = machines.described(summary.machine)
    machine = _table(Grid(["Property", "Value"], described), "The machine") if described else "<p>Not known.</p>"
    parts.append(_section("Machine", machine))
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{_escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(parts)
        + "\n</main>\n</body>\n</html>\n"
    )


def _implementations(summary: Summary) -> list[str]:
    """OOTB beside optimized, if both have scores of something."""
    try:
        comparison = compare_implementations(summary, "ootb", "optimized")
    except InputError:
        return []
    content = _table(compare_tables.grid(comparison), "Optimized (B) over out of the box (A)")
    return [_section("Out of the box and optimized", content + _items(compare_tables.notes(comparison)))]


def _roofline(rows: Sequence[Row]) -> str:
    about = (
        "<p>Both roofs are measured by the microbenchmarks of this table. The memory roof is the bandwidth of "
        "looked-up rows, which caches can raise above what memory gives. A benchmark is placed where the operations "
        "and bytes of its step are known.</p>"
    )
    left_out = sorted({name for roofline in rooflines(rows) for name in roofline.left_out})
    after = f"<p>Not placed, their operations and bytes being unknown:</p>{_items(left_out)}" if left_out else ""
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
    if not plots.can_draw():
        missing = "<p>Plots are left out: matplotlib is not installed (requirements.txt has its version).</p>"
        return _section(title, before + missing + after)
    drawn = "".join(
        f"<figure>{plot.svg}<figcaption><strong>{_escape(plot.title)}.</strong> {_escape(plot.text)}</figcaption>"
        "</figure>\n"
        for plot in draw(rows)
    )
    return _section(title, before + (drawn or (f"<p>{none}</p>" if none else "")) + after)


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
    return [_section("Ranks", _table(Grid(["Benchmark", *right], found, right), "Step time and memory of each rank"))]


def _mebibytes(sizes: Sequence[int], rank: int) -> str:
    return f"{sizes[rank] / 2**20:,.0f}" if rank < len(sizes) else ""


def _table(grid: Grid, caption: str) -> str:
    def cell(kind: str, heading: str, value: str, scope: str = "") -> str:
        # Figures are not broken into lines, an interval neither.
        look = ' class="right"' if heading in grid.right else ' class="whole"' if heading == tables.INTERVAL else ""
        return f"<{kind}{scope}{look}>{_escape(value)}</{kind}>"

    head = "".join(cell("th", heading, heading, ' scope="col"') for heading in grid.headings)
    body = []
    for row in grid.rows:
        cells = [cell("th", grid.headings[0], row[0], ' scope="row"')]
        cells += [cell("td", heading, value) for heading, value in zip(grid.headings[1:], row[1:], strict=True)]
        body.append(f"<tr>{''.join(cells)}</tr>")
    # The box scrolls sideways, for which somebody without a mouse must be able to reach it.
    return (
        f'<div class="wide" role="region" tabindex="0" aria-label="{_escape(caption)}"><table>'
        f"<caption>{_escape(caption)}</caption>\n<thead><tr>{head}</tr></thead>\n<tbody>{''.join(body)}</tbody>"
        "</table></div>\n"
    )


def _section(title: str, content: str) -> str:
    return f"<section>\n<h2>{_escape(title)}</h2>\n{content}\n</section>"


def _items(lines: Sequence[str]) -> str:
    return "<ul>" + "".join(f"<li>{_escape(line)}</li>" for line in lines) + "</ul>"


def _escape(value: str) -> str:
    return html.escape(value, quote=True)
