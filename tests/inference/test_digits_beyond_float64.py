"""Weights with more digits than float64 has, and drifts that the kernel explains as well."""

import numpy as np
import pytest
import torch

import kernelcg
from kernelcg import GPRegressor
from kernelcg.inference.bounds.recomputed import divided, in_full
from kernelcg.inference.learning.criterion_value import generalised_least_squares
from kernelcg.kernels import RBF, Matern, Periodic
from kernelcg.kernels.long_double import LONG_ROUNDOFF, has_sines

LONG = pytest.mark.skipif(LONG_ROUNDOFF > 2.0**-60, reason="no long double on this processor")


@LONG
def test_a_long_double_is_two_numbers():
    values = np.array([[1, -3], [1e9, 1e-9]], dtype=np.longdouble) / 7
    X, tail = divided(values, torch.zeros(1, dtype=torch.float64))
    assert np.array_equal(in_full(X, tail), values)
    assert bool((tail.abs() <= 2.0**-53 * X.abs()).all())
    assert np.array_equal(in_full(X, None), X.numpy())


def test_singular_information_of_a_drift():
    """Two functions that A⁻¹ does not tell apart: the fit is as good as with one of them."""
    H = torch.ones(5, 2, dtype=torch.float64)
    Y = torch.arange(5, dtype=torch.float64)[:, None]
    beta, a = generalised_least_squares(H, Y, H)
    torch.testing.assert_close(beta, torch.full((2, 1), 1.0, dtype=torch.float64))
    torch.testing.assert_close(a, Y - 2)


@LONG
def test_mean_of_nearly_noise_free_data(tmp_path):
    """The mean is right to 1e-8 of its size where weights of float64 leave 1e-6, and after loading too."""
    mpmath = pytest.importorskip("mpmath")
    rng = np.random.default_rng(3)
    X = rng.uniform(-1, 1, (25, 1))
    y, new = rng.standard_normal(25), np.linspace(-1, 1, 9)[:, None]
    model = GPRegressor(
        Matern(2.0, nu=2.5), noise=1e-12, optimizer=None, normalize_y=False, mean="zero", method="direct"
    )
    with pytest.warns(UserWarning, match="the mean may be off by up to 0.1"):  # a bound; what follows is the error
        model.fit(X, y)
    with mpmath.workdps(60):
        noise = mpmath.mpf(float(model.noise_))
        length, variance = (mpmath.mpf(float(p)) for p in (model.kernel_.lengthscale, model.kernel_.variance))
        points, others = ([mpmath.mpf(float(x)) for x in Z[:, 0]] for Z in (X, new))

        def k(s, t):
            q = mpmath.sqrt(5) * abs(s - t) / length
            return variance * (1 + q + q * q / 3) * mpmath.exp(-q)

        A = mpmath.matrix([[k(s, t) + (noise if s is t else 0) for t in points] for s in points])
        a = mpmath.lu_solve(A, mpmath.matrix([float(v) for v in y]))
        exact = np.array([float(sum(k(s, t) * a[j] for j, t in enumerate(points))) for s in others])
    size = np.abs(exact).max()
    assert np.abs(model.posterior_.weights.X.numpy()).max() > 1e8
    np.testing.assert_allclose(model.predict(new), exact, atol=1e-8 * size, rtol=0)
    path = tmp_path / "model.kcg"
    model.save(path)
    assert np.array_equal(kernelcg.load(path).predict(new), model.predict(new))


def test_sines_are_found_in_sums_and_products():
    assert has_sines(RBF(1.0) * Periodic(1.0, period=2.0) + RBF(1.0))
    assert not has_sines(RBF(1.0) * RBF(1.0))
