"""A fit that cannot be done says why, and leaves the estimator as it was."""

import numpy as np
import pytest
from sklearn.gaussian_process import kernels as sk

from kernelcg import GPRegressor, KernelRidge
from kernelcg.errors import MemoryBudgetExceeded
from kernelcg.kernels import RBF


def data(n=60, d=3, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    return X, np.sin(X[:, 0]) + 0.1 * rng.normal(size=n)


# rows


@pytest.mark.parametrize("rows", [30, 120])
def test_rows_are_counted_before_any_is_dropped(rows):
    (X, y), more = data(), data(rows)[0]
    y[3] = np.nan
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        GPRegressor(missing="drop").fit(more, y)
    model = GPRegressor(RBF(1.0), noise=0.1, optimizer=None, missing="drop").fit(X, y)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        model.update(more, y)


# the old fit


def fails(model, X, y):
    """Fit to other features in other units of y, without the memory to do it."""
    with pytest.raises(MemoryBudgetExceeded):
        model.set_params(memory="1KB").fit(X[:, :2], np.c_[1e3 * y + 7, y])


@pytest.mark.parametrize("model", [GPRegressor(max_iter=3), KernelRidge(kernel="rbf")], ids=["GP", "ridge"])
@pytest.mark.filterwarnings("ignore:learning ended early")
def test_a_failed_refit_leaves_the_old_fit(model):
    X, y = data()
    before = model.fit(X, y).predict(X)
    fails(model, X, y)
    np.testing.assert_array_equal(model.predict(X), before)
    assert model.n_features_in_ == 3


def test_a_failed_first_fit_leaves_nothing():
    model = GPRegressor()
    fails(model, *data())
    assert not [name for name in vars(model) if name.endswith("_")]


# noise


def test_noise_must_not_be_given_twice():
    X, y = data()
    with pytest.raises(ValueError, match="noise is given twice"):
        GPRegressor(sk.RBF() + sk.WhiteKernel(0.5, "fixed"), noise=0.1, optimizer=None).fit(X, y)
