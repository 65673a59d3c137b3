"""What users hand in: sparse matrices, tables with words, dates and gaps, numbers of every kind."""

import datetime

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import torch
from sklearn.exceptions import NotFittedError
from sklearn.gaussian_process import kernels as sk

from kernelcg import GPClassifier, GPGeneralizedRegressor, GPRegressor, KernelRidge
from kernelcg.errors import MemoryBudgetExceeded
from kernelcg.inference import Noise
from kernelcg.kernels import RBF

ESTIMATORS = {
    "regressor": lambda **options: GPRegressor(RBF(1.0), optimizer=None, **options),
    "ridge": lambda **options: KernelRidge(kernel="rbf", **options),
    "classifier": lambda **options: GPClassifier(RBF(1.0), optimizer=None, **options),
    "counts": lambda **options: GPGeneralizedRegressor(RBF(1.0), optimizer=None, **options),
}


def rows(n=20, d=3, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)) * (rng.random((n, d)) < 0.5)
    return X, (X[:, 0] > X[:, 1]).astype(int) + 0


# sparse


@pytest.mark.parametrize("layout", ["csr_array", "csc_matrix", "coo_array"])
@pytest.mark.parametrize("name", ESTIMATORS)
def test_sparse_inputs_give_the_numbers_of_dense_ones(name, layout):
    X, y = rows()
    sparse = getattr(scipy.sparse, layout)(X)
    dense = ESTIMATORS[name]().fit(X, y)
    model = ESTIMATORS[name]().fit(sparse, y)
    np.testing.assert_array_equal(model.predict(sparse), dense.predict(X))
    np.testing.assert_array_equal(model.predict(X), dense.predict(X))


@pytest.mark.parametrize("name", ESTIMATORS)
def test_sparse_inputs_that_would_not_fit_as_dense_ones_are_refused_with_a_remedy(name):
    wide = scipy.sparse.random_array((30, 10**6), density=1e-6, format="csr", rng=np.random.default_rng(0))
    with pytest.raises(MemoryBudgetExceeded, match=r"take 480 MB, but the memory is 10 MB; .*TruncatedSVD"):
        ESTIMATORS[name](memory="10MB").fit(wide, np.arange(30) % 2)


# entries that are no numbers

TABLES = {
    "words": ({"a": [1.0, 2.0], "who": ["x", "y"]}, "column 'who' of X holds 'x' in row 0; .*OneHotEncoder"),
    "categories": (
        {"a": [1.0, 2.0], "who": pd.Categorical(["x", "y"])},
        "column 'who' of X holds 'x' in row 0; .*OneHotEncoder",
    ),
    "dates": (
        {"a": [1.0, 2.0], "when": pd.to_datetime(["2020-01-01", "2020-01-02"])},
        "column 'when' of X holds the date or time 2020-01-01.* in row 0; turn it into a number",
    ),
    "nothing but dates": (
        {"when": pd.to_datetime(["2020-01-01", "2020-01-02"])},
        "column 'when' of X holds the date or time 2020-01-01.* in row 0; turn it into a number",
    ),
    "durations": (
        {"a": [1.0, 2.0], "time": pd.to_timedelta([1, 2], unit="s")},
        "column 'time' of X holds the date or time 0 days 00:00:01 in row 0; turn it into a number",
    ),
    "missing": (
        {"a": [1.0, 2.0], "age": pd.array([3, None], dtype="Int64")},
        "column 'age' of X holds NaN in row 1; .*SimpleImputer",
    ),
    "infinite": ({"a": [1.0, -np.inf], "b": [0, 1]}, "column 'a' of X holds -infinity in row 1"),
}


@pytest.mark.parametrize("fitted", [False, True], ids=["fit", "predict"])
@pytest.mark.parametrize("name", ESTIMATORS)
@pytest.mark.parametrize("table", TABLES)
def test_the_column_that_is_no_number_is_named_with_a_remedy(table, name, fitted):
    columns, words = TABLES[table]
    X, y = pd.DataFrame(columns), np.array([0, 1])
    model = ESTIMATORS[name]()
    if fitted:
        model.fit(pd.DataFrame({key: [1.0, 2.0] for key in columns}), y)
    with pytest.raises((TypeError, ValueError), match=words):
        model.predict(X) if fitted else model.fit(X, y)


ARRAYS = {
    "dates": (np.array([["2020-01-01"], ["2020-01-02"]], dtype="M8[D]"), "column 0 of X holds the date or time 2020"),
    "objects": (np.array([[1, {}], [2, 3]], dtype=object), "column 1 of X holds {} in row 0; every entry"),
    "dates as objects": (
        np.array([[1, 2], [2, datetime.date(2020, 1, 1)]], dtype=object),
        "column 1 .* 2020-01-01 in row 1",
    ),
    "nothing": ([[1.0], [None]], "column 0 of X holds NaN in row 1"),
    "endless integers": ([[1], [10**400]], "column 0 of X holds an integer of 401 digits in row 1; use other units"),
}


@pytest.mark.parametrize("array", ARRAYS)
def test_entries_of_arrays_that_are_no_numbers_are_named(array):
    X, words = ARRAYS[array]
    with pytest.raises((TypeError, ValueError), match=words):
        KernelRidge().fit(X, [0.0, 1.0])


@pytest.mark.parametrize(
    ("y", "words"),
    [
        (["a", "b", "c"], "y holds 'a' in row 0; y must hold numbers; for labels there is GPClassifier"),
        ([1.0, None, 2.0], "y holds NaN in row 1; remove such rows"),
        ([[1.0, 0], [2.0, np.inf], [0, 0]], "y holds infinity in row 1; remove such rows"),
    ],
)
def test_the_row_of_y_that_is_no_number_is_named(y, words):
    for model in (GPRegressor(), KernelRidge()):
        with pytest.raises(ValueError, match=words):
            model.fit(np.arange(3.0)[:, None], y)


@pytest.mark.parametrize(
    "X",
    [
        np.array([["1"], ["2"], ["3"]]),
        np.array([[1], [2], [3]], dtype=object),
        pd.DataFrame({"a": pd.Categorical([1, 2, 3])}),
        pd.DataFrame({"a": pd.array([1, 2, 3], dtype="Int64")}),
    ],
    ids=["words that are numbers", "objects", "categories that are numbers", "nullable"],
)
def test_whatever_holds_numbers_is_taken(X):
    model = KernelRidge(kernel="rbf").fit(X, [1.0, 2.0, 0.0])
    numbers = np.array([[1.0], [2.0], [3.0]])
    expected = KernelRidge(kernel="rbf").fit(numbers, [1.0, 2.0, 0.0]).predict(numbers)
    np.testing.assert_array_equal(model.predict(X), expected)


# before fit


def test_before_fit_a_regressor_answers_from_its_prior():
    X = rows(6)[0]
    kernel = sk.ConstantKernel(2.0) * sk.RBF(1.5) + sk.WhiteKernel(0.25)
    model = GPRegressor(kernel)
    K = (sk.ConstantKernel(2.0) * sk.RBF(1.5))(X)
    mean, covariance = model.predict(X, return_cov=True)
    np.testing.assert_array_equal(mean, np.zeros(6))
    np.testing.assert_allclose(covariance, K + 0.25 * np.eye(6), rtol=1e-13)
    np.testing.assert_allclose(model.predict(X, return_cov=True, include_noise=False)[1], K, rtol=1e-13)
    np.testing.assert_allclose(model.predict(X, return_std=True)[1], np.full(6, 1.5), rtol=1e-13)
    np.testing.assert_array_equal(model.predict(X), np.zeros(6))
    assert "n_features_in_" not in vars(model)


def test_before_fit_the_noise_counts_only_if_it_was_given():
    X = rows(4)[0]
    for noise, variance in ((None, 1.0), (0.5, 1.5), (Noise(0.25), 1.25)):
        std = GPRegressor(RBF(1.0), noise=noise).predict(X, return_std=True)[1]
        np.testing.assert_allclose(std**2, variance)


def test_draws_from_the_prior_have_its_moments():
    X, count = rows(5)[0], 20000
    model = GPRegressor(RBF(1.0, 2.0), noise=0.5)
    covariance = model.predict(X, return_cov=True)[1]
    draws = model.sample_y(X, count)
    assert draws.shape == (5, count)
    errors = (draws @ draws.T / count - covariance) / np.sqrt((covariance**2 + 2.5**2) / count)
    assert np.abs(errors).max() < 4.5
    np.testing.assert_array_equal(draws, model.sample_y(X, count))


def test_there_is_no_prior_of_a_kernel_that_the_data_decide():
    X = rows()[0]
    for call in (lambda model: model.predict(X), lambda model: model.sample_y(X)):
        with pytest.raises(NotFittedError, match="kernel=None the kernel depends on the data"):
            call(GPRegressor())
    with pytest.raises(NotFittedError):
        GPRegressor(RBF(1.0)).predict(X, return_bound=True)
    with pytest.raises(MemoryBudgetExceeded, match="prior covariance"):
        GPRegressor(RBF(1.0), memory=1000).predict(X, return_cov=True)


@pytest.mark.parametrize(
    "make", [GPRegressor, KernelRidge, GPClassifier, GPGeneralizedRegressor], ids=lambda cls: cls.__name__
)
def test_tensors_that_are_no_arrays_are_taken(make):
    """NumPy takes neither a tensor on a GPU nor one with a gradient; this one has a gradient."""
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(40, 2, generator=generator, dtype=torch.float64)
    y = (3 * X[:, 0] + 0.3 * torch.randn(40, generator=generator, dtype=torch.float64)).round()
    if make is GPClassifier:
        y = y > 1
    arrays = make(random_state=0) if make is not KernelRidge else make()
    tensors = make(random_state=0) if make is not KernelRidge else make()
    arrays.fit(X.numpy(), y.numpy())
    tensors.fit(X.clone().requires_grad_(), y if y.dtype == torch.bool else y.clone().requires_grad_())
    assert np.array_equal(arrays.predict(X.numpy()), tensors.predict(X.clone().requires_grad_()))


HUGE = [10**400] * 40


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda X, y: GPRegressor(missing="drop").fit(X, HUGE), "y holds an integer that is too large"),
        (lambda X, y: GPRegressor().fit(X, y, noise_variance=HUGE), "noise_variance holds an integer"),
        (lambda X, y: GPRegressor().fit(X, y, noise_variance=y + 1j), "noise_variance must hold real numbers"),
        (lambda X, y: GPRegressor(noise=1e300).fit(X, y), "noise reaches 1e[+]300"),
        (lambda X, y: KernelRidge(alpha=10**400).fit(X, y), "alpha holds an integer"),
        (lambda X, y: KernelRidge().fit(X, y, sample_weight=HUGE), "sample_weight holds an integer"),
        (lambda X, y: GPGeneralizedRegressor(likelihood="poisson").fit(X, y > 0, HUGE), "exposure holds an integer"),
        (lambda X, y: GPGeneralizedRegressor(likelihood="gaussian").fit(X, 1e160 * y), "y reaches"),
        (lambda X, y: GPGeneralizedRegressor(likelihood="student_t").fit(X, 1e160 * y), "y reaches"),
    ],
)
def test_numbers_that_float64_cannot_hold_are_refused_by_name(call, words):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 2))
    with pytest.raises((TypeError, ValueError), match=words):
        call(X, np.sin(X[:, 0]))


def test_densities_are_of_numbers():
    X, y = rows()
    model = GPRegressor(RBF(1.0), noise=0.1, optimizer=None).fit(X, y)
    for wrong in (np.nan, np.inf, None):
        with pytest.raises(ValueError, match="y must be finite"):
            model.log_predictive_density(X, [wrong, *y[1:]])
    assert np.isneginf(model.log_predictive_density(X, np.full(len(y), 1e300))).all()


@pytest.mark.parametrize("name", ESTIMATORS)
def test_what_is_masked_is_missing(name):
    """NumPy hands on the numbers below a mask, often -9999 or 1e20, unless it is asked."""
    X, y = rows()
    fitted = ESTIMATORS[name]().fit(X, y)
    hidden, below = np.arange(20) == 4, np.where(np.arange(20) == 4, -9999, y)
    with pytest.raises(ValueError, match=r"NaN"):
        ESTIMATORS[name]().fit(X, np.ma.masked_array(below, hidden))
    in_X = np.ma.masked_array(X, (np.arange(60) == 14).reshape(20, 3))
    with pytest.raises(ValueError, match="column 2 of X holds NaN in row 4"):
        ESTIMATORS[name]().fit(in_X, y)
    with pytest.raises(ValueError, match="column 2 of X holds NaN in row 4"):
        fitted.predict(in_X)
    assert np.array_equal(fitted.predict(np.ma.masked_array(X, False)), fitted.predict(X))
    if name == "regressor":
        with pytest.warns(UserWarning, match="1 of 20 rows are left out"):
            kept = ESTIMATORS[name](missing="drop").fit(X, np.ma.masked_array(below, hidden))
        expected = ESTIMATORS[name]().fit(X[~hidden], y[~hidden])
        assert np.array_equal(kept.predict(X), expected.predict(X))


def test_masked_words_are_refused():
    X, y = rows()
    with pytest.raises(TypeError, match="leave out the rows that are masked"):
        ESTIMATORS["classifier"]().fit(X, np.ma.masked_array(np.where(y, "yes", "no"), np.arange(20) == 4))
