"""Leave-one-out of rows without which hardly anything is known of a linear drift."""

import numpy as np
import pytest

from kernelcg import GPRegressor
from kernelcg.errors import ConvergenceWarning
from kernelcg.kernels import RBF

NOISE = 0.1


def exact(x, y, i, unit):
    """Return residual and variance of row i given the others, by generalised least squares; x in these units."""
    x = x / unit
    K = np.exp(-0.5 * ((x[:, None] - x) * unit) ** 2)
    H = np.column_stack([np.ones_like(x), x])
    rest = np.arange(len(x)) != i
    A, k, H_rest = K[np.ix_(rest, rest)] + NOISE * np.eye(rest.sum()), K[rest, i], H[rest]
    S = H_rest.T @ np.linalg.solve(A, H_rest)
    beta = np.linalg.solve(S, H_rest.T @ np.linalg.solve(A, y[rest]))
    left = H[i] - H_rest.T @ np.linalg.solve(A, k)
    mean = H[i] @ beta + k @ np.linalg.solve(A, y[rest] - H_rest @ beta)
    variance = 1 + NOISE - k @ np.linalg.solve(A, k) + left @ np.linalg.solve(S, left)
    return y[i] - mean, variance


def fitted(x, y):
    return GPRegressor(RBF(1.0), noise=NOISE, mean="linear", optimizer=None).fit(x, y)


@pytest.mark.parametrize("far", [1.0, 1e3, 1e12])
@pytest.mark.parametrize("unit", [2.0**-20, 2.0**-33, 2.0**-40])
def test_a_slope_that_one_row_gives(unit, far):
    """The others are so near to each other that their slope is known to 1e6 to 1e24 times y; it was called infinite."""
    rng = np.random.default_rng(0)
    x = np.append(unit * rng.normal(size=9), far)
    y = rng.normal(size=10)
    model = fitted(x[:, None], y)
    scale = model.y_scale_[0]
    residual, variance = exact(x, y / scale, 9, unit)
    found = model.loo()
    assert found.std[9] == pytest.approx(np.sqrt(variance) * scale, rel=1e-6)
    assert found.residuals[9] == pytest.approx(residual * scale, rel=1e-6)


def test_a_category_of_one_row_is_unknown_without_it():
    """Nothing is warned of: the others say nothing, in exact arithmetic."""
    rng = np.random.default_rng(1)
    X = np.column_stack([rng.normal(size=12), np.arange(12) == 4])
    found = fitted(X, rng.normal(size=12)).loo()
    assert np.flatnonzero(np.isinf(found.std)).tolist() == [4]
    assert np.isfinite(np.delete(found.residuals, 4)).all()


def test_what_stays_unknown_is_warned_of():
    """All but a far row vary in a direction alone that is left out of the drift, being rounding beside that row."""
    t = np.append(1e-17 * np.arange(8.0), 0.0)
    X = np.column_stack([t, -t])
    X[8] = 1.0
    with pytest.warns(ConvergenceWarning, match="leave-one-out"):
        assert np.isinf(fitted(X, np.sin(np.arange(9.0))).loo().std[8])


@pytest.mark.parametrize("mean", ["constant", "linear"])
@pytest.mark.parametrize("n", [1, 2])
def test_hardly_any_rows(n, mean):
    """One row, or two with a slope: the others say nothing, which needs no warning."""
    x = np.arange(float(n))[:, None]
    found = GPRegressor(RBF(1.0), noise=NOISE, mean=mean, optimizer=None).fit(x, x[:, 0]).loo()
    assert np.isinf(found.std).all() == (n == 1 or mean == "linear")
