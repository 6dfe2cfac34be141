"""Pictures by matplotlib: SVG that stands in a page, whose colour of text is the page's, and PNG that stands anywhere.

No name in a picture is markup. matplotlib is imported when something is drawn: tables do not need it.
"""

import hashlib
import html
import importlib.util
import io
import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

# Okabe and Ito's colours that hold on white and on black alike; lines differ in marker and dashes, too.
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
_MARKERS = ("o", "s", "^", "D", "v", "P")
_DASHES = ("-", "--", "-.", ":")
# A colour that nothing is drawn in but what shall have the page's own.
INK = "#010203"

_DOTS_PER_INCH = 144

_STYLE = {
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK),
    **{"axes.grid": True, "grid.color": "#808080", "grid.alpha": 0.35, "grid.linewidth": 0.6},
    **{"axes.spines.top": False, "axes.spines.right": False, "font.size": 10, "legend.frameon": False},
    # Text stays text: it can be read aloud, searched and copied. Names may have dollar signs.
    **{"svg.fonttype": "none", "text.parse_math": False, "legend.fontsize": 9, "axes.titlesize": 10},
}


@dataclass(frozen=True)
class Plot:
    """A picture: `svg` is an element to be put into a page; `text` says what it shows to who does not see it.

    png: the same on white, for where SVG cannot stand; None if it was not asked for.
    """

    title: str
    text: str
    svg: str
    png: bytes | None = None


def can_draw() -> bool:
    """Whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def figure(width: float, height: float) -> Any:
    """An empty figure, sizes in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def plot(title: str, text: str, make: Callable[[], Any], *, png: bool = False) -> Plot:
    """What `make` draws: it returns a figure. The same picture gives the same bytes each time.

    Args:
      title: stands nowhere in the picture; no other plot of the page may have the same, for ids are made of it.
      text: what is to be seen.
      make: is called once, under the style of all plots.
      png: whether there is to be one, too.
    """
    import matplotlib

    with matplotlib.rc_context(_STYLE | {"svg.hashsalt": title}):
        made = make()
        output = io.StringIO()
        made.savefig(output, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
        pixels = io.BytesIO()
        if png:
            made.savefig(pixels, format="png", facecolor="white", dpi=_DOTS_PER_INCH, metadata={"Software": None})
    return Plot(title, text, _element(title, output.getvalue()), pixels.getvalue() if png else None)


def looks() -> Iterator[dict[str, Any]]:
    """Looks of lines, without end; the first 12 differ in two of color, marker and dashes."""
    for place in itertools.count():
        yield {
            "color": COLORS[place % len(COLORS)],
            "marker": _MARKERS[(place + place // len(COLORS)) % len(_MARKERS)],
            "linestyle": _DASHES[place % len(_DASHES)],
        }


def _element(title: str, svg: str) -> str:
    """A picture as an element of a page, with ids that no other picture of the page has."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", svg, flags=re.DOTALL)
    prefix = "plot-" + hashlib.sha256(title.encode()).hexdigest()[:10] + "-"
    svg = re.sub(r'((?: id=")|(?:href="#)|(?:url\(#))', lambda found: found[0] + prefix, svg)
    label = html.escape(title, quote=True)
    return svg.replace(INK, "currentColor").replace("<svg", f'<svg role="img" aria-label="{label}"', 1)
