"""The drift's part of a variance: the estimate is no bound, the bracket is one, rounding is no direction."""

import numpy as np
import pytest
import torch
from inference import extended
from inference.extended import IS_EXTENDED, REAL, real

from kernelcg.inference.gaussian.conditioning import condition
from kernelcg.inference.gaussian.drift import drift
from kernelcg.inference.gaussian.model import GaussianProcess, Regression
from kernelcg.kernels import Matern
from kernelcg.randomness import seeded

pytestmark = pytest.mark.skipif(not IS_EXTENDED, reason="long double is float64 on this platform")


def exact(gp, X, Y, H):
    """Return the posterior in long double with drift functions H, given there."""
    lengths = np.broadcast_to(real(gp.kernel.lengthscale), X.shape[1])
    noise = np.full(len(X), real(gp.noise.variance)[()])
    return extended.Posterior(gp.kernel.nu, lengths, real(gp.kernel.variance)[()], real(X), real(Y), noise, H)


def linear(X, of):
    """Return [1, x − the mean of the rows ``of``]."""
    return np.c_[np.ones((len(X), 1), dtype=REAL), real(X) - real(of).mean(0)]


@pytest.mark.parametrize("method", ["direct", "iterative"])
@pytest.mark.parametrize("noise", [1e-2, 1e-6])
def test_std_with_many_slopes_that_differ_in_what_is_known_of_them(method, noise):
    """Fifty rows of thirty features, one of which counts: HᵀA⁻¹H has eigenvalues that are nine decades apart."""
    X = np.random.default_rng(0).normal(size=(50, 30))
    Y, new = np.sin(X[:, :1]), torch.from_numpy(X[:5] + 0.1)
    gp = GaussianProcess(Matern([10.0] + [5e5] * 29, 12.0, nu=1.5), noise)
    problem = Regression(torch.from_numpy(X), torch.from_numpy(Y), mean="linear")
    posterior = condition(problem, gp, method=method, generator=seeded(0))
    found = posterior.predict(new, variance=True, bound=True)
    mean, variance = exact(gp, X, Y, linear(X, X)).predict(real(new), linear(new, X))
    np.testing.assert_allclose(found.variance + noise, variance.astype(float) + noise, rtol=1e-2)
    assert np.all(np.abs(real(found.mean) - mean) <= real(found.mean_bound))
    assert np.all(real(found.variance_lower) <= variance)
    assert np.all(variance <= real(found.variance_upper))
    np.testing.assert_allclose(posterior.covariance(new).diagonal(), found.variance, atol=1e-2 * noise)


@pytest.mark.parametrize("offset", [0.0, 5e6, 1e9])
def test_columns_that_are_collinear_but_for_rounding(offset):
    """Sums and multiples of two features, far from 0, have three drift functions, and the evidence is that of three."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(60, 2))
    X = np.c_[x, x.sum(1), 2 * x[:, 0], x @ [0.3, -0.7]] + offset
    Y = np.sin(x[:, :1]) + 0.1 * rng.normal(size=(60, 1))
    gp = GaussianProcess(Matern(2.0, 1.0, nu=2.5), 0.01)
    problem = Regression(torch.from_numpy(X), torch.from_numpy(Y), mean="linear")
    assert problem.H.shape == (60, 3)
    truth = exact(gp, X, Y, linear(x, x))
    posterior = condition(problem, gp, method="direct", generator=seeded(0))
    found = posterior.predict(torch.from_numpy(X[:6]), variance=True)
    _, variance = truth.predict(real(X[:6]), linear(x[:6], x))
    np.testing.assert_allclose(found.variance + 0.01, variance.astype(float) + 0.01, rtol=1e-6)
    b = problem.Y - problem.H @ posterior.beta
    quadratic = float((b * posterior.weights.X).sum())
    assert quadratic == pytest.approx(float(truth.least_quadratic_forms().sum()), rel=1e-5)


def test_small_slopes_that_are_real_are_kept():
    """A column that is another one plus 1e-6 of a third has a direction of its own, unless rounding is as large."""
    x = np.random.default_rng(2).normal(size=(40, 2))
    for offset, expected in ((0.0, 3), (1e3, 3), (1e9, 2)):
        X = torch.from_numpy(np.c_[x[:, 0], x[:, 0] + 1e-6 * x[:, 1]] + offset)
        assert drift("linear", X)(X).shape[1] == expected
