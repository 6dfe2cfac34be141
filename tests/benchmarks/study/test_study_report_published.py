"""Other people's figures stand in tables that fit, and are called other people's."""

from benchmarks.study.report import published


def test_rows_fit_their_headings():
    for grid in (published.accuracy(), published.training(), published.evaluation()):
        assert grid.rows and all(len(row) == len(grid.headings) for row in grid.rows)
        assert set(grid.right) <= set(grid.headings)


def test_they_are_called_what_they_are():
    assert published.NOTE.startswith("Other people's hardware")
    assert len(published.further()) == 3


def test_scaling_is_that_of_the_table():
    by_key = {tuple(row[:3]): float(row[3].replace(",", "")) for row in published.training().rows}
    for hardware, scaling in (("A100", 3.27), ("V100", 5.56)):
        assert round(by_key[hardware, "8", "yes"] / by_key[hardware, "1", "yes"], 2) == scaling
