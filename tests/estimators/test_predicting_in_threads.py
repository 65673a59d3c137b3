"""Predictions of one model from several threads at once: the same as one after the other."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np
import pytest
import torch
from test_classifier import data

from kernelcg import GPClassifier, GPRegressor, load
from kernelcg.events import EventKind
from kernelcg.kernels import Matern

pytestmark = pytest.mark.filterwarnings("ignore::kernelcg.errors.ConvergenceWarning")

THREADS = 4
METHODS = ("direct", "iterative")
KERNEL = Matern([1.0, 1.5], 4.0)


def classified(classes, method):
    X, y = data(150, classes)
    likelihood = "softmax" if classes > 2 else "probit"
    model = GPClassifier(KERNEL, optimizer=None, likelihood=likelihood, method=method, calibrated=False)
    return model.fit(X, y)


def regressed(method):
    X, _ = data(150)
    y = np.sin(2 * X[:, 0]) + 0.1 * np.random.default_rng(3).standard_normal(len(X))
    return GPRegressor(KERNEL, noise=0.01, optimizer=None, method=method).fit(X, y)


def parts():
    """Return other points for each thread, so that numbers of one thread in the answer of another show."""
    return [np.random.default_rng(10 + i).uniform(-2, 2, (20 + 7 * i, 2)) for i in range(THREADS)]


def at_once(work, arguments):
    """Return what the work gives for each argument, each in a thread of its own; all begin together."""
    gate = Barrier(len(arguments))

    def begin(argument):
        gate.wait()
        return work(argument)

    with ThreadPoolExecutor(len(arguments)) as threads:
        return list(threads.map(begin, arguments))


def probabilities(model):
    return lambda X: (model.predict_proba(X), *model.latent(X, return_std=True))


def bounded(model):
    def predict(X):
        mean, std, bounds = model.predict(X, return_std=True, return_bound=True)
        return mean, std, bounds.mean, bounds.std_lower, bounds.std_upper

    return predict


def require_same(found, expected):
    for ours, theirs in zip(found, expected, strict=True):
        for one, other in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("classes", [2, 3])
def test_a_classifier_predicts_in_threads(classes, method):
    model, fresh = classified(classes, method), classified(classes, method)
    expected = [probabilities(model)(X) for X in parts()]
    require_same(at_once(probabilities(fresh), parts()), expected)  # the first covariances it is asked for
    require_same(at_once(probabilities(fresh), parts()), expected)


@pytest.mark.parametrize("method", METHODS)
def test_a_regressor_predicts_in_threads(method):
    model, fresh = regressed(method), regressed(method)
    expected = [bounded(model)(X) for X in parts()]
    require_same(at_once(bounded(fresh), parts()), expected)
    require_same(at_once(bounded(fresh), parts()), expected)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", ["two classes", "three classes", "regressor"])
def test_a_loaded_model_predicts_in_threads(kind, method, tmp_path):
    """What a file leaves out is made again by every thread that needs it, or taken from the first that has it."""
    model = regressed(method) if kind == "regressor" else classified(2 if kind == "two classes" else 3, method)
    answer = bounded if kind == "regressor" else probabilities
    model.save(tmp_path / "model.kcg")
    alone = answer(load(tmp_path / "model.kcg"))
    expected = [alone(X) for X in parts()]
    loaded = load(tmp_path / "model.kcg")
    assert loaded.posterior_.is_lean
    require_same(at_once(answer(loaded), parts()), expected)
    assert not loaded.posterior_.is_lean


def test_preparation_for_covariances_is_kept_and_changes_no_value():
    """An estimator keeps it; a posterior without it stays as it is, and gives the same numbers."""
    model, (X, *_) = classified(3, "iterative"), parts()
    conditioned = model.posterior_
    own = conditioned.predict(torch.tensor(X), covariance=True)
    assert model.posterior_.system is conditioned.system
    model.predict_proba(X)
    prepared = model.posterior_
    assert prepared.system.systems.for_covariances
    assert not conditioned.system.systems.for_covariances
    model.predict_proba(X)
    assert model.posterior_ is prepared
    again = prepared.predict(torch.tensor(X), covariance=True)
    torch.testing.assert_close(own.covariance, again.covariance, rtol=0, atol=0)


def test_a_prediction_tells_of_its_iterations_and_of_nobody_elses():
    model = GPClassifier(KERNEL, optimizer=None, method="iterative", preconditioner=None, calibrated=False)
    while_fitting, while_predicting = [], []
    model.fit(*data(150), callback=lambda event: while_fitting.append(event.kind) and None)
    before = len(while_fitting)
    X, *_ = parts()
    model.predict_proba(X, callback=lambda event: while_predicting.append(event.kind) and None)
    assert EventKind.ITERATION in while_predicting
    assert while_predicting[-1] is EventKind.CHUNK
    model.predict_proba(X)
    assert len(while_fitting) == before
    assert while_predicting.count(EventKind.CHUNK) == 1
