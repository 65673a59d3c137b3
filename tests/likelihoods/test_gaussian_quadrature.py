"""The adaptive rule itself: constants, kinks, steps, failures."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from likelihood_cases import column
from scipy import stats
from torch import Tensor

from kernelcg.likelihoods import Likelihood
from kernelcg.likelihoods import quadrature as rules
from kernelcg.likelihoods.quadrature import expectation, log_expectation


@pytest.mark.parametrize("degree", range(24))
def test_the_rules_are_exact_for_polynomials(degree):
    """Degree 13 for the 7-point Gauss rule, 22 for the 15-point Kronrod rule (23 by symmetry)."""
    truth = 2 / (degree + 1) if degree % 2 == 0 else 0.0
    assert (rules.KRONROD * rules.NODES**degree).sum().item() == pytest.approx(truth, abs=1e-15)
    if degree <= 13:
        assert (rules.GAUSS * rules.NODES**degree).sum().item() == pytest.approx(truth, abs=1e-15)
    if degree == 14:
        assert (rules.GAUSS * rules.NODES**degree).sum().item() != pytest.approx(truth, abs=1e-8)
    assert (rules.GAUSS > 0).sum() == 7


@given(st.floats(-50, 50), st.floats(-8, 6))
def test_moments_of_the_gaussian(m, exponent):
    v = 10.0**exponent
    result = expectation(lambda rows, f: torch.stack([torch.ones_like(f), f, f**2], -1), column(m), column(v))
    np.testing.assert_allclose(result[0], [1.0, m, m**2 + v], rtol=1e-7, atol=1e-7)


@given(st.floats(-5, 5), st.floats(-6, 8), st.floats(-10, 10), st.floats(0.03, 3))
def test_a_steep_step_is_found(m, exponent, place, width):
    """E Φ((f − c) / w) = Φ((m − c) / √(w² + v))."""
    v = 10.0**exponent
    result = expectation(lambda rows, f: torch.special.ndtr((f - place) / width)[..., None], column(m), column(v))
    assert result.item() == pytest.approx(stats.norm.cdf((m - place) / math.sqrt(width**2 + v)), abs=1e-6)


@pytest.mark.parametrize(("place", "width"), [(0.0, 0.1), (0.0, 1.0), (-3.0, 0.3), (-3.0, 10.0), (20.0, 2.0)])
@pytest.mark.parametrize("v", [0.0, 1e-4, 1.0, 1e4, 1e8])
def test_a_bump_is_found(place, width, v):
    """E exp(−(f − c)²/2w²) = w / √(w² + v) exp(−(m − c)²/2(w² + v)): tiny and easily missed at a large variance."""
    result = expectation(
        lambda rows, f: torch.exp(-0.5 * ((f - place) / width) ** 2)[..., None], column(1.0, 5.0), column(v, v)
    )
    total = width**2 + v
    truth = width / np.sqrt(total) * np.exp(-((np.array([1.0, 5.0]) - place) ** 2) / (2 * total))
    np.testing.assert_allclose(result[:, 0], truth, rtol=0, atol=1e-7)


@pytest.mark.parametrize("v", [1e-6, 0.5, 30.0])
def test_growing_functions_to_relative_precision(v):
    """E e^(2f) = e^(2m + 2v), found far out in the tail of the Gaussian."""
    result = expectation(lambda rows, f: torch.exp(2 * f)[..., None], column(1.0), column(v)).item()
    assert result == pytest.approx(math.exp(2 + 2 * v), rel=1e-6)


class Laplacian(Likelihood):
    width: Tensor

    def log_density(self, y, f, exposure):
        return -(y - f).abs() / self.width - (2 * self.width).log()


@given(st.floats(-5, 5), st.floats(0.05, 3), st.floats(-3, 3), st.floats(-2, 2))
def test_a_kink_is_no_obstacle(y, width, m, exponent):
    v = 10.0**exponent
    s = math.sqrt(v)
    a, b = (y - m - v / width) / s, (y - m + v / width) / s
    left = (m - y) / width + v / (2 * width**2) + stats.norm.logcdf(a)
    right = (y - m) / width + v / (2 * width**2) + stats.norm.logsf(b)
    truth = np.logaddexp(left, right) - math.log(2 * width)
    result = Laplacian(width).log_predictive(column(y), column(m), column(v)).item()
    assert result == pytest.approx(truth, abs=1e-7)


def test_large_rounding_errors_neither_stop_nor_spoil_it():
    """l of size 1e12 has rounding errors of 1e-4; a Gaussian times e^(1e12) still integrates to e^(1e12)."""
    result = log_expectation(lambda rows, f: 1e12 + 0 * f, column(0.0, 3.0), column(1.0, 1e-9), log_concave=True)
    assert result.tolist() == pytest.approx([1e12, 1e12], rel=1e-15)
    zeros = torch.zeros(300, dtype=torch.float64)
    noisy = log_expectation(lambda rows, f: (f + 1e12) - 1e12, zeros, zeros + 1, log_concave=True)
    np.testing.assert_allclose(noisy, 0.5, atol=1e-3)  # E eᶠ = e^½


def test_impossible_observations_have_no_probability():
    result = log_expectation(lambda rows, f: torch.full_like(f, -math.inf), column(0.0), column(1.0), log_concave=True)
    assert result.item() == -math.inf


def test_missing_values_stay_missing_in_their_row():
    mean = column(float("nan"), 0.0)
    result = expectation(lambda rows, f: f.sigmoid()[..., None], mean, column(1.0, 1.0))[:, 0]
    assert result[0].isnan()
    assert result[1].item() == pytest.approx(0.5, abs=1e-8)


def test_what_does_not_settle_is_refused():
    with pytest.raises(ArithmeticError, match=r"1 predictive integrals did not settle: .* smooth"):
        expectation(lambda rows, f: torch.sin(1e9 * f)[..., None], column(0.0), column(1.0))


def test_variances_below_zero_by_rounding_count_as_zero():
    assert expectation(lambda rows, f: f.exp()[..., None], column(1.0), column(-1e-18)).item() == pytest.approx(math.e)
