"""The same kernel between two sets of points: both products in one pass, and gradients, against the reference."""

import pytest
import torch
from conftest import native_or_skip
from reference import TOLERANCE, gradient_error, kernel_matrix, product_error
from strategies import DTYPES, KERNELS, normal

from kernelcg.backends.rounding import centre_of
from kernelcg.kernels import RBF, Matern

SOME = ["rbf", "matern32 ard", "multiple", "sum", "multiple of a sum", "periodic", "product", "sum with linear"]


SHAPES = [(1, 1, 1), (3, 5, 2), (130, 70, 1), (70, 130, 4), (97, 48, 7), (385, 513, 16), (900, 40, 33)]


@pytest.mark.parametrize(("n", "m", "k"), SHAPES)
def test_products_both_ways_of_every_shape(backend_within, precision, n, m, k):
    kernel, backend = Matern([1.1, 0.7]), backend_within()
    X, Y, V, W = normal(n, 2, 1), normal(m, 2, 2), normal(m, k, 3), normal(n, k, 4)
    A, B = (backend.place(points, centre_of(X)).bind(kernel) for points in (X, Y))
    across, down = A._both_ways(B, V, W, DTYPES[precision])
    K = kernel_matrix(kernel, X, Y)
    assert product_error(across, K, V) < TOLERANCE[precision]
    assert product_error(down, K.T, W) < TOLERANCE[precision]


def test_threads_change_no_bit():
    X, Y, V, W = normal(900, 3, 1), normal(700, 3, 2), normal(700, 5, 3), normal(900, 5, 4)
    results = []
    for threads in (1, 2, 5):
        backend = native_or_skip(threads=threads)
        A, B = (backend.place(points, centre_of(X)).bind(RBF(1.0)) for points in (X, Y))
        results.append(torch.cat(A._both_ways(B, V, W, torch.float64)))
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


@pytest.mark.parametrize("centred_alike", [True, False])
@pytest.mark.parametrize("name", SOME)
def test_products_both_ways(backend_within, precision, name, centred_alike):
    kernel, dtype, backend = KERNELS[name](3), DTYPES[precision], backend_within()
    X, Y, V, W = normal(130, 3, 1), normal(70, 3, 2) + 0.5, normal(70, 4, 3), normal(130, 4, 4)
    centre = centre_of(X) if centred_alike else None
    A, B = (backend.place(points, centre).bind(kernel) for points in (X, Y))
    across, down = A._both_ways(B, V, W, dtype)
    K = kernel_matrix(kernel, X, Y)
    assert product_error(across, K, V) < TOLERANCE[precision]
    assert product_error(down, K.T, W) < TOLERANCE[precision]


@pytest.mark.parametrize("name", SOME)
def test_gradients_between(backend_within, precision, name):
    kernel, dtype, backend = KERNELS[name](3), DTYPES[precision], backend_within()
    X, Y, left, right = normal(130, 3, 1), normal(70, 3, 2) + 0.5, normal(130, 3, 3), normal(70, 3, 4)
    A, B = (backend.place(points).bind(kernel) for points in (X, Y))
    found = A._gradient_between(B, left, right, dtype)
    assert gradient_error(found, kernel, X, Y, left, right) < TOLERANCE[precision]
