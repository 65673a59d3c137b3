"""log(A)v, A^½v, A^-½v and draws from N(0, A) against the dense eigendecomposition."""

import numpy as np
import pytest
import torch
from reference import system_matrix
from scipy.stats import chi2
from solvers.systems import Exact, hard_system, normal, nystrom, seeded, with_eigenvalues

from kernelcg.backends import Tiles
from kernelcg.errors import MemoryBudgetExceeded
from kernelcg.operators import Counting, as_operator
from kernelcg.solvers import (
    Status,
    Stopping,
    apply_function,
    apply_function_rational,
    sample,
    spectral_interval,
)
from kernelcg.solvers.rational import partial_fractions

FORMULAS = {"sqrt": np.sqrt, "inverse_sqrt": lambda x: 1 / np.sqrt(x), "log": np.log}


def truth(A, V, function):
    values, vectors = np.linalg.eigh(system_matrix(A.kernel, A.X, A.diagonal, A.scale))
    return vectors @ (FORMULAS[function](values)[:, None] * (vectors.T @ V.numpy()))


def relative_error(report, exact):
    return np.linalg.norm(report.value.numpy() - exact, axis=0) / np.linalg.norm(exact, axis=0)


@pytest.mark.parametrize("function", FORMULAS)
@pytest.mark.parametrize("noise", [1.0, 1e-2, 1e-4])
@pytest.mark.parametrize("columns", [1, 4])
def test_lanczos_is_as_good_as_it_says(function, noise, columns):
    A, V = hard_system(150, noise, nu=1.5), normal(150, columns)
    report = apply_function(A, V, function, rtol=1e-7)
    exact = truth(A, V, function)
    assert report.status is Status.CONVERGED
    assert np.all(relative_error(report, exact) <= 1e-7)
    assert np.all(np.linalg.norm(report.value.numpy() - exact, axis=0) <= 3 * report.error_estimates.numpy())
    assert report.products == report.iterations


@pytest.mark.parametrize("function", FORMULAS)
@pytest.mark.parametrize("preconditioned", [False, True])
def test_rational_quadrature_is_as_good_as_it_says(function, preconditioned):
    A, V = hard_system(120, 1e-2, nu=1.5), normal(120, 2)
    build = (lambda shift: nystrom(A, 40, shift)) if preconditioned else None
    report = apply_function_rational(A, V, function, preconditioner=build, rtol=1e-6)
    exact = truth(A, V, function)
    assert report.status is Status.CONVERGED
    assert np.all(relative_error(report, exact) <= 1e-6)
    assert np.all(np.linalg.norm(report.value.numpy() - exact, axis=0) <= report.error_estimates.numpy())


def test_preconditioning_the_shifted_solves_pays():
    A, V = hard_system(200, 1e-4), normal(200, 1)
    stopping = Stopping(max_iterations=5000)
    plain = apply_function_rational(A, V, "sqrt", rtol=1e-4, stopping=stopping)
    better = apply_function_rational(
        A, V, "sqrt", rtol=1e-4, stopping=stopping, preconditioner=lambda shift: nystrom(A, 80, shift)
    )
    assert better.status is plain.status is Status.CONVERGED
    assert better.products < 0.5 * plain.products


def test_rational_quadrature_admits_unconverged_solves():
    A, V = hard_system(150, 1e-4), normal(150, 1)
    report = apply_function_rational(A, V, "inverse_sqrt", stopping=Stopping(max_iterations=5))
    assert report.status is Status.MAX_ITERATIONS
    exact = truth(A, V, "inverse_sqrt")
    assert np.all(np.linalg.norm(report.value.numpy() - exact, axis=0) <= report.error_estimates.numpy())


@pytest.mark.parametrize("function", FORMULAS)
@pytest.mark.parametrize("condition", [1.0, 1e3, 1e8])
def test_partial_fractions_keep_their_error_between_the_grid_points_too(function, condition):
    low, high = 0.3, 0.3 * condition
    fractions = partial_fractions(function, low, high, 1e-8)
    x = np.geomspace(low, high, 7919)
    exact = FORMULAS[function](x)
    scale = np.abs(exact).max() if function == "log" else np.abs(exact)
    assert np.all(np.abs(fractions(x) - exact) <= 1.1e-8 * scale)
    assert np.all(fractions.shifts > 0)
    assert len(fractions.shifts) <= 60


def test_square_root_twice_is_the_matrix():
    A, V = hard_system(80, 1e-2), normal(80, 2)
    once = apply_function(A, V, "sqrt", rtol=1e-10).value
    twice = apply_function(A, once, "sqrt", rtol=1e-10).value
    torch.testing.assert_close(twice, A @ V, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("function", FORMULAS)
def test_exhausted_krylov_space_is_exact(function):
    """Four distinct eigenvalues end the process after four steps; so do more columns than rows."""
    A = with_eigenvalues(np.repeat([0.5, 1.0, 3.0, 7.0], 5))
    values, vectors = torch.linalg.eigh(A)
    for V in (normal(20, 2), normal(20, 30), torch.ones(20, 3, dtype=torch.float64), vectors[:, :1]):
        report = apply_function(A, V, function)
        exact = vectors @ (torch.from_numpy(FORMULAS[function](values.numpy()))[:, None] * (vectors.T @ V))
        assert report.status is Status.CONVERGED
        assert report.iterations <= 5
        torch.testing.assert_close(report.value, exact, rtol=1e-9, atol=1e-9)


def test_zero_vectors_give_zero():
    report = apply_function(hard_system(20, 0.1), torch.zeros(20, 2), "log")
    assert report.status is Status.CONVERGED
    assert torch.count_nonzero(report.value) == 0
    assert torch.count_nonzero(report.error_estimates) == 0


@pytest.mark.parametrize("function", FORMULAS)
def test_indefinite_matrices_are_refused(function):
    report = apply_function(with_eigenvalues([-1.0, 1.0, 2.0]), normal(3, 1), function)
    assert report.status is Status.INDEFINITE_OPERATOR
    assert not report.value.isfinite().any()


def test_too_few_steps_are_admitted():
    report = apply_function(hard_system(200, 1e-6), normal(200, 1), "inverse_sqrt", max_iterations=5)
    assert report.status is Status.MAX_ITERATIONS


def test_bad_arguments():
    A = hard_system(10, 0.1)
    with pytest.raises(ValueError, match="function must be one of"):
        apply_function(A, normal(10, 1), "sin")
    with pytest.raises(ValueError, match="function must be one of"):
        apply_function_rational(A, normal(10, 1), "sin")
    with pytest.raises(ValueError, match="interval"):
        apply_function_rational(A, normal(10, 1), "log", interval=(-1.0, 2.0))
    with pytest.raises(ValueError, match="V has 9 rows"):
        apply_function(A, normal(9, 1), "log")
    assert apply_function(A, torch.full((10, 1), torch.nan), "log").status is Status.NOT_FINITE


def test_krylov_basis_keeps_to_the_budget():
    A = hard_system(2000, 1e-6, backend=Tiles(memory=3 * 10**6))
    with pytest.raises(MemoryBudgetExceeded, match="Krylov basis"):
        apply_function(A, normal(2000, 8), "inverse_sqrt", rtol=1e-12)


def test_spectral_interval_encloses_the_spectrum():
    A = hard_system(150, 1e-2)
    values = np.linalg.eigvalsh(system_matrix(A.kernel, A.X, A.diagonal))
    low, high = spectral_interval(Counting(A))
    assert low <= values[0] * (1 + 1e-9)
    assert values[-1] <= high <= 1.2 * values[-1]
    with pytest.raises(ValueError, match="interval"):
        spectral_interval(as_operator(A.dense()))


@pytest.mark.parametrize("function", FORMULAS)
def test_float32_products_do_not_lower_the_accuracy(function):
    A, V = hard_system(150, 1e-4), normal(150, 1)
    exact = truth(A, V, function)
    for report in (
        apply_function(A.with_precision(torch.float32), V, function, rtol=1e-8),
        apply_function_rational(
            A.with_precision(torch.float32), V, function, rtol=1e-8, preconditioner=lambda t: nystrom(A, 80, t)
        ),
    ):
        assert report.status is Status.CONVERGED
        assert relative_error(report, exact) <= 1e-8


def test_wrong_preconditioner_or_matrix_gives_no_draws():
    P = Exact(torch.eye(30, dtype=torch.float64))
    P.solve = lambda R: -R
    report = sample(hard_system(30, 0.1), 2, seeded(), preconditioner=P)
    assert report.status is Status.INDEFINITE_PRECONDITIONER
    assert not report.value.isfinite().any()
    assert apply_function(np.full((3, 3), np.nan), normal(3, 1), "log").status is Status.NOT_FINITE


@pytest.mark.parametrize("rank", [0, 15])
def test_draws_have_the_right_covariance(rank):
    """Whitened by the exact factor, the sum of squares is χ²; each coordinate's mean is 0."""
    A, count = hard_system(60, 1e-2, nu=0.5), 400
    P = nystrom(A, rank) if rank else None
    draws = [sample(A, 8, seeded(seed), preconditioner=P, rtol=1e-8) for seed in range(count // 8)]
    assert all(report.status is Status.CONVERGED for report in draws)
    L = np.linalg.cholesky(system_matrix(A.kernel, A.X, A.diagonal))
    Z = np.linalg.solve(L, torch.cat([report.value for report in draws], 1).numpy())
    total = np.sum(Z**2)
    assert chi2.ppf(1e-4, Z.size) < total < chi2.ppf(1 - 1e-4, Z.size)
    covariance = Z @ Z.T / count - np.eye(60)
    assert np.abs(covariance).max() < 5.5 * np.sqrt(2 / count)
    assert np.abs(Z.mean(1)).max() < 4.5 / np.sqrt(count)


def test_a_good_preconditioner_shortens_sampling():
    A = hard_system(200, 1e-4)
    plain = sample(A, 2, seeded())
    better = sample(A, 2, seeded(), preconditioner=nystrom(A, 100))
    assert better.status is Status.CONVERGED
    assert better.iterations < 0.5 * plain.iterations
