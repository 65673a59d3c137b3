"""Errors of leave-one-out against long double: they count rounding, and the status says where it is too much."""

import numpy as np
import pytest
import torch
from inference import extended
from inference.extended import IS_EXTENDED, REAL, real

from kernelcg import GPRegressor
from kernelcg.errors import ConvergenceWarning
from kernelcg.inference.bounds.lower_bound import Exact
from kernelcg.inference.gaussian import conditioning, local_inverse
from kernelcg.inference.gaussian import leave_one_out as module
from kernelcg.inference.gaussian.conditioning import condition
from kernelcg.inference.gaussian.gaps import Gap
from kernelcg.inference.gaussian.leave_one_out import leave_one_out
from kernelcg.inference.gaussian.local_inverse import refined_by_neighbours
from kernelcg.inference.gaussian.model import GaussianProcess, Regression
from kernelcg.kernels import RBF, Constant
from kernelcg.planning import Pricing
from kernelcg.planning.ranks import Sizes
from kernelcg.randomness import seeded
from kernelcg.solvers import Status, Stopping

extended_only = pytest.mark.skipif(not IS_EXTENDED, reason="long double is float64 on this platform")


def data(n, noise, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, (n, 1))
    return X, np.sin(2 * X) + np.sqrt(noise) * rng.standard_normal((n, 1))


def exact(X, Y, noise, mean):
    """Return residuals (n, 1) and variances (n,) by B = A⁻¹ − A⁻¹H S⁻¹HᵀA⁻¹ in long double."""
    n = len(X)
    H = np.ones((n, int(mean == "constant")), dtype=REAL)
    truth = extended.Posterior("rbf", np.ones(1, dtype=REAL), REAL(1), real(X), real(Y), np.full(n, REAL(noise)), H)
    W = extended.forward(truth.L, np.eye(n, dtype=REAL))
    W = W - truth.Q @ (truth.Q.T @ W)
    diagonal = (W * W).sum(0)
    return W.T @ truth.whitened_Y / diagonal[:, None], 1 / diagonal


@extended_only
@pytest.mark.parametrize("precise", [True, False])
@pytest.mark.parametrize("mean", ["zero", "constant"])
@pytest.mark.parametrize("noise", [1e-2, 1e-6, 1e-9, 1e-11, 1e-12])
def test_errors_are_bounds(noise, mean, precise, monkeypatch):
    """With and without long double residuals and variances are within their errors of the exact ones."""
    if not precise:
        monkeypatch.setattr(module, "OPERATIONS", 0.0)
    for seed in range(3):
        X, Y = data(60, noise, seed)
        problem = Regression(torch.from_numpy(X), torch.from_numpy(Y), mean=mean)
        posterior = condition(problem, GaussianProcess(RBF(1.0), noise), method="direct", generator=seeded(0))
        found = leave_one_out(posterior, generator=seeded(0))
        residuals, variances = exact(X, Y, noise, mean)
        errors, std = real(found.relative_errors), np.sqrt(variances)
        assert np.all(np.abs(real(found.variances) / variances - 1) <= errors)
        assert np.all(np.abs(real(found.residuals) - residuals)[:, 0] <= errors * (np.abs(residuals[:, 0]) + std))
        assert (found.status is Status.CONVERGED) == bool((errors <= 0.1).all())
        assert noise < 1e-9 or errors.max() < 1e-2
        assert not precise or errors.max() < 0.1


def test_a_regressor_warns_of_errors_that_rounding_makes(monkeypatch):
    monkeypatch.setattr(module, "OPERATIONS", 0.0)
    X, Y = data(120, 1e-10)
    model = GPRegressor(RBF(1.0), noise=1e-12, optimizer=None, normalize_y=False, mean="zero", method="direct")
    model.fit(X, Y[:, 0])
    with pytest.warns(ConvergenceWarning, match="leave-one-out did not reach its tolerance: rounding"):
        found = model.loo()
    assert found.relative_errors.max() > 0.1


def test_few_rows_are_factorised_where_iterations_leave_too_large_an_error(monkeypatch):
    """A rough solve and a drift that takes most of the information: the diagonal of B is known to a factor's digits."""
    rng = np.random.default_rng(0)
    X, Y = rng.standard_normal((29, 24)), rng.standard_normal((29, 1))
    problem = Regression(torch.from_numpy(X), torch.from_numpy(Y), mean="linear")
    gp, rough = GaussianProcess(RBF(30.0), 0.1), Stopping(rtol=0.03)
    posterior = condition(problem, gp, method="iterative", stopping=rough, generator=seeded(0))
    found = leave_one_out(posterior, generator=seeded(0))
    K = np.exp(-0.5 * np.square((X[:, None] - X[None]) / 30.0).sum(2))
    inverse, H = np.linalg.inv(K + 0.1 * np.eye(29)), np.column_stack([np.ones(29), X])
    B = inverse - inverse @ H @ np.linalg.solve(H.T @ inverse @ H, H.T @ inverse)
    assert found.status is Status.CONVERGED
    np.testing.assert_allclose(found.variances, 1 / np.diag(B), rtol=1e-8)
    np.testing.assert_allclose(found.residuals, B @ Y / np.diag(B)[:, None], rtol=1e-7)
    monkeypatch.setattr(conditioning, "FACTORISED_ROWS", 0)
    posterior = condition(problem, gp, method="iterative", stopping=rough, generator=seeded(0))
    assert leave_one_out(posterior, generator=seeded(0)).status is not Status.CONVERGED


def left_out_by_inversion(X, Y, lengthscale, noise):
    """Return residuals (n, 1) and variances (n,) of an RBF process with a constant drift from A⁻¹ itself."""
    K = np.exp(-0.5 * np.square((X[:, None] - X[None]) / lengthscale).sum(2))
    inverse, H = np.linalg.inv(K + noise * np.eye(len(X))), np.ones((len(X), 1))
    B = inverse - inverse @ H @ np.linalg.solve(H.T @ inverse @ H, H.T @ inverse)
    return B @ Y / np.diag(B)[:, None], 1 / np.diag(B)


@pytest.mark.parametrize("noise", [0.3, 1e-3])
def test_neighbours_tell_what_probes_leave_uncertain(noise, monkeypatch):
    """Errors keep to their estimates and to the tolerance of variances, where those of probes alone are far larger."""
    monkeypatch.setattr(conditioning, "FACTORISED_ROWS", 0)  # else so few rows need no probes
    rng = np.random.default_rng(0)
    X, Y = rng.uniform(-3, 3, (700, 2)), rng.standard_normal((700, 1))
    X[20:30] = X[20]  # rows that are nearest to one another
    few_pivots = Pricing(sizes=Sizes(bound_rank=10, bound_work=0.0))
    problem = Regression(torch.from_numpy(X), torch.from_numpy(Y), mean="constant", pricing=few_pivots)
    gp, recipe = GaussianProcess(RBF(0.3), noise), "low_rank_vecchia"
    posterior = condition(problem, gp, preconditioner=recipe, stopping=Stopping(rtol=1e-8), generator=seeded(0))
    assert not isinstance(posterior.bound, Exact)
    residuals, variances = left_out_by_inversion(X, Y, 0.3, noise)

    def errors(found):
        assert found.status is Status.CONVERGED
        off = np.abs(found.variances.numpy() / variances - 1)
        of_residuals = np.abs(found.residuals.numpy() - residuals)[:, 0] / (
            np.abs(residuals[:, 0]) + np.sqrt(variances)
        )
        return np.maximum(off, of_residuals)

    found = leave_one_out(posterior, generator=seeded(1))
    by_probes = errors(leave_one_out(posterior, probes=64, generator=seeded(1)))
    assert np.all(errors(found) <= 3 * found.relative_errors.numpy())
    assert errors(found).max() < 0.01 < 0.1 < by_probes.max()
    assert np.median(errors(found)) < 1e-3 < 1e-2 < np.median(by_probes)


def test_the_gap_that_neighbours_leave_is_taken_into_account(monkeypatch):
    """The bound from few neighbours alone is off by more than the estimate with the gap is, and on one side."""
    monkeypatch.setattr(conditioning, "FACTORISED_ROWS", 0)
    monkeypatch.setattr(local_inverse, "NEIGHBOURS", (4,))
    rng = np.random.default_rng(0)
    X, Y = rng.uniform(-2, 2, (400, 2)), rng.standard_normal((400, 1))
    problem = Regression(torch.from_numpy(X), torch.from_numpy(Y), mean="zero")
    gp, recipe = GaussianProcess(RBF(0.4), 0.2), "low_rank_vecchia"
    posterior = condition(problem, gp, preconditioner=recipe, generator=seeded(0))
    exact = np.diag(np.linalg.inv(posterior.A.dense().numpy()))
    unknown = torch.full((400,), 1e3, dtype=torch.float64)
    diagonal, error = refined_by_neighbours(posterior, unknown, unknown)
    off = diagonal.numpy() - exact
    assert np.all(np.abs(off) <= error.numpy())
    monkeypatch.setattr(local_inverse, "observed_gap", lambda *_: Gap(0.0, 0.0))
    least = refined_by_neighbours(posterior, unknown, unknown)[0].numpy()
    assert np.all(least <= exact * (1 + 1e-9))
    assert np.abs(off).mean() < 0.3 * (exact - least).mean()


def test_a_kernel_without_coordinates_keeps_to_its_probes(monkeypatch):
    monkeypatch.setattr(conditioning, "FACTORISED_ROWS", 0)
    X, Y = data(60, 0.1)
    problem = Regression(torch.from_numpy(X), torch.from_numpy(Y), mean="zero")
    kernel = Constant(1.0) * Constant(2.0)
    gp, recipe = GaussianProcess(kernel, 0.1), "rp_cholesky"
    posterior = condition(problem, gp, preconditioner=recipe, generator=seeded(0))
    assert not isinstance(posterior.bound, Exact)
    both = [leave_one_out(posterior, probes=probes, generator=seeded(1)).variances for probes in (None, 64)]
    torch.testing.assert_close(*both, rtol=0, atol=0)
