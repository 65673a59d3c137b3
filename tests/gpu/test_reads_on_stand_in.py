"""The host waits for the device once an iteration, a few times an evaluation, and never per tile or block."""

from collections import Counter

import numpy as np
import pytest
import torch
from cuda_stand_in import CudaStandIn, counting
from numpy.linalg import LinAlgError

from kernelcg.backends import Tiles, tiles
from kernelcg.inference import GaussianProcess, Noise, Regression
from kernelcg.inference.gaussian.likelihood_by_cholesky import direct_estimate
from kernelcg.kernels import Matern
from kernelcg.operators import KernelPlusDiagonal
from kernelcg.preconditioners import recipe
from kernelcg.solvers import Stopping, solve
from kernelcg.solvers.blocked_cholesky import factorise_in_place, invert_in_place

BY_CHOLESKY = 16
"""Reads of one evaluation by Cholesky, at most: whether it succeeded, its value, gradient and error bounds."""


@pytest.fixture
def device():
    with CudaStandIn() as found:
        yield found


def normal(n, k, seed=0):
    return torch.randn(n, k, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def system(n, *, noise=1e-4):
    X = normal(n, 2).cuda()
    return KernelPlusDiagonal(Tiles().bind(Matern(1.0), X), X.new_full((n,), noise))


@pytest.mark.parametrize("blocks", [1, 5])
def test_a_factor_reads_once_and_its_inverse_never(device, blocks):
    A = normal(40, 40)
    A = A @ A.T + torch.eye(40, dtype=torch.float64)
    L = A.cuda()
    with counting() as reads:
        factorise_in_place(L, -(-40 // blocks))
        invert_in_place(L, -(-40 // blocks))
    assert len(reads) == 1
    torch.testing.assert_close(L.cpu(), torch.linalg.inv(A), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("bad", [0, 17, 39])
@pytest.mark.parametrize("value", [-1.0, 0.0, np.nan])
def test_a_factor_that_fails_early_is_found_at_the_end(device, bad, value):
    A = torch.eye(40, dtype=torch.float64)
    A[bad, bad] = value
    with pytest.raises(LinAlgError, match="positive definite"):
        factorise_in_place(A.cuda(), 8)


@pytest.mark.parametrize("work", ["product", "gradient", "block", "cross"])
def test_tiles_read_nothing_each(device, monkeypatch, work):
    K, V = system(64).K, normal(64, 2).cuda()
    call = {
        "product": lambda: K.product(V),
        "gradient": lambda: K.gradient(V, V),
        "block": lambda: K.block(),
        "cross": lambda: K.cross(V, V),
    }[work]
    counts = []
    for size in (64, 16):
        monkeypatch.setattr(tiles, "DEVICE_TILE", size)
        with counting() as reads:
            call()
        counts.append(len(reads))
    assert counts[0] == counts[1] <= 3


@pytest.mark.parametrize("method", ["pcg", "block_pcg"])
@pytest.mark.parametrize("name", ["low_rank_vecchia", "vecchia", "nystrom", "block_jacobi", "fitc"])
def test_an_iteration_reads_once_with_its_preconditioner(device, method, name):
    A, B = system(60, noise=1e-7), normal(60, 2, 1).cuda()
    options = {"nystrom": {"rank": 3}, "low_rank_vecchia": {"rank": 3, "neighbours": 2}, "vecchia": {"neighbours": 2}}
    P = recipe(name, **options.get(name, {})).build(A, torch.Generator().manual_seed(0))
    counts = {}
    for steps in (2, 6):
        with counting() as reads:
            stopping = Stopping(rtol=1e-15, max_iterations=steps)
            report = solve(A, B, method=method, preconditioner=P, stopping=stopping)
        counts[int(report.iterations.max())] = len(reads)
    (few, first), (many, last) = sorted(counts.items())
    assert many > few
    assert last - first == many - few


def test_an_evaluation_by_cholesky_reads_a_fixed_number_of_times(device, monkeypatch):
    found = []
    for n, size in ((30, 64), (60, 16)):  # 1 tile, 16 tiles
        monkeypatch.setattr(tiles, "DEVICE_TILE", size)
        X = normal(n, 2).cuda()
        problem = Regression(X, X[:, :1].sin(), mean="constant", backend=Tiles())
        with counting() as reads:
            direct_estimate(problem, GaussianProcess(Matern(1.0), Noise(0.1)))
        found.append(Counter(line for line, _ in reads))
    assert found[0] == found[1]
    assert found[0].total() <= BY_CHOLESKY
