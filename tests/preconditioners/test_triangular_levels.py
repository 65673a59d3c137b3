"""Sparse triangles solved where the data are, against SciPy; on the CPU here, with the code that GPUs run."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix
from scipy.sparse.linalg import spsolve_triangular

from kernelcg.backends.neighbours import earlier_neighbours
from kernelcg.preconditioners.shapes import SparseInverse, sparse_and_transpose
from kernelcg.preconditioners.triangular_levels import Triangle


def system(n, q, seed=0):
    """Return neighbours (n, q) that come earlier in a random order, values with a good diagonal, and the order."""
    generator = np.random.default_rng(seed)
    order = torch.from_numpy(generator.permutation(n))
    points = torch.from_numpy(generator.standard_normal((n, 2)))
    neighbours = earlier_neighbours(points, order, q)
    values = torch.from_numpy(generator.standard_normal((n, neighbours.shape[1] + 1)))
    values[:, :-1] *= (neighbours >= 0) / max(q, 1)
    values[:, -1] = 1 + values[:, -1].abs()
    return neighbours, values, order


def dense(neighbours, values):
    G = np.zeros((len(values), len(values)))
    for i, row in enumerate(neighbours.tolist()):
        for j, value in zip(row, values[i].tolist(), strict=False):
            if j >= 0:
                G[i, j] = value
        G[i, i] = values[i, -1]
    return G


@settings(max_examples=15)
@given(n=st.integers(1, 80), q=st.integers(0, 12), k=st.integers(1, 4), seed=st.integers(0, 1000))
def test_solutions_are_those_of_scipy(n, q, k, seed):
    neighbours, values, order = system(n, q, seed)
    G, Z = dense(neighbours, values), torch.from_numpy(np.random.default_rng(seed).standard_normal((n, k)))
    found = Triangle.of(neighbours, values).solve(Z).numpy()
    o = order.numpy()
    expected = np.empty((n, k))
    expected[o] = spsolve_triangular(csr_matrix(G[o][:, o]), Z.numpy()[o], lower=True)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(G @ found, Z, rtol=1e-11, atol=1e-12)


def test_every_row_comes_after_those_it_needs():
    neighbours, values, _ = system(500, 10)
    triangle = Triangle.of(neighbours, values)
    group = np.empty(500, dtype=int)
    rows = np.split(triangle.rows.numpy(), triangle.ends[:-1])
    for number, some in enumerate(rows):
        group[some] = number
    needed = np.where(neighbours.numpy() >= 0, group[neighbours.numpy()], -1)
    assert np.all(needed.max(1) == group - 1)
    assert sorted(np.concatenate(rows)) == list(range(500))
    assert len(rows) < 150


def test_a_chain_has_as_many_levels_as_rows():
    neighbours = torch.arange(-1, 99)[:, None]
    values = torch.full((100, 2), 0.5, dtype=torch.float64)
    values[0, 0] = 0.0
    triangle = Triangle.of(neighbours, values)
    assert triangle.ends == tuple(range(1, 101))
    Z = torch.ones(100, 1, dtype=torch.float64)
    assert torch.equal(triangle.solve(Z)[:, 0], torch.tensor([2.0, 0.0] * 50, dtype=torch.float64))


def test_groups_are_gathered_in_pieces(monkeypatch):
    neighbours, values, _ = system(200, 5)
    Z = torch.ones(200, 3, dtype=torch.float64)
    whole = Triangle.of(neighbours, values).solve(Z)
    monkeypatch.setattr("kernelcg.preconditioners.triangular_levels.GATHERED", 40)
    torch.testing.assert_close(Triangle.of(neighbours, values).solve(Z), whole, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("q", [0, 1, 7])
def test_the_sparse_matrix_and_its_transpose(q):
    neighbours, values, _ = system(60, q)
    columns = torch.cat([neighbours, torch.arange(60)[:, None]], 1)
    G, GT = sparse_and_transpose(columns, values)
    np.testing.assert_array_equal(G.to_dense(), dense(neighbours, values))
    np.testing.assert_array_equal(GT.to_dense(), dense(neighbours, values).T)


def test_a_factor_by_torch_alone_is_that_by_scipy():
    """With the code of a GPU: built, multiplied, coloured, and its diagonal."""
    neighbours, values, order = system(80, 6)
    columns = torch.cat([neighbours, torch.arange(80)[:, None]], 1)
    Z = torch.from_numpy(np.random.default_rng(1).standard_normal((80, 3)))
    here = SparseInverse(columns, values, order)
    there = SparseInverse(columns, values, order, by_torch=True)
    for one, other in (
        (here.whiten(Z), there.whiten(Z)),
        (here.unwhiten(Z), there.unwhiten(Z)),
        (here.color(Z), there.color(Z)),
        (here.inverse_diagonal(), there.inverse_diagonal()),
        (here.log_determinant(), there.log_determinant()),
    ):
        torch.testing.assert_close(one, other, rtol=1e-13, atol=1e-13)
    assert there.numbers > here.numbers
