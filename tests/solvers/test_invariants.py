"""What every solver must satisfy, whatever its algorithm."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import system_matrix
from solvers.systems import Exact, Fixed, hard_system, normal, systems, with_eigenvalues

from kernelcg.operators import Counting, to_scipy
from kernelcg.solvers import METHODS, Status, Stopping, solve

ITERATIVE = [name for name in METHODS if name != "direct"]
TIGHT = Stopping(rtol=1e-10)


def truth(A, B):
    return np.linalg.solve(system_matrix(A.kernel, A.X, A.diagonal, A.scale), B.numpy())


@pytest.mark.parametrize("method", METHODS)
@given(A=systems(), columns=st.integers(1, 4), seed=st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_solution_equals_the_dense_one(method, A, columns, seed):
    B = normal(len(A), columns, seed)
    report = solve(A, B, method=method, stopping=TIGHT)
    assert report.status is Status.CONVERGED
    X = truth(A, B)
    assert np.linalg.norm(report.solution.numpy() - X) <= 1e-7 * np.linalg.norm(X)


@pytest.mark.parametrize("method", METHODS)
@given(A=systems(), seed=st.integers(0, 1000))
@settings(max_examples=15, deadline=None)
def test_residual_is_the_recomputed_one_and_keeps_the_promise(method, A, seed):
    B = normal(len(A), 2, seed)
    report = solve(A, B, method=method, stopping=Stopping(rtol=1e-6))
    M = system_matrix(A.kernel, A.X, A.diagonal, A.scale)
    residual = np.linalg.norm(B.numpy() - M @ report.solution.numpy(), axis=0)
    assert np.all(residual <= 1.000001e-6 * np.linalg.norm(B.numpy(), axis=0))
    assert report.true_residual_norms.numpy() == pytest.approx(residual, rel=1e-3, abs=1e-12)


@pytest.mark.parametrize("method", METHODS)
def test_exact_start_takes_no_iteration(method):
    A, B = hard_system(60, 0.1), normal(60, 3)
    start = torch.from_numpy(truth(A, B))
    report = solve(A, B, method=method, start=start, stopping=Stopping(rtol=1e-8))
    assert report.status is Status.CONVERGED
    assert report.iterations.tolist() == [0, 0, 0]
    assert torch.equal(report.solution, start)


@pytest.mark.parametrize("method", METHODS)
def test_zero_column_gives_zero_without_an_iteration(method):
    B = normal(50, 3)
    B[:, 1] = 0
    report = solve(hard_system(50, 0.1), B, method=method)
    assert report.status is Status.CONVERGED
    assert report.iterations[1] == 0
    assert torch.count_nonzero(report.solution[:, 1]) == 0
    assert report.relative_residuals[1] == 0


@pytest.mark.parametrize("method", ["pcg", "block_pcg", "flexible_pcg"])
def test_exact_preconditioner_takes_at_most_two_iterations(method):
    A = hard_system(80, 1e-3)
    P = Exact(torch.from_numpy(system_matrix(A.kernel, A.X, A.diagonal)))
    report = solve(A, normal(80, 3), method=method, preconditioner=P, stopping=Stopping(rtol=1e-8))
    assert report.status is Status.CONVERGED
    assert int(report.iterations.max()) <= 2
    assert report.condition_preconditioned < 1.01 or method == "flexible_pcg"


@pytest.mark.parametrize("method", ITERATIVE)
def test_convergence_on_the_last_allowed_iteration_counts(method):
    A, B = with_eigenvalues(np.arange(1.0, 7.0)), normal(6, 1)
    needed = int(solve(A, B, method=method, stopping=TIGHT).iterations.max())
    report = solve(A, B, method=method, stopping=Stopping(rtol=1e-10, max_iterations=needed))
    assert report.status is Status.CONVERGED
    short = solve(A, B, method=method, stopping=Stopping(rtol=1e-10, max_iterations=needed - 1))
    assert short.status is Status.MAX_ITERATIONS
    assert not short.converged.any()


@pytest.mark.parametrize("method", ITERATIVE)
def test_distinct_eigenvalues_bound_the_iterations(method):
    """CG ends after as many steps as A has distinct eigenvalues (erratum 1)."""
    A = with_eigenvalues(np.repeat([1.0, 2.0, 5.0, 11.0], 10))
    report = solve(A, normal(40, 1), method=method, stopping=Stopping(rtol=1e-9))
    assert int(report.iterations.max()) <= 4


@pytest.mark.parametrize("method", METHODS)
def test_scaling_and_permuting(method):
    A, B = with_eigenvalues(np.linspace(1, 50, 30)), normal(30, 2)
    X = solve(A, B, method=method, stopping=TIGHT).solution
    for factor in (1e-200, 1e200, -3.0):
        scaled = solve(A, factor * B, method=method, stopping=TIGHT)
        assert scaled.status is Status.CONVERGED
        torch.testing.assert_close(scaled.solution / factor, X, rtol=1e-7, atol=1e-9)
    order = torch.randperm(30, generator=torch.Generator().manual_seed(1))
    permuted = solve(A[order][:, order], B[order], method=method, stopping=TIGHT).solution
    torch.testing.assert_close(permuted, X[order], rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("method", ["cg", "pcg", "flexible_pcg", "direct"])
def test_columns_do_not_disturb_each_other(method):
    A, B = hard_system(60, 1e-2), normal(60, 3)
    together = solve(A, B, method=method, stopping=TIGHT).solution
    alone = torch.cat([solve(A, b[:, None], method=method, stopping=TIGHT).solution for b in B.T], 1)
    torch.testing.assert_close(together, alone, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("method", ITERATIVE)
def test_reported_products_are_those_that_were_made(method):
    A = Counting(hard_system(60, 1e-2))
    report = solve(A, normal(60, 2), method=method)
    assert report.products == A.tally.products
    assert report.columns == A.tally.columns
    assert report.products >= int(report.iterations.max()) + 1, "the last check costs a product too"


@pytest.mark.parametrize("method", ["cg", "block_pcg"])
def test_error_in_the_energy_norm_falls_at_every_step(method):
    A = with_eigenvalues(np.geomspace(1e-3, 1, 40))
    B = normal(40, 1)
    X = torch.linalg.solve(A, B)
    errors = []
    for steps in range(12):
        x = solve(A, B, method=method, stopping=Stopping(rtol=1e-12, max_iterations=steps)).solution
        errors.append(float((X - x).T @ A @ (X - x)))
    assert all(later < earlier for earlier, later in itertools.pairwise(errors))


def test_history_holds_true_residuals():
    A, B = hard_system(80, 1e-2), normal(80, 1)
    full = solve(A, B, method="cg")
    M = torch.from_numpy(system_matrix(A.kernel, A.X, A.diagonal))
    for steps in (1, 5, 10):
        x = solve(A, B, method="cg", stopping=Stopping(max_iterations=steps)).solution
        assert float(full.residual_norms[steps]) == pytest.approx(float((B - M @ x).norm()), rel=1e-8)


@pytest.mark.parametrize(("method", "P"), [("cg", False), ("block_pcg", False), ("pcg", True), ("block_pcg", True)])
def test_condition_numbers_come_close_from_below(method, P):
    A = with_eigenvalues(np.geomspace(1e-3, 1, 60))
    weights = torch.linspace(0.5, 2, 60, dtype=torch.float64)
    preconditioner = Fixed(weights.diag()) if P else None
    report = solve(A, normal(60, 2), method=method, preconditioner=preconditioner, stopping=Stopping(rtol=1e-12))
    root = weights.sqrt().diag()
    exact = np.linalg.cond((root @ A @ root).numpy()) if P else 1e3
    assert 0.9 * exact <= report.condition_preconditioned <= 1.005 * exact, "from below up to rounding"
    assert 1 < report.condition_operator <= 1.005e3


def test_callback_sees_every_iteration():
    seen = []
    report = solve(hard_system(60, 0.1), normal(60, 2), callback=lambda event: seen.append(event.payload))
    assert [progress.iteration for progress in seen] == list(range(len(report.residual_norms)))
    assert float(seen[0].relative_residuals.max()) == pytest.approx(1.0)
    assert float(seen[-1].relative_residuals.max()) <= 1e-6


def test_inputs_are_left_alone():
    A, B, start = with_eigenvalues(np.linspace(1, 9, 20)), normal(20, 2), normal(20, 2, 1)
    copies = [A.clone(), B.clone(), start.clone()]
    for method in METHODS:
        solve(A, B, method=method, start=start)
    for value, copy in zip((A, B, start), copies, strict=True):
        assert torch.equal(value, copy)


def test_scipy_operators_and_arrays_are_welcome():
    A, B = hard_system(40, 0.1), normal(40, 2)
    X = truth(A, B)
    for form in (A, to_scipy(A), A.dense(), A.dense().numpy()):
        assert solve(form, B.numpy(), stopping=TIGHT).solution.numpy() == pytest.approx(X, rel=1e-6, abs=1e-8)


def test_method_is_chosen_by_columns_and_preconditioner():
    A = hard_system(30, 0.1)
    changing = Fixed(torch.eye(30, dtype=torch.float64))
    changing.is_constant = False
    assert solve(A, normal(30, 1)).method == "pcg"
    assert solve(A, normal(30, 2)).method == "block_pcg"
    assert solve(A, normal(30, 2), preconditioner=changing).method == "flexible_pcg"
