"""Entries in long double: the formulas of the library a second time, and to more digits."""

import numpy as np
import pytest
import torch
from strategies import normal

from kernelcg.kernels import (
    RBF,
    Constant,
    Cosine,
    Hamming,
    Kernel,
    Laplacian,
    Linear,
    Matern,
    MinMax,
    Periodic,
    Polynomial,
    Power,
    RationalQuadratic,
    Tanimoto,
    Wave,
)
from kernelcg.kernels.long_double import LONG_ROUNDOFF, long_double_entries, reals

mpmath = pytest.importorskip("mpmath")

extended_only = pytest.mark.skipif(LONG_ROUNDOFF > 2.0**-63, reason="long double is float64 on this platform")

KERNELS = [
    RBF([0.5, 2.0], 1.7),
    Matern(0.7, 0.3, nu=0.5),
    Matern([0.7, 1.1], 2.0, nu=1.5),
    Matern(0.7, 2.0, nu=2.5),
    RationalQuadratic(0.8, 1.5, 2.5),
    Periodic([0.5, 1.0], 0.7, 1.3),
    Laplacian([0.5, 3.0], 0.4),
    Linear([0.5, 2.0]),
    Polynomial(0.3, 1.0, 3),
    Cosine(2.0),
    Constant(0.3),
    Power(RBF(2.0), 3),
    RBF(0.5) + Linear(2.0) * Constant(3.0),
    Wave([0.7, 1.3], 2.0),
    Hamming([0.5, 2.0], 1.2),
    Tanimoto(2.0),
    RBF(0.5).on(1) * Periodic(0.5, 0.7).on([0, 1]),
]


class Own(Kernel):
    """A kernel that the library has no formula of."""

    scale: torch.Tensor

    def covariance(self, X, Y):
        return self.scale * (X @ Y.T)


@pytest.mark.parametrize("kernel", KERNELS, ids=repr)
def test_the_same_as_in_float64(kernel):
    X, Y = 2 * normal(15, 2), normal(11, 2, seed=1)
    found = long_double_entries(kernel)(reals(X), reals(Y))
    assert found.dtype == np.longdouble
    np.testing.assert_allclose(found.astype(float), kernel(X, Y).numpy(), rtol=1e-13, atol=1e-14)


def test_amounts_are_the_same_as_in_float64():
    X, Y = normal(15, 2).abs(), normal(11, 2, seed=1).abs()
    Y[0] = 0.0
    found = long_double_entries(MinMax(1.3))(reals(X), reals(Y))
    np.testing.assert_allclose(found.astype(float), MinMax(1.3)(X, Y).numpy(), rtol=1e-14)


@extended_only
@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_to_more_digits(offset):
    X = offset + normal(6, 2)
    found = long_double_entries(RBF([0.5, 2.0], 1.7))(reals(X), reals(X))
    with mpmath.workdps(40):
        for i, x in enumerate(X.tolist()):
            for j, y in enumerate(X.tolist()):
                u = [(mpmath.mpf(a) - mpmath.mpf(b)) / c for a, b, c in zip(x, y, (0.5, 2.0), strict=True)]
                exact = mpmath.mpf(1.7) * mpmath.exp(-(u[0] ** 2 + u[1] ** 2) / 2)
                head = float(found[i, j])
                off = abs(mpmath.mpf(head) + mpmath.mpf(float(found[i, j] - np.longdouble(head))) - exact)
                assert off <= 8 * LONG_ROUNDOFF * 1.7


def test_no_formula_for_kernels_of_ones_own():
    own = Own(1.0)
    for kernel in (own, own + RBF(1.0), RBF(1.0) * own, Power(own, 2)):
        assert long_double_entries(kernel) is None
