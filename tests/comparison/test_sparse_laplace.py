"""FITC, PITC and VAR for classes and counts against dense Laplace with their prior, exact Laplace and regression."""

import math

import numpy as np
import pytest
import torch
from comparison.sparse_truth import LargestTensor, SparseLaplaceTruth, SparseTruth
from inference.gaussian_truth import relative_error
from inference.laplace_truth import LIKELIHOODS
from reference import kernel_matrix

from kernelcg import likelihoods
from kernelcg.comparison import (
    KINDS,
    SparseApproximation,
    SparseLaplaceObjective,
    SparseObjective,
    inducing_points,
)
from kernelcg.comparison.sparse_prior import compact_blocks
from kernelcg.errors import SolveFailed
from kernelcg.inference import GaussianProcess, Noise, Regression, learn
from kernelcg.inference.laplace.evidence import laplace_estimate
from kernelcg.inference.laplace.latent_model import LatentProcess, Observations
from kernelcg.inference.laplace.posterior import condition_laplace
from kernelcg.kernels import RBF, Matern
from kernelcg.randomness import seeded
from kernelcg.solvers import Status

N, M, NEW = 60, 15, 12

KERNELS = {"rbf": RBF([0.7, 1.5], 2.0), "matern": Matern([0.8, 1.2], 1.5, nu=1.5)}

LIKELIHOOD = {
    "probit": likelihoods.BernoulliProbit(),
    "logit": likelihoods.BernoulliLogit(),
    "poisson": likelihoods.Poisson(),
    "binomial": likelihoods.Binomial(),
    "negative_binomial": likelihoods.NegativeBinomial(0.5),
    "gamma": likelihoods.Gamma(2.0),
}

EVERY = pytest.mark.parametrize("kind", KINDS)
KERNEL = pytest.mark.parametrize("kernel", KERNELS)
SEEN = pytest.mark.parametrize("name", LIKELIHOOD)

VALUE, GRADIENT = 1e-12, 1e-8
"""Relative errors; measured: 2e-14 and 7e-10, of which the finite differences of the reference are a part."""


def drawn(name, kernel, n=N, seed=0):
    """Return X, y and exposures drawn from the model."""
    generator = np.random.default_rng(seed)
    X = generator.standard_normal((n, 2))
    values, V = np.linalg.eigh(kernel_matrix(kernel, X, X))
    f = V @ (np.sqrt(np.maximum(values, 0)) * generator.standard_normal(n))
    exposure = generator.integers(1, 9, n) * 1.0 if name in ("binomial", "poisson") else np.ones(n)
    y = LIKELIHOODS[name].draw(f, exposure, LIKELIHOOD[name].log_parameters().numpy(), generator)
    return X, y, exposure


def problem_of(name, kernel, n=N):
    return Observations(*(torch.from_numpy(part) for part in drawn(name, kernel, n)))


def cases(kind, kernel, name):
    """Return the same approximation and data as the package and as the reference see them."""
    problem, gp = problem_of(name, kernel), LatentProcess(kernel, LIKELIHOOD[name])
    U = inducing_points(problem.X, M, generator=seeded(0))
    blocks = tuple(rows.numpy() for rows in compact_blocks(problem.X, M))
    sparse = SparseTruth(kind, kernel, problem.X.numpy(), U.numpy(), blocks)
    phi = gp.likelihood.log_parameters().numpy()
    truth = SparseLaplaceTruth(sparse, name, problem.y.numpy(), phi, problem.exposure.numpy())
    return SparseLaplaceObjective(problem, SparseApproximation(kind, U)), gp, truth


# against the definitions


@SEEN
@KERNEL
@EVERY
def test_evidence_and_gradient(kind, kernel, name):
    objective, gp, truth = cases(kind, KERNELS[kernel], name)
    estimate, _ = objective(gp)
    assert estimate.status is Status.CONVERGED
    assert estimate.value == pytest.approx(truth.log_evidence(), rel=VALUE)
    assert relative_error(estimate.gradient, truth.gradient()) < GRADIENT


@SEEN
@EVERY
def test_latent_predictions(kind, name):
    objective, gp, truth = cases(kind, KERNELS["matern"], name)
    X_new = drawn(name, KERNELS["matern"], NEW, seed=1)[0]
    mean, variance = objective.condition(gp).predict(torch.from_numpy(X_new))
    true_mean, true_variance = truth.predict(X_new)
    assert relative_error(mean, true_mean) < 1e-8
    assert relative_error(variance, true_variance) < 1e-8


@SEEN
def test_predictions_of_observations(name):
    objective, gp, truth = cases("fitc", KERNELS["rbf"], name)
    X_new, y_new, exposure = drawn(name, KERNELS["rbf"], NEW, seed=1)
    posterior = objective.condition(gp)
    new = [torch.from_numpy(part) for part in (X_new, y_new, exposure)]
    mean, variance = posterior.predict_observations(new[0], new[2])
    true_mean, true_variance = truth.laplace.predictive_moments(*truth.predict(X_new), exposure)
    assert relative_error(mean, true_mean) < 1e-6
    assert relative_error(variance, true_variance) < 1e-6
    true_log = truth.laplace.log_predictive(*truth.predict(X_new), y_new, exposure)
    assert relative_error(posterior.log_predictive(*new), true_log) < 1e-6


def test_the_approximations_differ():
    """So that no test above compares one of them with another."""
    values = [cases(kind, KERNELS["rbf"], "probit")[2].log_evidence() for kind in KINDS]
    assert min(abs(a - b) for a, b in [(values[0], values[1]), (values[1], values[2]), (values[0], values[2])]) > 0.1


@EVERY
def test_strong_signal(kind):
    """Classes that are nearly separable: a variance of 1e4, W down to rounding."""
    kernel = RBF([0.7, 1.5], 1e4)
    objective, gp, truth = cases(kind, kernel, "probit")
    estimate, _ = objective(gp)
    assert estimate.status is Status.CONVERGED
    assert estimate.value == pytest.approx(truth.log_evidence(), rel=1e-10)
    assert relative_error(estimate.gradient, truth.gradient()) < 1e-6


# against exact Laplace and against regression


@pytest.mark.parametrize("name", ["probit", "logit", "poisson"])
@EVERY
def test_all_rows_as_inducing_inputs_give_exact_laplace(kind, name):
    """Up to the jitter."""
    kernel = KERNELS["matern"]
    problem, gp = problem_of(name, kernel), LatentProcess(kernel, LIKELIHOOD[name])
    objective = SparseLaplaceObjective(problem, SparseApproximation(kind, problem.X, block_size=10))
    estimate, (exact, _) = objective(gp)[0], laplace_estimate(problem, gp, "direct")
    assert estimate.value == pytest.approx(exact.value, abs=1e-3)
    assert relative_error(estimate.gradient, exact.gradient) < 1e-3
    X_new = torch.from_numpy(drawn(name, kernel, NEW, seed=1)[0])
    prediction = condition_laplace(problem, gp, method="direct").predict(X_new, covariance=True)
    mean, variance = objective.condition(gp).predict(X_new)
    assert relative_error(mean, prediction.mean[:, 0]) < 1e-4
    assert relative_error(variance, prediction.covariance[:, 0, 0]) < 1e-4


@KERNEL
def test_pitc_with_one_block_is_exact_laplace(kernel):
    objective, gp, _ = cases("pitc", KERNELS[kernel], "logit")
    whole = SparseApproximation("pitc", objective.approximation.U, block_size=N)
    whole = SparseLaplaceObjective(objective.problem, whole)
    estimate, _ = whole(gp)
    exact, _ = laplace_estimate(objective.problem, gp, "direct")
    assert estimate.value == pytest.approx(exact.value, rel=1e-10)
    assert relative_error(estimate.gradient, exact.gradient) < 1e-8
    X_new = torch.from_numpy(drawn("logit", KERNELS[kernel], NEW, seed=1)[0])
    mean, variance = whole.condition(gp).predict(X_new)
    expected = condition_laplace(objective.problem, gp, method="direct").predict(X_new, covariance=True)
    assert relative_error(mean, expected.mean[:, 0]) < 1e-6
    assert relative_error(variance, expected.covariance[:, 0, 0]) < 1e-6


@EVERY
def test_gaussian_noise_gives_regression(kind):
    """Laplace's approximation is exact there, and tr(W (K − Q)) is VAR's own trace."""
    generator = np.random.default_rng(0)
    X, y = torch.from_numpy(generator.standard_normal((N, 2))), torch.from_numpy(generator.standard_normal(N))
    approximation, kernel = SparseApproximation(kind, X[:M]), KERNELS["rbf"]
    laplace = SparseLaplaceObjective(Observations(X, y), approximation)
    regression = SparseObjective(Regression(X, y[:, None]), approximation)
    latent, gp = LatentProcess(kernel, likelihoods.Gaussian(0.2)), GaussianProcess(kernel, Noise(0.2))
    one, other = laplace(latent)[0], regression(gp)[0]
    assert one.value == pytest.approx(other.value, rel=1e-11)
    assert relative_error(one.gradient, other.gradient) < 1e-9
    mean, variance = laplace.condition(latent).predict(X + 0.1)
    expected, with_noise = regression.condition(gp).predict(X + 0.1)
    torch.testing.assert_close(mean[:, None], expected)
    torch.testing.assert_close(variance + 0.2, with_noise)


# Newton's method, size, learning


@EVERY
def test_steps_that_overshoot_are_halved(kind):
    """Counts of thousands: the first full step from f = 0 leads to e^1000."""
    X, y = np.linspace(-3, 3, N)[:, None] * np.ones(2), np.where(np.arange(N) % 20 < 10, 5000.0, 0.0)
    problem, kernel = Observations(torch.from_numpy(X), torch.from_numpy(y)), RBF([0.5, 0.5], 30.0)
    objective = SparseLaplaceObjective(problem, SparseApproximation(kind, problem.X[::4], block_size=M))
    estimate, _ = objective(LatentProcess(kernel, LIKELIHOOD["poisson"]))
    blocks = tuple(rows.numpy() for rows in compact_blocks(problem.X, M))
    truth = SparseLaplaceTruth(SparseTruth(kind, kernel, X, X[::4], blocks), "poisson", y, np.zeros(0))
    assert estimate.status is Status.CONVERGED
    assert estimate.value == pytest.approx(truth.log_evidence(), rel=1e-8)


@EVERY
def test_a_mode_nearby_changes_nothing_but_the_way(kind):
    objective, gp, _ = cases(kind, KERNELS["matern"], "poisson")
    nearby = gp.with_log_parameters(gp.log_parameters() + 0.3)
    cold, (warm, _) = objective(gp)[0], objective(gp, objective(nearby)[1])
    assert warm.value == pytest.approx(cold.value, rel=1e-12)
    assert relative_error(warm.gradient, cold.gradient) < 1e-8


@EVERY
def test_no_matrix_of_n_by_n(kind):
    n, m = 10_000, 50
    X = torch.randn(n, 2, generator=seeded(0), dtype=torch.float64)
    problem = Observations(X, (X[:, 0] > 0).double())
    approximation = SparseApproximation(kind, inducing_points(X, m, generator=seeded(0)), block_size=100)
    objective, gp = SparseLaplaceObjective(problem, approximation), LatentProcess(RBF(1.0), LIKELIHOOD["probit"])
    with LargestTensor() as largest:
        estimate, _ = objective(gp)
        probability, _ = objective.condition(gp).predict_observations(X)
    assert math.isfinite(estimate.value)
    assert float(((probability > 0.5) == (problem.y > 0.5)).double().mean()) > 0.95
    assert n * m <= largest.numbers <= 2 * n * 100


@EVERY
def test_learning_climbs_to_a_stationary_point_on_all_rows(kind):
    problem = problem_of("probit", RBF([0.7, 1.5], 4.0), 450)
    approximation = SparseApproximation(kind, inducing_points(problem.X, 25, generator=seeded(0)))
    objective = SparseLaplaceObjective(problem, approximation)
    gp = LatentProcess(RBF([5.0, 0.2], 0.3), LIKELIHOOD["probit"])
    learned = learn(objective, gp, generator=seeded(0))
    first, last = objective(gp)[0], objective(learned.gp)[0]
    assert learned.converged
    assert learned.failures == 0
    assert {step.rows for step in learned.steps} == {450}, "no part of the data comes first"
    assert last.value > first.value + 5
    assert float(last.gradient.norm()) < 1e-2 * float(first.gradient.norm())


def test_learning_by_adagrad_starts_from_the_last_mode():
    objective, gp, _ = cases("fitc", RBF([0.7, 1.5], 2.0), "gamma")
    start = gp.with_log_parameters(gp.log_parameters() + 1.0)
    learned = learn(objective, start, optimizer="adagrad", step_size=0.2, max_steps=10, generator=seeded(0))
    assert objective(learned.gp)[0].value > objective(start)[0].value + 1


# what is refused and what fails


def test_a_mode_that_is_not_reached_is_told(monkeypatch):
    monkeypatch.setattr("kernelcg.comparison.sparse_laplace.MAX_STEPS", 1)
    objective, gp, _ = cases("fitc", KERNELS["rbf"], "poisson")
    assert objective(gp)[0].status is Status.MAX_ITERATIONS
    with pytest.raises(SolveFailed, match="Newton's method left a residual"):
        objective.condition(gp)


def test_bad_arguments():
    objective, _, _ = cases("var", KERNELS["rbf"], "probit")
    problem, approximation = objective.problem, objective.approximation
    with pytest.raises(ValueError, match="mean='zero', not 'constant'"):
        SparseLaplaceObjective(Observations(problem.X, problem.y, mean="constant"), approximation)
    with pytest.raises(ValueError, match="one latent value a point, not 2 classes"):
        SparseLaplaceObjective(Observations(problem.X, problem.y, classes=2), approximation)
    for likelihood in (likelihoods.Softmax(), likelihoods.StudentT(1.0, 4.0)):
        with pytest.raises(TypeError, match="log-concave likelihood of one value, not"):
            objective(LatentProcess(RBF(1.0), likelihood))


def test_a_mode_that_rounding_keeps_from_the_tolerance_is_one(monkeypatch):
    monkeypatch.setattr("kernelcg.comparison.sparse_laplace.RTOL", 0.0)
    objective, gp, truth = cases("fitc", KERNELS["rbf"], "logit")
    estimate, _ = objective(gp)
    assert estimate.status is Status.CONVERGED
    assert estimate.value == pytest.approx(truth.log_evidence(), rel=VALUE)
