"""Stored matrices, SciPy's operators, the identity and the counter."""

import numpy as np
import pytest
import scipy.sparse
import torch
from bound import bound_system
from reference import TOLERANCE, array, product_error, system_matrix
from scipy.sparse.linalg import LinearOperator as ScipyOperator
from scipy.sparse.linalg import aslinearoperator, cg
from strategies import normal

from kernelcg.kernels import RBF, Matern
from kernelcg.operators import (
    ConstantInvertible,
    Counting,
    DenseMatrix,
    Identity,
    Invertible,
    as_operator,
    to_scipy,
)
from kernelcg.randomness import seeded

N = 40
X, V = normal(N, 2, 1), normal(N, 3, 2)
NOISE = normal(N, 1, 3)[:, 0].exp()
S = normal(N, 1, 4)[:, 0].abs()
KERNEL = Matern(1.2, 0.9, nu=2.5)
TRUTH = system_matrix(KERNEL, X, NOISE, S)
SPARSE = scipy.sparse.diags_array(
    [np.full(N - 1, -1.0), np.arange(2.0, N + 2), np.full(N - 1, -1.0)], offsets=[-1, 0, 1]
)

ALIKE = {
    "array": TRUTH,
    "column-major array": np.asfortranarray(TRUTH),
    "tensor": torch.from_numpy(TRUTH.copy()),
    "list": TRUTH.tolist(),
    "dense matrix": DenseMatrix(torch.from_numpy(TRUTH.copy())),
    "ours": bound_system(KERNEL, X, NOISE, S),
    "ours, counted": Counting(bound_system(KERNEL, X, NOISE, S)),
    "scipy": aslinearoperator(TRUTH),
    "there and back": to_scipy(bound_system(KERNEL, X, NOISE, S)),
    "sparse array": scipy.sparse.csr_array(TRUTH),
    "sparse matrix": scipy.sparse.csc_matrix(TRUTH),
    "scipy with matvec alone": ScipyOperator((N, N), matvec=lambda v: TRUTH @ v, dtype=np.float64),
}


@pytest.mark.parametrize("name", ALIKE)
def test_everything_that_is_a_matrix_multiplies_like_it(name):
    A = as_operator(ALIKE[name])
    assert len(A) == N
    assert A.precision == torch.float64
    assert A.device == torch.device("cpu")
    before = V.clone()
    assert product_error(A @ V, TRUTH, V) < TOLERANCE["float64"]
    assert product_error(A @ V[:, :1], TRUTH, V[:, :1]) < TOLERANCE["float64"]
    assert (A @ V.float()).dtype == torch.float32
    assert product_error(A @ V.float(), TRUTH, V.float()) < TOLERANCE["float32"]
    assert torch.equal(V, before)
    np.testing.assert_allclose(A.dense(), TRUTH, rtol=1e-12, atol=1e-13)
    assert A.with_precision(torch.float64).precision == torch.float64


def test_our_operators_pass_unchanged():
    for A in (bound_system(KERNEL, X, NOISE), DenseMatrix(torch.eye(3)), Counting(DenseMatrix(torch.eye(3)))):
        assert as_operator(A) is A


def test_a_sparse_matrix():
    A = as_operator(SPARSE)
    assert product_error(A @ V, SPARSE.toarray(), V) < TOLERANCE["float64"]
    assert as_operator(scipy.sparse.eye_array(3, dtype=np.float32)).precision == torch.float32
    assert as_operator(scipy.sparse.eye_array(3, dtype=int)).precision == torch.float64


@pytest.mark.parametrize("A", [SPARSE, aslinearoperator(TRUTH)], ids=["sparse", "operator"])
def test_scipy_has_one_precision(A):
    with pytest.raises(TypeError, match="precision"):
        as_operator(A).with_precision(torch.float32)


NOT_SQUARE = [
    np.ones((2, 3)),
    torch.ones(2, 3),
    scipy.sparse.csr_array(np.ones((2, 3))),
    aslinearoperator(np.ones((2, 3))),
]


@pytest.mark.parametrize("A", NOT_SQUARE, ids=lambda A: type(A).__name__)
def test_a_matrix_that_is_not_square_is_refused(A):
    with pytest.raises(ValueError, match="A must be square"):
        as_operator(A)


COMPLEX = [1j * np.eye(3), torch.eye(3) * 1j, 1j * scipy.sparse.eye_array(3), aslinearoperator(1j * np.eye(3))]


@pytest.mark.parametrize("A", COMPLEX, ids=lambda A: type(A).__name__)
def test_complex_matrices_are_refused(A):
    with pytest.raises(TypeError, match="A "):
        as_operator(A)


@pytest.mark.parametrize(
    "A", ["matrix", None, object(), np.array([["a"]])], ids=["word", "None", "object", "array of words"]
)
def test_what_is_no_matrix_is_refused(A):
    with pytest.raises((TypeError, ValueError), match="A "):
        as_operator(A)


def test_to_scipy_speaks_scipy():
    A = to_scipy(bound_system(KERNEL, X, NOISE, S))
    v, block = array(V)[:, 0], array(V)
    assert isinstance(A, ScipyOperator)
    assert A.shape == (N, N)
    assert A.dtype == np.float64
    for result, truth in (
        (A @ v, TRUTH @ v),
        (A @ v[:, None], TRUTH @ v[:, None]),
        (A @ block, TRUTH @ block),
        (A.rmatvec(v), TRUTH @ v),
        (A.rmatmat(block), TRUTH @ block),
        (A.T @ v, TRUTH @ v),
        (A @ v.astype(np.float32), TRUTH @ v.astype(np.float32)),
        (A @ np.arange(N), TRUTH @ np.arange(N)),
        (A @ v[::-1], TRUTH @ v[::-1]),
    ):
        np.testing.assert_allclose(result, truth, rtol=1e-12, atol=1e-12)


def test_scipy_solves_with_our_operator():
    b = array(V)[:, 0]
    solution, info = cg(to_scipy(bound_system(KERNEL, X, NOISE, S)), b, rtol=1e-10)
    assert info == 0
    assert np.linalg.norm(b - TRUTH @ solution) < 1e-9 * np.linalg.norm(b)


def test_a_stored_matrix_follows_the_dtype_of_the_columns(precision):
    dtype = getattr(torch, precision)
    A = DenseMatrix(torch.from_numpy(TRUTH.copy())).with_precision(dtype)
    assert A.precision == dtype
    assert (A @ V).dtype == torch.float64
    assert product_error(A @ V, TRUTH, V) < TOLERANCE[precision]
    assert A.dense().dtype == torch.float64
    A.dense().zero_()
    assert product_error(A @ V, TRUTH, V) < TOLERANCE[precision]


@pytest.mark.parametrize(
    "A", [DenseMatrix(torch.eye(3)), as_operator(scipy.sparse.eye_array(3))], ids=["dense", "scipy"]
)
@pytest.mark.parametrize("shape", [(2, 1), (4, 2), (1, 3)])
def test_columns_that_do_not_fit_are_refused(A, shape):
    with pytest.raises((ValueError, RuntimeError)):
        A @ torch.ones(shape)


def test_products_and_columns_are_counted():
    A = Counting(bound_system(RBF(1.0), X, NOISE))
    A @ V
    A @ V[:, :1]
    assert (A.tally.products, A.tally.columns) == (2, 4)
    other = A.with_precision(torch.float32)
    assert other.precision == torch.float32
    other @ V
    assert (A.tally.products, A.tally.columns) == (3, 7)
    assert other.tally is A.tally
    A.dense()
    assert A.tally.products == 3
    assert Counting(A.operator).tally.products == 0, "tallies are shared by default"
    assert A.memory_budget() == pytest.approx(A.operator.memory_budget(), rel=0.5)


def test_the_identity_is_a_preconditioner():
    P = Identity(N, X)
    assert isinstance(P, Invertible)
    assert isinstance(P, ConstantInvertible)
    assert P.is_constant
    assert torch.equal(P.solve(V), V)
    assert torch.equal(P.dense(), torch.eye(N, dtype=torch.float64))
    assert P.log_determinant().item() == 0
    draws = Identity(2, X).sample(seeded(0), 50_000)
    assert draws.shape == (2, 50_000)
    np.testing.assert_allclose(draws @ draws.T / 50_000, np.eye(2), atol=4 * np.sqrt(2 / 50_000))
