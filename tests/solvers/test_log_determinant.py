"""Stochastic Lanczos quadrature: unbiased, with honest standard errors and valid brackets."""

import numpy as np
import pytest
import torch
from reference import system_matrix
from solvers.systems import Exact, hard_system, nystrom, seeded, with_eigenvalues

from kernelcg.operators import Counting
from kernelcg.solvers import Status, log_determinant


def truth(A):
    return np.linalg.slogdet(system_matrix(A.kernel, A.X, A.diagonal, A.scale))[1]


@pytest.mark.parametrize("rank", [0, 10, 40])
@pytest.mark.parametrize("noise", [1e-1, 1e-3])
def test_unbiased_with_the_right_standard_error(rank, noise):
    """Over many seeds z = (estimate − truth) / standard error has mean 0 and variance about 1."""
    A = hard_system(100, noise, nu=0.5)
    P = nystrom(A, rank) if rank else None
    floor = 1.0 if rank else None
    estimates = [log_determinant(A, 10, seeded(s), preconditioner=P, spectrum_floor=floor) for s in range(60)]
    errors = np.array([estimate.value for estimate in estimates]) - truth(A)
    z = errors / np.array([estimate.standard_error for estimate in estimates])
    assert abs(errors.mean()) <= 4 * errors.std() / np.sqrt(len(errors))
    assert 0.6 < z.std() < 1.7
    assert all(estimate.status is Status.CONVERGED for estimate in estimates)


@pytest.mark.parametrize("rank", [0, 20])
@pytest.mark.parametrize("steps", [1, 2, 3, 5, 8])
def test_bracket_holds_for_every_probe_at_every_step(rank, steps):
    """Gauss–Radau ≤ exact quadrature ≤ Gauss, for the same probes, however early it is stopped."""
    A = hard_system(80, 1e-2, nu=1.5)
    P = nystrom(A, rank) if rank else None
    floor = 1.0 if rank else None
    short = log_determinant(A, 4, seeded(1), preconditioner=P, spectrum_floor=floor, tolerance=0, max_iterations=steps)
    full = log_determinant(A, 4, seeded(1), preconditioner=P, spectrum_floor=floor, tolerance=1e-9, max_iterations=400)
    assert full.status is Status.CONVERGED
    assert short.lower <= full.value <= short.upper
    assert short.lower <= short.value <= short.upper
    if steps == 1:
        assert short.status is Status.MAX_ITERATIONS
        assert short.lower < short.upper


def test_exact_preconditioner_needs_no_probes_at_all():
    A = hard_system(50, 1e-2)
    P = Exact(torch.from_numpy(system_matrix(A.kernel, A.X, A.diagonal)))
    estimate = log_determinant(A, 3, seeded(), preconditioner=P, spectrum_floor=1 - 1e-9)
    assert estimate.value == pytest.approx(truth(A), abs=1e-6)
    assert estimate.standard_error < 1e-6
    assert estimate.iterations <= 2


def test_preconditioner_reduces_variance_and_products():
    A = hard_system(150, 1e-3)
    plain = log_determinant(A, 8, seeded())
    better = log_determinant(A, 8, seeded(), preconditioner=nystrom(A, 80), spectrum_floor=1.0)
    assert better.standard_error < 0.1 * plain.standard_error
    assert better.products < plain.products


def test_interval_covers():
    A = hard_system(80, 1e-1, nu=0.5)
    exact, hits = truth(A), 0
    for seed in range(100):
        low, high = log_determinant(A, 6, seeded(seed)).interval(0.9)
        hits += low <= exact <= high
    assert 80 <= hits <= 99


def test_scaled_systems_too():
    scale = torch.linspace(0, 2, 60, dtype=torch.float64)
    A = hard_system(60, 1.0, scale=scale)
    estimate = log_determinant(A, 200, seeded())
    assert abs(estimate.value - truth(A)) < 4 * estimate.standard_error


def test_without_a_floor_there_is_no_bracket_but_an_estimate():
    A = hard_system(60, 0.1)
    estimate = log_determinant(A, 50, seeded(), preconditioner=nystrom(A, 5))
    assert estimate.lower == -np.inf
    assert estimate.upper == pytest.approx(estimate.value)
    assert abs(estimate.value - truth(A)) < 4 * estimate.standard_error + 0.5


def test_a_floor_that_is_none_is_found_out():
    A = hard_system(100, 1e-3)
    estimate = log_determinant(A, 20, seeded(), spectrum_floor=1.0)
    assert estimate.lower == -np.inf
    assert "dropped" in estimate.tried[0]
    assert abs(estimate.value - truth(A)) < 4 * estimate.standard_error + 2


def test_float32_products_do_not_move_the_bracket():
    A = hard_system(200, 1e-3)
    exact, single = (log_determinant(B, 3, seeded()) for B in (A, A.with_precision(torch.float32)))
    assert (single.lower, single.upper) == (exact.lower, exact.upper)


def test_indefinite_preconditioner():
    P = Exact(torch.eye(30, dtype=torch.float64))
    P.solve = lambda R: -R
    estimate = log_determinant(hard_system(30, 0.1), 3, seeded(), preconditioner=P)
    assert estimate.status is Status.INDEFINITE_PRECONDITIONER


def test_one_probe_has_an_infinite_standard_error():
    estimate = log_determinant(hard_system(30, 0.1), 1, seeded())
    assert estimate.standard_error == np.inf
    assert estimate.interval() == (-np.inf, np.inf)


def test_multiple_of_the_identity_and_one_row_are_exact():
    assert log_determinant(3 * np.eye(20), 2, seeded()).value == pytest.approx(20 * np.log(3))
    assert log_determinant(np.array([[5.0]]), 1, seeded()).value == pytest.approx(np.log(5))


def test_same_seed_same_number_and_products_are_counted():
    A = Counting(hard_system(60, 0.1))
    first, second = (log_determinant(A, 5, seeded(3)) for _ in range(2))
    assert first.value == second.value
    assert first.products + second.products == A.tally.products


def test_failures_have_names():
    assert log_determinant(with_eigenvalues([-1.0, 1.0, 3.0]), 3, seeded()).status is Status.INDEFINITE_OPERATOR
    assert log_determinant(np.full((3, 3), np.nan), 3, seeded()).status is Status.NOT_FINITE
    A = hard_system(200, 1e-6)
    assert log_determinant(A, 2, seeded(), tolerance=1e-12, max_iterations=3).status is Status.MAX_ITERATIONS
    with pytest.raises(ValueError, match="probes"):
        log_determinant(A, 0, seeded())
    with pytest.raises(ValueError, match="spectrum_floor"):
        log_determinant(A, 2, seeded(), spectrum_floor=-1.0)
