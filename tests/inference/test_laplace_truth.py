"""The reference for Laplace's approximation is itself right: finite differences, closed forms, scikit-learn."""

from dataclasses import replace

import numpy as np
import pytest
from gaussian_truth import relative_error
from laplace_truth import LIKELIHOODS, LaplaceTruth, SoftmaxTruth, inverse_mills, rbf, richardson, softmax_parts
from scipy import stats
from scipy.special import expit, ndtr
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

PHI = {"negative_binomial": [-0.5], "gamma": [1.1], "student_t": [-1.6, 1.2], "gaussian": [-1.3]}
THETA = np.log([0.8, 1.3, 1.7])
"""Two lengthscales and the variance."""


def with_variance(factor):
    return THETA + np.array([0, 0, np.log(factor)])


def inputs(n, seed=0):
    return np.random.default_rng(seed).standard_normal((n, 2))


def basis(X):
    return np.c_[np.ones(len(X)), X[:, :1]]


def exposures(name, n):
    """Return trials, or sizes of the populations counted in."""
    return {"binomial": 1.0 + np.arange(n) % 5}.get(name, 0.5 + np.arange(n) % 3)


def problem(name, drift=False, n=25, seed=1):
    """Return data drawn from the likelihood; Student-t has gross outliers, so that W is negative somewhere."""
    X, generator, phi = inputs(n), np.random.default_rng(seed), np.array(PHI.get(name, []))
    f = np.sin(2 * X[:, 0]) + X[:, 1] + drift * 0.7
    exposure = exposures(name, n)
    y = LIKELIHOODS[name].draw(f, exposure, phi, generator)
    if name == "student_t":
        y[:3] += 4
    return LaplaceTruth(rbf(X, X), THETA, LIKELIHOODS[name], y, phi, exposure, basis(X) if drift else None)


def softmax_problem(C=3, drift=False, n=12):
    X = inputs(n)
    return SoftmaxTruth(rbf(X, X), THETA, np.arange(n) % C, C, basis(X) if drift else None)


# likelihoods


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_derivatives_of_a_likelihood(name):
    likelihood, phi, f = LIKELIHOODS[name], np.array(PHI.get(name, [])), np.linspace(-3, 3, 31)
    exposure = exposures(name, len(f))
    y = likelihood.draw(f[::-1] / 2, exposure, phi, np.random.default_rng(0))
    at = likelihood.parts(f, y, exposure, phi)

    def shifted(field):
        return lambda h: getattr(likelihood.parts(f + h[0], y, exposure, phi), field)

    for field, derivative in {"log_density": at.score, "score": -at.W, "W": at.dW}.items():
        np.testing.assert_allclose(derivative, richardson(shifted(field), [0.0])[0], atol=1e-9, rtol=1e-9)
    for k, field in enumerate(["log_density", "score", "W"]):
        truth = richardson(lambda phi, field=field: getattr(likelihood.parts(f, y, exposure, phi), field), phi)
        assert len(at.by_phi) == len(phi)
        for found, expected in zip(at.by_phi, truth, strict=True):
            np.testing.assert_allclose(found[k], expected, atol=1e-9, rtol=1e-9)


def test_densities_are_those_of_scipy():
    f, e, k = np.linspace(-2, 2, 9), 1.0 + np.arange(9) % 4, np.arange(9)
    mu, pi, alpha = e * np.exp(f), expit(f), 0.6
    phi = np.log([0.7, 3.5])
    y = np.linspace(0.1, 4, 9)
    truth = {
        "probit": (k % 2, [], stats.bernoulli.logpmf(k % 2, ndtr(f))),
        "logit": (k % 2, [], stats.bernoulli.logpmf(k % 2, pi)),
        "binomial": (k % (e + 1), [], stats.binom.logpmf(k % (e + 1), e, pi)),
        "poisson": (k, [], stats.poisson.logpmf(k, mu)),
        "negative_binomial": (k, np.log([alpha]), stats.nbinom.logpmf(k, 1 / alpha, 1 / (1 + alpha * mu))),
        "gamma": (y, np.log([2.5]), stats.gamma.logpdf(y, 2.5, scale=np.exp(f) / 2.5)),
        "student_t": (y, phi, stats.t.logpdf(y, 3.5, f, 0.7)),
        "gaussian": (y, np.log([0.3]), stats.norm.logpdf(y, f, np.sqrt(0.3))),
    }
    assert truth.keys() == LIKELIHOODS.keys()
    for name, (observed, phi, expected) in truth.items():
        found = LIKELIHOODS[name].parts(f, observed, e, np.array(phi)).log_density
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-13, err_msg=name)


def test_probit_far_out():
    """p(t) = t + 1/(t + 2/(t + 3/(t + …))), t = −z: the series, the formula and the continued fraction agree."""
    t = np.array([6.0, 11.99, 12.01, 30.0, 1e3, 1e6])
    rest = 0 * t
    for k in range(400, 0, -1):
        rest = k / (t + rest)
    p, slope, bend = inverse_mills(-t)
    np.testing.assert_allclose(p, t + rest, rtol=1e-14)
    np.testing.assert_allclose(slope, -p * rest, rtol=1e-13)
    assert np.all(bend > 0)
    np.testing.assert_allclose(bend[-2:], 2 / t[-2:] ** 3, rtol=1e-4)
    assert bend[2] == pytest.approx(bend[1], rel=6e-3)
    near = LIKELIHOODS["probit"].parts(np.array([40.0, 400.0]), np.ones(2), 1.0, ())
    assert np.all(np.isfinite([near.log_density, near.score, near.W, near.dW]))


def test_derivatives_of_softmax():
    F, y = np.random.default_rng(0).standard_normal((3, 4)), np.array([0, 3, 1])
    at = softmax_parts(F, y)
    steps = richardson(lambda f: np.sum(softmax_parts(f.reshape(3, 4), y).log_density), F.ravel())
    np.testing.assert_allclose(at.score, steps, atol=1e-10)
    steps = richardson(lambda f: softmax_parts(f.reshape(3, 4), y).score, F.ravel())
    np.testing.assert_allclose(at.W, -steps, atol=1e-10)
    steps = richardson(lambda f: softmax_parts(f.reshape(3, 4), y).W, F.ravel()).reshape(3, 4, 3, 4, 3, 4)
    for i in range(3):
        np.testing.assert_allclose(at.dW[i], np.moveaxis(steps[i, :, i, :, i, :], 0, 2), atol=1e-10)


# the mode and the evidence


def cases():
    return [(name, drift) for name in [*LIKELIHOODS, "softmax"] for drift in (False, True)]


def case(name, drift):
    return softmax_problem(drift=drift) if name == "softmax" else problem(name, drift)


@pytest.mark.parametrize(("name", "drift"), cases())
def test_gradient_of_the_evidence(name, drift):
    truth = case(name, drift)
    assert truth.stationarity < 1e-13
    assert truth.positive_definite
    assert np.min(truth.W) < 0 or name != "student_t"
    np.testing.assert_allclose(truth.K @ truth.a + truth.drift @ truth.solution[1], truth.f, atol=1e-12)
    np.testing.assert_allclose(truth.drift.T @ truth.a, 0, atol=1e-12)
    assert relative_error(truth.gradient, truth.numerical_gradient()) < 1e-8


@pytest.mark.parametrize(("name", "drift"), cases())
def test_adjoint_is_the_derivative_of_the_mode(name, drift):
    """t = (Σ with drift) u and v' = u − W t, as in the derivation."""
    truth = case(name, drift)
    u = truth.determinant_slope(truth.Sigma, truth.at_mode.dW)
    v, t = truth.adjoint
    W = truth.W if truth.W.ndim == 2 else np.diag(truth.W)
    np.testing.assert_allclose(t, truth.Sigma_with_drift @ u, atol=1e-12)
    np.testing.assert_allclose(v, u - W @ t, atol=1e-12)


def test_the_mode_is_a_maximum_from_every_start():
    """Random other values of a and β have a lower Ψ, and lead to the same mode where the likelihood is log-concave."""
    for name in ("probit", "poisson", "gamma"):
        truth = problem(name, drift=True)
        generator = np.random.default_rng(0)
        for _ in range(3):
            start = 3 * generator.standard_normal(len(truth.y)), 3 * generator.standard_normal(2)
            np.testing.assert_allclose(replace(truth, start=start).f, truth.f, atol=1e-10)


@pytest.mark.parametrize("scale", [1e-6, 1e6])
@pytest.mark.parametrize("name", ["probit", "logit", "poisson", "student_t"])
def test_scales(name, scale):
    """Kernel variances of 1e-6 and 1e6: the mode is stationary and the gradient still that of the evidence."""
    truth = replace(problem(name), theta=with_variance(scale))
    assert truth.stationarity < 1e-7
    assert relative_error(truth.gradient, truth.numerical_gradient()) < 1e-5


# closed forms and peers


@pytest.mark.parametrize("drift", [False, True])
def test_gaussian_is_regression(drift):
    truth = problem("gaussian", drift)
    X, X_new, H = inputs(len(truth.y)), inputs(6, seed=9), truth.drift
    A = np.linalg.inv(truth.K + np.exp(truth.phi[0]) * np.eye(len(truth.y)))
    beta = np.linalg.solve(H.T @ A @ H, H.T @ A @ truth.y)
    rest = truth.y - H @ beta
    evidence = stats.multivariate_normal.logpdf(rest, cov=np.linalg.inv(A))
    assert truth.log_evidence == pytest.approx(evidence, rel=1e-12)
    cross, own = rbf(X_new, X)(THETA), rbf(X_new, X_new)(THETA)
    H_new = basis(X_new) if drift else np.zeros((6, 0))
    mean, covariance = truth.latent(cross, own, H_new)
    D = H_new - cross @ A @ H
    np.testing.assert_allclose(truth.beta, beta, atol=1e-11)
    np.testing.assert_allclose(mean, cross @ A @ rest + H_new @ beta, atol=1e-11)
    expected = own - cross @ A @ cross.T + D @ np.linalg.pinv(H.T @ A @ H) @ D.T
    np.testing.assert_allclose(covariance, expected, atol=1e-11)
    variance = np.diag(covariance)
    y = mean + 0.3
    density = stats.norm.logpdf(y, mean, np.sqrt(variance + np.exp(truth.phi[0])))
    np.testing.assert_allclose(truth.log_predictive(mean, variance, y), density, atol=1e-9)


def test_predictive_integrals():
    m, v, y = np.array([-1.5, 0.2, 2.0, 30.0]), np.array([0.3, 4.0, 1e-4, 900.0]), np.array([1, 0, 1, 0])
    probit, z = problem("probit"), m / np.sqrt(1 + v)
    np.testing.assert_allclose(probit.predictive_moments(m, v)[0], ndtr(z), rtol=1e-9)
    np.testing.assert_allclose(probit.log_predictive(m, v, y), np.log(ndtr((2 * y - 1) * z)), rtol=1e-9)
    poisson, m, v, e = problem("poisson"), m[:3], v[:3], np.array([1.0, 2.0, 0.5])
    mean, (found, variance) = e * np.exp(m + v / 2), poisson.predictive_moments(m, v, e)
    np.testing.assert_allclose(found, mean, rtol=1e-9)
    np.testing.assert_allclose(variance, mean + mean**2 * np.expm1(v), rtol=1e-9)
    counts = np.arange(25)
    chances = np.exp(poisson.log_predictive(np.full(25, m[0]), np.full(25, v[0]), counts))
    assert np.sum(chances) == pytest.approx(1, abs=1e-9)
    assert counts @ chances == pytest.approx(mean[0], rel=1e-8)


def test_two_classes_are_logit_of_the_difference():
    """f₁ − f₀ has the kernel 2K, so that softmax with K and logit with 2K are one model."""
    X, X_new = inputs(15), inputs(4, seed=9)
    y = (np.arange(15) % 2) * 1
    double = with_variance(2)
    for H, H_new in ((None, None), (basis(X), basis(X_new))):
        softmax = SoftmaxTruth(rbf(X, X), THETA, y, 2, H)
        logit = LaplaceTruth(rbf(X, X), double, LIKELIHOODS["logit"], y, H=H)
        assert softmax.log_evidence == pytest.approx(logit.log_evidence, rel=1e-12)
        np.testing.assert_allclose(softmax.F @ [-1, 1], logit.f, atol=1e-11)
        np.testing.assert_allclose(softmax.A[:, 1], logit.a, atol=1e-11)
        np.testing.assert_allclose(softmax.gradient, logit.gradient, atol=1e-10)
        mean, covariance = softmax.latent(rbf(X_new, X)(THETA), rbf(X_new, X_new)(THETA), H_new)
        m, S = logit.latent(rbf(X_new, X)(double), rbf(X_new, X_new)(double), H_new)
        np.testing.assert_allclose(mean @ [-1, 1], m, atol=1e-11)
        np.testing.assert_allclose(np.einsum("a,iab,b->i", [-1, 1], covariance, [-1, 1]), np.diag(S), atol=1e-10)
        chance, error = softmax.probabilities(mean, covariance, count=20_000)
        assert np.all(np.abs(chance[:, 1] - logit.predictive_moments(m, np.diag(S))[0]) < 4 * error[:, 1])


def test_scikit_learn_agrees():
    truth = problem("logit", n=40)
    X, X_new = inputs(40), inputs(5, seed=9)
    kernel = ConstantKernel(np.exp(THETA[-1])) * RBF(np.exp(THETA[:-1]))
    peer = GaussianProcessClassifier(kernel, optimizer=None).fit(X, truth.y).base_estimator_
    assert truth.log_evidence == pytest.approx(peer.log_marginal_likelihood_value_, rel=1e-9)
    np.testing.assert_allclose(truth.f, peer.f_cached, atol=1e-5)
    gradient = peer.log_marginal_likelihood(peer.kernel_.theta, eval_gradient=True)[1]  # the variance first
    np.testing.assert_allclose(truth.gradient, np.roll(gradient, -1), atol=1e-5)
    mean, _ = truth.latent(rbf(X_new, X)(THETA), rbf(X_new, X_new)(THETA))
    np.testing.assert_allclose(mean, rbf(X_new, X)(THETA) @ (truth.y - peer.pi_), atol=1e-5)
