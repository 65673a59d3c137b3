"""Estimated variances: they are what the formulas say, within the errors they state, at the cost they promise."""

import numpy as np
import pytest
import torch
from inference.extended import IS_EXTENDED, real
from inference.gaussian_truth import Truth, toy
from inference.hard_cases import case

from kernelcg import backends
from kernelcg.inference import GaussianProcess, Noise, Regression, condition
from kernelcg.inference.bounds.lower_bound import Exact
from kernelcg.kernels import RBF, Matern
from kernelcg.randomness import seeded
from kernelcg.solvers import Status


def model(truth, **options):
    """Return the same model and data as the package sees them."""
    known = None if np.ndim(truth.known) == 0 else torch.from_numpy(truth.known)
    problem = Regression(torch.from_numpy(truth.X), torch.from_numpy(truth.Y), known, truth.mean, **options)
    return problem, GaussianProcess(truth.kernel, Noise(truth.noise))


# the direct method


@pytest.mark.skipif(not IS_EXTENDED, reason="long double is float64 on this platform")
@pytest.mark.parametrize("part", range(6))
def test_a_direct_variance_is_off_by_no_more_than_it_says(part):
    """Noise from 1e-13 to 3 of the variance, repeated and distant points, drifts; the truth is long double."""
    warned = 0
    for number in range(100 * part, 100 * part + 100):
        one = case(number)
        posterior = condition(one.problem, one.gp, method="direct", generator=seeded(number))
        if not isinstance(posterior.bound, Exact):
            continue
        found, (truth, h) = posterior.predict(one.X_new, variance=True), one.exact()
        _, variance = truth.predict(real(one.X_new), h)
        error, noise = np.abs(real(found.variance) - variance), real(one.gp.noise.variance)
        assert np.all(error <= real(found.variance_error)), one
        assert bool((found.variance >= 0).all())
        assert found.mean_bound is None, "bounds were not asked for"
        assert found.variance_lower is None, "bounds were not asked for"
        if found.status is Status.CONVERGED:
            assert np.all(error <= 1e-2 * (variance + noise)), one
        warned += found.status is not Status.CONVERGED
    assert warned < 25, "rounding is blamed where it does no harm"


def test_a_direct_variance_takes_one_triangular_solve(monkeypatch):
    """Nothing is multiplied with K, no kernel value is computed twice, and A⁻¹k is not computed."""
    X, Y = toy(80, 2)
    truth = Truth(Matern(0.8, nu=1.5), X, Y, 0.01, mean="constant")
    problem, gp = model(truth, backend=backends.default().counting(80))
    posterior = condition(problem, gp, method="direct", generator=seeded(0))
    monkeypatch.setattr(type(posterior.bound.P), "solve", None)
    X_new = np.random.default_rng(1).standard_normal((40, 2))
    before = problem.backend.work.columns
    found = posterior.predict(torch.from_numpy(X_new), variance=True)
    entries = 40 / 80  # of K(X*, X) in units of those of K: once for the mean and once for the variance
    assert problem.backend.work.columns - before == pytest.approx(2 * entries)
    exact = np.diag(truth.posterior_covariance(X_new))
    np.testing.assert_allclose(found.variance.numpy(), exact, rtol=1e-9, atol=1e-12)


def test_chunks_of_direct_variances_do_not_matter(monkeypatch):
    truth = Truth(Matern(0.8, nu=1.5), *toy(60, 2), 0.01, mean="linear")
    posterior = condition(*model(truth), method="direct", generator=seeded(0))
    X_new = torch.randn(23, 2, generator=seeded(4), dtype=torch.float64)
    whole = posterior.predict(X_new, variance=True)
    monkeypatch.setattr("kernelcg.inference.gaussian.posterior.FACTOR_COLUMNS", 5)
    parts = posterior.predict(X_new, variance=True)
    torch.testing.assert_close(parts.variance, whole.variance, rtol=1e-10, atol=1e-13)
    torch.testing.assert_close(parts.mean, whole.mean, rtol=0, atol=0)


def test_rounding_that_spoils_a_direct_variance_is_told():
    """At noise 1e-13 of the variance, the digits of k(x, x) − kᵀA⁻¹k are lost next to the data."""
    X = np.linspace(0, 1, 100)[:, None]
    truth = Truth(RBF(0.3), X, np.sin(5 * X), 1e-13)
    posterior = condition(*model(truth), method="direct", generator=seeded(0))
    assert isinstance(posterior.bound, Exact)
    found = posterior.predict(torch.from_numpy(X + 1e-3), variance=True)
    assert found.status is Status.PRECISION_EXHAUSTED
