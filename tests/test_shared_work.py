"""Threads of the library: any number gives the same bits, torch keeps to one, and what was set before is set again."""

import multiprocessing
import os
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch

from kernelcg import GPClassifier, GPRegressor, dense, threads
from kernelcg.solvers import CholeskyFactor


def matrix(*shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape))


def positive_definite(n):
    A = matrix(n, n) / n**0.5
    return A @ A.T + torch.eye(n).double()


def test_torch_keeps_to_one_thread_and_gets_its_own_back():
    before = torch.get_num_threads()
    with threads.working(3):
        assert torch.get_num_threads() == 1
        assert threads.allowed() == 3
        with threads.working(2):
            assert threads.allowed() == 2
        with threads.working():
            assert threads.allowed() == 3
    assert torch.get_num_threads() == threads.allowed() == before
    with pytest.raises(KeyError), threads.working(2):
        raise KeyError
    assert torch.get_num_threads() == threads.allowed() == before


def test_threads_of_python_that_use_torch_are_left_alone():
    """A thread that has its number of torch's threads keeps it while another one works."""
    seen, before = [], torch.get_num_threads()
    ready, working, done = threading.Event(), threading.Event(), threading.Event()

    def other():
        torch.get_num_threads()  # torch has seen this thread from now on
        torch.set_num_threads(2)
        ready.set()
        working.wait(300)
        seen.append((torch.get_num_threads(), threads.allowed()))
        done.set()

    thread = threading.Thread(target=other)
    thread.start()
    ready.wait(300)
    with threads.working(1):
        working.set()
        done.wait(300)
    thread.join()
    torch.set_num_threads(before)
    assert seen == [(2, 2)]


def test_threads_of_python_that_work_at_once_leave_torch_as_it_was():
    seen, before = [], torch.get_num_threads()
    inside, leave = [threading.Event() for _ in range(3)], threading.Event()

    def other(number):
        with threads.working():
            seen.append((torch.get_num_threads(), threads.allowed()))
            inside[number].set()
            leave.wait(300)

    others = [threading.Thread(target=other, args=(number,)) for number in range(3)]
    torch.set_num_threads(2)
    try:
        with threads.working():
            for thread, entered in zip(others, inside, strict=True):
                thread.start()
                entered.wait(300)
        leave.set()
        for thread in others:
            thread.join()
        assert torch.get_num_threads() == 2
        fresh = threading.Thread(target=lambda: seen.append((torch.get_num_threads(), threads.allowed())))
        fresh.start()
        fresh.join()
    finally:
        torch.set_num_threads(before)
    assert seen == [(1, 2)] * 3 + [(2, 2)]


def test_a_number_that_torch_was_told_holds_for_the_library_and_changes_no_bit():
    A, B, found, before = matrix(900, 900), matrix(900, 900, seed=1), [], torch.get_num_threads()
    try:
        for number in (1, 2, 3):
            torch.set_num_threads(number)
            with threads.working():
                assert threads.allowed() == number
                found.append(torch.cat([A @ B, torch.linalg.cholesky(positive_definite(900))]))
            assert torch.get_num_threads() == number
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


@pytest.mark.parametrize("count", [0, 1, 5, 64, 1000])
def test_every_part_is_done_once(count):
    done = torch.zeros(count)

    def mark(part):
        assert torch.get_num_threads() == 1
        done[part] += 1

    with threads.working(3):
        threads.shared(mark, count, 7)
    assert bool((done == 1).all())


def test_an_error_in_a_part_is_raised():
    def fail(part):
        if part.start == 20:
            raise ValueError("part 20")

    with threads.working(3), pytest.raises(ValueError, match="part 20"):
        threads.shared(fail, 100, 1)


def _sum_in_child(results):
    with threads.working(2):
        results.put(float(dense.multiply(torch.ones(3000, 50).double(), torch.ones(50, 60).double()).sum()))


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_process_has_threads_of_its_own():
    with threads.working(2):
        dense.multiply(torch.ones(3000, 50).double(), torch.ones(50, 60).double())
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    child = context.Process(target=_sum_in_child, args=(results,))
    child.start()
    child.join(300)
    assert child.exitcode == 0
    assert results.get() == 3000 * 50 * 60


OPERATIONS = {
    "multiply, many rows": lambda: dense.multiply(matrix(3000, 300), matrix(300, 90, seed=1)),
    "multiply, many columns": lambda: dense.multiply(matrix(90, 300), matrix(300, 3000, seed=1)),
    "inner": lambda: dense.inner(matrix(10_000, 30), matrix(10_000, 20, seed=1)),
    "qr": lambda: torch.cat(dense.qr(matrix(3001, 40))),
    "inverse": lambda: CholeskyFactor(positive_definite(900)).inverse(),
    "solve": lambda: CholeskyFactor(positive_definite(900)).solve(matrix(900, 200)),
    "whiten": lambda: CholeskyFactor(positive_definite(900)).whiten(matrix(900, 200)),
}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_any_number_of_threads_gives_the_same_bits(operation):
    found = []
    for number in (1, 2, 3):
        with threads.working(number):
            found.append(OPERATIONS[operation]())
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


@pytest.mark.parametrize(("n", "k", "m"), [(1, 1, 1), (5000, 40, 30), (30, 40, 5000), (257, 3, 1)])
def test_products(n, k, m):
    A, B = matrix(n, k), matrix(k, m, seed=1)
    with threads.working(2):
        np.testing.assert_allclose(dense.multiply(A, B), A.numpy() @ B.numpy(), atol=1e-12)
        np.testing.assert_allclose(
            dense.inner(A, dense.multiply(A, B)), A.numpy().T @ (A.numpy() @ B.numpy()), rtol=1e-9
        )
        C = matrix(n, m, seed=2)
        expected = C.numpy() - A.numpy() @ B.numpy()
        dense.subtract_product(C, A, B)
    np.testing.assert_allclose(C, expected, atol=1e-12)


@pytest.mark.parametrize(("n", "m"), [(5, 5), (50, 3), (1000, 7), (4000, 60)])
def test_qr(n, m):
    A = matrix(n, m)
    with threads.working(2):
        Q, T = dense.qr(A.clone())
    np.testing.assert_allclose(Q @ T, A, atol=1e-12)
    np.testing.assert_allclose(Q.T @ Q, np.eye(m), atol=1e-13)
    assert torch.equal(T, T.triu())


def test_qr_of_badly_conditioned_columns_stays_orthonormal():
    A = matrix(3000, 20) * torch.logspace(0, -14, 20).double()
    A[:, 1] = A[:, 0] * (1 + 1e-14)
    Q, _ = dense.qr(A.clone())
    np.testing.assert_allclose(Q.T @ Q, np.eye(20), atol=1e-13)


def test_triangular_solves():
    L, B = torch.linalg.cholesky(positive_definite(60)), matrix(700, 60)
    right, lower, left = B.clone(), B.clone(), B.T.clone()
    dense.solve_from_the_right(L.mT, right)
    dense.solve_from_the_right(L, lower, upper=False)
    dense.solve_from_the_left(L, left)
    inverse = np.linalg.inv(L.numpy())
    np.testing.assert_allclose(right, B.numpy() @ inverse.T, atol=1e-12)
    np.testing.assert_allclose(lower, B.numpy() @ inverse, atol=1e-12)
    np.testing.assert_allclose(left, inverse @ B.numpy().T, atol=1e-12)


DECOMPOSED = """
import numpy as np, torch
from kernelcg import dense, solvers
rng = np.random.default_rng(0)
M = rng.normal(size=(260, 260))
A = torch.from_numpy(M @ M.T / 260 + 1e-3 * np.eye(260))
V = torch.from_numpy(rng.normal(size=(260, 16)))
with dense.working():  # as in a fit: torch keeps to one thread
    value = solvers.apply_function(A, V, "log", max_iterations=14).value
parts = [*dense.eigh(M + M.T), dense.eigvalsh(M + M.T), *dense.svd(M), value.numpy()]
print([part.tobytes().hex()[:4000] for part in parts])
"""


def test_small_matrices_have_the_same_bits_whatever_the_threads_of_numpy():
    """NumPy's BLAS takes its threads from the environment: 192 columns are enough for other digits."""
    environment = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    found = [
        subprocess.run(
            [sys.executable, "-c", DECOMPOSED],
            env={**environment, "OMP_NUM_THREADS": threads},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for threads in ("1", "3")
    ]
    assert found[0] == found[1] != ""


def test_decompositions_are_those_of_numpy_and_nan_where_entries_are_not_finite():
    M = np.random.default_rng(0).normal(size=(2, 30, 30))
    S = M + M.transpose(0, 2, 1)
    values, vectors = dense.eigh(S)
    np.testing.assert_allclose(values, np.linalg.eigvalsh(S), atol=1e-12)
    np.testing.assert_allclose(vectors * values[:, None] @ vectors.transpose(0, 2, 1), S, atol=1e-12)
    np.testing.assert_allclose(dense.eigvalsh(S[0]), values[0], atol=1e-12)
    U, sizes, V = dense.svd(M[0, :, :7])
    np.testing.assert_allclose(U * sizes @ V, M[0, :, :7], atol=1e-12)
    np.testing.assert_allclose(sizes, np.linalg.svd(M[0, :, :7], compute_uv=False), atol=1e-12)
    S[1, 2, 3] = np.inf
    assert np.isnan(dense.eigh(S)[0]).all()
    assert np.isnan(dense.eigvalsh(S[1])).all()


@pytest.mark.parametrize("method", ["direct", "iterative"])
def test_fits_and_predictions_have_the_same_bits_on_any_number_of_threads(method, monkeypatch):
    monkeypatch.setenv("KERNELCG_PROFILE", "typical")
    generator = np.random.default_rng(0)
    X = generator.normal(size=(900, 3))
    y = np.sin(X).sum(1) + 0.1 * generator.normal(size=900)
    found = []
    for number in (1, 2, 3):
        model = GPRegressor(method=method, n_jobs=number).fit(X, y)
        found.append((model.learning_.gp.log_parameters(), *model.predict(X[:300] + 0.01, return_std=True)))
    for other in found[1:]:
        for one, same in zip(found[0], other, strict=True):
            np.testing.assert_array_equal(np.asarray(one), np.asarray(same))


def test_estimators_work_on_threads_of_their_own():
    X = np.random.default_rng(0).normal(size=(60, 2))
    seen = []

    def look(event):
        seen.append((torch.get_num_threads(), threads.allowed()))

    model = GPRegressor(n_jobs=2).fit(X, X[:, 0], callback=look)
    model.predict(X, return_std=True, callback=look)
    GPClassifier(n_jobs=2).fit(X, X[:, 0] > 0, callback=look).predict_proba(X, callback=look)
    assert set(seen) == {(1, 2)}


@pytest.mark.parametrize("count", [1, 2, 3])
def test_what_is_done_to_each_row_is_done_to_all_rows(count):
    """More rows than one part has, blocks of two shapes, and a type of its own for the result."""
    V, root = matrix(5000, 7, 11), matrix(5000, 7, seed=1)[..., None]

    def without_root(V, root):
        return V - root * (root * V).sum(1, keepdim=True)

    with threads.working(count):
        found = dense.by_rows(without_root, V, root)
        single = dense.by_rows(without_root, V, root, dtype=torch.float32)
        assert len(dense.by_rows(without_root, V[:0], root[:0])) == 0
    expected = V.numpy() - root.numpy() * np.einsum("icx,ick->ik", root.numpy(), V.numpy())[:, None]
    np.testing.assert_allclose(found.numpy(), expected, rtol=0, atol=1e-13)
    assert single.dtype == torch.float32
    assert torch.equal(single, found.float())
