import numpy as np
import pyarrow as pa
import pytest

from data.display_count import DisplayCount


def counted(displays, labels, rows):
    """The count of rows that come `rows` at a time."""
    count = DisplayCount()
    for first in range(0, len(displays), rows):
        count.add(displays.slice(first, rows), labels.slice(first, rows))
    count.end()
    return count


@pytest.mark.parametrize("rows", [1, 2, 3, 100])
@pytest.mark.parametrize("kind", [pa.int32(), pa.int64(), pa.uint64()])
def test_displays_that_come_side_by_side(rows, kind):
    displays = pa.array([1, 1, 2, 2, 2, 2, 5, 9, 9], kind)
    count = counted(displays, pa.array([1, 0, 1, 1, 0, 1, 0, 0, 1]), rows)
    assert (count.ascending, count.count, count.without, count.several) == (True, 4, 1, 1)


@pytest.mark.parametrize("kind", ["bool", "int8", "float32"])
def test_labels_of_any_type(kind):
    count = counted(pa.array([1, 1, 2]), pa.array(np.array([1, 1, 0]).astype(kind)), 2)
    assert (count.count, count.without, count.several) == (2, 1, 1)


@pytest.mark.parametrize("kind", [pa.int64(), pa.uint64()])
def test_large_ids_that_differ_in_their_last_digit(kind):
    count = counted(pa.array([2**60 + i for i in range(6)], kind), pa.array([1] * 6), 2)
    assert (count.count, count.several) == (6, 0)


@pytest.mark.parametrize("rows", [1, 2, 100])
@pytest.mark.parametrize("displays", [[1, 2, 1], [1, 2, None], [3, 3, 2]])
def test_scattered_displays_and_nulls_end_the_count(rows, displays):
    assert not counted(pa.array(displays), pa.array([1, 0, 1]), rows).ascending


def test_no_rows():
    count = counted(pa.array([], pa.int64()), pa.array([], pa.int8()), 1)
    assert (count.ascending, count.count) == (True, 0)
