"""A = S K S + D against the dense reference."""

import pickle

import numpy as np
import pytest
import torch
from bound import bound_system
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import TOLERANCE, array, block_error, gradient_error, kernel_matrix, product_error, system_matrix
from strategies import DTYPES, columns, features, kernels, normal, points, sizes

from kernelcg import backends
from kernelcg.errors import MemoryBudgetExceeded
from kernelcg.kernels import RBF, Matern

N = 50
X, V, W = normal(N, 3, 1), normal(N, 4, 2), normal(N, 4, 3)
KERNEL = Matern([0.8, 1.5, 3.0], 1.7, nu=1.5)
NOISE = normal(N, 1, 4)[:, 0].exp()
S = normal(N, 1, 5)[:, 0].abs()
S[7] = 0.0


@pytest.fixture(params=["regression", "one noise", "laplace", "both"])
def system(request):
    """Return (A, the reference of A, S or None)."""
    diagonal, scale = {"regression": (NOISE, None), "one noise": (0.3, None), "laplace": (1.0, S), "both": (NOISE, S)}[
        request.param
    ]
    return bound_system(KERNEL, X, diagonal, scale), system_matrix(KERNEL, X, diagonal, scale), scale


@given(st.data(), sizes, features, st.integers(1, 5), st.booleans(), st.booleans())
def test_products_of_any_system(data, n, d, k, scaled, single):
    kernel, points_ = data.draw(kernels(d)), data.draw(points(n, d))
    diagonal, scale = data.draw(columns(n, 1))[:, 0].exp(), data.draw(columns(n, 1))[:, 0].abs() if scaled else None
    B, precision = data.draw(columns(n, k)), "float32" if single else "float64"
    A = bound_system(kernel, points_, diagonal, scale, product_dtype=DTYPES[precision])
    assert product_error(A @ B, system_matrix(kernel, points_, diagonal, scale), B) < TOLERANCE[precision]


def test_products_in_both_precisions(system, precision):
    A, truth, _ = system
    A = A.with_precision(DTYPES[precision])
    assert A.precision == DTYPES[precision]
    assert len(A) == N
    assert product_error(A @ V, truth, V) < TOLERANCE[precision]
    assert (A @ V.float()).dtype == torch.float32
    assert product_error(A @ V.float(), truth, V.float()) < TOLERANCE["float32"]


def test_float32_products_are_really_float32_and_float64_ones_are_not(system):
    A, truth, _ = system
    assert product_error(A.with_precision(torch.float32) @ V, truth, V) > 1e-9
    assert product_error(A.with_precision(torch.float32).with_precision(torch.float64) @ V, truth, V) < 1e-13


def test_the_whole_matrix_is_float64_whatever_the_precision(system, precision):
    A, truth, _ = system
    dense = A.with_precision(DTYPES[precision]).dense()
    assert dense.dtype == torch.float64
    assert block_error(dense, truth) < TOLERANCE["float64"]
    dense.zero_()
    assert product_error(A @ V, truth, V) < TOLERANCE["float64"]


def test_the_whole_matrix_of_more_rows_than_are_filled_at_once():
    line = torch.linspace(0, 1, 4200, dtype=torch.float64)[:, None]
    A = bound_system(RBF(0.1), line, 0.5, 0.5 + line[:, 0]).dense()
    for i, j in ((0, 0), (4095, 4096), (4199, 3), (4100, 4100), (100, 4150)):
        x, y = line[i].item(), line[j].item()
        truth = (0.5 + x) * np.exp(-50 * (x - y) ** 2) * (0.5 + y) + 0.5 * (i == j)
        assert A[i, j].item() == pytest.approx(truth, rel=1e-12)


def test_parts_of_the_kernel_carry_neither_scale_nor_diagonal(system):
    A, _, _ = system
    K, rows = kernel_matrix(KERNEL, X, X), torch.tensor([3, 41, 3, 0])
    assert block_error(A.kernel_columns(rows), K[:, rows]) < TOLERANCE["float64"]
    assert block_error(A.kernel_block(rows), K[rows][:, rows]) < TOLERANCE["float64"]
    np.testing.assert_allclose(A.kernel_diagonal(), np.diag(K), rtol=1e-14)


def test_the_gradient_is_that_of_s_k_s(system, precision):
    """∂/∂θ Σ_j left_jᵀ S K S right_j, with S moved to the columns."""
    A, _, scale = system
    gradient = A.with_precision(DTYPES[precision]).kernel_gradient(V, W)
    by_scale = 1.0 if scale is None else array(scale)[:, None]
    assert gradient_error(gradient, KERNEL, X, X, by_scale * array(V), by_scale * array(W)) < TOLERANCE[precision]


def test_stored_entries_change_nothing(system, precision):
    A, truth, _ = system
    stored = A.with_precision(DTYPES[precision]).stored()
    assert stored.K.is_stored
    assert stored.K.entries.dtype == DTYPES[precision]
    assert product_error(stored @ V, truth, V) < TOLERANCE[precision]
    assert product_error(stored.with_precision(torch.float64) @ V, truth, V) < TOLERANCE["float64"]
    assert block_error(stored.dense(), truth) < TOLERANCE["float64"]
    assert (
        block_error(stored.kernel_columns(torch.tensor([5])), kernel_matrix(KERNEL, X, X[5:6])) < TOLERANCE["float64"]
    )


def test_a_stored_operator_answers_from_memory_also_after_pickling():
    stored = bound_system(KERNEL, X, NOISE).stored()
    for A in (stored, pickle.loads(pickle.dumps(stored))):
        A.K.entries.zero_()
        torch.testing.assert_close(A @ V, NOISE[:, None] * V)


def test_memory(system):
    A, _, _ = system
    small = bound_system(A.kernel, A.X, A.diagonal, A.scale, backends.Tiles("19 kB"))
    assert small.memory_budget() == 19_000
    with pytest.raises(MemoryBudgetExceeded, match="50 x 50"):
        small.dense()
    with pytest.raises(MemoryBudgetExceeded, match="50 x 50"):
        small.stored()


@settings(max_examples=10)
@given(st.data(), features)
def test_one_row(data, d):
    kernel, x = data.draw(kernels(d)), data.draw(points(1, d))
    A, truth = bound_system(kernel, x, 0.7, [2.0]), system_matrix(kernel, x, 0.7, [2.0])
    np.testing.assert_allclose(A @ torch.ones(1, 2, dtype=torch.float64), np.repeat(truth, 2, 1), rtol=1e-12)
    np.testing.assert_allclose(A.dense(), truth, rtol=1e-12)


def test_a_product_is_linear_in_s_and_d_not_in_their_place():
    """Zero S leaves D alone; S enters twice."""
    ones = torch.ones(N, dtype=torch.float64)
    assert torch.equal(bound_system(KERNEL, X, NOISE, 0 * ones) @ V, NOISE[:, None] * V)
    K = bound_system(KERNEL, X, 1.0) @ V - V
    torch.testing.assert_close(bound_system(KERNEL, X, 1.0, 3 * ones) @ V - V, 9 * K)


def test_the_operator_does_not_build_a_graph():
    kernel = KERNEL.with_log_parameters(KERNEL.log_parameters().clone().requires_grad_())
    A = bound_system(kernel, X, NOISE, S)
    results = (A @ V, A.dense(), A.kernel_diagonal(), A.kernel_columns(torch.tensor([1])), A.kernel_gradient(V, W))
    assert not any(result.requires_grad for result in results)
