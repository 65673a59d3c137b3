"""A loaded or unpickled model predicts what the fitted one does, and chooses nothing anew."""

import pickle

import numpy as np
import pytest

from kernelcg import GPRegressor, load
from kernelcg.inference.gaussian import posterior
from kernelcg.kernels import Matern

KERNEL = Matern([0.4, 0.6], 2.0, nu=1.5)


def data(n=900, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-3, 3, (n, 2))
    return X, np.sin(2 * X[:, 0]) + np.cos(X[:, 1]) + 0.1 * rng.standard_normal(n)


def fitted(**options):
    return GPRegressor(KERNEL, noise=0.01, optimizer=None, **options).fit(*data())


def answers(model):
    new = np.random.default_rng(5).uniform(-3, 3, (150, 2))
    mean, std = model.predict(new, return_std=True)
    _, bounded, bounds = model.predict(new[:20], return_std=True, return_bound=True)
    return mean, std, bounded, bounds.mean, bounds.std_lower, bounds.std_upper


@pytest.mark.parametrize("mean", ["constant", "linear"])
@pytest.mark.parametrize("preconditioner", ["auto", "low_rank_vecchia", None])
def test_loaded_and_unpickled_models_give_the_same_bits(preconditioner, mean, tmp_path, monkeypatch):
    model = fitted(method="iterative", preconditioner=preconditioner, mean=mean)
    expected = answers(model)
    model.save(tmp_path / "model.kcg")
    monkeypatch.setattr(posterior.planning, "solve_automatically", None)  # nothing is chosen again
    for other in (load(tmp_path / "model.kcg"), pickle.loads(pickle.dumps(model))):
        assert other.posterior_.is_lean
        for here, there in zip(answers(other), expected, strict=True):
            np.testing.assert_array_equal(here, there)
        other.save(tmp_path / "again.kcg")
        for here, there in zip(answers(load(tmp_path / "again.kcg")), expected, strict=True):
            np.testing.assert_array_equal(here, there)


def test_what_a_file_does_not_tell_is_chosen_once(tmp_path, monkeypatch):
    """A preconditioner of a model that was updated is not in the file: it is chosen when it is first needed."""
    X, y = data()
    model = GPRegressor(KERNEL, noise=0.01, optimizer=None, method="iterative").fit(X[:800], y[:800])
    model.update(X[800:], y[800:])
    expected = answers(model)
    model.save(tmp_path / "model.kcg")
    calls, choose = [], posterior.planning.solve_automatically
    monkeypatch.setattr(
        posterior.planning, "solve_automatically", lambda *args, **named: calls.append(1) or choose(*args, **named)
    )
    loaded = load(tmp_path / "model.kcg")
    for _ in range(2):
        for here, there in zip(answers(loaded), expected, strict=True):
            np.testing.assert_allclose(here, there, rtol=1e-2, atol=1e-3)
    assert len(calls) <= 1


def test_a_matrix_that_a_plan_stored_is_not_stored_for_predictions(tmp_path):
    model = fitted(method="iterative")
    model.save(tmp_path / "model.kcg")
    assert not load(tmp_path / "model.kcg").posterior_.problem.stored
