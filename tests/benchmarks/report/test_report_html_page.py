"""The page: everything is in it, nothing is from elsewhere, and no name in it is markup."""

import re
from html.parser import HTMLParser

import pytest
from report_cases import repeats, result, turns

from benchmarks.report import drawing, html_page
from benchmarks.report.rows import summarise
from benchmarks.suite.results import FAILED

VOID = {"meta", "link", "br", "img", "hr", "input"}
HARD = '<script>alert("&\'")</script>'


class Page(HTMLParser):
    """Tags, texts by heading, and whether every element is closed where it should be."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.attributes, self.headings, self.text = [], [], [], [], ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += [(tag, *pair) for pair in attributes]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += [(tag, *pair) for pair in attributes]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "h2":
            self.headings.append(data)
        if "style" not in self.open:
            self.text += data


@pytest.fixture(scope="module")
def summary():
    sizes = [one for size in (64, 128) for one in repeats(size, size, batch_size=size, config=HARD)]
    return summarise(
        [
            *sizes,
            *repeats(
                90,
                config=HARD,
                world_size=2,
                scaling="strong",
                rank_step_ms=[10.25, 11.5],
                peak_memory_bytes=[2**30] * 2,
            ),
            *turns([1, 1.01, 1.02], [2, 2.01, 2.02]),
            result(status=FAILED, reason=HARD, batch_size=8),
        ],
        "here",
    )


@pytest.fixture(scope="module")
def page(summary):
    return html_page.page(summary, [f"records.jsonl:3: {HARD}"], title=HARD)


def test_it_is_whole(page):
    found = Page(page)
    assert found.open == []
    assert page.startswith("<!DOCTYPE html>")
    assert found.headings == [
        *("Could not be read", "Results", "Without a score", "Out of the box and optimized"),
        *("Throughput and latency against batch size", "Roofline", "Scaling against world size", "Ranks", "Machine"),
    ]


def test_nothing_is_run_and_nothing_comes_from_elsewhere(page):
    found = Page(page)
    assert {"script", "link", "iframe", "img", "object"}.isdisjoint(found.tags)
    assert not any(name.startswith("on") for _, name, _ in found.attributes)
    addresses = {value for _, name, value in found.attributes if name in ("src", "href", "xlink:href")}
    assert all(address.startswith("#") for address in addresses)
    assert "@import" not in page
    assert not re.search(r"url\((?!#)", page)


def test_names_stand_as_they_are(page):
    found = Page(page)
    assert found.text.count(HARD) >= 5
    assert found.tags.count("h1") == 1


def test_tables_have_captions_and_scopes(page):
    found = Page(page)
    assert found.tags.count("table") == found.tags.count("caption") > 4
    assert {value for tag, name, value in found.attributes if (tag, name) == ("th", "scope")} == {"col", "row"}
    ids = [value for _, name, value in found.attributes if name == "id"]
    assert len(ids) == len(set(ids))


def test_ranks_have_their_times(page):
    text = Page(page).text
    assert "10.25" in text and "11.50" in text and "1,024" in text


def test_light_dark_and_paper(page):
    assert "prefers-color-scheme: dark" in page
    assert "@media print" in page
    assert "color-scheme: light dark" in page


def test_plots_have_what_they_show_in_words(page):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    found = Page(page)
    assert found.tags.count("svg") == found.tags.count("figcaption") == found.tags.count("figure") == 2
    labels = [value for tag, name, value in found.attributes if (tag, name) == ("svg", "aria-label")]
    assert labels == [f"dlrm training, {HARD}: against batch size", f"dlrm training, {HARD}: scaling"]


def test_without_matplotlib_it_says_so(summary, monkeypatch):
    monkeypatch.setattr(drawing, "can_draw", lambda: False)
    found = Page(html_page.page(summary))
    assert "svg" not in found.tags
    assert found.text.count("matplotlib is not installed") == 3


def test_of_nothing():
    text = Page(html_page.page(summarise([], "here"))).text
    assert "No scores." in text
    assert "Not known." in text
