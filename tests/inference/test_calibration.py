"""Factors of latent means and covariances by leave-one-out, against dense references and refits."""

import numpy as np
import pytest
import torch
from laplace_cases import case, softmax_case
from reference import kernel_matrix
from scipy.special import log_ndtr, ndtr

from kernelcg.inference.laplace.calibration import ROWS_OF_CLASSES, Calibration, _averages, calibrated, left_out, scaled
from kernelcg.inference.laplace.posterior import condition_laplace
from kernelcg.kernels import RBF, Matern
from kernelcg.randomness import seeded

METHODS = ["direct", "iterative"]


def dense_left_out(posterior, K):
    """Return means and covariances of the latent values without the Gaussian that stands for a row, one by one."""
    problem, expansion = posterior.problem, posterior.mode.expansion
    n, C = len(problem), problem.classes
    big = np.kron(K, np.eye(C))
    blocks = expansion.half_blocks(torch.arange(n)).numpy()
    W = blocks @ blocks.transpose(0, 2, 1)
    f, g = posterior.mode.f.numpy(), expansion.gradient.numpy()
    whole = np.zeros((n * C, n * C))
    for i in range(n):
        whole[i * C : (i + 1) * C, i * C : (i + 1) * C] = W[i]
    target = whole @ f + g  # W f + g: the natural means of the rows
    means, covariances = [], []
    for i in range(n):
        own, without, mean = slice(i * C, (i + 1) * C), whole.copy(), target.copy()
        without[own, own], mean[own] = 0.0, 0.0
        Sigma = np.linalg.solve(np.eye(n * C) + big @ without, big)
        means.append((Sigma @ mean)[own, 0])
        covariances.append(Sigma[own, own])
    return np.array(means), np.array(covariances)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["probit", "logit", "softmax"])
def test_rows_left_out_are_those_of_the_dense_formulas(name, method):
    one = softmax_case(4, n=25) if name == "softmax" else case(name, n=40)
    found = condition_laplace(one.problem, one.gp, method=method, rtol=1e-10, variance_tolerance=1e-8)
    mean, covariance = left_out(found, torch.arange(len(one.y)))
    K = one.problem.matrix(one.gp.kernel).block().numpy()
    exact = dense_left_out(found, K)
    np.testing.assert_allclose(mean.numpy(), exact[0], atol=1e-5)
    np.testing.assert_allclose(covariance.numpy(), exact[1], atol=1e-5)


def test_rows_left_out_are_nearly_those_of_fits_without_them():
    one = case("probit", n=40)
    found = condition_laplace(one.problem, one.gp, method="direct", rtol=1e-10)
    mean, covariance = (value.numpy() for value in left_out(found, torch.arange(40)))
    sign = 2 * one.y - 1
    own = log_ndtr(sign * mean[:, 0] / np.sqrt(1 + covariance[:, 0, 0]))
    refitted = []
    for i in range(40):
        rest = np.arange(40) != i
        less = condition_laplace(one.problem.subset(torch.tensor(rest)), one.gp, method="direct", rtol=1e-10)
        at_i = less.predict(torch.tensor(one.X[i : i + 1]), covariance=True)
        refitted.append(log_ndtr(sign[i] * float(at_i.mean) / np.sqrt(1 + float(at_i.covariance))))
    np.testing.assert_allclose(own, refitted, atol=0.1)
    assert own.mean() == pytest.approx(np.mean(refitted), abs=0.01)


def separable(n, noise, classes=2, seed=0):
    """Return inputs, and labels that follow them but for a few."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, (n, 2))
    y = np.digitize(X[:, 0] + 0.3 * np.sin(3 * X[:, 1]), np.linspace(-2, 2, classes + 1)[1:-1])
    wrong = rng.random(n) < noise
    return X, np.where(wrong, rng.integers(0, classes, n), y)


@pytest.mark.parametrize("classes", [2, 3])
def test_cautious_probabilities_are_mended(classes):
    """Of data that are nearly separable, with a large variance: new rows are foreseen better."""
    X, y = separable(400, 0.01, classes)
    train = slice(0, 150)
    one = case("probit") if classes == 2 else softmax_case(classes)
    one = type(one)(
        X[train], y[train].astype(float if classes == 2 else int), RBF(0.7, 100.0), one.name, one.likelihood
    )
    one = type(one)(**{**vars(one), "classes": 1 if classes == 2 else classes})
    found = condition_laplace(one.problem, one.gp, rtol=1e-8)
    factors = calibrated(found, seeded(0))
    assert factors.rows == 150 <= ROWS_OF_CLASSES
    assert factors.after < factors.before
    new = found.predict(torch.tensor(X[150:]), covariance=True)
    losses = []
    for each in (Calibration(), factors):
        at = scaled(new, each)
        if classes == 2:
            p = one.likelihood.log_predictive(torch.tensor(y[150:]).double(), at.mean[:, 0], at.variances[:, 0])
        else:
            values, vectors = torch.linalg.eigh(at.covariance)
            root = vectors * values.clamp_min(0).sqrt()[:, None, :]
            p = one.gp.likelihood.log_averages(at.mean, root).gather(1, torch.tensor(y[150:])[:, None])
        losses.append(-float(p.mean()))
    assert losses[1] < 0.9 * losses[0]
    assert losses[1] == pytest.approx(factors.after, abs=0.1)  # two or three rows of 250 make 0.05


def test_known_probabilities_are_met_better():
    """Labels drawn from the model itself: the expected loss under the true probabilities is what counts."""
    rng, kernel, losses = np.random.default_rng(1), Matern([1.0, 1.5], 30.0), []
    for _ in range(3):
        X = rng.uniform(-3, 3, (350, 2))
        f = np.linalg.cholesky(kernel_matrix(kernel, X, X) + 1e-6 * np.eye(350)) @ rng.normal(size=350)
        y = (rng.random(350) < ndtr(f)).astype(float)
        one = case("probit")
        one = type(one)(X[:150], y[:150], kernel, "probit", one.likelihood)
        found = condition_laplace(one.problem, one.gp, method="direct")
        new, p = found.predict(torch.tensor(X[150:]), covariance=True), ndtr(f[150:])
        for each in (Calibration(), calibrated(found, seeded(0))):
            at = scaled(new, each)
            z = (at.mean[:, 0] / (1 + at.variances[:, 0]).sqrt()).numpy()
            losses.append(-(p * log_ndtr(z) + (1 - p) * log_ndtr(-z)).mean())
    assert np.mean(losses[1::2]) < 0.9 * np.mean(losses[::2])


def test_an_approximation_that_is_right_is_left_alone():
    """Many noisy labels and a small variance: Laplace's Gaussian is the posterior, nearly."""
    rng = np.random.default_rng(3)
    X = rng.uniform(-2, 2, (200, 1))
    y = (rng.normal(size=200) < 0.5 * np.sin(X[:, 0])).astype(float)
    one = case("probit")
    one = type(one)(X, y, RBF(1.0, 0.3), "probit", one.likelihood)
    factors = calibrated(condition_laplace(one.problem, one.gp, method="direct"), seeded(0))
    assert (factors.mean, factors.covariance) == (1.0, 1.0)
    assert "as it is" in str(factors)


def test_rows_that_are_all_foreseen_do_not_make_probabilities_certain():
    """Twenty rows without an error say no more than that errors are rarer than one in twenty or so."""
    X = np.linspace(-1, 1, 20)[:, None]
    one = case("probit")
    one = type(one)(X, (X[:, 0] > 0).astype(float), RBF(1.0, 10.0), "probit", one.likelihood)
    found = condition_laplace(one.problem, one.gp, method="direct")
    factors = calibrated(found, seeded(0))
    at = scaled(found.predict(torch.tensor(X), covariance=True), factors)
    p = one.likelihood.log_predictive(torch.tensor(one.y), at.mean[:, 0], at.variances[:, 0]).exp()
    assert float((1 - p).sum()) > 0.3


def test_averages_of_the_logit_are_those_of_its_quadrature():
    one = case("logit", n=60)
    found = condition_laplace(one.problem, one.gp, method="direct")
    mean, covariance = left_out(found, torch.arange(60))
    for a, b in ((1.0, 1.0), (2.0, 0.25), (1.5, 0.0)):
        P = _averages(found, mean, covariance)(a, b)
        for y in (0, 1):
            label = torch.full((60,), float(y), dtype=torch.float64)
            exact = one.likelihood.log_predictive(label, a * mean[:, 0], b * covariance[:, 0, 0])
            torch.testing.assert_close(P[:, y], exact, rtol=0, atol=0.02)
