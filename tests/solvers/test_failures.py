"""Every way a solve can end badly has its own name, and nothing unconverged is passed off as an answer."""

import time

import numpy as np
import pytest
import torch
from bound import bound_system
from solvers.systems import Fixed, hard_system, normal, with_eigenvalues

from kernelcg.backends import Tiles
from kernelcg.errors import MemoryBudgetExceeded, SolveFailed
from kernelcg.kernels import RBF
from kernelcg.operators import DenseMatrix
from kernelcg.solvers import METHODS, Status, Stopping, solve

ITERATIVE = [name for name in METHODS if name != "direct"]
PRECONDITIONED = ["pcg", "block_pcg", "flexible_pcg"]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("values", [[-1.0, 2.0, 3.0, 4.0], [-5.0, -2.0, -1.0, -0.5]])
def test_indefinite_operator(method, values):
    report = solve(with_eigenvalues(values), normal(4, 1), method=method)
    assert report.status is Status.INDEFINITE_OPERATOR
    assert not report.converged.any()


@pytest.mark.parametrize("method", METHODS)
def test_singular_operator_without_a_solution(method):
    report = solve(torch.diag(torch.tensor([1.0, 2.0, 0.0], dtype=torch.float64)), torch.ones(3, 1), method=method)
    assert report.status in (Status.INDEFINITE_OPERATOR, Status.PRECISION_EXHAUSTED, Status.STAGNATED)
    assert not report.converged.any()


@pytest.mark.parametrize("method", METHODS)
def test_not_a_number_in_one_column_spoils_only_that_column(method):
    B = normal(40, 3)
    B[7, 1] = torch.nan
    report = solve(hard_system(40, 0.1), B, method=method)
    assert report.status is Status.NOT_FINITE
    assert report.converged.tolist() == [True, False, True]
    assert report.solution.isfinite().all()


@pytest.mark.parametrize("method", METHODS)
def test_infinite_right_hand_side(method):
    report = solve(hard_system(10, 0.1), torch.full((10, 1), torch.inf), method=method)
    assert report.status is Status.NOT_FINITE


@pytest.mark.parametrize("method", ITERATIVE)
def test_matrix_that_is_not_finite(method):
    M = torch.eye(5, dtype=torch.float64)
    M[2, 2] = torch.nan
    assert solve(DenseMatrix(M), torch.ones(5, 2), method=method).status is Status.NOT_FINITE


@pytest.mark.parametrize("method", PRECONDITIONED)
def test_indefinite_preconditioner(method):
    P = Fixed(-torch.eye(30, dtype=torch.float64))
    report = solve(hard_system(30, 0.1), normal(30, 2), method=method, preconditioner=P)
    assert report.status is Status.INDEFINITE_PRECONDITIONER


@pytest.mark.parametrize("method", PRECONDITIONED)
def test_preconditioner_that_returns_nan(method):
    P = Fixed(torch.full((30, 30), torch.nan, dtype=torch.float64))
    assert solve(hard_system(30, 0.1), normal(30, 2), method=method, preconditioner=P).status is Status.NOT_FINITE


@pytest.mark.parametrize("method", ["pcg", "block_pcg"])
def test_unsymmetric_preconditioner(method):
    """Erratum 16 and 19: an unsymmetric P must not hide behind slow convergence."""
    P = Fixed(torch.eye(30, dtype=torch.float64) + 0.3 * torch.triu(normal(30, 30), 1))
    report = solve(hard_system(30, 1e-3), normal(30, 2), method=method, preconditioner=P)
    assert report.status is Status.UNSYMMETRIC_PRECONDITIONER


@pytest.mark.parametrize("method", ITERATIVE)
def test_iteration_limit_stops_after_exactly_that_many_steps(method):
    report = solve(hard_system(), normal(200, 2), method=method, stopping=Stopping(max_iterations=3))
    assert report.status is Status.MAX_ITERATIONS
    assert report.iterations.tolist() == [3, 3]
    assert len(report.residual_norms) == 4


@pytest.mark.parametrize("method", ITERATIVE)
def test_no_iterations_allowed(method):
    report = solve(hard_system(20, 0.1), normal(20, 1), method=method, stopping=Stopping(max_iterations=0))
    assert report.status is Status.MAX_ITERATIONS
    assert torch.count_nonzero(report.solution) == 0
    assert float(report.relative_residuals[0]) == pytest.approx(1.0), "the zero vector never passes for a solution"


def test_time_limit():
    class Slow(DenseMatrix):
        def __matmul__(self, V):
            time.sleep(0.02)
            return super().__matmul__(V)

    report = solve(Slow(with_eigenvalues(np.geomspace(1e-6, 1, 50))), normal(50, 1), stopping=Stopping(max_seconds=0.1))
    assert report.status is Status.TIME_LIMIT
    assert 0 < int(report.iterations[0]) < 50


def test_stagnation_is_noticed():
    class Noisy(DenseMatrix):
        """Products with an error far above the tolerance: the residual cannot fall below it."""

        def __matmul__(self, V):
            return super().__matmul__(V) + 0.3 * normal(*V.shape, seed=int(V[0, 0] * 1e9) % 1000)

    A = Noisy(with_eigenvalues(np.geomspace(0.01, 1, 30)))
    report = solve(A, normal(30, 1), method="flexible_pcg", stopping=Stopping(max_iterations=5000, patience=50))
    assert report.status in (Status.STAGNATED, Status.INDEFINITE_OPERATOR)
    assert int(report.iterations[0]) < 5000


@pytest.mark.parametrize("method", METHODS)
def test_precision_is_exhausted_rather_than_the_promise_broken(method):
    """At condition 1e14 a residual of 1e-15 cannot be had: say so, do not claim it."""
    A = with_eigenvalues(np.geomspace(1e-14, 1, 30))
    report = solve(A, normal(30, 1), method=method, stopping=Stopping(rtol=1e-15, max_iterations=5000))
    assert report.status is not Status.CONVERGED
    assert float(report.relative_residuals[0]) > 1e-15


def test_failure_can_be_an_exception_with_the_whole_story():
    report = solve(hard_system(), normal(200, 2), stopping=Stopping(max_iterations=3))
    with pytest.raises(SolveFailed, match=r"iteration limit came first.*\n.*0 of 2 columns"):
        report.raise_if_failed()
    good = solve(hard_system(50, 1.0), normal(50, 1))
    assert good.raise_if_failed() is good
    assert "1 of 1 columns converged" in str(good)


@pytest.mark.parametrize("method", ITERATIVE)
def test_an_impossible_tolerance_ends_at_rounding(method):
    report = solve(hard_system(80, 0.1), normal(80, 2), method=method, stopping=Stopping(rtol=0.0))
    assert report.status is Status.PRECISION_EXHAUSTED
    assert float(report.relative_residuals.max()) < 1e-12
    assert int(report.iterations.max()) < 300


def test_parameters_that_require_gradients_are_welcome():
    noise = torch.tensor(0.1, dtype=torch.float64, requires_grad=True)
    A = bound_system(RBF(1.0), normal(30, 2), noise)
    for method in METHODS:
        assert solve(A, normal(30, 1), method=method).status is Status.CONVERGED


def test_direct_refuses_what_does_not_fit():
    with pytest.raises(MemoryBudgetExceeded, match="1000 x 1000"):
        solve(hard_system(1000, backend=Tiles(memory=10**6)), normal(1000, 1), method="direct")


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"B": torch.ones(5)}, ValueError, r"B\[:, None\]"),
        ({"B": torch.ones(4, 1)}, ValueError, "B has shape"),
        ({"B": torch.ones(5, 0)}, ValueError, "empty"),
        ({"B": np.array([["a"]] * 5)}, TypeError, "B must hold real numbers"),
        ({"B": torch.ones(5, 1, dtype=torch.complex64)}, TypeError, "real"),
        ({"start": torch.ones(5, 2)}, ValueError, "start has shape"),
        ({"method": "newton"}, ValueError, "method must be one of"),
        ({"method": "cg", "preconditioner": Fixed(torch.eye(5))}, ValueError, "takes no preconditioner"),
        ({"A": torch.ones(5, 4)}, ValueError, "square"),
        ({"preconditioner": torch.eye(5)}, TypeError, "preconditioner must have solve"),
        ({"preconditioner": Fixed(torch.ones(4, 5, dtype=torch.float64))}, ValueError, "preconditioner.solve gave"),
        ({"stopping": 1e-6}, TypeError, "stopping must be a Stopping"),
    ],
)
def test_misuse_raises_at_once(arguments, error, words):
    with pytest.raises(error, match=words):
        solve(**{"A": torch.eye(5), "B": torch.ones(5, 1), **arguments})


def test_changing_preconditioner_needs_flexible_pcg():
    P = Fixed(torch.eye(5))
    P.is_constant = False
    with pytest.raises(ValueError, match="flexible_pcg"):
        solve(torch.eye(5), torch.ones(5, 1), method="pcg", preconditioner=P)


@pytest.mark.parametrize(
    "options",
    [
        {"rtol": 1.0},
        {"rtol": -1e-3},
        {"rtol": float("nan")},
        {"atol": -1.0},
        {"max_iterations": -1},
        {"max_seconds": 0},
    ],
)
def test_stopping_rules_are_checked(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        Stopping(**options)
