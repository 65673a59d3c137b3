"""Where learning starts, and what is said when it cannot end well."""

import warnings

import numpy as np
import pytest
import torch
from sklearn.gaussian_process.kernels import RBF as RBFOfSklearn
from sklearn.gaussian_process.kernels import ConstantKernel, WhiteKernel

from kernelcg import GPClassifier, GPGeneralizedRegressor, GPRegressor, KernelRidge
from kernelcg.errors import ConvergenceWarning
from kernelcg.inference.gaussian.drift import central_spread_of, spread_of
from kernelcg.inference.gaussian.model import Noise
from kernelcg.kernels import RBF


def data(n=60, d=3, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    return X, np.sin(X[:, 0]) + 0.1 * rng.normal(size=n)


def told(work):
    """Return the result of work and the messages of its warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = work()
    assert all(one.category is ConvergenceWarning for one in caught)
    return result, [str(one.message) for one in caught]


# starts


@pytest.mark.parametrize("of_y", [1e-4, 1.0, 10.0, 100.0])
def test_the_default_noise_suits_a_given_kernel(of_y):
    X, y = data()
    start = GPRegressor(RBF([1.0] * 3), normalize_y=False, optimizer=None).fit(X, of_y * y)
    assert start.noise_ == pytest.approx(0.1 * min(of_y**2 * y.var(), 1.0))
    model = GPRegressor(RBF([1.0] * 3), normalize_y=False).fit(X, of_y * y)
    assert model.score(X, of_y * y) > 0.97


def test_too_large_a_y_is_still_learned_and_said():
    X, y = data()
    model, messages = told(lambda: GPRegressor(RBF([1.0] * 3), priors=None, normalize_y=False).fit(X, 1e4 * y))
    assert model.score(X, 1e4 * y) > 0.97
    assert len(messages) == 1
    assert "kernel.variance ended at 1e+05, five orders of magnitude from its start" in messages[0]


def test_an_outlier_does_not_spoil_the_start():
    X, y = data()
    model = GPRegressor().fit(np.r_[X, [[1e7, 0, 0]]], np.r_[y, 0])
    assert model.score(X, y) > 0.97


def test_spread_without_outliers():
    X = torch.from_numpy(np.random.default_rng(0).normal(size=(1000, 1)))
    assert central_spread_of(X) == pytest.approx(1.0, abs=0.1)
    assert central_spread_of(torch.cat([X, torch.full((50, 1), 1e9)])) == pytest.approx(1.0, abs=0.2)
    rare = torch.zeros(100, 1, dtype=torch.float64)
    rare[:3] = 1.0
    torch.testing.assert_close(central_spread_of(rare), spread_of(rare))
    assert central_spread_of(torch.ones(10, 1, dtype=torch.float64)) == 0


# ends


def test_ends_that_say_something_about_the_data_are_no_cause_for_a_warning():
    X = data()[0]
    for model in (GPRegressor(), GPRegressor(RBF(1.0).bounded(variance=(1e-3, 1e6)))):
        assert told(lambda model=model: model.fit(np.c_[X, np.ones(60)], np.sin(X[:, 0])))[1] == []
    noise = np.random.default_rng(1).normal(size=60)
    assert told(lambda: GPRegressor().fit(X, noise))[1] == []


def test_priors_in_the_units_of_the_data_make_up_for_a_start_in_others():
    X, y = data()
    for scale in (1e-3, 1e4, 1e6):
        model, messages = told(lambda scale=scale: GPRegressor(RBF([1.0] * 3), normalize_y=False).fit(X, scale * y))
        assert messages == []
        assert model.score(X, scale * y) > 0.97


def test_a_bound_that_was_given_and_reached_is_said():
    X, y = data()
    model = GPRegressor(RBF([1.0] * 3).bounded(variance=(1e-5, 1e5)), noise=Noise(1e3).fixed(), normalize_y=False)
    assert told(lambda: model.fit(X, 1e4 * y))[1] == [
        "kernel.variance ended at its upper bound 100000 (other bounds may fit better)"
    ]
    assert model.kernel_.variance.item() == pytest.approx(1e5)
    noisy = GPRegressor(noise=Noise(0.5).bounded(variance=(0.2, 1.0)))
    assert told(lambda: noisy.fit(X, y))[1] == [
        "noise.variance ended at its lower bound 0.2 (other bounds may fit better)"
    ]
    white = GPRegressor(ConstantKernel(1.0, (0.01, 0.02)) * RBFOfSklearn(1.0) + WhiteKernel())
    assert "kernel.variance ended at its upper bound 0.02" in told(lambda: white.fit(X, y))[1][0]


def test_bounds_that_the_library_chose_are_no_cause_for_a_warning():
    X, y = data(n=40)
    classifier, messages = told(lambda: GPClassifier().fit(X, y > 0))
    assert messages == []
    assert 10 < classifier.kernel_.variance.item() < 30, "its prior, no bound, keeps it there"
    given = GPClassifier(RBF(1.0).bounded(variance=(0.1, 2.0)))
    assert told(lambda: given.fit(X, y > 0))[1] == [
        "kernel.variance ended at its upper bound 2 (other bounds may fit better)"
    ]
    assert told(lambda: GPGeneralizedRegressor(likelihood="student_t").fit(X, y))[1] == []


# nothing to learn from


CONSTANT = {
    "one row": (np.zeros((1, 2)), np.array([5.0]), "constant"),
    "constant": (data(d=2)[0], np.full(60, 3.7), "constant"),
    "large": (data(d=2)[0], np.full(60, 1e9), "constant"),
    "zero": (data(d=2)[0], np.zeros(60), "zero"),
    "linear": (data(d=2)[0], data(d=2)[0] @ [1.0, 2.0] + 3, "linear"),
}


@pytest.mark.parametrize("name", CONSTANT)
def test_nothing_is_learned_from_nothing(name):
    X, y, mean = CONSTANT[name]
    model, messages = told(lambda: GPRegressor(mean=mean).fit(X, y))
    assert len(messages) == 1
    assert "nothing was learned, since y is" in messages[0]
    assert model.learning_.reason in messages[0]
    found, std = model.predict(X, return_std=True)
    np.testing.assert_allclose(found, y, atol=1e-8)
    assert (std > 0.1 * model.y_scale_).all()
    assert told(lambda: GPRegressor(mean=mean, optimizer=None).fit(X, y))[1] == []


@pytest.mark.parametrize("selection", ["loo", "gcv", "marginal_likelihood"])
def test_nothing_is_selected_by_zeros(selection):
    X, y = data()
    model, messages = told(lambda: KernelRidge(0.3, kernel="rbf", selection=selection).fit(X, 0 * y))
    assert model.alpha_ == 0.3
    assert "y is zero" in model.learning_.reason
    assert messages == [model.learning_.reason]
