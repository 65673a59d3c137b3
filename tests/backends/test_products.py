"""The contract of all backends: products and blocks of entries against the reference."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from bound import block_of, gradient_of, product_of
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import TOLERANCE, block_error, kernel_matrix, product_error
from strategies import CONTRACT, DTYPES, KERNELS, columns, normal, points

from kernelcg.kernels import RBF, Matern

every_kernel = pytest.mark.parametrize(("backend_for", "name"), CONTRACT, indirect=["backend_for"])


@every_kernel
@settings(max_examples=4)
@given(data=st.data(), n=st.integers(1, 60), m=st.integers(1, 60), d=st.integers(1, 12), k=st.integers(1, 20))
def test_products_of_every_kernel(backend_for, precision, name, data, n, m, d, k):
    kernel, X, Y = KERNELS[name](d), data.draw(points(n, d)), data.draw(points(m, d))
    backend = backend_for(kernel, X, DTYPES[precision])
    for other, V in ((Y, data.draw(columns(m, k))), (X, data.draw(columns(n, k)))):
        result = product_of(backend, kernel, X, other, V, precision=DTYPES[precision])
        assert result.shape == (n, k)
        assert product_error(result, kernel_matrix(kernel, X, other), V) < TOLERANCE[precision]


@every_kernel
@settings(max_examples=3)
@given(data=st.data(), n=st.integers(1, 60), m=st.integers(1, 60), d=st.integers(1, 12))
def test_blocks_of_every_kernel(backend_for, precision, name, data, n, m, d):
    kernel, X, Y = KERNELS[name](d), data.draw(points(n, d)), data.draw(points(m, d))
    backend = backend_for(kernel, X, DTYPES[precision])
    for other in (X, Y):
        block = block_of(backend, kernel, X, other, precision=DTYPES[precision])
        assert block.dtype == DTYPES[precision]
        assert block_error(block, kernel_matrix(kernel, X, other)) < TOLERANCE[precision]


# Sizes on both sides of every boundary of the native code: rows of a register tile (4, 8), panels (8 ... 48), strips
# (384), blocks of rows (up to 256) and the flush of row sums (8192 columns); and of a torch tile (512).
SHAPES = [
    (1, 1),
    (1, 2),
    (3, 5),
    (4, 4),
    (7, 9),
    (17, 16),
    (47, 49),
    (48, 48),
    (97, 96),
    (255, 258),
    (385, 383),
    (3, 8200),
    (600, 5),
]
SIZES = [1, 2, 4, 9, 31, 33, 48, 96, 97, 255, 257, 385, 513, 900]
COLUMNS = [1, 2, 3, 5, 7, 20, 33]


@pytest.mark.parametrize(("n", "m"), SHAPES)
def test_products_of_every_shape(backend_within, precision, n, m):
    kernel, X, Y, backend = Matern(1.1, 0.7, nu=1.5), normal(n, 2, 1), normal(m, 2, 2), backend_within()
    K = kernel_matrix(kernel, X, Y)
    for k in COLUMNS:
        V = normal(m, k, k)
        assert (
            product_error(product_of(backend, kernel, X, Y, V, precision=DTYPES[precision]), K, V)
            < TOLERANCE[precision]
        )
    assert block_error(block_of(backend, kernel, X, Y, precision=DTYPES[precision]), K) < TOLERANCE[precision]


@pytest.mark.parametrize("n", SIZES)
def test_symmetric_products_of_every_size(backend_within, precision, n):
    kernel, X, backend = RBF(1.3), normal(n, 2, 1), backend_within()
    K = kernel_matrix(kernel, X, X)
    for k in COLUMNS:
        V = normal(n, k, k)
        assert (
            product_error(product_of(backend, kernel, X, X, V, precision=DTYPES[precision]), K, V)
            < TOLERANCE[precision]
        )


@pytest.mark.parametrize("d", [1, 2, 5, 8, 17, 60])
def test_products_with_every_number_of_features(backend_within, precision, d):
    X, Y, backend = normal(61, d, 1), normal(50, d, 2), backend_within()
    for name in ("rbf ard", "matern32", "periodic", "linear"):
        kernel = KERNELS[name](d)
        for other, V in ((X, normal(61, 3, 3)), (Y, normal(50, 3, 3))):
            result = product_of(backend, kernel, X, other, V, precision=DTYPES[precision])
            assert product_error(result, kernel_matrix(kernel, X, other), V) < TOLERANCE[precision]


@pytest.mark.parametrize("name", ["rbf", "multiple of a sum", "linear"])
@pytest.mark.parametrize("X_dtype", DTYPES)
@pytest.mark.parametrize("V_dtype", DTYPES)
def test_the_result_has_the_dtype_of_the_columns(backend_for, name, X_dtype, V_dtype):
    kernel, X = KERNELS[name](3), normal(20, 3).to(DTYPES[X_dtype])
    V = normal(20, 4).to(DTYPES[V_dtype])
    backend = backend_for(kernel, X)
    for asked in (None, "float32", "float64"):
        result = product_of(backend, kernel, X, X, V, precision=DTYPES.get(asked))
        assert result.dtype == V.dtype
        computed_in = asked or X_dtype
        worst = "float32" if "float32" in (computed_in, V_dtype) else "float64"
        assert product_error(result, kernel_matrix(kernel, X, X), V) < TOLERANCE[worst]
        assert block_of(backend, kernel, X, X, precision=DTYPES.get(asked)).dtype == DTYPES[computed_in]


@pytest.mark.parametrize("name", ["rbf", "matern12 ard", "multiple of a sum", "product"])
def test_the_same_call_gives_the_same_bits(backend_for, precision, name):
    kernel, X, V = KERNELS[name](3), normal(700, 3, 1), normal(700, 5, 2)
    backend = backend_for(kernel, X, DTYPES[precision])
    calls = [
        lambda: product_of(backend, kernel, X, X, V, precision=DTYPES[precision]),
        lambda: product_of(backend, kernel, X, X[:300], V[:300], precision=DTYPES[precision]),
        lambda: gradient_of(backend, kernel, X, X, V, V.flip(0), precision=DTYPES[precision]),
        lambda: block_of(backend, kernel, X, X[:90], precision=DTYPES[precision]),
    ]
    for call in calls:
        assert torch.equal(call(), call())


def test_calls_from_several_threads_do_not_disturb_each_other(backend_for):
    kernel, X = RBF(0.8), normal(400, 3, 1)
    K, backend = kernel_matrix(kernel, X, X), backend_for(kernel, X)
    blocks = [normal(400, 4, seed) for seed in range(8)]
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda V: product_of(backend, kernel, X, X, V), blocks))
    assert max(product_error(result, K, V) for result, V in zip(results, blocks, strict=True)) < TOLERANCE["float64"]


def test_no_columns_and_no_rows_give_empty_results(backend_for):
    kernel, X = RBF(1.0), normal(6, 2)
    backend = backend_for(kernel, X)
    assert product_of(backend, kernel, X, X, X.new_zeros(6, 0)).shape == (6, 0)
    assert product_of(backend, kernel, X, X[:0], X.new_zeros(0, 3)).tolist() == [[0.0] * 3] * 6
    assert product_of(backend, kernel, X[:0], X, X.new_zeros(6, 3)).shape == (0, 3)
    assert block_of(backend, kernel, X, X[:0]).shape == (6, 0)


def test_a_column_that_is_not_finite_stays_alone_and_is_not_hidden(backend_for, precision):
    kernel, X, V = RBF(1.0), normal(50, 2, 1), normal(50, 3, 2)
    K, backend = kernel_matrix(kernel, X, X), backend_for(kernel, X, DTYPES[precision])
    V[7, 1] = float("nan")
    result = product_of(backend, kernel, X, X, V, precision=DTYPES[precision])
    assert result[:, 1].isnan().all()
    assert product_error(result[:, ::2], K, V[:, ::2]) < TOLERANCE[precision]


@pytest.mark.parametrize("name", ["rbf", "matern32", "rational quadratic"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_point_that_is_not_finite_is_refused_or_not_hidden(backend_within, precision, name, bad):
    kernel, X, V = KERNELS[name](2), normal(50, 2, 1), normal(50, 3, 2)
    X[7, 1] = bad
    for Y in (X, X[:20].clone()):
        try:
            result = product_of(backend_within(), kernel, X, Y, V[: len(Y)], precision=DTYPES[precision])
        except ValueError as refusal:
            message = str(refusal)
        else:
            message = "X" if not result[7].isfinite().any() else "a finite result"
        assert "X" in message or "points" in message
