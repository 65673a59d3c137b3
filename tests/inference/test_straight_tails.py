"""Modes from a start where log p(y | f) is nearly straight: short steps lead there all the same."""

import math

import numpy as np
import pytest
import torch
from extended import IS_EXTENDED, kernel_matrix, real

from kernelcg import GPGeneralizedRegressor
from kernelcg.inference.bounds.laplace_certificate import laplace_certificate
from kernelcg.inference.bounds.verdict import Verdict
from kernelcg.inference.laplace.latent_model import LatentProcess, Observations
from kernelcg.inference.laplace.posterior import condition_laplace
from kernelcg.kernels import RBF, Matern
from kernelcg.likelihoods import Likelihood, StudentT

METHODS = ("direct", "iterative")


class Secant(Likelihood):
    """Errors with exponential tails: W vanishes away from y."""

    SCALARS = ("width",)

    width: torch.Tensor

    def log_density(self, y, f, exposure):
        z = (y - f) / self.width
        return math.log(2 / math.pi) - z + torch.nn.functional.logsigmoid(2 * z) - self.width.log()


class Overflowing(Secant):
    """The same by a formula whose second derivative is NaN far away."""

    def log_density(self, y, f, exposure):
        z = (y - f) / self.width
        return math.log(2 / math.pi) - torch.logaddexp(z, -z) - self.width.log()


def line(n=40, slope=8e4):
    """Return inputs and numbers that lie around a line, far from 0 in units of their scatter."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(n, 2))
    return X, slope * (X[:, 0] - 0.5 * X[:, 1]) + 2e3 * rng.normal(size=n)


@pytest.mark.skipif(not IS_EXTENDED, reason="long double is float64 here")
@pytest.mark.parametrize("method", METHODS)
def test_a_drift_is_found_from_a_start_without_curvature(method):
    """At f = 0 every W is below 1e-30; before, no halving of Newton's step of 1e30 and more was enough."""
    X, y = line()
    problem = Observations(torch.tensor(X), torch.tensor(y), mean="linear")
    found = condition_laplace(problem, LatentProcess(Matern(2.0, 5.0, nu=2.5), Secant(1600.0)), method=method)
    assert laplace_certificate(found, tolerance=1e-6).verdict is Verdict.CERTIFIED
    f = found.mode.f[:, 0].numpy()
    a = np.tanh((y - f) / 1600.0) / 1600.0  # the gradient of log p
    H = np.column_stack([np.ones(len(X)), X])
    K = kernel_matrix(2.5, real(X), real(X), real([2.0, 2.0]), real(5.0)).astype(float)
    assert np.abs(H.T @ a).max() < 1e-5 * np.abs(a).sum()
    left = f - K @ a
    assert np.abs(left - H @ np.linalg.lstsq(H, left, rcond=None)[0]).max() < 1e-3


@pytest.mark.parametrize("degrees", [2.5, 12.0, 40.0])
@pytest.mark.parametrize("unit", [1e-7, 1e-3, 1e4])
def test_tails_of_students_t_are_climbed_in_few_steps(unit, degrees):
    """The first f is hundreds of scales away from every y, where all W are negative, and the kernel is wide."""
    X, y = line(20, 1.0)
    y = unit * np.sin(X[:, 0])
    problem = Observations(torch.tensor(X), torch.tensor(y))
    gp = LatentProcess(RBF(1.1, 1e3 * unit**2), StudentT(2e-3 * unit, degrees))
    found = condition_laplace(problem, gp, method="direct")
    assert laplace_certificate(found, tolerance=1e-6).verdict is Verdict.CERTIFIED
    assert found.mode.steps < 40
    assert np.abs(found.mode.f[:, 0].numpy() - y).max() < 0.1 * unit


def test_derivatives_that_are_no_numbers_are_said_to_be_those_of_the_likelihood():
    X, y = line(12, 1.0)
    model = GPGeneralizedRegressor(RBF(1.0, 1.0), likelihood=Overflowing(1e-3), optimizer=None, mean="zero")
    with pytest.raises(ValueError, match=r"log p\(y \| f\) of Overflowing.* at row \d+, where y is .* derivatives"):
        model.fit(X, y)


def test_a_formula_with_finite_derivatives_is_solved_from_there():
    X, _ = line(12, 1.0)
    y = np.sin(X[:, 0])
    model = GPGeneralizedRegressor(RBF(1.0, 1.0), likelihood=Secant(1e-3), optimizer=None, mean="zero").fit(X, y)
    assert np.abs(model.latent(X) - y).max() < 0.02
