"""Draws of fitted estimators: far points leave the others alone, and a covariance that is not known is told of."""

import numpy as np
import pytest

from kernelcg import GPGeneralizedRegressor, GPRegressor
from kernelcg.errors import ConvergenceWarning
from kernelcg.kernels import RBF, Linear

DRAWS = 4000
WIDE = 6 / np.sqrt(2 * DRAWS)
"""Six standard errors of a standard deviation, relative to itself."""


def inputs():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30, 2))
    return X, np.sin(X[:, 0]) + 0.1 * rng.normal(size=30), np.vstack([X[:3], [[1e9, 0.0]]])


def test_a_far_point_leaves_the_draws_at_the_others_alone():
    X, y, new = inputs()
    model = GPRegressor(RBF(1.0), noise=0.01, mean="linear", optimizer=None).fit(X, y)
    _, std = model.predict(new, return_std=True)
    np.testing.assert_allclose(model.sample_y(new, DRAWS).std(1) / std, 1, atol=WIDE)


def test_a_far_point_leaves_the_draws_of_a_latent_function_at_the_others_alone():
    X, y, new = inputs()
    model = GPGeneralizedRegressor(RBF(1.0), likelihood="poisson", mean="linear", optimizer=None)
    model.fit(X, np.round(np.exp(y)))
    _, std = model.latent(new, return_std=True)
    np.testing.assert_allclose(model.sample_y(new, DRAWS, latent=True).std(1) / std, 1, atol=WIDE)


def test_a_far_point_leaves_the_draws_of_the_prior_at_the_others_alone():
    *_, new = inputs()
    model = GPRegressor(Linear(1.0) + RBF(1.0))
    _, std = model.predict(new, return_std=True)
    np.testing.assert_allclose(model.sample_y(new, DRAWS).std(1) / std, 1, atol=WIDE)


def test_draws_tell_that_their_covariance_is_not_known():
    X = np.linspace(0, 1, 40)[:, None]
    options = {"kernel": RBF(1.0), "noise": 1e-15, "optimizer": None, "method": "direct"}
    with pytest.warns(ConvergenceWarning):
        model = GPRegressor(**options).fit(X, np.sin(7 * X[:, 0]))
    new = X[:3] + 0.01
    with pytest.warns(ConvergenceWarning, match="the predictive covariance"):
        model.predict(new, return_cov=True, include_noise=False)
    with pytest.warns(ConvergenceWarning, match="the covariance of the draws"):
        model.sample_y(new, include_noise=False)
