"""Derivatives in f and in the hyperparameters, against mpmath with 80 digits; the user's own likelihoods."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from likelihood_cases import LIKELIHOODS, column, latents, names, observations, table
from likelihood_reference import log_density_and_derivatives, parameter_derivatives
from torch import Tensor

from kernelcg.likelihoods import (
    BernoulliLogit,
    BernoulliProbit,
    Gaussian,
    Likelihood,
    NegativeBinomial,
    Poisson,
    StudentT,
)

FIELDS = ("log_density", "gradient", "curvature", "slope")


def truths(likelihood, y, f, exposure):
    rows = zip(y.tolist(), f.tolist(), exposure.tolist(), strict=True)
    return np.array([log_density_and_derivatives(likelihood, *row) for row in rows]).T


def assert_derivatives(result, truth, rtol, atol):
    for name, expected in zip(FIELDS, truth, strict=True):
        np.testing.assert_allclose(getattr(result, name), expected, rtol=rtol, atol=atol, err_msg=name)


@given(names, latents)
def test_derivatives_are_those_of_the_formula(name, f):
    y, f, exposure = table(LIKELIHOODS[name], [f])
    size = 1 + y.abs().max().item()
    result = LIKELIHOODS[name].derivatives(y, f, exposure)
    assert_derivatives(result, truths(LIKELIHOODS[name], y, f, exposure), rtol=1e-11, atol=1e-13 * size)


FAR = [-1e4, -1e3, -300.0, -30.0, -3.01, -2.99, 2.99, 30.0, 36.0]


@pytest.mark.parametrize("likelihood", [BernoulliProbit(), BernoulliLogit()])
def test_far_from_the_boundary_every_digit_counts(likelihood):
    """W → 1 and ∂W/∂f → 0 at misclassified points are differences of numbers like f² for the probit."""
    y, f, exposure = table(likelihood, [*FAR, *(-f for f in FAR)])
    shown = (2 * y - 1) * f < 37  # beyond, the truth underflows
    y, f, exposure = y[shown], f[shown], exposure[shown]
    assert_derivatives(
        likelihood.derivatives(y, f, exposure), truths(likelihood, y, f, exposure), rtol=1e-12, atol=1e-300
    )


@given(st.floats(-1e4, 36), st.sampled_from([0.0, 1.0]))
def test_the_probit_keeps_its_digits_everywhere(z, y):
    f = z if y == 1 else -z
    result, truth = (
        BernoulliProbit().derivatives(column(y), column(f)),
        log_density_and_derivatives(BernoulliProbit(), y, f),
    )
    assert result.gradient.item() == pytest.approx(truth[1], rel=1e-12)
    assert result.curvature.item() == pytest.approx(truth[2], rel=1e-12)
    near_its_root = 1e-12 * abs(truth[2])
    assert result.slope.item() == pytest.approx(truth[3], rel=2e-12, abs=near_its_root if z > -1 else 0.0)


@pytest.mark.parametrize("f", [-1e150, -1e6, -1e4, -1e3, -710.0, -40.0, 0.0, 40.0, 710.0, 1e3, 1e4, 1e6, 1e150])
@pytest.mark.parametrize("name", ["probit", "logit", "binomial", "negative binomial", "student", "gaussian"])
def test_nothing_overflows(name, f):
    y, f, exposure = table(LIKELIHOODS[name], [f])
    result = LIKELIHOODS[name].derivatives(y, f, exposure)
    for field in FIELDS[1:]:
        assert getattr(result, field).isfinite().all(), field
    assert (result.log_density <= 20).all()
    assert not result.log_density.isnan().any()
    by_parameter = LIKELIHOODS[name].parameter_derivatives(y, f, exposure)
    if f.abs().max() <= 1e6:
        assert all(value.isfinite().all() for value in vars(by_parameter).values())
        assert result.log_density.isfinite().all()


@pytest.mark.parametrize("f", [-1e4, -1e3, 1e3, 1e4])
@pytest.mark.parametrize("name", ["poisson", "gamma"])
def test_where_the_truth_overflows_the_result_is_infinite_with_the_right_sign(name, f):
    y, f, exposure = table(LIKELIHOODS[name], [f])
    result = LIKELIHOODS[name].derivatives(y, f, exposure)
    assert not any(value.isnan().any() for value in vars(result).values())
    if (name == "poisson") == (f[0] > 0):
        assert (result.log_density == -math.inf).all()
        assert (result.curvature == math.inf).all()
        assert (result.gradient == (-math.inf if name == "poisson" else math.inf)).all()


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_the_claim_of_log_concavity(name):
    """W ≥ 0 over all y and f, exactly for those that say so."""
    y, f, exposure = table(LIKELIHOODS[name], [*np.linspace(-60, 60, 241), -1e4, -1e3, 1e3, 1e4])
    concave = bool((LIKELIHOODS[name].derivatives(y, f, exposure).curvature >= 0).all())
    assert concave == LIKELIHOODS[name].log_concave


@given(names, latents)
def test_derivatives_in_the_hyperparameters(name, f):
    likelihood = LIKELIHOODS[name]
    y, f, exposure = table(likelihood, [f])
    result = likelihood.parameter_derivatives(y, f, exposure)
    rows = zip(y.tolist(), f.tolist(), exposure.tolist(), strict=True)
    truth = np.array([parameter_derivatives(likelihood, *row) for row in rows])  # (n, p, 3)
    scale = 1 + likelihood.derivatives(y, f, exposure).log_density.abs().max().item()
    for i, field in enumerate(FIELDS[:3]):
        value = getattr(result, field)
        assert value.shape == truth.shape[:2]
        np.testing.assert_allclose(value, truth[..., i], rtol=1e-9, atol=1e-12 * scale, err_msg=field)


def test_no_hyperparameters_give_no_columns():
    result = Poisson().parameter_derivatives(column(1.0, 2.0, 3.0), column(0.0, 0.1, 0.2))
    assert [tuple(value.shape) for value in vars(result).values()] == [(3, 0)] * 3


# one method, written by a user


class MyPoisson(Likelihood):
    def log_density(self, y, f, exposure):
        return y * (f + exposure.log()) - exposure * f.exp() - torch.lgamma(y + 1)


class MyStudent(Likelihood):
    scale: Tensor
    degrees: Tensor

    def log_density(self, y, f, exposure):
        nu = self.degrees
        constant = torch.lgamma((nu + 1) / 2) - torch.lgamma(nu / 2) - 0.5 * (nu * math.pi * self.scale**2).log()
        return constant - (nu + 1) / 2 * torch.log1p(((y - f) / self.scale) ** 2 / nu)


class MyNegativeBinomial(Likelihood):
    dispersion: Tensor

    def log_density(self, y, f, exposure):
        r, mu = 1 / self.dispersion, exposure * f.exp()
        choices = torch.lgamma(y + r) - torch.lgamma(r) - torch.lgamma(y + 1)
        return choices + r * (r / (r + mu)).log() + y * (mu / (r + mu)).log()


class MyGaussian(Likelihood):
    variance: Tensor

    def log_density(self, y, f, exposure):
        return -0.5 * (y - f) ** 2 / self.variance - 0.5 * (2 * math.pi * self.variance).log()


class Exponential(Likelihood):
    """log p is linear in f: the first derivative is a constant and the others are zero."""

    def log_density(self, y, f, exposure):
        return y * f


PAIRS = [
    (MyPoisson(), Poisson()),
    (MyStudent(0.3, 4.0), StudentT()),
    (MyNegativeBinomial(0.7), NegativeBinomial(0.7)),
    (MyGaussian(0.1), Gaussian()),
]


@pytest.mark.parametrize(("mine", "ours"), PAIRS, ids=lambda value: type(value).__name__)
def test_one_method_is_enough(mine, ours):
    y, f, exposure = table(ours, [-3.0, -0.2, 0.0, 1.4, 4.0])
    own, closed = mine.derivatives(y, f, exposure), ours.derivatives(y, f, exposure)
    for field in FIELDS:
        assert not getattr(own, field).requires_grad
        np.testing.assert_allclose(getattr(own, field), getattr(closed, field), rtol=1e-10, atol=1e-10)
    own, closed = mine.parameter_derivatives(y, f, exposure), ours.parameter_derivatives(y, f, exposure)
    for field in FIELDS[:3]:
        np.testing.assert_allclose(getattr(own, field), getattr(closed, field), rtol=1e-9, atol=1e-9)
    mine.check(*observations(ours))
    assert mine.start(y, exposure) == 0.0
    mean, variance = torch.full_like(f, 0.3), f.abs()
    np.testing.assert_allclose(
        mine.log_predictive(y, mean, variance, exposure), ours.log_predictive(y, mean, variance, exposure), atol=1e-7
    )


def test_the_moments_must_be_written_before_predicting():
    with pytest.raises(NotImplementedError, match=r"MyPoisson .* write the method moments\(f, exposure\)"):
        MyPoisson().predict(column(0.0), column(1.0))


def test_a_linear_log_density_has_no_curvature():
    result = Exponential().derivatives(column(2.0, 3.0), column(0.5, 0.6))
    assert result.gradient.tolist() == [2.0, 3.0]
    assert result.curvature.tolist() == result.slope.tolist() == [0.0, 0.0]


def test_derivatives_do_not_depend_on_the_surrounding_mode():
    y, f = column(0.0, 2.0), column(0.1, 0.2)
    with torch.no_grad():
        inside = MyNegativeBinomial(0.7).derivatives(y, f), MyNegativeBinomial(0.7).parameter_derivatives(y, f)
    outside = MyNegativeBinomial(0.7).derivatives(y, f), MyNegativeBinomial(0.7).parameter_derivatives(y, f)
    for a, b in zip(inside, outside, strict=True):
        assert all(torch.equal(vars(a)[field], vars(b)[field]) for field in vars(a))
        assert outside[0].slope.abs().min() > 0.01


@given(names, latents, st.floats(1e-6, 8))
def test_the_range_of_the_curvature(name, f, radius):
    """No W within the radius is outside the range, and its ends are taken on."""
    likelihood = LIKELIHOODS[name]
    y, f, exposure = table(likelihood, [f])
    low, high = likelihood.curvature_range(y, f, torch.full_like(f, radius), exposure)
    places = f + radius * torch.linspace(-1, 1, 401, dtype=torch.float64)[:, None]
    W = torch.stack([likelihood.derivatives(y, place, exposure).curvature for place in places])
    room = 1e-12 * W.abs().amax(0)
    assert likelihood.curvature_extremes(y, exposure) is not None
    assert bool((low - room <= W).all())
    assert bool((high + room >= W).all())
    step = 2 * radius / 400
    slopes = torch.stack([likelihood.derivatives(y, place, exposure).slope.abs() for place in places]).amax(0)
    assert bool((W.amin(0) - low <= 2 * step * slopes + room).all())
    assert bool((high - W.amax(0) <= 2 * step * slopes + room).all())
