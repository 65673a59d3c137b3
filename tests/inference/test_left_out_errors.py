"""Errors of leave-one-out against long double: they count rounding, and the status says where it is too much."""

import numpy as np
import pytest
import torch
from inference import extended
from inference.extended import IS_EXTENDED, REAL, real

from kernelcg import GPRegressor
from kernelcg.errors import ConvergenceWarning
from kernelcg.inference.gaussian import conditioning
from kernelcg.inference.gaussian import leave_one_out as module
from kernelcg.inference.gaussian.conditioning import condition
from kernelcg.inference.gaussian.leave_one_out import leave_one_out
from kernelcg.inference.gaussian.model import GaussianProcess, Regression
from kernelcg.kernels import RBF
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
