"""Entries of K in float64 are as close to the exact ones as `Kernel.rounding_lengths` says."""

import math

import numpy as np
import pytest
import torch
from bound import block_of, bound_system

from kernelcg import GPClassifier, GPRegressor, backends, kernels
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


def wave(period):
    return lambda x, y: mpmath.cos(2 * mpmath.pi * sum((a - b) / period for a, b in zip(x, y, strict=True)))


CASES = {
    "long turns": (kernels.Wave(0.7), wave(mpmath.mpf(0.7))),
    "short turns": (kernels.Wave(1e-7), wave(mpmath.mpf(1e-7))),
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


# a wave goes on for ever, so that points far away are correlated with the data


def test_a_wave_has_the_right_phase_far_away():
    x, near, period = 3e15 + 1, 0.25, 0.7
    found = float(kernels.Wave(period)(*(torch.tensor([[value]], dtype=torch.float64) for value in (x, near))))
    with mpmath.workdps(60):
        exact = float(wave(mpmath.mpf(period))([mpmath.mpf(x)], [mpmath.mpf(near)]))
    assert abs(found - exact) < 1e-14


@pytest.mark.parametrize("method", ["direct", "iterative"])
def test_bounds_hold_far_away_where_a_kernel_does_not_fall(method):
    X = np.linspace(0, 3, 25)[:, None]
    kernel = kernels.Wave(0.7) + kernels.Constant(0.5)
    model = GPRegressor(kernel, noise=0.1, mean="zero", optimizer=None, method=method, normalize_y=False)
    model.fit(X, np.sin(9 * X[:, 0]))
    far = np.array([[1e12 + 0.3], [-7.5e9]])
    mean, std, bounds = model.predict(far, return_std=True, return_bound=True)
    with mpmath.workdps(60):
        formula = wave(mpmath.mpf(0.7))
        rows, new = ([numbers(row) for row in points] for points in (X, far))
        K = mpmath.matrix([[formula(a, b) + 0.5 + mpmath.mpf(0.1) * (a is b) for b in rows] for a in rows])
        k = mpmath.matrix([[formula(a, b) + 0.5 for b in new] for a in rows])
        V, y = K**-1 * k, mpmath.matrix([float(value) for value in np.sin(9 * X[:, 0])])
        means = [float(sum(V[i, j] * y[i] for i in range(25))) for j in range(2)]
        left = [float(mpmath.mpf(1.6) - sum(V[i, j] * k[i, j] for i in range(25))) for j in range(2)]
    assert (np.abs(mean - means) <= bounds.mean).all()
    assert (bounds.mean < 1e-6).all()
    np.testing.assert_allclose(std, np.sqrt(left), rtol=1e-2)


# kernels that have values at some inputs only


def bent(x, a, b):
    return 1 - (1 - mpmath.mpf(x) ** mpmath.mpf(a)) ** mpmath.mpf(b)


@pytest.mark.parametrize("a", [0.03, 1.0, 40.0])
@pytest.mark.parametrize("b", [0.01, 1.0, 40.0])
def test_bent_inputs_keep_their_digits(a, b):
    x = np.array([0.0, 1e-300, 1e-17, 0.2, 0.5, 0.999, 1 - 1e-10, 1 - 2.0**-53, 1.0])
    X, kernel = torch.from_numpy(x)[:, None], kernels.Warped(Linear(1.0), a, b)
    K = kernel(X, torch.ones(1, 1, dtype=torch.float64))[:, 0].numpy()  # 1 is bent to 1
    with mpmath.workdps(400):
        exact = [float(bent(value, a, b)) for value in x]
    np.testing.assert_allclose(K, exact, rtol=0, atol=32 * UNIT_ROUNDOFF)


def test_bent_inputs_can_be_learned_from():
    X = np.linspace(0, 1, 20)[:, None]
    model = GPRegressor(kernels.Warped(RBF(0.5), 2.0, 0.5), noise=0.01, max_iter=3, method="direct")
    with pytest.warns(UserWarning, match="learning ended"):
        model.fit(X, np.sin(6 * X[:, 0] ** 3))
    _, bounds = model.predict(X, return_bound=True)
    assert (bounds.mean < 1e-6).all()
    theta = model.posterior_.gp.log_parameters().numpy()
    _, gradient = model.log_marginal_likelihood(theta, eval_gradient=True)
    for i, slope in enumerate(gradient):
        step = 1e-5 * np.eye(len(theta))[i]
        ends = [model.log_marginal_likelihood(theta + sign * step) for sign in (1, -1)]
        assert slope == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-4, abs=1e-4)


class Rooted(Kernel):
    """A kernel of one's own that refuses negative inputs."""

    scale: torch.Tensor

    def covariance(self, X, Y):
        if bool((X < 0).any()) or bool((Y < 0).any()):
            raise ValueError("no roots of negative numbers")
        return self.scale * torch.exp(-(X.sqrt() - Y.sqrt().T).square())


@pytest.mark.parametrize("kernel", [kernels.Warped(RBF(0.5)), Rooted(1.0), Rooted(1.0) + RBF(1.0)], ids=repr)
def test_kernels_are_asked_at_their_inputs_only(kernel):
    X = np.linspace(0, 1, 12)[:, None]
    fitted = GPRegressor(kernel, noise=0.1, optimizer=None).fit(X, X[:, 0])
    assert np.isfinite(fitted.predict(X, return_std=True)[1]).all()
    fitted = GPClassifier(kernel, optimizer=None).fit(X, X[:, 0] > 0.4)
    assert np.isfinite(fitted.predict_proba(X)).all()


def test_new_points_are_centred_feature_by_feature():
    """A point that is not near the data in one feature is seen from the same place as they are in the others."""
    X = torch.tensor([[1e10, 0.3], [1e10 + 1, 0.4]], dtype=torch.float64)
    new = torch.tensor([[1e10 + 0.5, -2.0], [1e10 + 0.5, 0.35], [-7.0, 0.4]], dtype=torch.float64)
    kernel = RBF(1.0) * kernels.Wave(1.0)
    system = bound_system(kernel, X, torch.tensor(1.0))
    allowed = UNIT_ROUNDOFF * (ENTRY_ERROR + 4 * float(lengths_from_centre(system).max()))
    K = system.K.cross_block(new, precision=torch.float64)
    with mpmath.workdps(60):
        for i, x in enumerate(new.numpy()):
            for j, y in enumerate(X.numpy()):
                exact = rbf(1.0)(numbers(x), numbers(y)) * wave(1)(numbers(x), numbers(y))
                assert abs(float(K[i, j]) - float(exact)) <= allowed
