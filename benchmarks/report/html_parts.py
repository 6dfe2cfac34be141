"""What pages are made of. Light, dark and on paper; no scripts, and nothing from elsewhere."""

import html
from collections.abc import Sequence

from benchmarks.report import tables
from benchmarks.report.drawing import Plot
from benchmarks.report.tables import Grid

# svg: what matplotlib would say to the whole page.
_STYLE = """
:root { color-scheme: light dark; --line: #9994; --soft: #8881; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; padding: 0 1.5rem; max-width: 90rem;
  color: #1a1a1a; background: #fff; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.5rem; } h3 { font-size: 1rem; }
.wide { overflow-x: auto; } .wide + .wide { margin-top: 1.2rem; }
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


def document(title: str, parts: Sequence[str]) -> str:
    """A page of parts, which are HTML already, under its title."""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join([f"<h1>{escape(title)}</h1>", *parts])
        + "\n</main>\n</body>\n</html>\n"
    )


def picture(plot: Plot) -> str:
    """A picture with its title and what it shows."""
    caption = f"<figcaption><strong>{escape(plot.title)}.</strong> {escape(plot.text)}</figcaption>"
    return f"<figure>{plot.svg}{caption}</figure>\n"


def table(grid: Grid, caption: str) -> str:
    """A table in a box that scrolls where it is too wide."""

    def cell(kind: str, heading: str, value: str, scope: str = "") -> str:
        # Figures are not broken into lines, an interval neither.
        look = ' class="right"' if heading in grid.right else ' class="whole"' if heading == tables.INTERVAL else ""
        return f"<{kind}{scope}{look}>{escape(value)}</{kind}>"

    head = "".join(cell("th", heading, heading, ' scope="col"') for heading in grid.headings)
    body = []
    for row in grid.rows:
        cells = [cell("th", grid.headings[0], row[0], ' scope="row"')]
        cells += [cell("td", heading, value) for heading, value in zip(grid.headings[1:], row[1:], strict=True)]
        body.append(f"<tr>{''.join(cells)}</tr>")
    # The box scrolls sideways, for which somebody without a mouse must be able to reach it.
    return (
        f'<div class="wide" role="region" tabindex="0" aria-label="{escape(caption)}"><table>'
        f"<caption>{escape(caption)}</caption>\n<thead><tr>{head}</tr></thead>\n<tbody>{''.join(body)}</tbody>"
        "</table></div>\n"
    )


def section(title: str, content: str) -> str:
    """A section of content that is HTML already."""
    return f"<section>\n<h2>{escape(title)}</h2>\n{content}\n</section>"


def items(lines: Sequence[str]) -> str:
    """A list of texts."""
    return "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in lines) + "</ul>"


def escape(value: str) -> str:
    """A text in which nothing is markup, in attributes neither."""
    return html.escape(value, quote=True)
