"""Entries of K in float64 are as close to the exact ones as `Kernel.rounding_lengths` says."""

import math

import numpy as np
import pytest
import torch
from bound import block_of, bound_system

from kernelcg import GPRegressor, backends
from kernelcg.inference.bounds.rounding import ENTRY_ERROR, UNIT_ROUNDOFF, lengths_from_centre
from kernelcg.kernels import RBF, Constant, Kernel, Laplacian, Linear, Periodic, Polynomial, Power

mpmath = pytest.importorskip("mpmath")


class Wave(Kernel):
    """A kernel of one's own, without a statement."""

    frequency: torch.Tensor

    def covariance(self, X, Y):
        return torch.cos(self.frequency * X - (self.frequency * Y).T)


def numbers(row):
    return [mpmath.mpf(float(value)) for value in row]


def rbf(length):
    return lambda x, y: mpmath.exp(-sum((a - b) ** 2 for a, b in zip(x, y, strict=True)) / 2 / mpmath.mpf(length) ** 2)


def laplacian(length):
    return lambda x, y: mpmath.exp(-sum(abs(a - b) for a, b in zip(x, y, strict=True)) / mpmath.mpf(length))


def periodic(length, period):
    def k(x, y):
        sines = sum(mpmath.sin(mpmath.pi * (a - b) / mpmath.mpf(period)) ** 2 for a, b in zip(x, y, strict=True))
        return mpmath.exp(-2 * sines / mpmath.mpf(length) ** 2)

    return k


def inner(x, y):
    return sum(a * b for a, b in zip(x, y, strict=True))


CASES = {
    "RBF": (RBF(0.3), rbf(0.3)),
    "Laplacian": (Laplacian(0.3), laplacian(0.3)),
    "long period": (Periodic(1.0, 0.7), periodic(1.0, 0.7)),
    "short period": (Periodic(0.3, 1e-7), periodic(0.3, 1e-7)),
    "power": (Power(Periodic(1.0, 1e-5), 3), lambda x, y: periodic(1.0, 1e-5)(x, y) ** 3),
    "sum": (RBF(0.3) + Periodic(1.0, 1e-6), lambda x, y: rbf(0.3)(x, y) + periodic(1.0, 1e-6)(x, y)),
    "product": (RBF(3.0) * Periodic(1.0, 1e-6), lambda x, y: rbf(3.0)(x, y) * periodic(1.0, 1e-6)(x, y)),
    "with linear": (RBF(0.3) + Linear(2.0), lambda x, y: rbf(0.3)(x, y) + 2 * inner(x, y)),
    "polynomial": (Polynomial(0.5, 1.0, 3), lambda x, y: (inner(x, y) / 2 + 1) ** 3),
    "constant": (Constant(2.0), lambda x, y: mpmath.mpf(2)),
    "slow wave": (Wave(10.0), lambda x, y: mpmath.cos(10 * (x[0] - y[0]))),
    "fast wave": (Wave(1e7), lambda x, y: mpmath.cos(10**7 * (x[0] - y[0]))),
}


@pytest.mark.parametrize("backend", [backends.Tiles(), backends.default()], ids=["tiles", "default"])
@pytest.mark.parametrize("offset", [0.0, 1e5])
@pytest.mark.parametrize("name", CASES)
def test_entries_are_as_good_as_stated(name, offset, backend):
    kernel, formula = CASES[name]
    X = torch.from_numpy(offset + np.random.default_rng(0).uniform(-1, 1, (12, 1 if "wave" in name else 2)))
    lengths = lengths_from_centre(bound_system(kernel, X, torch.tensor(1.0))).numpy()
    allowed = UNIT_ROUNDOFF * (ENTRY_ERROR + 2 * (lengths[:, None] + lengths))
    K = block_of(backend, kernel, X, X).numpy()
    with mpmath.workdps(60):
        rows = [numbers(row) for row in X.numpy()]
        exact = [[formula(x, y) for y in rows] for x in rows]
        wrong = np.array([[float(abs(mpmath.mpf(K[i, j]) - exact[i][j])) for j in range(12)] for i in range(12)])
    size = np.sqrt(np.array([float(exact[i][i]) for i in range(12)]))
    assert (wrong <= allowed * size * size[:, None]).all()


def test_a_period_is_one_at_any_distance_from_the_data():
    X, kernel = 2.0**-13 * torch.arange(12, dtype=torch.float64)[:, None], Periodic(0.5, 2.0**-10)
    backend = backends.Tiles()
    np.testing.assert_array_equal(block_of(backend, kernel, X, X + 2.0**30), block_of(backend, kernel, X, X))


def test_certificates_hold_after_many_periods():
    rng = np.random.default_rng(0)
    X, period, noise = rng.uniform(0, 1, (25, 1)), 1e-5, 1e-2
    y, new = np.sin(3 * X[:, 0]), X[:4] + 0.03
    model = GPRegressor(Periodic(1.0, period), noise=noise, optimizer=None, mean="zero", normalize_y=False).fit(X, y)
    mean, std, bounds = model.predict(new, return_std=True, return_bound=True, include_noise=False)
    with mpmath.workdps(60):
        formula, rows = periodic(1.0, period), [numbers(row) for row in X]
        A = mpmath.matrix([[formula(x, z) for z in rows] for x in rows]) + mpmath.mpf(noise) * mpmath.eye(25)
        inverse = A**-1
        for x, found, bound, low, high in zip(new, mean, bounds.mean, bounds.std_lower, bounds.std_upper, strict=True):
            k = mpmath.matrix([formula(numbers(x), z) for z in rows])
            assert abs(mpmath.mpf(found) - (k.T * inverse * mpmath.matrix(y.tolist()))[0]) <= bound
            assert low <= mpmath.sqrt(1 - (k.T * inverse * k)[0]) <= high
    assert (bounds.std_upper - bounds.std_lower <= 1e-9).all()
    assert np.isfinite(std).all()


def test_gradients_in_the_period_see_every_period():
    X = torch.tensor([[0.0], [1000.17]], dtype=torch.float64)
    theta = Periodic(1.0, 0.7).log_parameters()

    def entry(theta):
        return Periodic(1.0, 0.7).with_log_parameters(theta)(X, X)[0, 1]

    by_autograd = torch.autograd.functional.jacobian(entry, theta)[1]
    step = torch.tensor([0.0, 1e-8, 0.0], dtype=torch.float64)
    assert math.isclose(by_autograd, (entry(theta + step) - entry(theta - step)) / 2e-8, rel_tol=1e-4)
