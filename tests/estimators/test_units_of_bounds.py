"""Bounds hold in the units of y, however far y is from 0: against the posterior in long double, from the original y."""

import numpy as np
import pytest
from inference.extended import IS_EXTENDED, REAL, Posterior, real

from kernelcg import GPRegressor
from kernelcg.kernels import RBF

pytestmark = pytest.mark.skipif(not IS_EXTENDED, reason="long double is float64 on this platform")

NOISE = 0.01


def truth(model, X, y, new, mean):
    """Return mean and standard deviation with noise, in the units of y."""
    scale, offset = real(model.y_scale_)[0], real(model.y_mean_)[0]
    drift = np.ones((len(X), 1 if mean == "constant" else 0), dtype=REAL)
    Y = (real(y)[:, None] - offset) / scale
    exact = Posterior("rbf", real(np.ones(2)), REAL(1), real(X), Y, real(np.full(len(X), NOISE)), drift)
    found, variance = exact.predict(real(new), drift[: len(new)])
    return scale * found[:, 0] + offset, scale * np.sqrt(variance + REAL(NOISE))


@pytest.mark.parametrize("mean", ["constant", "zero"])
@pytest.mark.parametrize("offset", [0.0, 1e4, 1e8, 1e12])
@pytest.mark.parametrize("seed", range(3))
def test_bounds_hold_far_from_zero(offset, mean, seed):
    rng = np.random.default_rng(seed)
    X, new = rng.uniform(-3, 3, (40, 2)), rng.uniform(-3, 3, (20, 2))
    y = offset + 7.3 * np.sin(X.sum(1)) + 0.1 * rng.standard_normal(40)
    model = GPRegressor(RBF(1.0), noise=NOISE, optimizer=None, mean=mean).fit(X, y)
    exact, exact_std = truth(model, X, y, new, mean)
    for ask in ({}, {"return_std": True}):
        found, *_, bounds = model.predict(new, return_bound=True, **ask)
        off = np.abs(real(found) - exact)
        assert (off <= real(bounds.mean)).all()
        assert (off <= model.certificate_.mean_error).all()
    assert (real(bounds.std_lower) <= exact_std).all()
    assert (exact_std <= real(bounds.std_upper)).all()
    assert (bounds.mean <= 1e-9 + 1e-15 * offset).all()


def test_a_single_point_with_nearly_no_noise():
    """Where bounds are tightest: one observation, predicted where it was made."""
    X, y = np.zeros((1, 2)), np.array([0.1 + 1e6])
    model = GPRegressor(RBF(1.0), noise=NOISE, optimizer=None).fit(X, y)
    exact, exact_std = truth(model, X, y, X, "constant")
    found, _, bounds = model.predict(X, return_std=True, return_bound=True)
    assert np.abs(real(found) - exact) <= bounds.mean
    assert bounds.std_lower <= exact_std <= bounds.std_upper
