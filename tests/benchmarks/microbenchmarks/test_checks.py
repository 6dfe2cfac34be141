import numpy as np
import pytest

from benchmarks.microbenchmarks import checks
from data.id_draw import IdDraw


def test_errors_are_measured_against_the_root_mean_square():
    assert checks.worst_error([3.0, 4.5], [3.0, 4.0]) == pytest.approx(0.5 / np.sqrt(12.5))
    # The second row is large: there the same error counts less.
    expected = np.array([[1.0, 1.0], [7.0, 7.0]])
    assert checks.worst_error(expected + np.array([[0, 0.5], [0, 0]]), expected) == pytest.approx(0.5 / 5.0)
    assert checks.worst_error(expected + np.array([[0, 0], [0, 0.5]]), expected) == pytest.approx(0.5 / 7.0)


@pytest.mark.parametrize(
    ("found", "expected"), [([np.nan, 1], [1, 1]), ([np.inf, 1], [1, 1]), ([0, 0], [0, 0]), ([], [])]
)
def test_what_cannot_be_compared_is_off_without_bound(found, expected):
    assert checks.worst_error(np.array(found), np.array(expected)) == np.inf
    assert not checks.close("it", np.array(found), np.array(expected), "bf16").held


def test_shapes_must_be_equal():
    with pytest.raises(ValueError, match=r"\(2,\).*\(1, 2\)"):
        checks.worst_error(np.ones(2), np.ones((1, 2)))


@pytest.mark.parametrize("precision", sorted(checks.TOLERANCES))
def test_tolerances(precision):
    """Zeros are never close; a stated precision is not that of an operand that was rounded more coarsely."""
    expected = np.random.default_rng(0).standard_normal((64, 64))
    assert checks.close("it", expected, expected, precision).held
    nothing = checks.close("it", 0 * expected, expected, precision, operations=18)
    assert not nothing.held and "ABOVE" in nothing.said
    rounded = expected.astype(np.float32).view(np.int32) & ~0x1FFF  # tf32 keeps 10 bits
    assert checks.close("it", rounded.view(np.float32), expected, precision).held == (precision != "fp32")


def test_the_tolerance_grows_with_the_root_of_operations_in_a_row():
    expected = np.ones(4)
    assert not checks.close("it", expected * 1.00025, expected, "fp32").held
    assert checks.close("it", expected * 1.00025, expected, "fp32", operations=9).held


def test_exact():
    assert checks.exact("it", np.array([1, 2]), np.array([1, 2])).held
    wrong = checks.exact("it", np.array([1, 2, 4]), np.array([1, 2, 3]))
    assert not wrong.held and wrong.said == "it: 1 of 3 values are WRONG"
    assert not checks.exact("it", np.array([]), np.array([])).held


@pytest.mark.parametrize("exponent", [0.0, 1.1, 1.0, 2.5])
@pytest.mark.parametrize("cardinality", [1, 50, 10_000])
def test_drawn_ids_follow_their_law(exponent, cardinality):
    for seed in range(20):
        ids = IdDraw(exponent).ids(np.random.default_rng(seed), cardinality, 3000)
        assert all(check.held for check in checks.follow_law("ids", ids, cardinality, exponent))


@pytest.mark.parametrize("exponent", [0.0, 1.1])
@pytest.mark.parametrize(
    "fault",
    [
        lambda ids: np.full_like(ids, 7),
        lambda ids: np.arange(len(ids)) % 10_000,  # each as often as any other
        lambda ids: np.resize(ids[:100], len(ids)),  # some, over and over
        lambda ids: ids % 1000,
        lambda ids: np.where(ids == ids.min(), -1, ids),
        lambda ids: np.where(ids == ids.max(), 10_000, ids),
    ],
)
def test_other_ids_do_not(exponent, fault):
    ids = IdDraw(exponent).ids(np.random.default_rng(0), 10_000, 20_000)
    found = checks.follow_law("ids", fault(ids), 10_000, exponent)
    assert not all(check.held for check in found)


@pytest.mark.parametrize(("drawn", "stated"), [(0.0, 1.1), (1.1, 0.0), (1.1, 1.3)])
def test_ids_of_another_law_do_not(drawn, stated):
    ids = IdDraw(drawn).ids(np.random.default_rng(0), 10_000, 20_000)
    assert not all(check.held for check in checks.follow_law("ids", ids, 10_000, stated))


@pytest.mark.parametrize(("count", "most"), [(1, 5), (5, 5), (6, 5), (1000, 2), (1000, 64)])
def test_sampled_indices(count, most):
    found = checks.sampled(count, most)
    assert len(found) == min(count, most) and len(np.unique(found)) == len(found)
    assert found[0] == 0 and found[-1] == count - 1 and (np.diff(found) > 0).all()
