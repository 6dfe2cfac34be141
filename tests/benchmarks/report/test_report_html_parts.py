"""Parts of pages: no text is markup, and tables are what they were."""

from benchmarks.report import html_parts
from benchmarks.report.drawing import Plot
from benchmarks.report.tables import Grid

HARD = "<b>&\"'"
SAFE = "&lt;b&gt;&amp;&quot;&#x27;"


def test_document_has_its_title_and_its_parts():
    page = html_parts.document(HARD, ["<p>one</p>", "<p>two</p>"])
    assert f"<title>{SAFE}</title>" in page and f"<h1>{SAFE}</h1>" in page
    assert "<p>one</p>\n<p>two</p>" in page
    assert page.startswith("<!DOCTYPE html>") and page.endswith("</html>\n")


def test_texts_are_escaped_everywhere():
    parts = [
        html_parts.table(Grid([HARD, "n"], [[HARD, "1"]], ("n",)), HARD),
        html_parts.items([HARD]),
        html_parts.section(HARD, ""),
        html_parts.picture(Plot(HARD, HARD, "<svg/>")),
    ]
    assert all(SAFE in part and "<b>" not in part for part in parts)


def test_table_aligns_figures_and_its_first_column_are_headings():
    table = html_parts.table(Grid(["Name", "n"], [["x", "1"], ["y", ""]], ("n",)), "Counts")
    assert "<caption>Counts</caption>" in table and 'aria-label="Counts"' in table
    assert '<th scope="row">x</th><td class="right">1</td>' in table
    assert '<th scope="row">y</th><td class="right"></td>' in table
