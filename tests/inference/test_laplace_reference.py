"""Mode, evidence, gradient and predictions of the Laplace approximation against the dense reference."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from laplace_cases import KERNELS, LIKELIHOOD, MEANS, TIGHT, case, softmax_case

from kernelcg.inference import Numerics
from kernelcg.inference.laplace import evidence_by_pcg
from kernelcg.inference.laplace.evidence import laplace_estimate
from kernelcg.inference.laplace.posterior import STRONG_CONCAVITY, condition_laplace
from kernelcg.likelihoods import Likelihood, Softmax
from kernelcg.randomness import seeded
from kernelcg.solvers import Status, Stopping

METHODS = ("direct", "iterative")
CLASSES = (2, 3, 5)
NEW = np.random.default_rng(99).normal(size=(5, 2)) * [1.0, 1.5]


def close(found, truth, rel=1e-7):
    """Return whether arrays agree, relative to the largest entry."""
    found, truth = np.asarray(found), np.asarray(truth)
    return found.shape == truth.shape and np.max(np.abs(found - truth), initial=0) <= rel * np.max(
        np.abs(truth), initial=1e-300
    )


# the mode


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("name", LIKELIHOOD)
def test_mode(name, mean, method):
    one = case(name, mean)
    mode = one.mode(method)
    truth = one.truth(mode if name == "student_t" else None)
    assert mode.status is Status.CONVERGED
    assert mode.residual <= 1e-10
    assert truth.positive_definite
    assert close(mode.f[:, 0], truth.f)
    assert close(mode.a[:, 0], truth.a)
    assert close((one.problem.H @ mode.beta)[:, 0], truth.drift @ truth.beta, 1e-6)
    assert mode.psi == pytest.approx(truth.psi, rel=1e-9)
    assert mode.quadratic == pytest.approx(truth.a @ truth.K @ truth.a, rel=1e-7)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("C", CLASSES)
def test_mode_of_several_classes(C, method):
    one = softmax_case(C)
    mode, truth = one.mode(method), one.truth()
    assert mode.status is Status.CONVERGED
    assert close(mode.f.reshape(-1, C), truth.F)
    assert close(mode.a.reshape(-1, C), truth.A)


# the evidence and its gradient, directly


@pytest.mark.parametrize(
    ("name", "mean", "kernel"),
    [(name, mean, "rbf") for name in LIKELIHOOD for mean in MEANS]
    + [(name, "constant", kernel) for name, kernel in zip(2 * [*LIKELIHOOD], 4 * [*KERNELS][1:], strict=True)],
)
def test_direct_evidence_and_gradient(name, mean, kernel):
    one = case(name, mean, kernel)
    mode = one.mode("direct") if name == "student_t" else None
    estimate, _ = laplace_estimate(one.problem, one.gp, "direct")
    truth = one.truth(mode)
    assert estimate.status is Status.CONVERGED
    assert estimate.value == pytest.approx(truth.log_evidence, rel=1e-9, abs=1e-8)
    assert estimate.lower == estimate.value == estimate.upper
    assert close(estimate.gradient, truth.gradient)


@pytest.mark.parametrize("kernel", ["rbf", "product"])
@pytest.mark.parametrize("C", CLASSES)
def test_direct_evidence_and_gradient_of_several_classes(C, kernel):
    one = softmax_case(C, kernel)
    estimate, _ = laplace_estimate(one.problem, one.gp, "direct")
    truth = one.truth()
    assert estimate.value == pytest.approx(truth.log_evidence, rel=1e-9)
    assert close(estimate.gradient, truth.gradient)


def test_two_classes_of_softmax_are_the_logit():
    """f₁ − f₀ ~ GP(0, 2k): the same evidence at half the variance, and the same derivatives."""
    one = case("logit")
    softmax = replace(one, y=one.y.astype(int), kernel=replace(one.kernel, variance=0.75), likelihood=None, classes=2)
    logit, _ = laplace_estimate(one.problem, one.gp, "direct")
    found, _ = laplace_estimate(softmax.problem, softmax.gp, "direct")
    assert found.value == pytest.approx(logit.value, rel=1e-10)
    assert close(found.gradient, logit.gradient)


@pytest.mark.parametrize("mean", ["zero", "constant"])
def test_gaussian_is_regression(mean):
    """log N(y; Hβ, K + σ²I) with β by generalised least squares, and its mean k*ᵀ(K + σ²I)⁻¹(y − Hβ) + h*ᵀβ."""
    one = case("gaussian", mean)
    A = one.truth().K + 0.2 * np.eye(len(one.y))
    beta = 0.0 if mean == "zero" else np.sum(np.linalg.solve(A, one.y)) / np.sum(np.linalg.inv(A))
    r = one.y - beta
    expected = -0.5 * (r @ np.linalg.solve(A, r) + np.linalg.slogdet(A)[1] + len(r) * math.log(2 * math.pi))
    estimate, _ = laplace_estimate(one.problem, one.gp, "direct")
    assert estimate.value == pytest.approx(expected, rel=1e-11)
    assert one.mode("direct").steps == 1


# the same by iteration


@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("name", LIKELIHOOD)
def test_iterative_evidence_and_gradient(name, mean):
    one = case(name, mean)
    truth = one.truth(one.mode("direct") if name == "student_t" else None)
    assert_estimates_agree(one, truth, Numerics(probes=64, stopping=Stopping(rtol=1e-8)))


@pytest.mark.parametrize("C", CLASSES)
def test_iterative_evidence_and_gradient_of_several_classes(C):
    one, numerics = softmax_case(C), Numerics(probes=64, stopping=Stopping(rtol=1e-8))
    assert_estimates_agree(one, one.truth(), numerics)
    found, _ = laplace_estimate(one.problem, one.gp, "iterative", numerics, mode_rtol=1e-9)
    assert 0 <= found.upper - found.lower < 1e-3  # bracketed, since P ⪯ A


@pytest.mark.parametrize("preconditioner", [None, "nystrom", "rp_cholesky"])
@pytest.mark.parametrize("name", ["probit", "student_t"])
def test_iterative_evidence_with_other_preconditioners(name, preconditioner):
    one = case(name, "constant", "matern 1/2")
    truth = one.truth(one.mode("direct"))
    numerics = Numerics(probes=64, stopping=Stopping(rtol=1e-8), preconditioner=preconditioner)
    assert_estimates_agree(one, truth, numerics)


def assert_estimates_agree(one, truth, numerics):
    """Value within 5 standard errors; the gradient, measured over four seeds of 64 probes, within 4 of its own."""
    found = [
        laplace_estimate(one.problem, one.gp, "iterative", replace(numerics, seed=seed), mode_rtol=1e-9)[0]
        for seed in range(4)
    ]
    for estimate in found:
        assert estimate.status is Status.CONVERGED
        assert abs(estimate.value - truth.log_evidence) <= 5 * estimate.value_error + 1e-6
        assert estimate.lower <= estimate.value <= estimate.upper
        assert estimate.lower - 5 * estimate.value_error <= truth.log_evidence + 1e-6
        assert estimate.upper + 5 * estimate.value_error >= truth.log_evidence - 1e-6
    gradients = np.array([estimate.gradient.numpy() for estimate in found])
    spread = gradients.std(0, ddof=1) / 2
    size = np.abs(truth.gradient_terms).max()
    assert np.all(np.abs(gradients.mean(0) - truth.gradient) <= 10 * spread + 1e-6 * size)  # Student's t, 3 degrees
    assert np.all(spread <= 0.3 * size)


# predictions


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("name", LIKELIHOOD)
def test_latent_prediction(name, mean, method):
    one = case(name, mean)
    found = condition_laplace(one.problem, one.gp, method=method, rtol=1e-8, numerics=TIGHT, variance_tolerance=1e-7)
    truth = one.truth(found.mode if name == "student_t" else None)
    expected, covariance = one.latent(truth, NEW)
    prediction = found.predict(torch.tensor(NEW), covariance=True)
    assert found.mode.status is prediction.status is Status.CONVERGED
    assert close(prediction.mean, expected, 1e-6)
    error = np.abs(prediction.mean.numpy() - expected).max(1)
    assert np.all(error <= prediction.mean_bound.numpy() * (1 if found.rests_on == STRONG_CONCAVITY else 1.5) + 1e-12)
    assert prediction.covariance.numpy() == pytest.approx(covariance, rel=1e-5)
    assert np.allclose(found.mean(torch.tensor(NEW)), prediction.mean, rtol=1e-12)


@pytest.mark.parametrize("name", LIKELIHOOD)
def test_prediction_of_observations(name):
    """Mean, variance and log density of y at new points, through the latent moments of the package."""
    one = case(name, "constant")
    found = condition_laplace(one.problem, one.gp, method="iterative", rtol=1e-9, variance_tolerance=1e-8)
    truth = one.truth(found.mode if name == "student_t" else None)
    latent, covariance = one.latent(truth, NEW)
    latent, variance = latent[:, 0], covariance[:, 0, 0]
    exposure = 3.0 if name in ("binomial", "poisson", "negative_binomial") else 1.0
    y = np.array([0.0, 1.0, 1.0, 0.0, 1.0]) + (0.5 if name in ("gamma", "student_t", "gaussian") else 0.0)
    prediction = found.predict(torch.tensor(NEW), covariance=True)
    moments = prediction.mean[:, 0], prediction.covariance[:, 0, 0]
    exposed = torch.full((5,), exposure, dtype=torch.float64)
    mean_of_y, variance_of_y = one.likelihood.predict(*moments, exposed)
    expected = truth.predictive_moments(latent, variance, exposure)
    assert mean_of_y.numpy() == pytest.approx(expected[0], rel=1e-5, abs=1e-7)
    assert variance_of_y.numpy() == pytest.approx(expected[1], rel=1e-5)
    log_density = one.likelihood.log_predictive(torch.tensor(y), *moments, exposed)
    assert log_density.numpy() == pytest.approx(truth.log_predictive(latent, variance, y, exposure), abs=1e-5)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("C", CLASSES)
def test_prediction_of_several_classes(C, method):
    one = softmax_case(C)
    found = condition_laplace(one.problem, one.gp, method=method, rtol=1e-9, numerics=TIGHT, variance_tolerance=1e-8)
    truth = one.truth()
    latent, covariance = one.latent(truth, NEW)
    prediction = found.predict(torch.tensor(NEW), covariance=True)
    assert prediction.status is Status.CONVERGED
    assert close(prediction.mean, latent, 1e-6)
    assert close(prediction.covariance, covariance, 1e-6)
    root = torch.linalg.cholesky(prediction.covariance)
    probabilities, error = Softmax().predictive_probabilities(prediction.mean, root, seeded(0))
    expected, spread = truth.probabilities(latent, covariance, count=20_000)
    assert np.all(np.abs(probabilities.numpy() - expected) <= 4 * np.hypot(error.numpy(), spread))
    assert probabilities.sum(1).numpy() == pytest.approx(1.0, abs=1e-12)


# a likelihood of the user's


class OwnPoisson(Likelihood):
    """Only the formula, and not declared log-concave."""

    def log_density(self, y, f, exposure):
        return y * (f + exposure.log()) - exposure * f.exp() - torch.lgamma(y + 1)


class OwnStudentT(Likelihood):
    """Autograd all the way, hyperparameters too."""

    SCALARS = ("scale", "degrees")
    scale: torch.Tensor
    degrees: torch.Tensor

    def log_density(self, y, f, exposure):
        nu, s = self.degrees, self.scale
        constant = torch.lgamma((nu + 1) / 2) - torch.lgamma(nu / 2) - 0.5 * (nu * math.pi).log() - s.log()
        return constant - (nu + 1) / 2 * torch.log1p(((y - f) / s).square() / nu)


@pytest.mark.parametrize(("name", "own"), [("poisson", OwnPoisson()), ("student_t", OwnStudentT(0.3, 3.0))])
def test_a_formula_is_enough(name, own):
    one = replace(case(name, "constant"), likelihood=own)
    estimate, _ = laplace_estimate(one.problem, one.gp, "direct")
    truth = one.truth(one.mode("direct") if name == "student_t" else None)
    assert estimate.value == pytest.approx(truth.log_evidence, rel=1e-9)
    assert close(estimate.gradient, truth.gradient)


# unbiased gradients


def hadamard(n):
    """Return H (n, n) of signs with H Hᵀ = nI; n a power of 2."""
    return np.ones((1, 1)) if n == 1 else np.kron(hadamard(n // 2), [[1, 1], [1, -1]])


@pytest.mark.parametrize("preconditioner", [None, "nystrom", "rp_cholesky", "auto"])
@pytest.mark.parametrize("name", [*LIKELIHOOD, "softmax"])
def test_balanced_probes_give_the_exact_gradient(name, preconditioner, monkeypatch):
    """The estimate is linear in r rᵀ: where the mean of that over the probes is I it has to be the gradient itself."""

    def balanced(n, k, *_, **__):
        return torch.tensor(hadamard(n), dtype=torch.float64)

    monkeypatch.setattr(evidence_by_pcg, "rademacher", balanced)
    one = softmax_case(4, n=4) if name == "softmax" else case(name, "constant", "matern 5/2", n=16)
    truth = one.truth(one.mode("direct") if name == "student_t" else None)
    numerics = Numerics(probes=16, rademacher=True, preconditioner=preconditioner, stopping=Stopping(rtol=1e-11))
    estimate, _ = laplace_estimate(one.problem, one.gp, "iterative", numerics, value=False, mode_rtol=1e-10)
    assert estimate.status is Status.CONVERGED
    assert close(estimate.gradient, truth.gradient, 1e-7)


def z_scores(one, truth, numerics, seeds):
    """Return (mean over seeds − truth) / standard error; what the tolerance of the solves leaves counts as noise."""
    found, trail = [], None
    for seed in range(seeds):
        estimate, left = laplace_estimate(
            one.problem, one.gp, "iterative", replace(numerics, seed=seed), trail, value=False, mode_rtol=1e-8
        )
        assert estimate.status is Status.CONVERGED
        trail = left.without_probes()  # the mode only: each seed has its own preconditioner
        found.append(estimate.gradient.numpy())
    found = np.array(found)
    noise = 1e-6 * np.abs(truth.gradient_terms).max()
    return (found.mean(0) - truth.gradient) / (found.std(0, ddof=1) / math.sqrt(seeds) + noise)


def unbiased_case(name):
    return softmax_case(3, n=5) if name == "softmax" else case(name, "constant" if name == "logit" else "zero", n=9)


@pytest.mark.parametrize(
    ("name", "preconditioner"),
    [
        ("probit", None),
        ("logit", "nystrom"),
        ("poisson", "rp_cholesky"),
        ("softmax", "auto"),
        ("negative_binomial", "nystrom"),
        ("student_t", "rp_cholesky"),
    ],
)
def test_gradient_is_unbiased(name, preconditioner):
    one = unbiased_case(name)
    truth = one.truth(one.mode("direct") if name == "student_t" else None)
    numerics = Numerics(probes=2, preconditioner=preconditioner, stopping=Stopping(rtol=1e-7))
    assert np.max(np.abs(z_scores(one, truth, numerics, seeds=100))) < 4
