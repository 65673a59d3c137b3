import numpy as np
import pytest
import torch

from kernelcg.solvers.covariance_root import covariance_root


def test_a_huge_variance_leaves_the_others_alone():
    rng = np.random.default_rng(0)
    B = rng.normal(size=(6, 6)) * np.array([1e20, 1.0, 1.0, 1e-10, 1.0, 1.0])[:, None]
    C = B @ B.T
    L = covariance_root(torch.from_numpy(C)).numpy()
    size = np.sqrt(np.diag(C))
    np.testing.assert_allclose(L @ L.T / np.outer(size, size), C / np.outer(size, size), atol=1e-13)


def test_variances_are_right_where_rounding_made_it_indefinite():
    b = np.random.default_rng(1).normal(size=(5, 2))
    C = b @ b.T - 1e-9 * np.eye(5)  # of rank two, and three eigenvalues below 0
    L = covariance_root(torch.from_numpy(C)).numpy()
    np.testing.assert_allclose(np.diag(L @ L.T), np.diag(C), rtol=1e-12)
    np.testing.assert_allclose(L @ L.T, C, atol=1e-7)


def test_zero_stays_zero_and_infinity_is_refused():
    C = torch.tensor([[0.0, 0.0], [0.0, 4.0]], dtype=torch.float64)
    L = covariance_root(C)
    assert torch.equal(L @ L.T, C)
    with pytest.raises(ValueError, match="not finite"):
        covariance_root(torch.full((1, 1), torch.inf, dtype=torch.float64))
