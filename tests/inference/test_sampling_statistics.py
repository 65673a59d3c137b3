"""Pathwise draws at sizes where A is not factorised: their distribution against the exact posterior."""

import numpy as np
import pytest
import torch
from inference.gaussian_truth import Truth, drawn
from scipy.stats import chi2

import kernelcg.inference.gaussian.conditioning
import kernelcg.inference.gaussian.likelihood_by_cholesky
import kernelcg.inference.gaussian.posterior
import kernelcg.solvers.direct
from kernelcg.inference import GaussianProcess, Noise, Regression, condition, draws, pathwise
from kernelcg.inference.gaussian import sampling
from kernelcg.kernels import RBF, Matern
from kernelcg.planning import Pricing
from kernelcg.planning.ranks import Sizes
from kernelcg.randomness import seeded

COUNT = 1000

CASES = {
    "latent": (RBF(0.7, 1.3), 1600, 2, 1e-3, "zero", "pivoted_cholesky", False),
    "noisy": (RBF(0.7, 1.3), 2000, 2, 0.1, "zero", "auto", True),
    "linear drift": (Matern([2.0, 4.0, 3.0], 0.8, nu=2.5), 1600, 3, 0.2, "linear", "nystrom", False),
    "noisy, constant drift": (Matern(1.0, 1.0, nu=0.5), 1600, 2, 0.3, "constant", "vecchia", True),
}
"""Kernel, n, d, noise, mean, preconditioner, whether the draws are of observations."""


@pytest.fixture
def nothing_large_is_factorised(monkeypatch):
    """Make every Cholesky factorisation of 1600 rows or more an error."""

    class Forbidden:
        def __init__(self, P):
            raise AssertionError(f"a matrix of {len(P)} rows was factorised")

    places = (kernelcg.solvers.direct, kernelcg.inference.gaussian.conditioning)
    for module in (*places, kernelcg.inference.gaussian.posterior, kernelcg.inference.gaussian.likelihood_by_cholesky):
        monkeypatch.setattr(module, "CholeskyFactor", Forbidden)
    factorise = torch.linalg.cholesky_ex

    def watched(M, **options):
        assert M.shape[-1] < 1600, f"a matrix of {M.shape[-1]} rows was factorised"
        return factorise(M, **options)

    monkeypatch.setattr(torch.linalg, "cholesky_ex", watched)
    monkeypatch.setattr(torch.linalg, "cholesky", lambda M, **options: watched(M, **options)[0])


def z_of_means(Z):
    """Return the largest |mean| over its standard error, for white Z (t, count)."""
    return np.abs(Z.mean(1)).max() * np.sqrt(Z.shape[1])


def z_of_covariances(Z):
    """Return the largest error of ZZᵀ/count over its standard error: √2 on the diagonal, 1 beside it."""
    t, count = Z.shape
    return np.abs((Z @ Z.T / count - np.eye(t)) / np.sqrt((1 + np.eye(t)) / count)).max()


@pytest.mark.parametrize("name", CASES)
def test_draws_have_the_mean_and_covariance_of_the_posterior(name, nothing_large_is_factorised):
    """Whitened by the exact covariance they are standard normal."""
    kernel, n, d, noise, mean, preconditioner, noisy = CASES[name]
    X, Y = drawn(kernel, n, d, noise)
    Y = Y + (3 + X[:, :1] if mean == "linear" else 0)
    truth = Truth(kernel, X, Y, noise, mean=mean)
    X_new = np.array([[0.0] * d, [0.1] * d, X[0], [1.0] * d, [3.0] * d, [-20.0] * d])
    as_of_more_rows = Pricing(sizes=Sizes(bound_work=0.0))
    problem = Regression(torch.from_numpy(X), torch.from_numpy(Y), mean=mean, pricing=as_of_more_rows)
    given_data = condition(
        problem, GaussianProcess(kernel, Noise(noise)), preconditioner=preconditioner, generator=seeded(0)
    )
    sampled = pathwise(given_data, torch.from_numpy(X_new), COUNT, seeded(1), noisy=noisy)
    assert sampled.shape == (6, 1, COUNT)
    extra = noise if noisy else sampling.NUGGET * noise  # documented: white noise of a thousandth of the noise
    L = np.linalg.cholesky(truth.posterior_covariance(X_new) + extra * np.eye(6))
    Z = np.linalg.solve(L, sampled[:, 0].numpy() - truth.posterior_mean(X_new))
    assert z_of_means(Z) < 5
    assert z_of_covariances(Z) < 5
    low, high = chi2.ppf([1e-4, 1 - 1e-4], Z.size)
    assert low < np.sum(Z**2) < high
    lengths = np.sum(Z**2, 0)
    assert np.quantile(lengths, [0.1, 0.5, 0.9]) == pytest.approx(chi2.ppf([0.1, 0.5, 0.9], 6), rel=0.12)
    neighbours = np.mean(np.sum(Z[:, 1:] * Z[:, :-1], 0)) / np.sqrt(6 / COUNT)
    assert abs(neighbours) < 5, "draws are independent of each other"


def test_every_output_has_its_own_mean_and_independent_draws():
    kernel = RBF(1.0)
    X, y = drawn(kernel, 300, 2, 0.1)
    Y = np.c_[y, -10 * y + 3]
    truth = Truth(kernel, X, Y, 0.1, mean="constant")
    problem = Regression(torch.from_numpy(X), torch.from_numpy(Y), mean="constant")
    given_data = condition(problem, GaussianProcess(kernel, Noise(0.1)), generator=seeded(0))
    X_new = np.array([[0.0, 0.0], [0.5, 0.5], [4.0, 4.0]])
    sampled = pathwise(given_data, torch.from_numpy(X_new), COUNT, seeded(3), noisy=True)
    assert sampled.shape == (3, 2, COUNT)
    L = np.linalg.cholesky(truth.posterior_covariance(X_new) + 0.1 * np.eye(3))
    Z = np.concatenate(
        [np.linalg.solve(L, sampled[:, c].numpy() - truth.posterior_mean(X_new)[:, c, None]) for c in range(2)]
    )
    assert z_of_means(Z) < 5
    assert z_of_covariances(Z) < 5


def test_draws_do_not_depend_on_how_many_are_made_at_once(monkeypatch):
    X, Y = drawn(RBF(0.7), 200, 2, 0.1)
    problem = Regression(torch.from_numpy(X), torch.from_numpy(Y))
    given_data = condition(problem, GaussianProcess(RBF(0.7), Noise(0.1)), generator=seeded(0))
    X_new = torch.from_numpy(X[:4] + 0.05)
    few = pathwise(given_data, X_new, 40, seeded(5))
    assert torch.equal(few, pathwise(given_data, X_new, 40, seeded(5))), "the same seed gives the same draws"
    assert not torch.equal(few, pathwise(given_data, X_new, 40, seeded(6)))
    monkeypatch.setattr(sampling, "DRAWS_AT_ONCE", 7)
    for count in (1, 7, 8, 20):
        assert pathwise(given_data, X_new, count, seeded(5)).shape == (4, 1, count)


def test_many_points_are_drawn_pathwise_and_agree_with_the_covariance(monkeypatch):
    """Past a limit `draws` changes its method, not its distribution."""
    X, Y = drawn(Matern(1.0, nu=2.5), 200, 1, 0.1)
    truth = Truth(Matern(1.0, nu=2.5), X, Y, 0.1)
    problem = Regression(torch.from_numpy(X), torch.from_numpy(Y))
    given_data = condition(problem, GaussianProcess(truth.kernel, Noise(0.1)), generator=seeded(0))
    X_new = np.linspace(-3, 3, 12)[:, None]
    deviation = np.sqrt(np.diag(truth.posterior_covariance(X_new)))
    for limit in (12, 11):
        monkeypatch.setattr(sampling, "FACTORISED_POINTS", limit)
        sampled = draws(given_data, torch.from_numpy(X_new), COUNT, seeded(4))[:, 0].numpy()
        scores = (sampled.mean(1) - truth.posterior_mean(X_new)[:, 0]) / deviation * np.sqrt(COUNT)
        assert np.abs(scores).max() < 5
        assert sampled.std(1) == pytest.approx(deviation, rel=5 / np.sqrt(2 * COUNT))


def test_pathwise_checks_its_arguments():
    problem = Regression(torch.zeros(20, 2), torch.zeros(20, 1))
    given_data = condition(problem, GaussianProcess(RBF(1.0), Noise(0.1)), generator=seeded(0))
    with pytest.raises(ValueError, match="number of draws"):
        pathwise(given_data, torch.zeros(3, 2), 0, seeded(0))
    with pytest.raises(ValueError, match="X has 3 features but the model was fitted to 2"):
        pathwise(given_data, torch.zeros(3, 3), 1, seeded(0))


def test_known_noise_does_not_roughen_draws_of_the_latent_process():
    """Between equal points pathwise draws differ by their white noise alone, whatever is known of the data."""
    X = torch.linspace(0, 5, 200, dtype=torch.float64)[:, None]
    problem = Regression(X, X.sin(), torch.ones(200, dtype=torch.float64))
    posterior = condition(problem, GaussianProcess(RBF(1.0), Noise(1e-6)), method="direct", generator=seeded(0))
    found = pathwise(posterior, X[[50, 50]], 200, seeded(1))
    white = 0.5 * float((found[0, 0] - found[1, 0]).var())
    assert 0.2e-6 < white < 5e-6
