"""A report as Markdown and as a page: the same in both, and no text is markup."""

from benchmarks.report.drawing import Plot
from benchmarks.report.tables import Grid
from benchmarks.study.report import blocks
from benchmarks.study.report.blocks import Items, Picture, Section, Table, Text

HARD = 'a_b | <b> & "c"'
SECTIONS = [
    Section(
        HARD,
        [
            Text(HARD),
            Text("not so", strong=True),
            Items(["one", HARD]),
            Table("Scores", Grid(["Name", "Score"], [["x", "1"], ["y", ""]], ("Score",)), 1),
            Table("Of others", Grid([HARD], [[HARD]]), None),
            Picture("curves", Plot("Curves", "As seen.", "<svg>drawn</svg>", b"png")),
        ],
    )
]


def test_markdown():
    escaped = 'a\\_b \\| &lt;b&gt; &amp; "c"'
    assert blocks.markdown("Study", SECTIONS) == (
        f"# Study\n\n## {escaped}\n\n{escaped}\n\n**not so**\n\n- one\n- {escaped}\n\n"
        "Scores (1 run):\n\n| Name | Score |\n| --- | ---: |\n| x | 1 |\n| y |  |\n\n"
        f"Of others:\n\n| {escaped} |\n| --- |\n| {escaped} |\n\n"
        "![Curves](figures/curves.png)\n\nCurves. As seen.\n"
    )


def test_page_has_everything_in_itself():
    page = blocks.page("Study", SECTIONS)
    escaped = "a_b | &lt;b&gt; &amp; &quot;c&quot;"
    for expected in (
        "<title>Study</title>", f"<h2>{escaped}</h2>", f"<p>{escaped}</p>", "<p><strong>not so</strong></p>",
        f"<li>{escaped}</li>", "<caption>Scores (1 run)</caption>", "<caption>Of others</caption>",
        "<svg>drawn</svg>", "As seen.",
    ):  # fmt: skip
        assert expected in page
    assert "figures/" not in page and "<b>" not in page


def test_pictures_are_found():
    assert [one.name for one in blocks.pictures(SECTIONS)] == ["curves"]
