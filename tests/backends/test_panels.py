"""Packed points of the native code: packed once, scaled and rounded as asked, used by products and gradients."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from reference import TOLERANCE, gradient_error, kernel_matrix, product_error
from strategies import DTYPES, normal

from kernelcg.kernels import RBF

_native = pytest.importorskip("kernelcg._native")

USABLE = [index for index, (_, usable, _) in enumerate(_native.levels()) if usable]
FACTORS = torch.tensor([0.5, 3.0, 1 / 7], dtype=torch.float64)
KERNEL = RBF((1 / FACTORS).tolist())
every_level = pytest.mark.parametrize("level", USABLE)


def product(A, B, V, level, threads=2):
    """Return K(A, B) V of the RBF kernel in the precision of V."""
    out = torch.empty(A.rows, V.shape[1], dtype=torch.float64)
    _native.product(A, B, V.contiguous(), out, 0, threads, level)
    return out


@every_level
@pytest.mark.parametrize(("n", "m"), [(1, 1), (3, 50), (24, 25), (48, 49), (200, 73)])
def test_products_of_scaled_points(level, precision, n, m):
    X, Y, dtype = normal(n, 3, 1), normal(m, 3, 2), DTYPES[precision]
    A, B = (_native.Panels(Z, 2, level).scaled(FACTORS, dtype == torch.float32) for Z in (X, Y))
    for other, panels, V in ((Y, B, normal(m, 4, 3)), (X, None, normal(n, 4, 3))):
        result = product(A, panels, V.to(dtype), level)
        assert product_error(result, kernel_matrix(KERNEL, X, other), V) < TOLERANCE[precision]


@every_level
def test_gradients_of_scaled_points(level, precision):
    X, Y, L, R, dtype = normal(70, 3, 1), normal(51, 3, 2), normal(70, 2, 3), normal(51, 2, 4), DTYPES[precision]
    A, B = (_native.Panels(Z, 2, level).scaled(FACTORS, dtype == torch.float32) for Z in (X, Y))
    out = torch.empty(4, dtype=torch.float64)
    _native.gradient(A, B, L.to(dtype), R.to(dtype), None, 1.0, out, True, 0, 2, level)
    assert gradient_error(out.roll(-1), KERNEL, X, Y, L, R) < TOLERANCE[precision]


@every_level
def test_features_are_multiplied_in_double_and_then_rounded(level, precision):
    """So are those of points rounded beforehand, by which nothing is left to round."""
    X, V, single = normal(150, 3, 1), normal(150, 2, 2).to(DTYPES[precision]), precision == "float32"
    rounded = (X * FACTORS).to(DTYPES[precision]).double()
    packed = _native.Panels(X, 1, level).scaled(FACTORS, single)
    beforehand = _native.Panels(rounded, 1, level).scaled(torch.ones(3, dtype=torch.float64), single)
    assert torch.equal(product(packed, None, V, level), product(beforehand, None, V, level))


@every_level
def test_the_number_of_threads_changes_no_bit_of_packed_points(level, precision):
    """Enough points for packing and scaling to be shared."""
    X, V, single = normal(30_000, 9, 1), normal(30_000, 1, 2).to(DTYPES[precision]), precision == "float32"
    one, several = (_native.Panels(X, t, level).scaled(torch.ones(9, dtype=torch.float64), single) for t in (1, 3))
    few = _native.Panels(X[:5].contiguous(), 1, level).scaled(torch.ones(9, dtype=torch.float64), single)
    assert torch.equal(product(few, one, V, level), product(few, several, V, level))


@every_level
def test_panels_know_what_they_are_and_what_they_occupy(level):
    for n, d in ((0, 3), (1, 1), (49, 7), (1000, 20)):
        double = _native.Panels(normal(n, d), 2, level)
        single = double.scaled(torch.ones(d, dtype=torch.float64), True)
        for panels, itemsize in ((double, 8), (single, 4)):
            assert (panels.rows, panels.features, panels.single, panels.level) == (n, d, itemsize == 4, level)
            assert n * d * itemsize <= panels.bytes <= _native.panels_bytes(n, d, itemsize)
            assert panels.bytes <= (n + 64) * d * itemsize + 64


def test_panels_keep_their_points_when_the_matrix_changes():
    X, V, level = normal(60, 3, 1), normal(60, 2, 2), USABLE[-1]
    A = _native.Panels(X, 1, level)
    scaled, before = A.scaled(FACTORS, False), product(A, None, V, level)
    X.zero_()
    assert torch.equal(product(A, None, V, level), before)
    assert torch.equal(product(A.scaled(FACTORS, False), None, V, level), product(scaled, None, V, level))


def test_panels_serve_several_callers_at_once():
    level, blocks = USABLE[-1], [normal(500, 2, seed) for seed in range(12)]
    A = _native.Panels(normal(500, 3, 1), 2, level)
    alone = [product(A, None, V, level) for V in blocks]
    with ThreadPoolExecutor(4) as callers:
        together = list(callers.map(lambda V: product(A, None, V, level), blocks))
    assert all(torch.equal(a, b) for a, b in zip(alone, together, strict=True))


def test_misuse_is_refused_by_name():
    X, V, level = normal(20, 3, 1), normal(20, 2, 2), USABLE[-1]
    A = _native.Panels(X, 1, level)
    single = A.scaled(FACTORS, True)
    with pytest.raises(ValueError, match="float64 numbers, and float32"):
        product(A, None, V.float(), level)
    with pytest.raises(ValueError, match="float32 numbers, and float64"):
        product(A, single, V, level)
    with pytest.raises(ValueError, match="float32 numbers, and float64"):
        single.scaled(FACTORS, False)
    with pytest.raises(ValueError, match="length of factors must be 3, not 2"):
        A.scaled(FACTORS[:2].contiguous(), False)
    with pytest.raises(ValueError, match="features of B must be 3, not 4"):
        product(A, _native.Panels(normal(20, 4), 1, level), V, level)
    with pytest.raises(ValueError, match="rows of V must be 20, not 19"):
        product(A, None, V[:19], level)
    with pytest.raises(ValueError, match="threads must be at least 1"):
        _native.Panels(X, 0, level)
    with pytest.raises(ValueError, match="level"):
        _native.Panels(X, 1, 99)
    with pytest.raises(TypeError):
        _native.Panels(X.long(), 1, level)
    with pytest.raises(ValueError, match="profile must be from 0 to 3, not 4"):  # sets have no lengthscale
        _native.gradient(A, None, V, V, None, 1.0, torch.empty(2, dtype=torch.float64), False, 4, 1, level)


@pytest.mark.skipif(len(USABLE) < 2, reason="this machine has one level only")
def test_panels_of_another_level_are_refused():
    X, V = normal(20, 3, 1), normal(20, 2, 2)
    low, high = _native.Panels(X, 1, USABLE[0]), _native.Panels(X, 1, USABLE[-1])
    for A, B in ((low, None), (high, low), (low, high)):
        with pytest.raises(ValueError, match="level"):
            product(A, B, V, USABLE[-1])
