"""The look at a few rows before a plan is made: it finds the noise, always the same, and only where it is worth it."""

import math

import numpy as np
import pytest
import torch

from kernelcg import GPRegressor
from kernelcg.inference.gaussian.model import GaussianProcess, Regression
from kernelcg.inference.gaussian.preview import FEWEST_ROWS, previewed_noise
from kernelcg.inference.learning.default_priors import default_priors
from kernelcg.kernels import RBF
from kernelcg.planning import Method

START = GaussianProcess(RBF([1.0, 1.0], 1.0), 0.1)


def draw(n, noise, seed=0):
    """Return n rows of a draw from a process of variance 1 with noise of this variance."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, size=(n, 2))
    K = np.exp(-0.5 * ((X[:, None] - X) ** 2).sum(2))
    y = np.linalg.cholesky(K + 1e-9 * np.eye(n)) @ rng.normal(size=n) + math.sqrt(noise) * rng.normal(size=n)
    return X, y


def seen(X, y):
    problem = Regression(torch.from_numpy(X), torch.from_numpy(y)[:, None], mean="constant")
    return previewed_noise(problem, START, default_priors(START, problem))


@pytest.mark.parametrize("noise", [1e-4, 1e-2, 0.3])
def test_the_noise_is_found_to_a_small_factor(noise):
    found = seen(*draw(900, noise))
    assert noise / 5 < found < 5 * noise
    assert math.log2(found).is_integer(), "the last digits of a sum decide nothing"


def test_few_rows_and_observations_without_variation_are_not_looked_at():
    X, y = draw(FEWEST_ROWS, 0.1)
    assert seen(X, y) is not None
    assert seen(X[1:], y[1:]) is None
    assert seen(X, np.ones(len(X))) is None


def test_the_plan_knows_the_noise_whatever_the_seed_and_keeps_it():
    X, y = draw(FEWEST_ROWS, 1e-3)
    first, second = (GPRegressor(random_state=seed, max_iter=2).plan(X, y) for seed in (0, 1))
    assert first.noise == second.noise
    assert 1e-4 < first.noise < 1e-2
    assert "with noise of" in first.reason
    assert GPRegressor(optimizer=None).plan(X, y).noise is None
    assert GPRegressor().plan(X[:300], y[:300]).noise is None


@pytest.mark.filterwarnings("ignore::kernelcg.errors.ConvergenceWarning")
def test_a_plan_with_known_noise_is_carried_out_again_to_the_bit(tmp_path):
    X, y = draw(FEWEST_ROWS, 0.2)
    model = GPRegressor(max_iter=2).fit(X, y)
    again = GPRegressor(max_iter=2).fit(X, y, plan=model.plan_)
    assert again.plan_.noise == model.plan_.noise
    assert again.plan_.method is model.plan_.method is not Method.AUTO
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
