"""A low-rank factor stored in float32: P is that of the rounded factor, exactly, and half of the memory."""

import numpy as np
import pytest
import torch
from bound import bound_system
from strategies import normal

from kernelcg import dense
from kernelcg.backends import Tiles
from kernelcg.dense import inner, multiply, scaled_gram, subtract_product
from kernelcg.kernels import Matern
from kernelcg.operators import ConstantInvertible
from kernelcg.preconditioners import Diagonal, LowRankPlus, RoundedLowRank
from kernelcg.preconditioners.base import largest_rounded_rank, rank_bytes
from kernelcg.preconditioners.partial_cholesky import extended, no_pivots, random_pivots
from kernelcg.randomness import seeded
from kernelcg.solvers import Stopping, solve

N, M = 700, 40


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    """Parts so small that there are several of them."""
    monkeypatch.setattr(dense, "CONVERTED", 300 * M)
    monkeypatch.setattr(dense, "ROWS", 400)


def parts(noise=0.1):
    F, diagonal, scale = normal(N, M, 1).float(), noise * (1 + torch.rand(N).double()), torch.rand(N).double()
    return F, diagonal, scale


def test_products_of_converted_rows_are_those_of_float64():
    F, V, W = normal(N, M, 1).float(), normal(M, 3, 2), normal(N, 5, 3)
    truth = F.double().numpy()
    np.testing.assert_allclose(multiply(F, V), truth @ V.numpy(), atol=1e-12)
    np.testing.assert_allclose(inner(F, W), truth.T @ W.numpy(), atol=1e-11)
    w = W[:, 0]
    np.testing.assert_allclose(scaled_gram(F, w), truth.T @ (w.square()[:, None].numpy() * truth), atol=1e-11)
    C, expected = normal(N, 3, 4), normal(N, 3, 4).numpy() - truth @ V.numpy()
    subtract_product(C, F, V)
    np.testing.assert_allclose(C, expected, atol=1e-12)
    assert C.dtype == torch.float64


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("noise", [0.1, 1e-5])
def test_solves_and_determinants_are_those_of_the_rounded_factor(noise, scaled):
    F, diagonal, scale = parts(noise)
    P, S = RoundedLowRank(F, diagonal, scale if scaled else None), scale.numpy() if scaled else np.ones(N)
    SF = S[:, None] * F.double().numpy()
    truth = SF @ SF.T + np.diag(diagonal.numpy())
    B = normal(N, 3, 5)
    X = np.linalg.solve(truth, B.numpy())
    assert np.abs(P.solve(B).numpy() - X).max() < 1e-9 / noise * np.abs(X).max() * 1e-2
    np.testing.assert_allclose(float(P.log_determinant()), np.linalg.slogdet(truth)[1], rtol=1e-9)
    np.testing.assert_allclose(P.dense(), truth, atol=1e-12)
    assert isinstance(P, ConstantInvertible)
    assert P.solve(B.float()).dtype == torch.float32
    assert (P.rank, len(P)) == (M, N)


def test_draws_have_the_covariance():
    F, diagonal, scale = parts()
    P = RoundedLowRank(F, diagonal, scale)
    W = P.sample(seeded(0), 4000)
    energies = (W * P.solve(W)).sum(0)  # χ² with N degrees of freedom
    assert abs(float(energies.mean()) - N) < 4 * np.sqrt(2 * N / 4000)
    v = normal(N, 1, 6)
    share = float((v.T @ W).square().mean() / (v.T @ P.dense() @ v))
    assert abs(share - 1) < 4 * np.sqrt(2 / 4000)


def test_a_factor_grown_in_float32_preconditions_as_well_as_one_in_float64():
    A = bound_system(Matern(1.0, 1.0, nu=1.5), normal(900, 3, 2), 0.05, backend=Tiles())
    steps = {}
    for storage in (torch.float64, torch.float32):
        found = no_pivots(A.K, storage)
        for rank in (50, 130):
            found = extended(found, A.K, rank=rank, tolerance=0.0, choose=random_pivots(seeded(rank)))
        assert (found.F.dtype, found.rank) == (storage, 130)
        K, F = A.K.block(precision=torch.float64), found.F.double()
        np.testing.assert_allclose(found.remainder, (K - F @ F.T).diagonal(), atol=1e-5)
        assert float(torch.linalg.eigvalsh(K - F @ F.T).min()) > (-1e-5 if storage is torch.float32 else -1e-12)
        P = RoundedLowRank(F.float(), A.diagonal) if storage is torch.float32 else LowRankPlus(Diagonal(A.diagonal), F)
        report = solve(A, normal(900, 2, 3), preconditioner=P, stopping=Stopping(1e-8))
        steps[storage] = int(report.iterations.max())
    assert abs(steps[torch.float32] - steps[torch.float64]) <= 2


@pytest.mark.parametrize("n", [1_000, 1_000_000])
def test_memory_decides_on_the_rank(n):
    rank = int(largest_rounded_rank(n, 30e9))
    assert rank_bytes(n, rank, rounded=True) <= 30e9 < rank_bytes(n, rank + 1, rounded=True)
    assert rank_bytes(n, rank) > 30e9 or n < rank
    assert largest_rounded_rank(n, float("inf")) == float("inf")
