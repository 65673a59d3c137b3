"""An iteration copies numbers from the device to the host once, and what it finds out late does no harm."""

import numpy as np
import pytest
import torch
from reads import Reads
from solvers.systems import Fixed, hard_system, normal, nystrom, seeded, with_eigenvalues

from kernelcg.backends import Tiles
from kernelcg.operators import DenseMatrix, Identity
from kernelcg.preconditioners.shapes import BlockDiagonal, Diagonal, LowRankPlus, SparseInverse
from kernelcg.solvers import Status, Stopping, apply_function, log_determinant, sample, solve
from kernelcg.solvers.lanczos import BlockLanczos
from kernelcg.solvers.reading import read

N = 120
METHODS = ["pcg", "block_pcg", "flexible_pcg"]


def test_the_counter_counts():
    x = torch.tensor([1.0, -2.0])
    waiting = [
        lambda: float(x[0]),
        lambda: bool((x > 0).any()),
        lambda: x.tolist(),
        lambda: x.cpu(),
        lambda: x.numpy(),
        lambda: x[x > 0],
        lambda: (x > 0).nonzero(),
        lambda: torch.linalg.svd(x[:, None]),
        lambda: torch.linalg.solve(torch.eye(2), x),
        lambda: read(x, x.sum()),
    ]
    for wait in waiting:
        with Reads() as reads:
            wait()
        assert len(reads) == 1
    with Reads() as reads:
        torch.where(x > 0, x, 0.0)[torch.tensor([0])] * torch.linalg.qr(x[:, None]).R
    assert len(reads) == 0


def test_reading_keeps_shapes_and_values():
    i, x, flag = torch.tensor([3, 2**40]), normal(2, 3), torch.tensor(True)
    integers, numbers, truth = read(i, x, flag)
    assert integers.tolist() == [3, 2**40]
    assert np.array_equal(numbers, x.numpy())
    assert truth.shape == ()
    assert truth == 1


def rough():
    """A system on which no column converges within 20 iterations."""
    return DenseMatrix(with_eigenvalues(np.geomspace(1e-7, 1, N)))


def block_diagonal():
    return BlockDiagonal([(torch.arange(N).reshape(-1, 4), torch.eye(4, dtype=torch.float64).expand(N // 4, 4, 4))])


def sparse_inverse():
    columns = torch.stack([torch.arange(-1, N - 1), torch.arange(N)], 1)
    values = torch.tensor([[-0.1, 1.0]], dtype=torch.float64).repeat(N, 1)
    values[0, 0] = 0
    return SparseInverse(columns, values, torch.arange(N))


SHAPES = {
    "identity": lambda: Identity(N),
    "diagonal": lambda: Diagonal(torch.linspace(0.5, 2, N, dtype=torch.float64)),
    "block diagonal": block_diagonal,
    "sparse inverse": sparse_inverse,
    "low rank plus diagonal": lambda: LowRankPlus(Diagonal(torch.ones(N, dtype=torch.float64)), normal(N, 5, 3)),
    "low rank plus sparse inverse": lambda: LowRankPlus(sparse_inverse(), normal(N, 5, 3)),
}


def reads_of(iterations, method, A, B, P, callback=None):
    with Reads() as reads:
        report = solve(
            A,
            B,
            method=method,
            preconditioner=P,
            stopping=Stopping(rtol=1e-13, max_iterations=iterations),
            callback=callback,
        )
    assert report.status is Status.MAX_ITERATIONS
    assert int(report.iterations.max()) == iterations
    return len(reads)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("shape", SHAPES)
def test_an_iteration_reads_once(method, shape):
    A, B, P = rough(), normal(N, 3), SHAPES[shape]()
    assert reads_of(15, method, A, B, P) - reads_of(5, method, A, B, P) == 10


@pytest.mark.parametrize("method", METHODS)
def test_an_iteration_reads_once_with_columns_that_are_done_a_callback_and_kernel_products(method):
    A, B = hard_system(N, 1e-6, backend=Tiles()), normal(N, 4)
    B[:, 1] = 0
    B = torch.cat([B, B[:, :1] + B[:, 2:3]], 1)  # dependent
    seen = []
    few, many = (reads_of(k, method, A, B, None, seen.append) for k in (5, 15))
    assert many - few == 10
    assert all(type(event.payload.relative_residuals.sum().item()) is float for event in seen)


@pytest.mark.parametrize("preconditioned", [False, True])
def test_a_step_of_block_lanczos_reads_once(preconditioned):
    P = SHAPES["low rank plus diagonal"]() if preconditioned else Identity(N)
    krylov = BlockLanczos(DenseMatrix(with_eigenvalues(np.linspace(1, 2, N))), normal(N, 3), P)
    for _ in range(10):
        with Reads() as reads:
            krylov.step()
        assert len(reads) == 1


def test_functions_of_matrices_read_once_an_iteration():
    A = DenseMatrix(with_eigenvalues(np.linspace(1, 2, N)))
    counts = []
    for steps in (3, 8):
        with Reads() as reads:
            apply_function(A, normal(N, 2), "sqrt", rtol=1e-15, max_iterations=steps)
        counts.append(len(reads))
    assert counts[1] - counts[0] == 5


def test_log_determinant_reads_no_more_than_once_an_iteration():
    A, counts = rough(), []
    for steps in (5, 25):
        with Reads() as reads:
            log_determinant(A, 3, seeded(), tolerance=0.0, max_iterations=steps)
        counts.append(len(reads))
    assert 0 < counts[1] - counts[0] <= 20


def test_draws_are_right_where_directions_are_nearly_dependent():
    """The second pass of the orthogonalisation decides for itself there."""
    A = hard_system(60, 1e-3)
    report = sample(A, 3, seeded(), preconditioner=nystrom(A, 20), rtol=1e-8)
    assert report.status is Status.CONVERGED
    krylov = BlockLanczos(A, normal(60, 4), Identity(60))
    while not krylov.exhausted:
        krylov.step()
    torch.testing.assert_close(krylov.Q.T @ krylov.Q, torch.eye(60, dtype=torch.float64), rtol=0, atol=1e-10)


class FailsLater:
    """P = I, but from the fourth call on one column of P⁻¹R is spoilt."""

    is_constant = True

    def __init__(self, factor):
        self.factor, self.calls = factor, 0

    def solve(self, R):
        self.calls += 1
        Z = R.clone()
        if self.calls > 3 and Z.shape[1] == 3:
            Z[:, 1] *= self.factor
        return Z


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("factor", "status"), [(torch.nan, Status.NOT_FINITE), (-1.0, Status.INDEFINITE_PRECONDITIONER)]
)
def test_a_preconditioner_that_fails_on_one_column_spoils_no_other(method, factor, status):
    A, B = hard_system(60, 1e-2), normal(60, 3)
    report = solve(A, B, method=method, preconditioner=FailsLater(factor), stopping=Stopping(rtol=1e-8))
    assert report.column_status == (Status.CONVERGED, status, Status.CONVERGED)
    assert report.solution.isfinite().all()
    exact = torch.linalg.solve(A.dense(), B)
    for j in (0, 2):
        assert float((report.solution - exact)[:, j].norm() / exact[:, j].norm()) <= 1e-5


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("steps", [0, 1])
def test_a_wrong_preconditioner_is_the_reason_even_at_the_limit(method, steps):
    P = Fixed(-torch.eye(30, dtype=torch.float64))
    stopping = Stopping(max_iterations=steps)
    report = solve(hard_system(30, 0.1), normal(30, 2), method=method, preconditioner=P, stopping=stopping)
    assert report.status is Status.INDEFINITE_PRECONDITIONER
    assert report.iterations.tolist() == [0, 0]
    assert torch.count_nonzero(report.solution) == 0
