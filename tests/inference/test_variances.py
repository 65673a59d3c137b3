"""Estimated variances: they are what the formulas say, within the errors they state, at the cost they promise."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from inference.extended import IS_EXTENDED, REAL, cholesky, forward, kernel_matrix, real
from inference.gaussian_truth import Truth, toy
from inference.hard_cases import case
from reference import FORMULAS
from strategies import kernels, points, seeds

from kernelcg import backends
from kernelcg.inference import GaussianProcess, Noise, Regression, condition
from kernelcg.inference.bounds.lower_bound import Exact
from kernelcg.inference.gaussian import brackets, variances
from kernelcg.inference.gaussian.neighbourhoods import grouped, points_within, trial
from kernelcg.kernels import RBF, Constant, Kernel, Matern
from kernelcg.kernels.distances import squared_distances
from kernelcg.operators import KernelPlusDiagonal
from kernelcg.planning import Pricing
from kernelcg.planning.ranks import Sizes
from kernelcg.randomness import seeded
from kernelcg.solvers import Status, Stopping


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


def test_chunks_of_direct_variances_do_not_matter():
    truth = Truth(Matern(0.8, nu=1.5), *toy(60, 2), 0.01, mean="linear")
    posterior = condition(*model(truth), method="direct", generator=seeded(0))
    X_new = torch.randn(23, 2, generator=seeded(4), dtype=torch.float64)
    whole = posterior.predict(X_new, variance=True)
    few = posterior.problem.at_price(Pricing(sizes=Sizes(columns=1)))
    parts = replace(posterior, problem=few).predict(X_new, variance=True)
    torch.testing.assert_close(parts.variance, whole.variance, rtol=1e-10, atol=1e-13)
    torch.testing.assert_close(parts.mean, whole.mean, rtol=0, atol=0)


def test_rounding_that_spoils_a_direct_variance_is_told(monkeypatch):
    """At noise 1e-13 of the variance, the digits of k(x, x) − kᵀA⁻¹k are lost next to the data."""
    monkeypatch.setattr(variances, "AFFORDABLE", 0.0)
    X = np.linspace(0, 1, 100)[:, None]
    truth = Truth(RBF(0.3), X, np.sin(5 * X), 1e-13)
    posterior = condition(*model(truth), method="direct", generator=seeded(0))
    assert isinstance(posterior.bound, Exact)
    found = posterior.predict(torch.from_numpy(X + 1e-3), variance=True)
    assert found.status is Status.PRECISION_EXHAUSTED


@pytest.mark.skipif(not IS_EXTENDED, reason="long double is float64 on this platform")
@pytest.mark.parametrize("method", ["direct", "iterative"])
def test_a_variance_that_more_digits_tell_comes_without_a_warning(method, monkeypatch):
    """Where float64 leaves its error beyond the tolerance, a bracket with residuals in long double is used instead."""
    X = np.linspace(0, 1, 40)[:, None]
    truth = Truth(RBF(0.3), X, np.sin(5 * X), 1e-13)
    posterior = condition(*model(truth), method=method, generator=seeded(0))
    X_new = torch.from_numpy(X[:5] + 1e-3)
    found = posterior.predict(X_new, variance=True)
    assert found.status is Status.CONVERGED
    one, rows = np.ones(1, dtype=REAL), real(X)
    L = cholesky(kernel_matrix("rbf", rows, rows, real([0.3]), one) + real(1e-13) * np.eye(40))
    explained = np.square(forward(L, kernel_matrix("rbf", rows, real(X_new), real([0.3]), one))).sum(0)
    assert np.all(np.abs(real(found.variance) - (1 - explained)) <= real(found.variance_error))
    monkeypatch.setattr(variances, "AFFORDABLE", 0.0)
    assert posterior.predict(X_new, variance=True).status is not Status.CONVERGED


@pytest.mark.skipif(not IS_EXTENDED, reason="long double is float64 on this platform")
def test_a_covariance_that_more_digits_tell_comes_without_a_warning(monkeypatch):
    """The same of covariances, which are computed in long double where float64 is not enough."""
    X = np.linspace(0, 1, 40)[:, None]
    X_new, noise = torch.from_numpy(X[:5] + 1e-3), 1e-13
    posterior = condition(*model(Truth(RBF(0.3), X, np.sin(5 * X), noise)), method="direct", generator=seeded(0))
    found, status = posterior.joint(X_new, latent=False)
    one, rows, new = np.ones(1, dtype=REAL), real(X), real(X_new)
    L = cholesky(kernel_matrix("rbf", rows, rows, real([0.3]), one) + real(noise) * np.eye(40))
    W = forward(L, kernel_matrix("rbf", rows, new, real([0.3]), one))
    assert status is Status.CONVERGED
    exact = kernel_matrix("rbf", new, new, real([0.3]), one) - W.T @ W
    assert np.all(np.abs(real(found) - exact) <= 1e-2 * (np.max(np.diag(exact)) + noise))
    monkeypatch.setattr(brackets, "MOST_POINTS", 0)
    assert posterior.joint(X_new, latent=False)[1] is not Status.CONVERGED


# from neighbours


class Hyperbola(Kernel):
    """A kernel of a user's own, in torch: k(x, y) = 1 / (1 + |x − y|² / l²)."""

    lengthscale: torch.Tensor

    def covariance(self, X, Y):
        return 1 / (1 + squared_distances(X / self.lengthscale, Y / self.lengthscale))


FORMULAS["Hyperbola"] = lambda X, Y, lengthscale: (
    1 / (1 + ((X[:, None] / lengthscale - Y[None] / lengthscale) ** 2).sum(2))
)


def scattered(n, d, seed=0):
    return np.random.default_rng(seed).uniform(-3, 3, (n, d))


def posterior_of(kernel, noise, n=600, d=2, mean="constant", known=None, backend=None, **options):
    X = scattered(n, d)
    Y = np.sin(X.sum(1, keepdims=True)) + 0.1 * np.random.default_rng(1).standard_normal((n, 1))
    truth = Truth(kernel, X, Y, noise, 0.0 if known is None else known, mean)
    given_backend = {} if backend is None else {"backend": backend}
    return condition(*model(truth, **given_backend), generator=seeded(0), **options), truth


def check_estimates(posterior, truth, X_new, latent=False):
    """Compare with the exact variances: the error is within what is stated, and that within the tolerance."""
    found = posterior.predict(torch.from_numpy(X_new), variance=True, latent=latent)
    variance = np.diag(truth.posterior_covariance(X_new))
    error, stated = np.abs(found.variance.numpy() - variance), found.variance_error.numpy()
    visible = variance + (0.0 if latent else truth.noise)
    assert found.status is Status.CONVERGED
    assert np.all(stated <= 1.0001e-2 * visible)
    assert np.all(error <= stated)
    assert np.all(found.variance.numpy() >= 0)
    return found


CASES = {
    "smooth": (RBF(1.0), 1e-2),
    "rough": (Matern(0.5, 2.0, nu=0.5), 1e-1),
    "short": (Matern([0.3, 0.5], 1.0, nu=1.5), 1e-3),
    "little noise": (Matern(1.0, nu=1.5), 1e-4),
    "long": (Matern(20.0, 3.0, nu=2.5), 1e-1),
    "of a user": (Hyperbola(0.7), 1e-2),
    "sum": (RBF(2.0) + Matern(0.4, 0.2, nu=1.5), 1e-2),
}


@pytest.mark.parametrize("preconditioner", ["auto", "low_rank_vecchia", None])
@pytest.mark.parametrize("name", CASES)
def test_variances_are_off_by_no_more_than_they_say(name, preconditioner):
    kernel, noise = CASES[name]
    posterior, truth = posterior_of(kernel, noise, preconditioner=preconditioner)
    check_estimates(posterior, truth, scattered(200, 2, seed=5))
    check_estimates(posterior, truth, np.concatenate([truth.X[:3], scattered(4, 2, seed=6), truth.X[:2] + 40.0]))


@pytest.mark.parametrize(("kernel", "seed"), [(RBF(7.0), 0), (Hyperbola(5.0), 2), (RBF([7.0, 700.0]), 1)])
def test_variances_by_products_in_float32_are_off_by_no_more_than_they_say(kernel, seed):
    """Little noise, and points between tight groups of rows: the residuals of iterations drift from the true ones."""
    rng = np.random.default_rng(seed)
    X = 10 * rng.standard_normal((8, 2))[rng.integers(8, size=400)] + 0.005 * rng.standard_normal((400, 2))
    truth = Truth(kernel, X, np.sin(X.sum(1, keepdims=True)), 1e-5, 0.0, "zero")
    problem, gp = model(truth, precision=torch.float32)
    posterior = condition(problem, gp, stopping=Stopping(rtol=1e-3), generator=seeded(0))
    X_new = X[:12] + 3 * rng.standard_normal((12, 2))
    variance = np.diag(truth.posterior_covariance(X_new))
    assert posterior.A.precision is torch.float32
    for bound in (False, True):
        found = posterior.predict(torch.from_numpy(X_new), variance=True, bound=bound, latent=True)
        error = np.abs(found.variance.numpy() - variance)
        assert found.status is Status.CONVERGED
        assert np.all(error <= found.variance_error.numpy() + 1e-7 * variance)
        assert np.all(error <= 1e-2 * variance)


@pytest.mark.parametrize("mean", ["zero", "linear"])
def test_variances_with_a_drift_and_known_noise(mean):
    posterior, truth = posterior_of(
        Matern(0.5, nu=1.5), 1e-2, mean=mean, known=np.linspace(0, 0.3, 600), preconditioner="low_rank_vecchia"
    )
    check_estimates(posterior, truth, scattered(200, 2, seed=5))
    check_estimates(posterior, truth, scattered(150, 2, seed=6), latent=True)


@given(data=st.data(), n=st.integers(1, 40), d=st.integers(1, 3), seed=seeds)
def test_a_trial_bounds_the_variance_from_above(data, n, d, seed):
    kernel, X = data.draw(kernels(d)), data.draw(points(n, d))
    rng = np.random.default_rng(seed)
    A = KernelPlusDiagonal(backends.bind(kernel, X), torch.from_numpy(0.05 + rng.random(n)))
    rows = torch.from_numpy(np.sort(rng.choice(n, rng.integers(1, n + 1), replace=False)))
    K = A.K.cross_block(torch.from_numpy(rng.standard_normal((3, d)))).T.contiguous()
    found, dense = trial(A, rows, K), A.dense()
    v = torch.zeros_like(K)
    v[rows] = found.v
    scale = float(dense.abs().max())
    torch.testing.assert_close(found.R, K - dense @ v, rtol=0, atol=1e-9 * scale)
    expected = (2 * K * v - v * (dense @ v)).sum(0)
    torch.testing.assert_close(found.explained, expected, rtol=1e-9, atol=1e-9 * scale)
    exact = (K * torch.linalg.solve(dense, K)).sum(0)
    assert bool((found.explained <= exact + 1e-9 * scale).all())
    gap = (found.R * torch.linalg.solve(dense, found.R)).sum(0)
    torch.testing.assert_close(found.explained + gap, exact, rtol=1e-8, atol=1e-9 * scale)


def test_groups_hold_every_point_once_and_are_small():
    C = torch.randn(517, 3, generator=seeded(0), dtype=torch.float64)
    groups = grouped(C, 32)
    assert torch.equal(torch.cat(groups).sort().values, torch.arange(517))
    assert max(map(len, groups)) <= 32
    assert torch.cat(grouped(torch.zeros(5, 1), 2)).sort().values.tolist() == [0, 1, 2, 3, 4]


def test_neighbours_take_few_kernel_values():
    """Three hundred columns would be multiplied with K once or more; here it is a small part of that."""
    backend = backends.default().counting(2000)
    posterior, truth = posterior_of(
        Matern(0.3, nu=1.5), 1e-2, n=2000, backend=backend, preconditioner="low_rank_vecchia"
    )
    before = backend.work.columns
    check_estimates(posterior, truth, scattered(300, 2, seed=5))
    assert backend.work.columns - before < 100


@pytest.mark.parametrize("share", [0.02, 0.002])
def test_neighbours_are_fewer_in_little_memory(share):
    """The matrices of 32 points' rows do not fit into 8 or 0.8 MB; those of fewer points do."""
    backend = backends.default(memory=400_000_000).counting(2000)
    posterior, truth = posterior_of(
        Matern(0.3, nu=1.5), 1e-2, n=2000, backend=backend, preconditioner="low_rank_vecchia"
    )
    tight = posterior.problem.at_price(Pricing(sizes=Sizes(for_columns=share)))
    before = backend.work.columns
    check_estimates(replace(posterior, problem=tight), truth, scattered(300, 2, seed=5))
    assert backend.work.columns - before < 150


@pytest.mark.parametrize(("memory", "expected"), [(24 * 99**2, 0), (24 * 100**2, 1), (24 * 399**2, 3), (1e9, 32)])
def test_points_of_a_group_have_room_for_their_rows(memory, expected):
    assert points_within(memory, 32, 10**6, 100) == expected


def test_points_share_the_rows_if_all_of_these_have_room():
    assert points_within(24 * 50**2, 32, 50, 100) == 32


def test_brackets_end_where_the_tolerance_is_met():
    backend = backends.default().counting(1000)
    posterior, truth = posterior_of(
        Matern(0.5, nu=1.5), 1e-3, n=1000, backend=backend, preconditioner="low_rank_vecchia"
    )
    before, X_new = backend.work.columns, scattered(100, 2, seed=5)
    found = posterior.predict(torch.from_numpy(X_new), variance=True, bound=True)
    variance = np.diag(truth.posterior_covariance(X_new))
    assert np.all(found.variance_lower.numpy() <= variance)
    assert np.all(found.variance_upper.numpy() >= variance)
    assert np.all((found.variance_upper - found.variance_lower).numpy() <= 1.01e-2 * (variance + 1e-3))
    assert (backend.work.columns - before) / 100 < 12


def test_the_same_points_have_the_same_variances():
    """Bit for bit when asked again, within the tolerance when asked for in other company."""
    posterior, _ = posterior_of(Matern(0.5, nu=1.5), 1e-2, preconditioner="low_rank_vecchia")
    X_new = torch.from_numpy(scattered(300, 2, seed=5))
    first, second = (posterior.predict(X_new, variance=True).variance for _ in range(2))
    assert torch.equal(first, second)
    alone = torch.cat([posterior.predict(one, variance=True).variance for one in X_new.split(70)])
    assert bool(((alone - first).abs() <= 2e-2 * (first + 1e-2)).all())


def test_a_kernel_without_coordinates_is_iterated_with():
    posterior, truth = posterior_of(Constant(2.0), 0.1, n=50, mean="zero")
    check_estimates(posterior, truth, scattered(200, 2, seed=5))
