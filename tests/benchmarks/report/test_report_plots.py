"""Plots: what they say, and that they are safe inside a page. Skipped without matplotlib."""

import re
import xml.etree.ElementTree as ElementTree

import pytest
from report_cases import repeats

from benchmarks.report import plots
from benchmarks.report.rows import summarise

pytest.importorskip("matplotlib", reason="matplotlib is not installed")

HARD = "<b>&\"'$x_1$ _é"


def rows(*results):
    return summarise([one for some in results for one in some], "here").rows


def texts(svg):
    root = ElementTree.fromstring(svg)
    return ["".join(element.itertext()).strip() for element in root.iter() if element.tag.endswith("}text")]


@pytest.fixture(scope="module")
def drawn():
    sizes = [one for size in (64, 128, 256) for one in repeats(size * 10, size * 11, batch_size=size, config=HARD)]
    work = {"gflop_per_step": 2.0, "bytes_per_step": 1e8}
    found = rows(
        sizes,
        repeats(600, batch_size=64, config=HARD, implementation="ootb", latency_limit_ms=30.0),
        repeats(700, batch_size=64, config=HARD, world_size=2, scaling="strong"),
        repeats(900, batch_size=128, config=HARD, world_size=2, scaling="weak"),
        repeats(0.2, model="gemm", implementation="micro", units="TF/s", figures=work),
        repeats(9.0, model="embedding_bag", implementation="micro", units="GB/s"),
    )
    return [*plots.batch_size_plots(found), *plots.scaling_plots(found), *plots.roofline_plots(found)]


def test_one_plot_of_each_kind(drawn):
    assert [plot.title for plot in drawn] == [
        f"dlrm training, {HARD}: against batch size", f"dlrm training, {HARD}: scaling", "Roofline, fp32",
    ]  # fmt: skip


def test_texts_say_what_is_drawn(drawn):
    batch, scaling, roofline = (plot.text for plot in drawn)
    assert "optimized: 2,688.0 samples/s at 256, best between 64 and 256" in batch
    assert "optimized, 2 ranks strong: 700.0 samples/s at 64, one size" in batch
    assert "optimized, strong, 64 rows over all ranks, fp32 at 2 ranks: speed-up 1.04, efficiency 52%" in scaling
    assert "optimized, weak, 64 rows a rank, fp32 at 2 ranks: speed-up 1.34, efficiency 67%" in scaling
    assert "GEMM" in roofline and "0.2 TF/s at 20 flop per byte, 111% of the roof" in roofline


def test_what_is_drawn_is_text(drawn):
    batch, scaling, roofline = (texts(plot.svg) for plot in drawn)
    assert {"batch size", "samples/s", "p95 latency, ms", "64", "128", "256", "optimized", "limit 30 ms"} <= set(batch)
    assert {"ranks", "ideal", "52%", "67%"} <= set(scaling)
    assert "GEMM, 0.2 TF/s" in roofline
    # Tick labels of a logarithmic axis are numbers and not formulas.
    assert not any("$" in text for text in roofline)


def test_names_are_no_markup(drawn):
    for plot in drawn:
        root = ElementTree.fromstring(plot.svg)
        assert root.get("role") == "img"
        assert root.get("aria-label") == plot.title
        assert {element.tag.rpartition("}")[2] for element in root.iter()} <= {
            *("svg", "g", "path", "text", "tspan", "defs", "use", "clipPath", "rect", "title"),
        }


def test_a_name_in_a_legend_stands_as_it_is():
    found = rows(*(repeats(size, batch_size=size, implementation=HARD) for size in (1, 2)))
    (plot,) = plots.batch_size_plots(found)
    assert HARD in texts(plot.svg)


def test_ids_of_plots_do_not_meet_and_what_is_referred_to_is_there(drawn):
    ids = [name for plot in drawn for name in re.findall(r' id="([^"]+)"', plot.svg)]
    assert len(ids) == len(set(ids)) > 20
    for plot in drawn:
        referred = {one or other for one, other in re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', plot.svg)}
        assert referred and referred <= set(re.findall(r' id="([^"]+)"', plot.svg))


def test_ink_is_the_page_s(drawn):
    for plot in drawn:
        assert "currentColor" in plot.svg
        assert "#010203" not in plot.svg
        assert "#000000" not in plot.svg
        assert "<style" not in plot.svg


def test_drawing_again_gives_the_same():
    found = rows(*(repeats(size, batch_size=size) for size in (1, 2)))
    assert plots.batch_size_plots(found) == plots.batch_size_plots(found)


def test_nothing_is_drawn_of_one_size_or_one_rank():
    found = rows(repeats(1))
    assert plots.batch_size_plots(found) == plots.scaling_plots(found) == plots.roofline_plots(found) == []


def test_steps_that_were_not_timed_have_no_latency():
    found = rows(*(repeats(size, batch_size=size, step_ms=[]) for size in (1, 2)))
    assert len(plots.batch_size_plots(found)) == 1
