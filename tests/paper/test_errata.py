"""Printed formulas of "Preconditioning Kernel Matrices" (ICML 2016) that are wrong, beside the right ones.

The items are numbered as the project counts them. Each printed form must fail the test that the right one passes.
Algorithm 1 is items 1 to 5; items on preconditioners and on the Laplace approximation join with them.
"""

import itertools
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from kernelcg.kernels import RBF
from kernelcg.operators import Counting, KernelPlusDiagonal
from kernelcg.solvers import Status, Stopping, solve


@dataclass
class Steps:
    """The iterates of a hand-written PCG: what each formula of Algorithm 1 leads to."""

    x: list
    r: list
    p: list


def right_alpha(r, z, p, A):
    return (r @ z) / (p @ A @ p)


def right_residual(r, alpha, A, p):
    return r - alpha * A @ p


def right_beta(r, z, r_old, z_old):
    return (r @ z) / (r_old @ z_old)


def right_direction(z, beta, p):
    return z + beta * p


def algorithm_1(A, P, v, steps, alpha=right_alpha, residual=right_residual, beta=right_beta, direction=right_direction):
    """Run Algorithm 1 with each formula as given."""
    x, r = np.zeros_like(v), v.copy()
    z = np.linalg.solve(P, r)
    p = z.copy()
    done = Steps([x], [r], [p])
    with np.errstate(all="ignore"):
        for _ in range(steps):
            a = alpha(r, z, p, A)
            x, r_old, z_old = x + a * p, r, z
            r = residual(r, a, A, p)
            z = np.linalg.solve(P, r)
            p = direction(z, beta(r, z, r_old, z_old), p)
            done.x.append(x)
            done.r.append(r)
            done.p.append(p)
    return done


@pytest.fixture(scope="module")
def system():
    """A kernel system, a preconditioner that is neither exact nor useless, and a right-hand side."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30, 2))
    K = np.exp(-0.5 * ((X[:, None] - X) ** 2).sum(-1))
    A = K + 0.1 * np.eye(30)
    F = K[:, :8] @ np.linalg.inv(np.linalg.cholesky(K[:8, :8] + 1e-10 * np.eye(8))).T
    return A, F @ F.T + 0.1 * np.eye(30), rng.normal(size=30)


def energy_error(A, v, x):
    error = np.linalg.solve(A, v) - x
    return error @ A @ error


def worst_conjugacy(A, p):
    """Return the largest |pᵢᵀApⱼ| / (‖pᵢ‖_A ‖pⱼ‖_A) over the first directions."""
    P = np.array(p[:6])
    gram = P @ A @ P.T
    size = np.sqrt(np.diag(gram))
    return np.max(np.abs(gram / np.outer(size, size) - np.eye(len(P))))


def test_1_step_length_searches_along_the_direction(system):
    A, P, v = system

    def printed(r, z, p, A):
        return (r @ z) / (r @ A @ z)

    def falls(alpha):
        errors = [energy_error(A, v, x) for x in algorithm_1(A, P, v, 4, alpha=alpha).x]
        return all(later < earlier for earlier, later in itertools.pairwise(errors))

    assert falls(right_alpha)
    assert not falls(printed)


def test_2_residual_falls_with_the_product(system):
    A, P, v = system

    def printed(r, alpha, A, p):
        return r + alpha * A @ p

    def drift(residual):
        run = algorithm_1(A, P, v, 5, residual=residual)
        return max(np.linalg.norm(r - (v - A @ x)) for r, x in zip(run.r, run.x, strict=True)) / np.linalg.norm(v)

    assert drift(right_residual) < 1e-12
    assert drift(printed) > 0.1


def test_3_beta_uses_the_preconditioned_inner_product(system):
    A, P, v = system

    def printed(r, z, r_old, z_old):
        return (r @ r) / (r_old @ r_old)

    assert worst_conjugacy(A, algorithm_1(A, P, v, 6).p) < 1e-8
    assert worst_conjugacy(A, algorithm_1(A, P, v, 6, beta=printed).p) > 1e-3


def test_4_direction_starts_from_the_preconditioned_residual(system):
    A, P, v = system

    def printed(z, beta, p):
        return p + beta * p

    def relative_residual(direction):
        x = algorithm_1(A, P, v, 30, direction=direction).x[-1]
        return np.linalg.norm(v - A @ x) / np.linalg.norm(v)

    assert relative_residual(right_direction) < 1e-8
    assert not relative_residual(printed) < 0.1


def test_1_to_4_our_solver_takes_the_right_steps(system):
    A, P, v = system
    exact = algorithm_1(A, P, v, 6)

    class Preconditioner:
        is_constant = True

        def solve(self, R):
            return torch.from_numpy(np.linalg.solve(P, R.numpy()))

    for steps in range(7):
        report = solve(
            A, v[:, None], method="pcg", preconditioner=Preconditioner(), stopping=Stopping(1e-14, max_iterations=steps)
        )
        assert report.solution[:, 0].numpy() == pytest.approx(exact.x[steps], rel=1e-8, abs=1e-10)


def test_5_loop_makes_exactly_t_steps_tests_first_and_returns_at_the_cap(system):
    A, _, v = system
    counted = Counting(KernelPlusDiagonal(RBF(1.0), np.zeros((1, 1)), 1.0))
    exact_start = solve(counted, torch.ones(1, 1), start=torch.full((1, 1), 0.5))
    assert exact_start.iterations.tolist() == [0]
    assert exact_start.solution.isfinite().all()
    assert torch.count_nonzero(solve(A, 0 * v[:, None]).solution) == 0
    capped = solve(A, v[:, None], method="cg", stopping=Stopping(rtol=1e-12, max_iterations=4))
    assert capped.status is Status.MAX_ITERATIONS
    assert capped.iterations.tolist() == [4]
    assert capped.products == 4 + 1, "four steps and the check of the result"
    assert torch.count_nonzero(capped.solution) > 0


def test_18_stopping_bounds_the_residual_not_the_error(system):
    """The paper reads ‖r‖² < n·1e-10 as an error of 1e-5 in each entry; the error may be larger by 1/λ_min."""
    values = np.geomspace(1e-8, 1, 30)
    Q, _ = np.linalg.qr(np.random.default_rng(1).normal(size=(30, 30)))
    A = Q @ np.diag(values) @ Q.T
    x = Q[:, 0]  # the eigenvector of the smallest eigenvalue
    b = (A + A.T) @ x / 2
    assert np.linalg.norm(b) ** 2 < 30 * 1e-10, "the zero vector meets the printed rule …"
    report = solve((A + A.T) / 2, b[:, None], method="direct", stopping=Stopping(rtol=1e-6))
    assert np.linalg.norm(0 - x) > 0.9, "… although it is entirely wrong"
    assert torch.linalg.vector_norm(report.solution) > 0.9, "a relative tolerance does not take it"


@pytest.mark.parametrize("kind", ["indefinite", "unsymmetric"])
def test_16_and_19_preconditioner_must_be_symmetric_positive_definite(system, kind):
    A, P, v = system
    rng = np.random.default_rng(2)
    wrong = -np.linalg.inv(P) if kind == "indefinite" else np.linalg.inv(P) + np.triu(rng.normal(size=P.shape), 1)

    class Preconditioner:
        is_constant = True

        def solve(self, R):
            return torch.from_numpy(wrong @ R.numpy())

    report = solve(A, v[:, None], method="pcg", preconditioner=Preconditioner())
    expected = Status.INDEFINITE_PRECONDITIONER if kind == "indefinite" else Status.UNSYMMETRIC_PRECONDITIONER
    assert report.status is expected


def test_28_to_30_capped_runs_have_a_status_and_products_are_counted(system):
    """The authors' grids hold 10001 and 15001 for "did not converge", and steps − 1 for those that did."""
    A, _, v = system
    tally = Counting(KernelPlusDiagonal(RBF(0.5), np.random.default_rng(0).normal(size=(20, 2)), 0.1))
    report = solve(tally, v[:20, None], method="cg")
    assert report.status is Status.CONVERGED
    assert report.products == tally.tally.products == int(report.iterations[0]) + 1
    assert solve(A, v[:, None], method="cg", stopping=Stopping(max_iterations=2)).status is Status.MAX_ITERATIONS


def test_31_a_residual_that_stops_changing_is_not_convergence():
    """One flexible variant of the code stops on ‖r_k − r_{k−1}‖²; a plateau would pass for a solution."""
    n = 40
    chain = np.diag(np.full(n, 2.0)) + np.diag(np.full(n - 1, -1.0), 1) + np.diag(np.full(n - 1, -1.0), -1)
    b = np.zeros((n, 1))
    b[0] = 1  # CG moves one node a step; its residual hardly changes until the far end is reached
    report = solve(chain, b, method="flexible_pcg", stopping=Stopping(rtol=1e-8))
    changes = np.abs(np.diff(report.residual_norms[:, 0].numpy()))
    assert changes[:30].min() < 1e-2
    assert report.status is Status.CONVERGED
    assert int(report.iterations[0]) >= n - 1
    assert np.linalg.norm(b - chain @ report.solution.numpy()) <= 1e-8
