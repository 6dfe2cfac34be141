"""A report as a list of sections, and how it becomes Markdown and a page."""

import dataclasses
from collections.abc import Sequence

from benchmarks.report import html_parts
from benchmarks.report.drawing import Plot
from benchmarks.report.html_parts import escape
from benchmarks.report.tables import Grid, escape_markdown, render_markdown
from benchmarks.study.report.wording import runs

FIGURES = "figures"


@dataclasses.dataclass(frozen=True)
class Text:
    """A paragraph; `strong` for what must not be missed."""

    text: str
    strong: bool = False


@dataclasses.dataclass(frozen=True)
class Items:
    """A list of lines."""

    lines: Sequence[str]


@dataclasses.dataclass(frozen=True)
class Table:
    """A table; rests_on: how many runs its figures are of, None where it is of none of ours."""

    caption: str
    grid: Grid
    rests_on: int | None

    @property
    def title(self) -> str:
        """The caption with the number of runs."""
        return self.caption if self.rests_on is None else f"{self.caption} ({runs(self.rests_on)})"


@dataclasses.dataclass(frozen=True)
class Picture:
    """A picture; name: of its files, without ending; its plot's text says how many runs it rests on."""

    name: str
    plot: Plot


Block = Text | Items | Table | Picture


@dataclasses.dataclass(frozen=True)
class Section:
    """A heading and what stands under it."""

    title: str
    blocks: Sequence[Block]


def markdown(title: str, sections: Sequence[Section]) -> str:
    """The report as Markdown; pictures are files of the folder FIGURES beside it."""
    parts = [f"# {escape_markdown(title)}\n"]
    for section in sections:
        parts.append(f"## {escape_markdown(section.title)}\n")
        parts += [_markdown(block) for block in section.blocks]
    return "\n".join(parts)


def page(title: str, sections: Sequence[Section]) -> str:
    """The report as one page of HTML that needs nothing beside it."""
    return html_parts.document(
        title,
        [html_parts.section(section.title, "\n".join(map(_html, section.blocks))) for section in sections],
    )


def pictures(sections: Sequence[Section]) -> list[Picture]:
    """All pictures, in their order."""
    return [block for section in sections for block in section.blocks if isinstance(block, Picture)]


def _markdown(block: Block) -> str:
    match block:
        case Text(text, strong):
            return f"**{escape_markdown(text)}**\n" if strong else f"{escape_markdown(text)}\n"
        case Items(lines):
            return "".join(f"- {escape_markdown(line)}\n" for line in lines)
        case Table():
            return f"{escape_markdown(block.title)}:\n\n{render_markdown(block.grid)}"
        case Picture(name, plot):
            title = escape_markdown(plot.title)
            return f"![{title}]({FIGURES}/{name}.png)\n\n{title}. {escape_markdown(plot.text)}\n"


def _html(block: Block) -> str:
    match block:
        case Text(text, strong):
            return f"<p><strong>{escape(text)}</strong></p>" if strong else f"<p>{escape(text)}</p>"
        case Items(lines):
            return html_parts.items(lines)
        case Table():
            return html_parts.table(block.grid, block.title)
        case Picture():
            return html_parts.picture(block.plot)
