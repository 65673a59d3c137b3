"""Softmax: block algebra against dense C×C and C×C×C arrays, predictive probabilities against brute force."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from likelihood_cases import column
from likelihood_reference import log_gaussian_integral, softmax_curvature
from scipy import special
from strategies import seeds

from kernelcg.likelihoods import BernoulliLogit, Softmax
from kernelcg.likelihoods import softmax as module

SOFTMAX = Softmax()
classes = st.integers(2, 6)
rows = st.integers(1, 5)
scales = st.sampled_from([0.1, 1.0, 5.0, 100.0])


def latent(n, C, scale, seed):
    return scale * np.random.default_rng(seed).standard_normal((n, C))


@given(rows, classes, scales, seeds)
def test_density_probabilities_and_gradient(n, C, scale, seed):
    F = latent(n, C, scale, seed)
    y = np.random.default_rng(seed).integers(0, C, n)
    pi = special.softmax(F, axis=1)
    tensor, labels = torch.from_numpy(F), torch.from_numpy(y)
    np.testing.assert_allclose(SOFTMAX.probabilities(tensor), pi, rtol=1e-12, atol=1e-300)
    log_density = SOFTMAX.log_density(labels, tensor)
    np.testing.assert_allclose(log_density, special.log_softmax(F, axis=1)[np.arange(n), y], rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(SOFTMAX.gradient(labels, tensor), np.eye(C)[y] - pi, rtol=1e-12, atol=1e-15)


def test_the_gradient_and_curvature_are_derivatives_of_the_density():
    F, y, h = latent(3, 4, 1.0, 0), torch.tensor([0, 3, 1]), 1e-6
    pi = SOFTMAX.probabilities(torch.from_numpy(F))
    for c in range(4):
        step = h * np.eye(4)[c]
        plus, minus = torch.from_numpy(F + step), torch.from_numpy(F - step)
        difference = (SOFTMAX.log_density(y, plus) - SOFTMAX.log_density(y, minus)) / (2 * h)
        np.testing.assert_allclose(SOFTMAX.gradient(y, torch.from_numpy(F))[:, c], difference, atol=1e-8)
        second = -(SOFTMAX.gradient(y, plus) - SOFTMAX.gradient(y, minus)) / (2 * h)
        unit = torch.eye(4, dtype=torch.float64)[:, c].expand(3, 4)[..., None]
        np.testing.assert_allclose(SOFTMAX.curvature(pi, unit)[..., 0], second, atol=1e-8)


@given(rows, classes, st.integers(1, 4), scales, seeds)
def test_products_with_the_curvature_and_its_root(n, C, k, scale, seed):
    pi = special.softmax(latent(n, C, scale, seed), axis=1)
    V = np.random.default_rng(seed + 1).standard_normal((n, C, k))
    for result, dense in (
        (SOFTMAX.curvature, lambda p: softmax_curvature(p)[0]),
        (SOFTMAX.half, lambda p: np.diag(np.sqrt(p)) @ (np.eye(C) - np.sqrt(np.outer(p, p)))),
        (SOFTMAX.half_transposed, lambda p: (np.eye(C) - np.sqrt(np.outer(p, p))) @ np.diag(np.sqrt(p))),
    ):
        truth = np.stack([dense(p) @ block for p, block in zip(pi, V, strict=True)])
        np.testing.assert_allclose(result(torch.from_numpy(pi), torch.from_numpy(V)), truth, rtol=1e-11, atol=1e-14)


@given(rows, classes, scales, seeds)
def test_the_root_is_one_of_the_curvature(n, C, scale, seed):
    pi = SOFTMAX.probabilities(torch.from_numpy(latent(n, C, scale, seed)))
    identity = torch.eye(C, dtype=torch.float64).expand(n, C, C)
    product = SOFTMAX.half(pi, SOFTMAX.half_transposed(pi, identity))
    truth = np.stack([softmax_curvature(p)[0] for p in pi.numpy()])
    np.testing.assert_allclose(product, truth, atol=1e-14)


@given(rows, classes, st.integers(1, 4), scales, seeds)
def test_the_slope_contracts_the_third_derivatives(n, C, k, scale, seed):
    pi = special.softmax(latent(n, C, scale, seed), axis=1)
    left, right = np.random.default_rng(seed + 1).standard_normal((2, n, C, k))
    truth = np.stack(
        [np.einsum("ak,bk,abc->c", a, b, softmax_curvature(p)[1]) / k for p, a, b in zip(pi, left, right, strict=True)]
    )
    result = SOFTMAX.slope(*map(torch.from_numpy, (pi, left, right)))
    np.testing.assert_allclose(result, truth, rtol=1e-10, atol=1e-13)


def test_the_third_derivatives_of_the_truth_are_differences_of_the_curvature():
    F, h = latent(1, 4, 1.0, 3)[0], 1e-6
    _, dW = softmax_curvature(special.softmax(F))
    for c in range(4):
        step = h * np.eye(4)[c]
        W = [softmax_curvature(special.softmax(F + sign * step))[0] for sign in (1, -1)]
        np.testing.assert_allclose(dW[:, :, c], (W[0] - W[1]) / (2 * h), atol=1e-9)


def test_confident_points_stay_finite():
    F = column(1e4, -1e4, 0.0)[None]
    pi, V = SOFTMAX.probabilities(F), torch.ones(1, 3, 2, dtype=torch.float64)
    assert pi.tolist() == [[1.0, 0.0, 0.0]]
    assert SOFTMAX.log_density(torch.tensor([1]), F).item() == -2e4
    for result in (
        SOFTMAX.curvature(pi, V),
        SOFTMAX.half(pi, V),
        SOFTMAX.half_transposed(pi, V),
        SOFTMAX.slope(pi, V, V),
    ):
        assert result.isfinite().all()


# predictive probabilities


def posterior(n, C, r, scale, seed):
    generator = np.random.default_rng(seed)
    mean, root = generator.standard_normal((n, C)), scale * generator.standard_normal((n, C, r))
    return torch.from_numpy(mean), torch.from_numpy(root)


@pytest.mark.parametrize("scale", [0.3, 2.0, 30.0])
def test_predictive_probabilities_against_brute_force(scale):
    mean, root = posterior(6, 4, 4, scale, 0)
    p, error = SOFTMAX.predictive_probabilities(mean, root, torch.Generator().manual_seed(1))
    Z = np.random.default_rng(2).standard_normal((300_000, 4))
    for i in range(6):
        draws = special.softmax(mean[i].numpy() + Z @ root[i].numpy().T, axis=1)
        spread = np.sqrt(error[i].numpy() ** 2 + draws.var(0) / len(Z))
        assert np.all(np.abs(p[i].numpy() - draws.mean(0)) < 5 * spread + 1e-9)
    assert error.max() <= 1e-3
    np.testing.assert_allclose(p.sum(1), 1.0, atol=1e-12)


def test_two_classes_are_the_logistic():
    """Softmax of (f, 0) with f ~ N(m, v) is the logistic: a one-dimensional integral."""
    m, v = np.array([0.0, -1.0, 3.0, 2.0]), np.array([1.0, 4.0, 0.25, 100.0])
    mean = torch.from_numpy(np.stack([m, np.zeros(4)], 1))
    root = torch.zeros(4, 2, 1, dtype=torch.float64)
    root[:, 0, 0] = torch.from_numpy(np.sqrt(v))
    p, error = SOFTMAX.predictive_probabilities(mean, root, torch.Generator().manual_seed(0))
    truth = [
        math.exp(log_gaussian_integral(lambda f: -np.logaddexp(0, -f), *pair, [0])) for pair in zip(m, v, strict=True)
    ]
    assert np.all(np.abs(p[:, 0].numpy() - truth) < 5 * error[:, 0].numpy() + 1e-9)
    np.testing.assert_allclose(p[:, 0], BernoulliLogit().predict(*map(torch.from_numpy, (m, v)))[0], atol=5e-3)


def test_standard_errors_are_honest():
    """z-scores between two independent runs have a spread of one."""
    mean, root = posterior(400, 3, 3, 3.0, 5)
    (p, a), (q, b) = (SOFTMAX.predictive_probabilities(mean, root, torch.Generator().manual_seed(s)) for s in (1, 2))
    z = ((p - q) / (a**2 + b**2).sqrt())[:, 0]
    assert 0.8 < z.std() < 1.3
    assert (p - q).abs().max() > 0


def test_no_variance_gives_the_plug_in_exactly():
    mean, root = posterior(5, 3, 2, 0.0, 0)
    p, error = SOFTMAX.predictive_probabilities(mean, root, torch.Generator().manual_seed(1))
    np.testing.assert_allclose(p, special.softmax(mean.numpy(), axis=1), rtol=1e-12)
    assert error.max() < 1e-15


def test_the_generator_decides_and_blocks_of_rows_do_not(monkeypatch):
    mean, root = posterior(40, 3, 3, 1.0, 0)
    first, _ = SOFTMAX.predictive_probabilities(mean, root, torch.Generator().manual_seed(7))
    other, _ = SOFTMAX.predictive_probabilities(mean, root, torch.Generator().manual_seed(8))
    assert not torch.equal(first, other)
    monkeypatch.setattr(module, "NUMBERS_AT_ONCE", 700)
    again, _ = SOFTMAX.predictive_probabilities(mean, root, torch.Generator().manual_seed(7))
    np.testing.assert_allclose(first, again, rtol=1e-12)


def test_the_log_of_the_observed_class():
    mean, root = posterior(30, 4, 4, 1.0, 0)
    y = torch.arange(30) % 4
    p, error = SOFTMAX.predictive_probabilities(mean, root, torch.Generator().manual_seed(7))
    log_p, log_error = SOFTMAX.log_predictive(y, mean, root, torch.Generator().manual_seed(7))
    own = np.arange(30), y.numpy()
    np.testing.assert_allclose(log_p, np.log(p.numpy()[own]), rtol=1e-12)
    np.testing.assert_allclose(log_error, error.numpy()[own] / p.numpy()[own], rtol=1e-12)


def test_an_impossible_class_has_a_finite_logarithm():
    mean, root = column(0.0, 1e4)[None], torch.zeros(1, 2, 1, dtype=torch.float64)
    log_p, _ = SOFTMAX.log_predictive(torch.tensor([0]), mean, root, torch.Generator().manual_seed(0))
    assert log_p.isfinite().all()
    assert log_p.item() < -700


@pytest.mark.parametrize("y", [[0, 3], [-1, 0]])
def test_class_numbers_are_checked(y):
    with pytest.raises(ValueError, match="class number from 0 to 2"):
        SOFTMAX.check(torch.tensor(y), 3)
    SOFTMAX.check(torch.tensor([0, 1, 2]), 3)


def test_classes_are_integers():
    with pytest.raises(TypeError, match=r"integers, not torch\.float64"):
        SOFTMAX.check(column(0.0, 1.0), 2)
