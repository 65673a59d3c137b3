"""BoTorch's acquisition functions work with a fitted regressor, and find the maximum of a function with it."""

import warnings

import numpy as np
import pytest
import torch

from kernelcg import GPRegressor

pytest.importorskip("botorch")


@pytest.fixture(autouse=True)
def _quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of BoTorch about its own inputs
        yield


def branin(X):
    """Return minus Branin's function on [0, 1]², whose maximum is −0.397887."""
    x, y = 15 * X[:, 0] - 5, 15 * X[:, 1]
    bowl = (y - 5.1 / (4 * np.pi**2) * x**2 + 5 / np.pi * x - 6) ** 2
    return -(bowl + 10 * (1 - 1 / (8 * np.pi)) * np.cos(x) + 10)


def test_its_posterior_is_that_of_the_regressor():
    from kernelcg.botorch_model import BoTorchModel

    X = np.random.default_rng(0).random((30, 2))
    regressor = GPRegressor().fit(X, branin(X))
    model, Z = BoTorchModel(regressor), torch.rand(4, 3, 2, dtype=torch.float64)
    found = model.posterior(Z, observation_noise=True)
    for batch, mean, variance in zip(Z, found.mean, found.variance, strict=True):
        expected, std = regressor.predict(batch.numpy(), return_std=True)
        np.testing.assert_allclose(mean[:, 0], expected, rtol=1e-6)
        np.testing.assert_allclose(variance[:, 0].sqrt(), std, rtol=1e-2)


def test_expected_improvement_finds_a_maximum():
    from botorch.acquisition.logei import qLogExpectedImprovement
    from botorch.optim import optimize_acqf

    from kernelcg.botorch_model import BoTorchModel

    torch.manual_seed(0)
    X = np.random.default_rng(1).random((8, 2))
    y = branin(X)
    bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    for _ in range(14):
        model = BoTorchModel(GPRegressor(kernel="matern52").fit(X, y))
        acquisition = qLogExpectedImprovement(model, best_f=float(y.max()))
        new, _ = optimize_acqf(acquisition, bounds, q=1, num_restarts=4, raw_samples=64)
        X = np.concatenate([X, new.numpy()])
        y = np.concatenate([y, branin(new.numpy())])
    assert y.max() > -0.6
