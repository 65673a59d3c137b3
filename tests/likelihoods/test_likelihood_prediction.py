"""Predictive integrals, against closed forms and Gauss–Legendre on meshes that know where to look."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from likelihood_cases import LIKELIHOODS, column
from likelihood_reference import log_gaussian_integral
from scipy import integrate, special, stats

from kernelcg.likelihoods import (
    ONE,
    BernoulliLogit,
    BernoulliProbit,
    Binomial,
    Gamma,
    Gaussian,
    Likelihood,
    NegativeBinomial,
    Poisson,
    StudentT,
)
from kernelcg.likelihoods import quadrature as rules

MEANS = [0.0, -3.0, 2.0, 30.0, -500.0, 1e4]
VARIANCES = [0.0, 1e-8, 1e-3, 0.3, 4.0, 1e2, 1e4, 1e8]


def log_sigmoid(f):
    return -np.logaddexp(0, -f)


def grid(*axes):
    return [column(*values) for values in zip(*itertools.product(*axes), strict=True)]


CASES = {  # observations, log p(y | f), where it turns
    "logit": (BernoulliLogit(), [0, 1], lambda y, f: log_sigmoid((2 * y - 1) * f), lambda y: 0),
    "binomial": (
        Binomial(),
        [0, 7, 50],
        lambda y, f: np.log(special.comb(50, y)) + y * log_sigmoid(f) + (50 - y) * log_sigmoid(-f),
        lambda y: np.log((y + 0.5) / (50.5 - y)),
    ),
    "poisson": (
        Poisson(),
        [0, 1, 17, 1000, 1_000_000],
        lambda y, f: y * f - np.exp(f) - special.gammaln(y + 1),
        lambda y: np.log(max(y, 1)),
    ),
    "negative binomial": (
        NegativeBinomial(0.5),
        [0, 3, 1000],
        lambda y, f: np.log(y + 1) + y * log_sigmoid(f - np.log(2)) + 2 * log_sigmoid(np.log(2) - f),
        lambda y: np.log(max(y, 1)),
    ),
    "gamma": (
        Gamma(3.0),
        [1e-4, 1.0, 300.0],
        lambda y, f: 3 * np.log(3) - np.log(2) + 2 * np.log(y) - 3 * f - 3 * y * np.exp(-f),
        np.log,
    ),
    "student": (
        StudentT(0.3, 4.0),
        [-5.0, 0.1, 40.0, 1e4],
        lambda y, f: stats.t(4, scale=0.3).logpdf(y - f),
        lambda y: y,
    ),
    "narrow student": (  # two peaks of the integrand for y between 8 and 10 at variance 1
        StudentT(1e-3, 4.0),
        [0.0, 3.0, 8.4, 9.0, 9.3],
        lambda y, f: stats.t(4, scale=1e-3).logpdf(y - f),
        lambda y: y,
    ),
    "cauchy": (StudentT(0.01, 1.0), [0.0, 5.0], lambda y, f: stats.cauchy(scale=0.01).logpdf(y - f), lambda y: y),
}


def trials(likelihood):
    return torch.tensor(50.0 if isinstance(likelihood, Binomial) else 1.0, dtype=torch.float64)


def assert_log_predictive(name, y, mean, variance):
    likelihood, _, log_density, turn = CASES[name]
    result = likelihood.log_predictive(y, mean, variance, trials(likelihood))
    for value, y_, m, v in zip(result.tolist(), y.tolist(), mean.tolist(), variance.tolist(), strict=True):
        truth = log_gaussian_integral(lambda f, y_=y_: log_density(y_, f), m, v, [turn(y_)])
        rounding = 1e-14 * abs(truth) * max(1, abs(m))
        assert value == pytest.approx(truth, abs=1e-6 + rounding, rel=1e-13), (y_, m, v)


@pytest.mark.parametrize("name", CASES)
def test_log_predictive_everywhere(name):
    y, mean, variance = grid(CASES[name][1], MEANS, [*VARIANCES, 1.0])
    overflow = {"poisson": mean - 2 * variance.sqrt() > 500, "gamma": mean + 2 * variance.sqrt() < -200}
    shown = ~overflow.get(name, torch.zeros_like(mean, dtype=torch.bool))
    assert_log_predictive(name, y[shown], mean[shown], variance[shown])


@given(st.sampled_from(list(CASES)), st.floats(-30, 30), st.floats(-4, 8), st.data())
def test_log_predictive_at_any_mean_and_variance(name, mean, exponent, data):
    y = data.draw(st.sampled_from(CASES[name][1]))
    assert_log_predictive(name, column(y), column(mean), column(10.0**exponent))


@pytest.mark.parametrize("m", [-20.0, 0.0, 3.0])
@pytest.mark.parametrize("v", [1e-6, 1.0, 1e6])
def test_the_truth_is_the_closed_form_where_there_is_one(m, v):
    probit = log_gaussian_integral(special.log_ndtr, m, v, [0])
    assert probit == pytest.approx(special.log_ndtr(m / math.sqrt(1 + v)), abs=1e-10)
    gaussian = log_gaussian_integral(lambda f: stats.norm(f, 0.1).logpdf(2.0), m, v, [2.0])
    assert gaussian == pytest.approx(stats.norm(m, math.sqrt(v + 0.01)).logpdf(2.0), abs=1e-10)
    if v <= 1:
        value, _ = integrate.quad(
            lambda f: stats.norm(m, math.sqrt(v)).pdf(f) * special.expit(f),
            m - 9 * math.sqrt(v),
            m + 9 * math.sqrt(v),
            epsabs=0,
            epsrel=1e-11,
        )
        assert log_gaussian_integral(log_sigmoid, m, v, [0]) == pytest.approx(math.log(value), abs=1e-10)


def test_a_count_in_the_far_tail():
    """Issue: Poisson y = 1000 at mean 0, variance 4; the peak is 3.4 standard deviations away and 0.03 wide."""
    value, _ = integrate.quad(
        lambda f: math.exp(stats.poisson.logpmf(1000, math.exp(f)) + stats.norm(0, 2).logpdf(f) + 14),
        6.4,
        7.4,
        epsabs=0,
        epsrel=1e-12,
    )
    result = Poisson().log_predictive(column(1000.0), column(0.0), column(4.0)).item()
    assert result == pytest.approx(math.log(value) - 14, abs=1e-9)


@pytest.mark.parametrize("likelihood", [BernoulliProbit(), Gaussian(0.3)])
def test_closed_forms_equal_the_quadrature_of_the_base(likelihood):
    y, mean, variance = grid([0.0, 1.0], [-40.0, -2.0, 0.0, 5.0], [0.0, 1e-6, 1.0, 1e4])
    by_quadrature = Likelihood.log_predictive(likelihood, y, mean, variance)
    np.testing.assert_allclose(likelihood.log_predictive(y, mean, variance), by_quadrature, atol=1e-7, rtol=1e-13)


@pytest.mark.parametrize("name", ["probit", "poisson", "negative binomial", "gamma 2.5", "student", "gaussian"])
def test_closed_moments_equal_the_quadrature_of_the_base(name):
    likelihood = LIKELIHOODS[name]
    mean, variance, exposure = grid([-1.0, 0.0, 2.0], [0.0, 1e-6, 0.3, 2.0], [0.5, 3.0])
    closed = likelihood.predict(mean, variance, exposure)
    for value, truth in zip(closed, Likelihood.predict(likelihood, mean, variance, exposure), strict=True):
        np.testing.assert_allclose(value, truth, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["probit", "logit", "binomial", "poisson", "negative binomial", "gamma 2.5"])
def test_predictions_are_the_moments_of_draws(name):
    """The law of total variance, by brute force."""
    likelihood, generator = LIKELIHOODS[name], np.random.default_rng(0)
    mean, variance, exposure = 0.4, 0.5, 12.0
    f = mean + math.sqrt(variance) * generator.standard_normal(400_000)
    draw = {
        "probit": lambda: generator.random(len(f)) < special.ndtr(f),
        "logit": lambda: generator.random(len(f)) < special.expit(f),
        "binomial": lambda: generator.binomial(12, special.expit(f)),
        "poisson": lambda: generator.poisson(exposure * np.exp(f)),
        "negative binomial": lambda: generator.negative_binomial(1, 1 / (1 + exposure * np.exp(f))),
        "gamma 2.5": lambda: generator.gamma(2.5, np.exp(f) / 2.5),
    }[name]().astype(float)
    result = likelihood.predict(column(mean), column(variance), column(exposure))
    assert result[0].item() == pytest.approx(draw.mean(), abs=4 * draw.std() / math.sqrt(len(f)))
    squares = (draw - draw.mean()) ** 2
    assert result[1].item() == pytest.approx(draw.var(), abs=4 * squares.std() / math.sqrt(len(f)))


@pytest.mark.parametrize("likelihood", [BernoulliLogit(), Binomial()])
def test_probabilities_at_any_variance(likelihood):
    """E σ(f) and E σ(f)², also where σ looks like a step."""
    mean, variance = grid([0.0, -0.01, 1.0, -7.0, 300.0, -1e4], VARIANCES)
    N = trials(likelihood).item()
    result, spread = likelihood.predict(mean, variance, trials(likelihood))
    for value, squared, m, v in zip(result.tolist(), spread.tolist(), mean.tolist(), variance.tolist(), strict=True):
        p = math.exp(log_gaussian_integral(log_sigmoid, m, v, [0]))
        p2 = math.exp(log_gaussian_integral(lambda f: 2 * log_sigmoid(f), m, v, [0]))
        assert value / N == pytest.approx(p, abs=1e-8), (m, v)
        assert squared / N**2 == pytest.approx((p - p2) / N + p2 - p**2, abs=1e-8), (m, v)


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_without_variance_the_plug_in_is_exact(name):
    likelihood = LIKELIHOODS[name]
    y, f, exposure = column(1.0, 1.0, 1.0), column(-2.0, 0.0, 3.0), column(1.0, 1.0, 1.0)
    zero = torch.zeros_like(f)
    torch.testing.assert_close(
        likelihood.log_predictive(y, f, zero, exposure), likelihood.log_density(y, f, exposure), rtol=1e-13, atol=1e-13
    )
    for value, truth in zip(likelihood.predict(f, zero, exposure), likelihood.moments(f, exposure), strict=True):
        torch.testing.assert_close(value, truth, rtol=1e-13, atol=1e-13)


def test_both_classes_add_up_to_one():
    mean, variance = grid([-30.0, -1.0, 0.0, 4.0], VARIANCES)
    for likelihood in (BernoulliProbit(), BernoulliLogit()):
        p = likelihood.log_predictive(torch.ones_like(mean), mean, variance).exp()
        q = likelihood.log_predictive(torch.zeros_like(mean), mean, variance).exp()
        np.testing.assert_allclose(p + q, 1.0, rtol=0, atol=1e-9)
        np.testing.assert_allclose(likelihood.predict(mean, variance)[0], p, rtol=0, atol=1e-9)


def test_lognormal_moments_do_not_cancel():
    """At mean −10⁴ and variance 10⁴ the second moment is 1 though eᵛ overflows; infinite means have no NaN."""
    mean, variance = Poisson().predict(column(-1e4, 1e3, 0.0), column(1e4, 0.0, 1e-12))
    assert variance[0].item() == pytest.approx(1.0)
    assert (mean[1].item(), variance[1].item()) == (math.inf, math.inf)
    assert variance[2].item() == pytest.approx(1 + 1.5e-12, rel=1e-14)


def test_the_sign_of_the_second_class():
    """Erratum 9: P(y = 0) is not P(y = 1)."""
    log_p = BernoulliProbit().log_predictive(column(1.0, 0.0), column(1.0, 1.0), column(3.0, 3.0))
    np.testing.assert_allclose(log_p, np.log(stats.norm.cdf([0.5, -0.5])), rtol=1e-13)


def test_rows_do_not_depend_on_their_company(monkeypatch):
    generator = np.random.default_rng(0)
    y, mean = torch.from_numpy(generator.poisson(3.0, 90).astype(float)), torch.from_numpy(generator.normal(size=90))
    together = Poisson().log_predictive(y, mean, mean.square()), BernoulliLogit().predict(mean, mean.square())[0]
    monkeypatch.setattr(rules, "ROWS_AT_ONCE", 7)
    apart = Poisson().log_predictive(y, mean, mean.square()), BernoulliLogit().predict(mean, mean.square())[0]
    for a, b in zip(together, apart, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)
        assert len(np.unique(a)) > 80


def test_single_precision_in_single_precision_out():
    mean, variance = torch.tensor([0.3, -1.0]), torch.tensor([2.0, 0.5])
    y = torch.tensor([1.0, 0.0])
    for value in (*BernoulliLogit().predict(mean, variance), BernoulliLogit().log_predictive(y, mean, variance)):
        assert value.dtype == torch.float32
    exact = BernoulliLogit().predict(mean.double(), variance.double())[0]
    np.testing.assert_allclose(BernoulliLogit().predict(mean, variance)[0], exact, rtol=1e-6)
    assert ONE.dtype == torch.float64
