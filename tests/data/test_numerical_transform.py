"""Standardisation against exact arithmetic."""

import fractions
import math

import numpy as np
import pytest

from data.numerical_transform import Moments, NumericalTransform, signed_log1p


def test_the_signed_logarithm():
    values = np.array([-1.0, 0.0, math.e - 1, -(math.e**2) + 1, 1e300])
    np.testing.assert_allclose(signed_log1p(values), [-math.log(2), 0, 1, -2, math.log(1e300)], rtol=1e-14)


@pytest.mark.parametrize("count", [1, 3, 65_536, 150_000])
def test_moments_are_exact_enough_and_do_not_depend_on_the_batches(count):
    values = np.random.default_rng(1).normal(1e6, 0.1, count)
    mean = sum(map(fractions.Fraction, values.tolist())) / count
    variance = math.fsum((float(fractions.Fraction(value) - mean)) ** 2 for value in values.tolist()) / count
    results = set()
    for size in (997, 10_000, 10**6):
        moments = Moments()
        for start in range(0, count, size):
            moments.add(values[start : start + size])
        results.add(moments.finish())
    ((found_mean, found_std),) = results
    assert found_mean == pytest.approx(float(mean), rel=1e-15)
    assert found_std == pytest.approx(math.sqrt(variance), rel=1e-9)


def test_a_constant_has_no_deviation_whatever_rounding_says():
    moments = Moments()
    for _ in range(7):
        moments.add(np.full(30_001, 0.1))
    assert moments.finish() == (0.1, 0.0)
    assert Moments().finish() == (0.0, 0.0)


def test_what_is_written():
    transform = NumericalTransform(True, mean=1.0, std=2.0, fill=-9.0, missing="x_missing")
    np.testing.assert_allclose(transform.apply(np.array([math.e - 1, np.nan, 0.0])), [0.0, -9.0, -0.5], atol=1e-15)
    plain = NumericalTransform(False, mean=0.0, std=1.0, fill=3.0, missing=None)
    np.testing.assert_array_equal(plain.apply(np.array([-1.5, np.nan])), [-1.5, 3.0])
    assert transform.to_dict() == {"log1p": True, "mean": 1.0, "std": 2.0, "fill": -9.0, "missing": "x_missing"}
