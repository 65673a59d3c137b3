"""Points in an order of space, and work that leaves out tiles of negligible values: the same numbers as without."""

import numpy as np
import pytest
import torch
from conftest import native_or_skip
from reference import TOLERANCE, gradient_error, kernel_matrix, product_error
from strategies import DTYPES, NATIVE, normal

from kernelcg.backends import space_order
from kernelcg.backends.native import PackedPoints
from kernelcg.backends.rounding import centre_of
from kernelcg.kernels import RBF, Matern

SHORT = {
    "rbf": RBF([0.02, 0.03], 2.0),
    "matern12": Matern(0.01, nu=0.5),
    "matern32": Matern([0.02, 0.01], 3.0, nu=1.5),
    "matern52": Matern(0.01, nu=2.5),
}


@pytest.fixture(autouse=True)
def few_rows_are_enough(monkeypatch):
    monkeypatch.setattr(space_order, "LEAST_ROWS", 100)


@pytest.fixture(params=NATIVE)
def backend(request):
    return native_or_skip(**NATIVE[request.param])


def uniform(n, seed):
    """Return points of the unit square in no order, some of them twice."""
    X = torch.rand(n, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return torch.cat([X[: n - 20], X[:20]])


@pytest.mark.parametrize("k", [1, 5])
@pytest.mark.parametrize("name", SHORT)
def test_products(backend, precision, name, k):
    kernel, X, Y, V = SHORT[name], uniform(900, 1), uniform(333, 2), normal(900, k, 3)
    K = backend.bind(kernel, X)
    assert K.order is not None
    assert sorted(K.order.tolist()) == list(range(900))
    found = K.product(V, precision=DTYPES[precision])
    assert product_error(found, kernel_matrix(kernel, X, X), V) < TOLERANCE[precision]
    found = K.cross(Y, V, precision=DTYPES[precision])
    assert product_error(found, kernel_matrix(kernel, Y, X), V) < TOLERANCE[precision]


@pytest.mark.parametrize("name", SHORT)
def test_products_both_ways(backend, precision, name):
    kernel, X, Y, V, W = SHORT[name], uniform(900, 1), uniform(333, 2), normal(333, 3, 3), normal(900, 3, 4)
    A, B = (backend.place(points, centre_of(X)).bind(kernel) for points in (X, Y))
    across, down = A._both_ways(B, V, W, DTYPES[precision])
    truth = kernel_matrix(kernel, X, Y)
    assert product_error(across, truth, V) < TOLERANCE[precision]
    assert product_error(down, truth.T, W) < TOLERANCE[precision]


@pytest.mark.parametrize("name", SHORT)
def test_gradients(backend, precision, name):
    kernel, X, dtype = SHORT[name], uniform(600, 1), DTYPES[precision]
    left, right, columns = normal(600, 3, 2), normal(600, 3, 3), torch.arange(500, 100, -7)
    K = backend.bind(kernel, X)
    assert K.order is not None
    found = K.gradient(left, right, precision=dtype)
    assert gradient_error(found, kernel, X, X, left, right) < TOLERANCE[precision]
    found = K.gradient(left, right[columns], columns=columns, precision=dtype)
    assert gradient_error(found, kernel, X, X[columns], left, right[columns]) < TOLERANCE[precision]


def test_weights_stay_with_their_rows(backend):
    kernel, X, left, right = SHORT["matern32"], uniform(300, 1), normal(300, 2, 2), normal(300, 2, 3)
    weights = left @ left.T
    K = backend.bind(kernel, X)
    assert K.order is not None
    whole = K.gradient(torch.cat([left, left], 1), torch.cat([right, left], 1))
    torch.testing.assert_close(K.gradient(left, right, weights=weights), whole, rtol=1e-11, atol=1e-11)


def test_values_beyond_the_farthest_are_left_out(backend):
    """Two clusters, of whole panels, so far apart that a huge vector at one would be seen at the other."""
    n, apart = 480, 1.2 * 75 * np.log(2)
    X = torch.cat([normal(n, 1, 1), normal(n, 1, 2) + apart])
    V = torch.zeros(2 * n, 1, dtype=torch.float64)
    V[n:] = 1e60
    exact = kernel_matrix(Matern(1.0, nu=0.5), X[:n], X[n:]) @ V[n:].numpy()
    assert exact.min() > 1e20
    found = backend.bind(Matern(1.0, nu=0.5), X).product(V)
    assert found[:n].abs().max() == 0
    assert found[n:].min() > 1e60


def test_threads_change_no_bit():
    X, V, results = uniform(3000, 1), normal(3000, 4, 2), []
    for threads in (1, 2, 3):
        K = native_or_skip(threads=threads).bind(SHORT["matern32"], X)
        results.append(torch.cat([K.product(V), K.cross(X[:50], V), K.gradient(V, V)[:, None].expand(-1, 4)]))
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


@pytest.mark.parametrize(("X", "lengthscale"), [(uniform(900, 1), 0.3), (uniform(90, 1), 1e-3)])
def test_rows_keep_their_order_where_it_would_not_pay(X, lengthscale):
    backend = native_or_skip()
    assert backend.bind(Matern(lengthscale), X).order is None


@pytest.mark.parametrize("far", [1e12, 1e200, 1e308])
def test_a_far_row_alone_makes_no_order(far):
    X = torch.cat([uniform(900, 1), torch.full((1, 2), far, dtype=torch.float64)])
    assert native_or_skip().bind(Matern(0.3), X).order is None


def test_near_part_counts_pairs_of_blocks():
    line = torch.arange(space_order.BLOCKS, dtype=torch.float64)[:, None]  # a block is a point
    pairs = sum(abs(i - j) <= 3 for i in range(len(line)) for j in range(len(line)))
    assert space_order.near_part(line, 3.0) == pytest.approx(pairs / len(line) ** 2)


def test_new_hyperparameters_have_an_order_of_their_own():
    points = native_or_skip().place(uniform(900, 1))
    assert isinstance(points, PackedPoints)
    assert points.bind(Matern(0.01)).order is not None
    assert points.bind(Matern(1.0)).order is None
