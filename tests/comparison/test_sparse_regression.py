"""FITC, PITC and VAR for regression against their dense definitions, the exact process and one another."""

import math

import numpy as np
import pytest
import torch
from comparison.sparse_truth import LargestTensor, SparseRegressionTruth, SparseTruth
from inference.gaussian_truth import Truth, relative_error, toy
from torch import Tensor

from kernelcg.comparison import KINDS, SparseApproximation, SparseObjective, inducing_points
from kernelcg.comparison.sparse_prior import compact_blocks
from kernelcg.errors import SolveFailed
from kernelcg.inference import GaussianProcess, Noise, Regression, learn
from kernelcg.inference.gaussian.likelihood_by_cholesky import direct_estimate
from kernelcg.kernels import RBF, Kernel, Matern
from kernelcg.randomness import seeded
from kernelcg.solvers import Status

N, M, NEW = 60, 15, 12

KERNELS = {
    "rbf": RBF([0.8, 1.5, 2.5], 1.4),
    "matern": Matern([1.2, 0.9, 3.0], 0.8, nu=1.5),
}

EVERY = pytest.mark.parametrize("kind", KINDS)
KERNEL = pytest.mark.parametrize("name", KERNELS)

TIGHT = 1e-10
"""Relative rounding: the condition number of K_UU is at most 1e7, thanks to its jitter; measured: 1e-14."""


def cases(kind, kernel, columns=1, known=0.0, noise=0.2):
    """Return the same approximation and data as the package and as the reference see them."""
    X, Y = toy(N, 3, columns)
    approximation = SparseApproximation(kind, inducing_points(torch.from_numpy(X), M, generator=seeded(0)))
    rows = tuple(block.numpy() for block in compact_blocks(torch.from_numpy(X), M))
    sparse = SparseTruth(kind, kernel, X, approximation.U.numpy(), rows)
    variance = torch.from_numpy(known) if np.ndim(known) else None
    objective = SparseObjective(Regression(torch.from_numpy(X), torch.from_numpy(Y), variance), approximation)
    return objective, GaussianProcess(kernel, Noise(noise)), SparseRegressionTruth(sparse, Y, noise, known)


def all_rows(kind, kernel, noise=0.2):
    """Return the objective with every row of X an inducing input, and the exact process."""
    X, Y = toy(N, 3)
    problem = Regression(torch.from_numpy(X), torch.from_numpy(Y))
    objective = SparseObjective(problem, SparseApproximation(kind, problem.X, block_size=10))
    return objective, GaussianProcess(kernel, Noise(noise)), Truth(kernel, X, Y, noise)


# against the definitions


@KERNEL
@EVERY
def test_evidence_and_gradient(kind, name):
    for columns, known in ((1, 0.0), (3, np.linspace(0, 0.5, N))):
        objective, gp, truth = cases(kind, KERNELS[name], columns, known)
        estimate, _ = objective(gp)
        assert estimate.status is Status.CONVERGED
        assert estimate.value == pytest.approx(truth.log_evidence(), rel=TIGHT)
        assert relative_error(estimate.gradient, truth.gradient()) < 1e-9
        assert not estimate.gradient_error.any()


@KERNEL
@EVERY
def test_predictions(kind, name):
    for columns, known in ((1, 0.0), (3, np.linspace(0, 0.5, N))):
        objective, gp, truth = cases(kind, KERNELS[name], columns, known)
        X_new = toy(NEW, 3, seed=1)[0]
        mean, variance = objective.condition(gp).predict(torch.from_numpy(X_new))
        true_mean, true_variance = truth.predict(X_new)
        assert relative_error(mean, true_mean) < TIGHT
        assert relative_error(variance, true_variance) < TIGHT


def test_the_approximations_differ():
    """So that no test above compares one of them with another."""
    values = [cases(kind, KERNELS["rbf"])[2].log_evidence() for kind in KINDS]
    assert min(abs(a - b) for a, b in [(values[0], values[1]), (values[1], values[2]), (values[0], values[2])]) > 1.0


@EVERY
def test_tiny_noise(kind):
    objective, gp, truth = cases(kind, KERNELS["matern"], noise=1e-6)
    estimate, _ = objective(gp)
    assert estimate.value == pytest.approx(truth.log_evidence(), rel=1e-7)
    assert relative_error(estimate.gradient, truth.gradient()) < 1e-6


# against the exact process and one another


@KERNEL
@EVERY
def test_all_rows_as_inducing_inputs_give_the_exact_process(kind, name):
    """Up to the jitter: 1e-6 of the variance at each of 60 points, beside noise of 0.2."""
    objective, gp, truth = all_rows(kind, KERNELS[name])
    estimate, exact = objective(gp)[0], direct_estimate(objective.problem, gp)
    assert estimate.value == pytest.approx(exact.value, abs=1e-3)
    assert relative_error(estimate.gradient, exact.gradient) < 1e-4
    X_new = toy(NEW, 3, seed=1)[0]
    mean, variance = objective.condition(gp).predict(torch.from_numpy(X_new))
    assert relative_error(mean, truth.posterior_mean(X_new)) < 1e-4
    assert relative_error(variance, np.diag(truth.posterior_covariance(X_new)) + truth.noise) < 1e-4


@KERNEL
def test_var_is_a_lower_bound_that_rises_with_more_inducing_inputs(name):
    X, Y = toy(N, 3, 2)
    problem = Regression(torch.from_numpy(X), torch.from_numpy(Y))
    for noise in (1e-3, 0.1, 2.0):
        gp = GaussianProcess(KERNELS[name], Noise(noise))
        bounds = [SparseObjective(problem, SparseApproximation("var", problem.X[:m]))(gp)[0].value for m in (1, 10, 40)]
        assert bounds[0] < bounds[1] < bounds[2] < direct_estimate(problem, gp).value


@KERNEL
def test_pitc_with_one_block_is_the_exact_process(name):
    objective, gp, sparse = cases("pitc", KERNELS[name])
    whole = SparseApproximation("pitc", objective.approximation.U, block_size=N)
    whole = SparseObjective(objective.problem, whole)
    estimate, exact = whole(gp)[0], direct_estimate(objective.problem, gp)
    assert estimate.value == pytest.approx(exact.value, rel=1e-11)
    assert relative_error(estimate.gradient, exact.gradient) < TIGHT
    truth, X_new = Truth(KERNELS[name], sparse.sparse.X, sparse.Y, sparse.noise), toy(NEW, 3, seed=1)[0]
    mean, variance = whole.condition(gp).predict(torch.from_numpy(X_new))
    assert relative_error(mean, truth.posterior_mean(X_new)) < TIGHT
    assert relative_error(variance, np.diag(truth.posterior_covariance(X_new)) + truth.noise) < TIGHT


def test_pitc_with_blocks_of_one_row_is_fitc():
    objective, gp, _ = cases("fitc", KERNELS["rbf"])
    single = SparseApproximation("pitc", objective.approximation.U, block_size=1)
    fitc, pitc = objective(gp)[0], SparseObjective(objective.problem, single)(gp)[0]
    assert pitc.value == pytest.approx(fitc.value, rel=1e-12)
    assert relative_error(pitc.gradient, fitc.gradient) < TIGHT


# inducing inputs and blocks


@pytest.mark.parametrize(("n", "m"), [(1, 1), (8, 4), (1030, 102), (9568, 451), (45730, 1279)])
def test_inducing_inputs_are_distinct_rows(n, m):
    X = torch.arange(n, dtype=torch.float64)[:, None].expand(n, 2)
    U = inducing_points(X, generator=seeded(3))
    assert U.shape == (m, 2)
    assert len(U[:, 0].unique()) == m
    assert torch.equal(U, inducing_points(X, generator=seeded(3)))
    assert n < 100 or not torch.equal(U, inducing_points(X, generator=seeded(4)))


@pytest.mark.parametrize("size", [1, 7, 64, 1000])
def test_blocks_hold_every_row_once(size):
    X = torch.randn(500, 3, generator=seeded(0), dtype=torch.float64) * torch.tensor([1.0, 1e3, 0.0])
    blocks = compact_blocks(X, size)
    assert torch.equal(torch.cat(blocks).sort().values, torch.arange(500))
    assert max(map(len, blocks)) <= size
    assert min(map(len, blocks)) >= min(size, 500) // 2


def test_blocks_hold_close_rows():
    X = torch.randn(500, 2, generator=seeded(0), dtype=torch.float64) * torch.tensor([1.0, 1e3])
    within = torch.stack([X[rows].var(0) for rows in compact_blocks(X, 32)]).mean(0) / X.var(0)
    assert float(within.max()) < 0.25, "16 blocks: about a quarter of the range of either feature"


def test_blocks_do_not_depend_on_units():
    X = torch.randn(300, 2, generator=seeded(0), dtype=torch.float64)
    changed = X * torch.tensor([1e6, 1e-3]) + 5.0
    assert all(torch.equal(a, b) for a, b in zip(compact_blocks(X, 20), compact_blocks(changed, 20), strict=True))


# size


@EVERY
def test_no_matrix_of_n_by_n(kind):
    n, m = 20_000, 50
    X = torch.randn(n, 2, generator=seeded(0), dtype=torch.float64)
    problem = Regression(X, X[:, :1].sin())
    objective = SparseObjective(problem, SparseApproximation(kind, inducing_points(X, m, generator=seeded(0))))
    gp = GaussianProcess(RBF([1.0, 2.0]), Noise(0.1))
    with LargestTensor() as largest:
        estimate, _ = objective(gp)
        mean, _ = objective.condition(gp).predict(X)
    assert math.isfinite(estimate.value)
    assert float((mean - problem.Y).abs().mean()) < 0.05
    assert n * m <= largest.numbers <= 2 * n * m


# learning


@EVERY
def test_learning_climbs_to_a_stationary_point_on_all_rows(kind):
    X, Y = toy(500, 2)
    problem = Regression(torch.from_numpy(X), torch.from_numpy(Y))
    approximation = SparseApproximation(kind, inducing_points(problem.X, 30, generator=seeded(0)))
    objective, gp = SparseObjective(problem, approximation), GaussianProcess(RBF([3.0, 3.0], 0.3), Noise(1.0))
    learned = learn(objective, gp, generator=seeded(0))
    first, last = objective(gp)[0], objective(learned.gp)[0]
    assert learned.converged
    assert {step.rows for step in learned.steps} == {500}, "no part of the data comes first"
    assert last.value > first.value + 50
    assert float(last.gradient.norm()) < 1e-3 * float(first.gradient.norm())


def test_learning_by_adagrad():
    objective, gp, _ = cases("fitc", KERNELS["rbf"], noise=2.0)
    learned = learn(objective, gp, optimizer="adagrad", step_size=0.3, max_steps=15, generator=seeded(0))
    assert objective(learned.gp)[0].value > objective(gp)[0].value + 1


def test_some_of_the_rows():
    objective, gp, _ = cases("var", KERNELS["rbf"])
    rows = torch.arange(0, N, 2)
    alone = SparseObjective(objective.problem.subset(rows), objective.approximation)
    assert objective.on(rows)(gp)[0].value == alone(gp)[0].value


# what is refused and what fails


class Indefinite(Kernel):
    """No covariance: −v ‖x − y‖²."""

    variance: Tensor

    def covariance(self, X, Y):
        return -self.variance * (X[:, None] - Y).square().sum(2)


@EVERY
def test_matrices_that_are_not_positive_definite(kind):
    objective, _, _ = cases(kind, KERNELS["rbf"])
    gp = GaussianProcess(Indefinite(1.0), Noise(0.1))
    estimate, _ = objective(gp)
    assert estimate.value == -math.inf
    assert estimate.status is Status.INDEFINITE_OPERATOR
    with pytest.raises(SolveFailed, match="not positive definite"):
        objective.condition(gp)


def test_singular_blocks_are_not_mended():
    """Equal points in a block leave K − Q singular, and the noise is lost beside it."""
    problem = Regression(torch.ones(30, 2, dtype=torch.float64), torch.ones(30, 1, dtype=torch.float64))
    objective = SparseObjective(problem, SparseApproximation("pitc", problem.X[:5], block_size=10))
    estimate, _ = objective(GaussianProcess(RBF(1.0), Noise(1e-30)))
    assert estimate.status is Status.INDEFINITE_OPERATOR


def test_bad_arguments():
    objective, _, _ = cases("fitc", KERNELS["rbf"])
    problem, U = objective.problem, objective.approximation.U
    with pytest.raises(ValueError, match="kind must be one of fitc, pitc, var, not 'sor'"):
        SparseApproximation("sor", U)
    with pytest.raises(ValueError, match="two dimensions"):
        SparseApproximation("fitc", U[0])
    for size in (0, 2.5, True):
        with pytest.raises(ValueError, match="block_size must be a positive whole number"):
            SparseApproximation("pitc", U, size)
    for count in (0, N + 1, 3.0, True):
        with pytest.raises(ValueError, match=f"count must be a whole number from 1 to {N}"):
            inducing_points(problem.X, count, generator=seeded(0))
    with pytest.raises(ValueError, match="inducing inputs have 2 features but X has 3"):
        SparseObjective(problem, SparseApproximation("fitc", U[:, :2]))
    with pytest.raises(ValueError, match="mean='zero', not 'linear'"):
        SparseObjective(Regression(problem.X, problem.Y, mean="linear"), objective.approximation)
    with pytest.raises(ValueError, match="X has 2 features"):
        objective.condition(GaussianProcess(RBF(1.0), Noise(0.1))).predict(problem.X[:, :2])
