"""Frequencies ω with k(x, y) = k(0) E cos ωᵀ(x − y)."""

import numpy as np
import pytest
import torch
from reference import array, kernel_matrix

from kernelcg.kernels import RBF, Constant, Linear, Matern, Periodic, RationalQuadratic
from kernelcg.randomness import seeded

COUNT = 40_000

STATIONARY = {
    "rbf": RBF(0.8, 2.0),
    "rbf ard": RBF([0.5, 1.0, 3.0], 0.2),
    "matern12": Matern([0.5, 1.0, 3.0], 2.0, nu=0.5),
    "matern32": Matern([0.5, 1.0, 3.0], 2.0, nu=1.5),
    "matern52": Matern(0.8, nu=2.5),
    "rational quadratic": RationalQuadratic([0.5, 1.0, 3.0], 1.5, 0.7),
    "rational quadratic, many scales": RationalQuadratic(1.0, 1.5, 0.1),
    "periodic": Periodic([0.7, 1.0, 2.0], [1.0, 2.0, 5.0], 3.0),
    "periodic, short": Periodic(0.05, 2.0),
    "constant": Constant(2.0),
    "sum": 0.3 * RBF(0.5) + Matern(2.0, 1.2, nu=1.5),
    "sum with a constant": RBF(0.5) + Constant(0.5),
    "product": Periodic(1.0, 2.0) * RBF([1.0, 2.0, 4.0], 0.5),
    "product of sums": (RBF(1.0) + Constant(0.2)) * (Matern(1.0, nu=0.5) + RBF(3.0)),
}


@pytest.mark.parametrize("name", STATIONARY)
def test_cosines_average_to_the_correlation(name):
    kernel = STATIONARY[name]
    frequencies = kernel.sample_frequencies(3, COUNT, seeded(11))
    assert frequencies.shape == (COUNT, 3)
    assert frequencies.dtype == torch.float64
    lags = 0.4 * np.random.default_rng(5).standard_normal((6, 3))
    origin = np.zeros((1, 3))
    correlation = (kernel_matrix(kernel, lags, origin) / kernel_matrix(kernel, origin, origin))[:, 0]
    for wave, truth in ((np.cos, correlation), (np.sin, np.zeros(6))):
        values = wave(array(frequencies) @ lags.T)
        standard_error = values.std(0) / np.sqrt(COUNT) + 1e-12
        assert np.all(np.abs(values.mean(0) - truth) < 4 * standard_error)


@pytest.mark.parametrize("name", STATIONARY)
def test_equal_seeds_draw_equal_frequencies(name):
    first, second, third = (STATIONARY[name].sample_frequencies(3, 50, seeded(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, second)
    assert name == "constant" or not torch.equal(first, third)


@pytest.mark.parametrize(
    "kernel", [Linear(1.0), RBF(1.0) + Linear(1.0), RBF(1.0) * Linear(1.0), 2 * Linear(1.0)], ids=repr
)
def test_nonstationary_kernels_have_no_spectrum(kernel):
    with pytest.raises(TypeError, match="Linear has no spectral density"):
        kernel.sample_frequencies(3, 10, seeded(0))


def test_drawing_leaves_no_graph_behind():
    kernel = STATIONARY["sum"]
    trained = kernel.with_log_parameters(kernel.log_parameters().clone().requires_grad_())
    torch.testing.assert_close(
        trained.sample_frequencies(3, 20, seeded(3)).detach(), kernel.sample_frequencies(3, 20, seeded(3))
    )
