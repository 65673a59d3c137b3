"""Joint covariances, draws and components of Laplace's Gaussian, against dense NumPy."""

import numpy as np
import pytest
import torch
from laplace_truth import LaplaceTruth, Poisson, Probit, SoftmaxTruth, StudentT

from kernelcg import GPClassifier, GPGeneralizedRegressor
from kernelcg.inference.laplace.joint import joint_covariance, latent_draws
from kernelcg.kernels import RBF, Constant
from kernelcg.likelihoods import StudentT as OwnStudentT

rng = np.random.default_rng(0)
X, NEW = rng.uniform(-2, 2, (40, 2)), rng.uniform(-2, 2, (6, 2))
f = np.sin(2 * X[:, 0]) + 0.5 * X[:, 1]
KERNELS = (RBF(0.7, 1.5), RBF(2.0, 0.5))


def rbf(lengthscale, variance, X, Y):
    return variance * np.exp(-0.5 * ((X[:, None] - Y) ** 2).sum(-1) / lengthscale**2)


def parts(X, Y):
    """Return the two summands of the kernel."""
    return rbf(0.7, 1.5, X, Y), rbf(2.0, 0.5, X, Y)


def basis(X):
    return np.c_[np.ones(len(X)), X]


def fitted(name, method):
    """Return an estimator and the dense truth of its latent process."""
    kernel, K = KERNELS[0] + KERNELS[1], sum(parts(X, X))
    options = {"optimizer": None, "method": method, "rtol": 1e-9}
    source = np.random.default_rng(1)
    if name == "classes":
        y = np.digitize(f + 0.3 * source.normal(size=40), [-0.5, 0.5])
        return GPClassifier(kernel, **options).fit(X, y), SoftmaxTruth(lambda _: K, (), y, 3)
    if name == "probit":
        y = (f + 0.3 * source.normal(size=40) > 0).astype(float)
        return GPClassifier(kernel, **options).fit(X, y), LaplaceTruth(lambda _: K, (), Probit(), y)
    if name == "poisson":
        y = source.poisson(3 * np.exp(f)).astype(float)
        model = GPGeneralizedRegressor(kernel, likelihood="poisson", mean="linear", **options)
        return model.fit(X, y, exposure=3.0), LaplaceTruth(
            lambda _: K, (), Poisson(), y, exposure=np.full(40, 3.0), H=basis(X)
        )
    y = f + 0.2 * source.normal(size=40)
    y[::9] += 6
    model = GPGeneralizedRegressor(kernel, likelihood=OwnStudentT(0.3, 4.0), mean="constant", **options)
    truth = LaplaceTruth(lambda _: K, (), StudentT(), y, np.log([0.3, 4.0]), H=np.ones((40, 1)))
    return model.fit(X, y), truth


def drift_at(name, Z):
    none = np.zeros((len(Z) * (3 if name == "classes" else 1), 0))
    return {"poisson": basis(Z), "student": np.ones((len(Z), 1))}.get(name, none)


CASES = [(name, method) for name in ("probit", "poisson", "student", "classes") for method in ("direct", "iterative")]


@pytest.mark.filterwarnings("ignore::kernelcg.errors.ConvergenceWarning")
@pytest.mark.parametrize(("name", "method"), CASES)
def test_covariance_and_components(name, method):
    model, truth = fitted(name, method)
    per_class = truth.per_class if name == "classes" else lambda K: K
    K_new, K_new_new = per_class(sum(parts(NEW, X))), per_class(sum(parts(NEW, NEW)))
    drift = drift_at(name, NEW)
    mean, covariance = truth.posterior(K_new, K_new_new, drift)
    found, _ = joint_covariance(model._posterior(), torch.from_numpy(NEW))
    np.testing.assert_allclose(found, covariance, atol=2e-6)
    components = model.components(NEW, return_std=True)
    for component, own, own_new in zip(components, parts(NEW, X), parts(NEW, NEW), strict=False):
        its_mean, its_covariance = truth.posterior(per_class(own), per_class(own_new), 0 * drift)
        np.testing.assert_allclose(component.mean.ravel(), its_mean, atol=1e-6)
        np.testing.assert_allclose(component.std.ravel(), np.sqrt(np.diag(its_covariance)), atol=1e-5)
    np.testing.assert_allclose(sum(one.mean for one in components).ravel(), mean, atol=1e-6)
    if drift.shape[1]:
        its_variance = (drift * np.linalg.solve(truth.G, drift.T).T).sum(1)
        np.testing.assert_allclose(components[-1].mean, drift @ truth.beta, atol=1e-6)
        np.testing.assert_allclose(components[-1].std, np.sqrt(its_variance), rtol=1e-4)
        assert components[-1].kernel is None
    assert [one.std for one in model.components(NEW)] == [None] * len(components)


@pytest.mark.parametrize("name", ["poisson", "classes"])
def test_draws_have_the_mean_and_the_covariance(name):
    model, truth = fitted(name, "direct")
    per_class = truth.per_class if name == "classes" else lambda K: K
    K_new, K_new_new = per_class(sum(parts(NEW, X))), per_class(sum(parts(NEW, NEW)))
    mean, covariance = truth.posterior(K_new, K_new_new, drift_at(name, NEW))
    count = 20_000
    drawn, _ = latent_draws(model._posterior(), torch.from_numpy(NEW), count, torch.Generator().manual_seed(0))
    flat, sd = drawn.reshape(-1, count).numpy(), np.sqrt(np.diag(covariance))
    assert (np.abs(flat.mean(1) - mean) < 4.5 * sd / np.sqrt(count)).all()
    spread = np.sqrt((covariance**2 + np.outer(sd, sd) ** 2) / count)
    assert (np.abs(np.cov(flat) - covariance) < 4.5 * spread).all()


def test_sums_in_products_are_multiplied_out():
    y = np.random.default_rng(1).poisson(np.exp(f)).astype(float)
    whole = Constant(2.0) * (RBF(0.7) + RBF(2.0)) * Constant(0.5)
    model = GPGeneralizedRegressor(whole, likelihood="poisson", optimizer=None).fit(X, y)
    first, second, drift = model.components(NEW)
    assert "0.7" in repr(first.kernel)
    assert "2" in repr(second.kernel)
    np.testing.assert_allclose(first.mean + second.mean + drift.mean, model.latent(NEW), atol=1e-8)
