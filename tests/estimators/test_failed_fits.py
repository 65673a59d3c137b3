"""A fit that cannot be done says why, and leaves the estimator as it was."""

import numpy as np
import pytest
from sklearn.gaussian_process import kernels as sk

from kernelcg import GPRegressor, KernelRidge
from kernelcg.errors import MemoryBudgetExceeded
from kernelcg.kernels import RBF, Linear


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
    model = GPRegressor(RBF(1.0), noise=0.1, optimizer=None, missing="drop")
    with pytest.warns(UserWarning, match="1 of 60 rows"):
        model.fit(X, y)
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


# magnitudes

TOO_LARGE = {
    "X": (1e200, 1.0, None, {}),
    "X of the largest numbers": (1e307, 1.0, None, {}),
    "the kernel at X": (1e100, 1.0, None, {"kernel": Linear(1.0)}),
    "y": (1.0, 1e200, None, {"normalize_y": False}),
    "y that vanishes": (1.0, 1e-200, None, {"normalize_y": False}),
    "y of the largest numbers": (1.0, 1e307, None, {}),
    "noise_variance": (1.0, 1.0, 1e300, {}),
    "noise_variance beside a small y": (1.0, 1e-170, 1e-200, {}),
}


@pytest.mark.parametrize("name", TOO_LARGE)
def test_magnitudes_that_cannot_be_worked_with_are_named(name):
    (X, y), (of_X, of_y, known, options) = data(), TOO_LARGE[name]
    argument = "the kernel at X" if name == "the kernel at X" else name.split()[0]
    with pytest.raises(ValueError, match=rf"^{argument}\b.* reaches .*; \w+"):
        GPRegressor(optimizer=None, **options).fit(of_X * X, of_y * y, noise_variance=known)


def test_magnitudes_of_kernel_ridge():
    X, y = data()
    with pytest.raises(ValueError, match="the kernel at X reaches inf"):
        KernelRidge(kernel="poly").fit(1e120 * X, y)
    for of_y in (1e-300, 1e300):
        expected = KernelRidge(kernel="rbf").fit(X, y).predict(X)
        np.testing.assert_allclose(KernelRidge(kernel="rbf").fit(X, of_y * y).predict(X) / of_y, expected)


def test_known_noise_of_a_tiny_y():
    X, y = data()
    model = GPRegressor(RBF(1.0), noise=0.1, optimizer=None).fit(X, 1e-170 * y, noise_variance=0.0)
    np.testing.assert_allclose(
        model.predict(X) / 1e-170, GPRegressor(RBF(1.0), noise=0.1, optimizer=None).fit(X, y).predict(X)
    )


# arguments


@pytest.mark.parametrize("count", [0, 2.5, -1, "many"])
def test_numbers_of_samples(count):
    X, y = data()
    model = GPRegressor(RBF(1.0), noise=0.1, optimizer=None).fit(X, y)
    with pytest.raises(ValueError, match="n_samples must be a whole number, at least 1"):
        model.sample_y(X, count)


@pytest.mark.parametrize("name", ["preconditioner", "method", "optimizer", "mean", "missing"])
def test_arrays_are_no_options(name):
    with pytest.raises(ValueError, match=f"{name} must be"):
        GPRegressor(**{name: np.ones(3)}).fit(*data())


def test_noise_of_every_row_belongs_to_fit():
    X, y = data()
    with pytest.raises(ValueError, match=r"noise must be one variance.*fit\(X, y, noise_variance="):
        GPRegressor(noise=np.ones(60)).fit(X, y)


def test_advice_on_memory_fits_the_method():
    X, y = data(400)
    with pytest.raises(MemoryBudgetExceeded, match="use method='iterative', which stores no matrix"):
        GPRegressor(method="direct", memory="60MB").fit(*data(2000))
    with pytest.raises(MemoryBudgetExceeded) as caught:
        GPRegressor(method="iterative", memory="1KB").fit(X, y)
    assert "store" not in str(caught.value)
