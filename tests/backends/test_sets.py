"""Similarities of sets by counting bits: products, entries and gradients against the formulas in NumPy."""

import pickle

import numpy as np
import pytest
import torch
from bound import block_of, gradient_of, product_of
from conftest import native_or_skip
from reference import TOLERANCE, block_error, product_error
from strategies import DTYPES, normal

from kernelcg import backends
from kernelcg.backends.sets import SetsMatrix
from kernelcg.kernels import RBF, MinMax, Tanimoto
from kernelcg.planning.pricing import priced
from kernelcg.planning.remembered import remembered

LEVELS = ["baseline", "avx2", "avx512"]
SHAPES = [(1, 1, 1), (3, 5, 31), (7, 9, 64), (47, 49, 65), (20, 31, 2100), (258, 255, 33), (600, 385, 5)]
"""Rows, other rows and features, on both sides of the boundaries of words, panels, strips, blocks and byte counts."""


@pytest.fixture(params=LEVELS)
def backend(request):
    return native_or_skip(level=request.param)


def bits(n, d, seed=0, part=0.2):
    """Return sets of bits, the first and the last of them empty."""
    X = (np.random.default_rng(seed).random((n, d)) < part).astype(float)
    X[[0, -1]] = 0
    return torch.from_numpy(X)


def counts(n, d, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).poisson(0.9, (n, d)).astype(float))


def min_max(X, Y):
    """Return Σ min / Σ max, 1 where both rows are 0; for bits it is the Tanimoto similarity."""
    low, high = (
        sum(f(x[:, None], y) for x, y in zip(X.numpy().T, Y.numpy().T, strict=True)) for f in (np.minimum, np.maximum)
    )
    return np.where(high > 0, low / np.where(high > 0, high, 1), 1.0)


@pytest.mark.parametrize("kind", [Tanimoto, MinMax])
@pytest.mark.parametrize(("n", "m", "d"), SHAPES)
def test_products_and_entries_of_every_shape(backend, precision, kind, n, m, d):
    make = bits if kind is Tanimoto else counts
    kernel, X, Y, dtype = kind(1.7), make(n, d, 1), make(m, d, 2), DTYPES[precision]
    assert type(backend.bind(kernel, Y)) is SetsMatrix
    for rows in (X, Y):
        K = 1.7 * min_max(rows, Y)
        assert block_error(block_of(backend, kernel, rows, Y, precision=dtype), K) < TOLERANCE[precision]
        for k in (1, 7):
            V = normal(m, k, k)
            assert product_error(product_of(backend, kernel, rows, Y, V, precision=dtype), K, V) < TOLERANCE[precision]


@pytest.mark.parametrize("weighted", [False, True])
def test_gradients(backend, precision, weighted):
    """The only hyperparameter is σ², so the derivative in its logarithm is the sum itself."""
    kernel, X, Y = Tanimoto(0.6), bits(130, 70, 1), bits(40, 70, 2)
    left, right, dtype = normal(130, 3, 1), normal(130, 3, 2), DTYPES[precision]
    W = normal(130, 130, 3) if weighted else torch.zeros(130, 130, dtype=torch.float64)
    W = W + W.T
    K = 0.6 * min_max(X, X)
    found = gradient_of(backend, kernel, X, X, left, right, dtype, weights=W if weighted else None)
    size = np.abs(left.numpy() @ right.numpy().T) + np.abs(W.numpy())
    assert abs(float(found) - ((left @ right.T + W).numpy() * K).sum()) < TOLERANCE[precision] * (size * K).sum()
    across = gradient_of(backend, kernel, X, Y, left, right[:40], dtype)
    exact = ((left @ right[:40].T).numpy() * 0.6 * min_max(X, Y)).sum()
    assert float(across) == pytest.approx(exact, rel=1e-4 if precision == "float32" else 1e-11)


@pytest.mark.parametrize("level", LEVELS)
def test_the_number_of_threads_changes_no_bit(level, precision):
    X, V = bits(1500, 200), normal(1500, 3)
    results = [
        native_or_skip(level=level, threads=threads).bind(Tanimoto(1.0), X).product(V, precision=DTYPES[precision])
        for threads in (1, 2, 5)
    ]
    assert all(torch.equal(result, results[0]) for result in results)


def test_entries_are_those_of_the_formula_to_the_last_bit(backend):
    X = bits(90, 300)
    assert torch.equal(backend.bind(Tanimoto(1.0), X).block(), Tanimoto(1.0)(X, X))


@pytest.mark.parametrize("X", [bits(30, 9) + 0.5, counts(30, 9), -bits(30, 9), bits(30, 9) * 2.0**23])
def test_data_that_are_no_bits_go_to_tiles(X):
    assert type(native_or_skip().bind(Tanimoto(1.0), X)).__name__ == "TilesMatrix"
    assert type(native_or_skip().bind(MinMax(1.0), X + 0.25)).__name__ == "TilesMatrix"


def test_counts_that_would_be_long_sets_go_to_tiles():
    assert type(native_or_skip().bind(MinMax(1.0), 100 * counts(30, 9))).__name__ == "TilesMatrix"


def test_further_points_need_not_be_sets_nor_small():
    native, tiles, V = native_or_skip(), backends.Tiles(), normal(40, 2)
    for kernel, X, points in (
        (Tanimoto(1.3), bits(40, 50), counts(9, 50, 1) + 0.5),
        (MinMax(1.3), counts(40, 50), 40 * counts(9, 50, 1)),
        (MinMax(1.3), counts(40, 50), counts(9, 50, 1) + 0.5),
    ):
        own, other = native.bind(kernel, X), tiles.bind(kernel, X)
        torch.testing.assert_close(own.cross(points, V), other.cross(points, V), rtol=1e-13, atol=1e-13)
        torch.testing.assert_close(own.cross_block(points), other.cross_block(points), rtol=1e-14, atol=0)


def test_multiples_sums_and_some_columns_use_it():
    X, V = torch.cat([bits(60, 40), normal(60, 2)], 1), normal(60, 3)
    kernel = 2.0 * Tanimoto(0.7).on(range(40)) + RBF(1.1).on([40, 41])
    K = 1.4 * min_max(X[:, :40], X[:, :40]) + np.exp(-0.5 * torch.cdist(X[:, 40:], X[:, 40:]).numpy() ** 2 / 1.21)
    native = native_or_skip()
    assert product_error(native.bind(kernel, X).product(V), K, V) < TOLERANCE["float64"]
    multiple = 2.0 * Tanimoto(0.7)
    gradient = native.bind(multiple, X[:, :40]).gradient(V, V)
    expected = backends.Tiles().bind(multiple, X[:, :40]).gradient(V, V)
    torch.testing.assert_close(gradient, expected, rtol=1e-12, atol=0)


def test_words_are_packed_once_for_all_hyperparameters():
    K = native_or_skip().bind(Tanimoto(1.0), bits(50, 70))
    assert K.with_kernel(Tanimoto(2.0)).sets is K.sets


def test_it_can_be_pickled_and_stored():
    K, V = native_or_skip().bind(Tanimoto(1.2), bits(50, 70)), normal(50, 2)
    assert torch.equal(pickle.loads(pickle.dumps(K)).product(V), K.product(V))
    torch.testing.assert_close(K.stored().product(V), K.product(V))


def test_columns_are_divided_to_fit_the_memory_and_too_little_is_refused():
    X, V = bits(2000, 64), normal(2000, 64)
    expected = native_or_skip().bind(Tanimoto(1.0), X).product(V)
    torch.testing.assert_close(native_or_skip("9MB").bind(Tanimoto(1.0), X).product(V), expected)
    with pytest.raises(MemoryError, match="2000 x 2000"):
        native_or_skip("4MB").bind(Tanimoto(1.0), X).product(V)


def test_the_plan_measures_the_compiled_code(monkeypatch):
    monkeypatch.delenv("KERNELCG_PROFILE")
    monkeypatch.setenv("KERNELCG_CACHE", "")
    remembered.cache_clear()
    measured = []
    monkeypatch.setattr("kernelcg.planning.pricing.best_of", lambda times, work: measured.append(work()) or 1e-3)
    price = priced(Tanimoto(1.0), bits(400, 64), native_or_skip())
    assert price.fused == 0
    assert price.seconds > 0
    assert measured[0].shape == (256, 256)
