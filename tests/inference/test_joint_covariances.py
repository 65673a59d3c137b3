"""Covariances at points next to many observations, where what is left of k(x, x) is rounding in float64."""

import numpy as np
import pytest
import torch

from kernelcg import GPGeneralizedRegressor, GPRegressor
from kernelcg.errors import ConvergenceWarning
from kernelcg.inference.laplace.joint import joint_covariance
from kernelcg.kernels import RBF, Constant, Kernel, Periodic, squared_distances

mpmath = pytest.importorskip("mpmath")

X = np.r_[np.zeros(8), 1.0][:, None]
NEW = np.array([[0.0], [1e-3], [0.5]])
VARIANCE, NOISE = 1e4, 1e-9


class Own(Kernel):
    """An RBF kernel that the library has no formula of in long double."""

    def covariance(self, X, Y):
        return VARIANCE * (-0.5 * squared_distances(X, Y)).exp()


def exact_covariance():
    with mpmath.workdps(60):

        def k(a, b):
            return VARIANCE * mpmath.exp(-((mpmath.mpf(a) - mpmath.mpf(b)) ** 2) / 2)

        x, z = X[:, 0].tolist(), NEW[:, 0].tolist()
        A = mpmath.matrix(
            [[k(a, b) + (mpmath.mpf(NOISE) if i == j else 0) for j, b in enumerate(x)] for i, a in enumerate(x)]
        )
        K = mpmath.matrix([[k(a, b) for b in z] for a in x])
        C = mpmath.matrix([[k(a, b) for b in z] for a in z]) - K.T * (A**-1 * K)
        return np.array([[float(C[i, j]) for j in range(len(z))] for i in range(len(z))])


def fitted(kernel):
    options = {"noise": NOISE, "mean": "zero", "optimizer": None, "normalize_y": False, "method": "direct"}
    return GPRegressor(kernel, **options).fit(X, np.zeros(len(X)))


def test_what_is_left_is_computed_in_long_double():
    C = exact_covariance()
    _, found = fitted(RBF(1.0, VARIANCE)).predict(NEW, return_cov=True)
    size = np.sqrt(np.diag(C) + NOISE)
    np.testing.assert_allclose(found / np.outer(size, size), (C + NOISE * np.eye(3)) / np.outer(size, size), atol=0.02)


def test_what_float64_does_not_tell_is_told():
    model = fitted(Own())
    with pytest.warns(ConvergenceWarning, match="the predictive covariance did not reach its tolerance"):
        model.predict(NEW, return_cov=True)


# most points far away


FAR = np.array([[0.3], [0.9], [1e20], [3e20], [2e20]])


@pytest.mark.parametrize("kernel", [RBF(1.0), RBF(1.0).on(0) + Constant(0.1), RBF(1.0) * Periodic(1.0, 3.0)], ids=repr)
def test_points_far_away_leave_the_covariance_of_the_others_alone(kernel):
    rows = np.linspace(0, 3, 10)[:, None]
    model = GPRegressor(kernel, noise=0.1, optimizer=None).fit(rows, np.sin(rows[:, 0]))
    _, alone = model.predict(FAR[:2], return_cov=True)
    _, together = model.predict(FAR, return_cov=True)
    np.testing.assert_allclose(together[:2, :2], alone, rtol=1e-9)
    model = GPGeneralizedRegressor(kernel, likelihood="poisson", optimizer=None).fit(rows, np.arange(10.0))
    posterior = model._posterior()
    alone, together = (joint_covariance(posterior, torch.from_numpy(points))[0] for points in (FAR[:2], FAR))
    np.testing.assert_allclose(together[:2, :2].numpy(), alone.numpy(), rtol=1e-9)


def test_a_phase_leaves_the_covariance_at_an_offset_alone():
    rows, new = 6e7 + np.linspace(0, 3, 10)[:, None], 6e7 + np.array([[0.3], [0.9]])
    model = GPRegressor(RBF(1e-3) + Periodic(1.0, 0.7), noise=0.1, optimizer=None).fit(rows, np.sin(rows[:, 0]))
    _, alone = model.predict(new, return_cov=True)
    _, together = model.predict(np.vstack([new, [[1e20]]]), return_cov=True)
    np.testing.assert_allclose(together[:2, :2], alone, rtol=1e-9)


def test_a_phase_leaves_the_covariance_at_an_offset_alone_feature_by_feature():
    rng = np.random.default_rng(0)
    rows = np.column_stack([rng.normal(size=12), 6e7 + rng.uniform(0, 3, 12)])
    new = np.array([[-0.5, 6e7 + 0.3], [0.8, 6e7 + 0.3005]])
    kernel = RBF([1.0, 1e-3]) + Periodic(1.0, 0.7)
    model = GPRegressor(kernel, noise=0.1, optimizer=None).fit(rows, np.sin(rows[:, 0]))
    _, together = model.predict(np.vstack([new, [[1e20, 1.0]]]), return_cov=True)
    shifted = GPRegressor(kernel, noise=0.1, optimizer=None).fit(rows - [0, 6e7], np.sin(rows[:, 0]))
    _, alone = shifted.predict(new - [0, 6e7], return_cov=True)  # the phase is another one, but the same for all
    np.testing.assert_allclose(together[:2, :2], alone, rtol=1e-6)
