"""How far probabilities move with the latent mean and covariance: the constants of their bound."""

import numpy as np
import pytest
import torch

from kernelcg.inference.laplace.calibration import CURVATURE, probability_errors
from kernelcg.inference.laplace.posterior import LatentPrediction


def softmax(f):
    e = np.exp(f - f.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def second_derivatives(pi, U):
    """d²π_c along each row u of U: π_c ((u_c − ū)² − Var u), the mean and the variance with the weights π."""
    mean = U @ pi
    variance = (U - mean[:, None]) ** 2 @ pi
    return pi * ((U - mean[:, None]) ** 2 - variance[:, None])


@pytest.mark.parametrize("C", [2, 3, 5, 10])
def test_largest_second_derivative_of_softmax(C):
    rng, largest = np.random.default_rng(C), 0.0
    for scale in np.geomspace(0.1, 10, 400):
        U = rng.standard_normal((200, C)) * rng.choice([0.0, 1.0], (200, C), p=[0.4, 0.6])
        norms = np.linalg.norm(U, axis=1, keepdims=True)
        pi = softmax(scale * rng.standard_normal(C))
        largest = max(largest, np.abs(second_derivatives(pi, U / np.maximum(norms, 1e-300))).max())
    assert 0.15 < largest < CURVATURE


def test_largest_second_derivative_of_probit_and_logit():
    f = np.linspace(-9, 9, 100_001)
    p = 1 / (1 + np.exp(-f))
    assert np.abs(f * np.exp(-f * f / 2) / np.sqrt(2 * np.pi)).max() < CURVATURE
    assert np.abs(p * (1 - p) * (1 - 2 * p)).max() < CURVATURE


@pytest.mark.parametrize("C", [2, 4, 8])
@pytest.mark.parametrize("size", [0.1, 1.0, 30.0])
def test_bound_of_probabilities(C, size):
    """Averages over the same draws, of a mean and of a covariance that is too large by a matrix of rank one."""
    rng = np.random.default_rng(0)
    white = rng.standard_normal((100_000, C))
    for _ in range(8):
        mean, delta = rng.standard_normal(C), 0.05 * rng.choice([-1.0, 1.0], C)
        B = rng.standard_normal((C, C))
        exact = size * (B @ B.T / C + 0.3 * np.eye(C))
        u = rng.standard_normal(C) * np.sqrt(0.3 * size / C)
        found = exact + np.outer(u, u)
        near = softmax(mean + delta + white @ np.linalg.cholesky(found).T).mean(0)
        true = softmax(mean + white @ np.linalg.cholesky(exact).T).mean(0)
        prediction = LatentPrediction(
            torch.from_numpy(mean + delta)[None],
            torch.tensor([0.05], dtype=torch.float64),
            torch.from_numpy(found)[None],
            torch.tensor([u @ u], dtype=torch.float64),
        )
        assert np.abs(near - true).max() <= float(probability_errors(prediction)) + 2e-3  # of the draws
