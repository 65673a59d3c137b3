"""Distribution functions, predictive quantiles and draws of y, against scipy.stats and a sum over a fine grid."""

import math

import numpy as np
import pytest
import torch
from likelihood_cases import LIKELIHOODS, column
from scipy import stats
from scipy.special import expit, ndtr

from kernelcg.likelihoods import ONE, Likelihood, NegativeBinomial, Poisson

ACCURACY = 1e-6
"""Error of a probability that quadrature may leave."""

LEVELS = (0.001, 0.025, 0.5, 0.9, 0.9999)
MEANS, VARIANCES = column(-2.0, 0.0, 1.5, 3.0, 0.7), column(0.0, 1e-6, 0.3, 4.0, 1.0)


def distribution(likelihood, f, exposure):
    """Return p(y | f) of scipy.stats."""
    match type(likelihood).__name__:
        case "BernoulliProbit":
            return stats.bernoulli(ndtr(f))
        case "BernoulliLogit":
            return stats.bernoulli(expit(f))
        case "Binomial":
            return stats.binom(exposure, expit(f))
        case "Poisson":
            return stats.poisson(exposure * np.exp(f))
        case "NegativeBinomial":
            phi = likelihood.dispersion.item()
            return stats.nbinom(1 / phi, 1 / (1 + phi * exposure * np.exp(f)))
        case "Gamma":
            shape = likelihood.shape.item()
            return stats.gamma(shape, scale=np.exp(f) / shape)
        case "StudentT":
            return stats.t(likelihood.degrees.item(), f, likelihood.scale.item())
        case "Gaussian":
            return stats.norm(f, math.sqrt(likelihood.variance.item()))


def mixture(likelihood, y, mean, variance, exposure):
    """Return P(Y ≤ y) for f ~ N(mean, variance), by the trapezoidal rule."""
    z = np.linspace(-10, 10, 4001)
    weights = stats.norm.pdf(z) * (z[1] - z[0])
    return float(weights @ distribution(likelihood, mean + math.sqrt(variance) * z, exposure).cdf(y))


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_distribution_functions(name):
    likelihood = LIKELIHOODS[name]
    y, f = column(-1.0, 0.0, 0.5, 1.0, 2.0, 7.0, 40.0)[:, None], column(-3.0, 0.0, 0.4, 2.0, 4.0)
    found = likelihood.cumulative(y, f, column(12.0))
    truth = distribution(likelihood, f.numpy(), 12.0).cdf(y.numpy())
    np.testing.assert_allclose(found, truth, rtol=1e-7, atol=1e-13)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", LIKELIHOODS)
def test_predictive_quantiles(name, level):
    likelihood, exposure = LIKELIHOODS[name], column(12.0)
    found = likelihood.quantile(level, MEANS, VARIANCES, exposure)
    for y, m, v in zip(found.tolist(), MEANS.tolist(), VARIANCES.tolist(), strict=True):
        at = mixture(likelihood, y, m, v, 12.0)
        if likelihood.counts:
            assert y == round(y) >= 0
            assert at >= level - ACCURACY
            assert mixture(likelihood, y - 1, m, v, 12.0) < level + ACCURACY
        else:
            assert at == pytest.approx(level, abs=ACCURACY)


def test_draws_follow_the_distribution():
    for name in ("poisson", "very dispersed", "gamma 2.5", "student", "binomial", "logit", "gaussian"):
        likelihood = LIKELIHOODS[name]
        f, exposure = torch.full((4000,), 0.6, dtype=torch.float64), torch.full((4000,), 12.0, dtype=torch.float64)
        drawn = likelihood.draw(f, exposure, torch.Generator().manual_seed(0)).numpy()
        levels = distribution(likelihood, 0.6, 12.0).cdf(np.unique(drawn))
        shares = np.searchsorted(np.sort(drawn), np.unique(drawn), side="right") / len(drawn)
        assert np.abs(shares - levels).max() < 1.95 / math.sqrt(len(drawn))  # Kolmogorov's bound of one in a thousand
        again = likelihood.draw(f, exposure, torch.Generator().manual_seed(0)).numpy()
        np.testing.assert_array_equal(drawn, again)


def test_very_large_counts():
    mean, variance = column(2.0, 60.0, 200.0), column(100.0, 1.0, 400.0)
    for likelihood in (Poisson(), NegativeBinomial(0.5)):
        upper, lower = likelihood.quantile(0.975, mean, variance), likelihood.quantile(0.025, mean, variance)
        assert bool((lower < upper).all())
        about = (mean + 1.96 * variance.sqrt()).exp()
        assert bool(((upper / about).log().abs() < 2)[:2].all())


def test_a_likelihood_without_one_says_what_to_write():
    class Own(Likelihood):
        def log_density(self, y, f, exposure):
            return -((y - f) ** 2)

    with pytest.raises(NotImplementedError, match=r"cumulative\(y, f, exposure\)"):
        Own().cumulative(ONE, ONE)
