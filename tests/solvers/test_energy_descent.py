"""Block PCG for quadratic forms against dense solutions."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernelcg.events import EventKind
from kernelcg.operators import DenseMatrix, Identity
from kernelcg.randomness import seeded
from kernelcg.solvers import CholeskyFactor
from kernelcg.solvers.energy_descent import energy_descent


def system(n, seed=0, floor=0.1):
    """Return a positive definite matrix with eigenvalues from ``floor`` to n or so."""
    M = torch.randn(n, n, generator=seeded(seed), dtype=torch.float64)
    return M @ M.T / 2 + floor * torch.eye(n, dtype=torch.float64)


def energy(A, R):
    return (R * torch.linalg.solve(A, R)).sum(0)


def until(part, first):
    return lambda columns, R, energies, gains: energies > part * first[columns]


@given(n=st.integers(1, 30), k=st.integers(1, 6), steps=st.integers(0, 4), seed=st.integers(0, 99))
def test_gains_are_what_the_energies_fall_by(n, k, steps, seed):
    A = system(n, seed)
    B, V = (torch.randn(n, k, generator=seeded(seed + i), dtype=torch.float64) for i in (1, 2))
    R = B - A @ V
    found = energy_descent(DenseMatrix(A), Identity(n), V, R, until(1e-20, R.square().sum(0)), max_steps=steps)
    scale = float(energy(A, R).max())
    torch.testing.assert_close(found.R, B - A @ found.V, rtol=0, atol=1e-9 * scale + 1e-12)
    expected = energy(A, R) - energy(A, B - A @ found.V)
    torch.testing.assert_close(found.gains, expected, rtol=1e-8, atol=1e-9 * scale + 1e-12)
    torch.testing.assert_close(found.energies, found.R.square().sum(0), rtol=1e-12, atol=0)
    assert int(found.steps.max()) <= steps


def test_columns_that_want_no_more_stay_as_they_are():
    A, P = system(40), Identity(40)
    B = torch.randn(40, 3, generator=seeded(1), dtype=torch.float64)
    B[:, 1] = 0
    zero = torch.zeros_like(B)
    first = B.square().sum(0)
    found = energy_descent(DenseMatrix(A), P, zero, B, until(1e-12, first), max_steps=80)
    assert bool(found.done.all())
    assert found.steps[1] == 0
    assert not found.V[:, 1].any()
    np.testing.assert_allclose(found.V, torch.linalg.solve(A, B), atol=1e-4)
    again = energy_descent(DenseMatrix(A), P, found.V, found.R, until(1e-12, first), max_steps=80)
    assert not again.steps.any(), "exact start: no step"
    assert torch.equal(again.V, found.V)


def test_an_exact_preconditioner_takes_one_step():
    A = system(25)
    B = torch.randn(25, 4, generator=seeded(3), dtype=torch.float64)
    P, zero = CholeskyFactor(A.clone()), torch.zeros_like(B)
    found = energy_descent(DenseMatrix(A), P, zero, B, until(1e-20, energy(A, B)), max_steps=10)
    assert found.steps.tolist() == [1] * 4
    torch.testing.assert_close(found.gains, energy(A, B))


def test_the_callback_is_told_and_an_indefinite_matrix_ends_it():
    heard = []
    B = torch.ones(6, 2, dtype=torch.float64)
    A = DenseMatrix(torch.diag(torch.tensor([1.0, 2, 3, 4, 5, -60], dtype=torch.float64)))
    found = energy_descent(
        A, Identity(6), torch.zeros_like(B), B, until(1e-9, B.sum(0)), max_steps=9, callback=heard.append
    )
    assert not found.done.any()
    assert {event.kind for event in heard} == {EventKind.ITERATION}
