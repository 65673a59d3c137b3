"""Block PCG: fewer products, and no harm from dependent columns."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from solvers.systems import hard_system, normal, nystrom, systems, with_eigenvalues

from kernelcg.solvers import Status, Stopping, solve


@pytest.mark.parametrize("noise", [1e-1, 1e-2, 1e-3])
@pytest.mark.parametrize("rank", [0, 20])
def test_needs_far_fewer_products_than_batched_pcg_on_hard_systems(noise, rank):
    A, B = hard_system(300, noise, d=3), normal(300, 16)
    P = nystrom(A, rank) if rank else None
    block, batched = (
        solve(A, B, method=method, preconditioner=P, stopping=Stopping(max_iterations=3000))
        for method in ("block_pcg", "pcg")
    )
    assert block.status is batched.status is Status.CONVERGED
    assert block.products <= 0.6 * batched.products


@given(A=systems(), columns=st.integers(2, 6), seed=st.integers(0, 100))
@settings(max_examples=40, deadline=None)
def test_never_needs_more_products_than_batched_pcg(A, columns, seed):
    B = normal(len(A), columns, seed)
    block, batched = (solve(A, B, method=method) for method in ("block_pcg", "pcg"))
    assert int(block.iterations.max()) <= int(batched.iterations.max())


@pytest.mark.parametrize(
    "columns",
    [
        pytest.param(lambda B: torch.cat([B, B], 1), id="every column twice"),
        pytest.param(lambda B: torch.cat([B, B.sum(1, keepdim=True)], 1), id="one is the sum of the others"),
        pytest.param(lambda B: torch.cat([B, 1e-8 * B[:, :1] + B[:, 1:2]], 1), id="nearly dependent"),
        pytest.param(
            lambda B: B * torch.tensor([1e-150, 1.0, 1e150], dtype=torch.float64), id="scales from 1e-150 to 1e150"
        ),
        pytest.param(lambda B: torch.cat([B, torch.zeros_like(B)], 1), id="half of them zero"),
        pytest.param(lambda B: B[:, :1].expand(-1, 5).contiguous(), id="all the same"),
        pytest.param(lambda B: normal(len(B), 3 * len(B)), id="more columns than rows"),
    ],
)
@pytest.mark.parametrize("preconditioned", [False, True])
def test_survives_rank_deficient_blocks(columns, preconditioned):
    A = hard_system(40, 1e-2)
    B = columns(normal(40, 3))
    P = nystrom(A, 10) if preconditioned else None
    report = solve(A, B, method="block_pcg", preconditioner=P, stopping=Stopping(rtol=1e-8))
    assert report.status is Status.CONVERGED
    exact = torch.linalg.solve(A.dense(), B)
    scale = exact.norm(dim=0).clamp_min(1e-300)
    assert float(((report.solution - exact).norm(dim=0) / scale).max()) <= 1e-5


def test_one_row():
    report = solve(hard_system(1, 0.5), torch.tensor([[3.0, 0.0, -1.5]]), method="block_pcg")
    assert report.status is Status.CONVERGED
    assert report.solution.tolist()[0] == pytest.approx([2.0, 0.0, -1.0])


def test_as_many_columns_as_rows_take_one_iteration():
    A = hard_system(30, 0.1)
    report = solve(A, normal(30, 30), method="block_pcg", stopping=Stopping(rtol=1e-6))
    assert int(report.iterations.max()) <= 2


def test_easy_columns_leave_the_block_early():
    A = with_eigenvalues(np.geomspace(1e-4, 1, 60))
    _values, vectors = torch.linalg.eigh(A)
    B = torch.cat([vectors[:, :1], normal(60, 2)], 1)
    report = solve(A, B, method="block_pcg")
    assert report.status is Status.CONVERGED
    assert int(report.iterations[0]) < int(report.iterations[1])
    assert report.columns < 3 * report.products, "converged columns are not multiplied any more"
