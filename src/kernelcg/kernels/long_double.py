"""Entries of K in NumPy's long double, for checks: 64 binary digits where the processor has them, instead of 53.

Torch has no such numbers, so the formulas of the library's kernels are written here a second time, and a test compares
the two. A kernel that a user has written has no formula here.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from kernelcg.kernels.base import Kernel
from kernelcg.kernels.builders import Wave
from kernelcg.kernels.composite import Constant, Linear, Product, Sum
from kernelcg.kernels.laplacian import Laplacian
from kernelcg.kernels.mapped import OnColumns
from kernelcg.kernels.polynomial import Cosine, Polynomial, Power
from kernelcg.kernels.similarities import Hamming, MinMax, Tanimoto
from kernelcg.kernels.stationary import RBF, Matern, Periodic, RationalQuadratic, Stationary

REAL = np.longdouble

Reals = NDArray[Any]  # of long doubles

Entries = Callable[[Reals, Reals], Reals]
"""k(x_i, y_j) as an (n, m) array, for rows x_i and y_j."""

LONG_ROUNDOFF = float(np.finfo(REAL).eps) / 2
"""Relative rounding error of a long double: 2⁻⁶⁴ on x86, on some other processors no better than that of float64."""


AFFORDABLE_OPERATIONS = 1e9
"""Operations in long double that one check may take, about ten seconds of one core: 7,000 rows of ten features."""

OPERATIONS_PER_ENTRY = 10
"""Cost of the exponential and the root of an entry, where 1 is the cost of one feature; one column costs a third."""


def operations_of_product(rows: int, n: int, d: int, columns: int) -> float:
    """Return the operations of a product of ``rows`` × n entries of a kernel of d features with so many columns."""
    return rows * n * (OPERATIONS_PER_ENTRY + d + columns / 3)


def reals(values: Tensor) -> Reals:
    """Return a tensor of float64 numbers in long double, exactly."""
    exact: Reals = values.detach().double().cpu().numpy().astype(REAL)
    return exact


def long_double_entries(kernel: Kernel) -> Entries | None:
    """Return the formula of the kernel in long double, or None where there is none."""
    if isinstance(kernel, Sum | Product):
        left, right = long_double_entries(kernel.left), long_double_entries(kernel.right)
        if left is None or right is None:
            return None
        if isinstance(kernel, Sum):
            return lambda X, Y: left(X, Y) + right(X, Y)
        return lambda X, Y: left(X, Y) * right(X, Y)
    if isinstance(kernel, Power):
        base, exponent = long_double_entries(kernel.kernel), kernel.exponent
        return None if base is None else lambda X, Y: base(X, Y) ** exponent
    if isinstance(kernel, OnColumns):
        part, columns = long_double_entries(kernel.part), np.array(kernel.columns, dtype=int)
        return None if part is None else lambda X, Y: part(X[:, columns], Y[:, columns])
    formulas: dict[type[Kernel], Callable[[Any, Reals, Reals], Reals]] = {
        Constant: _constant,
        Linear: _linear,
        Polynomial: _polynomial,
        Cosine: _cosine,
        Laplacian: _laplacian,
        Periodic: _periodic,
        Wave: _wave,
        Hamming: _hamming,
        Tanimoto: _tanimoto,
        MinMax: _min_max,
        RBF: _stationary,
        Matern: _stationary,
        RationalQuadratic: _stationary,
    }
    found = formulas.get(type(kernel))
    return None if found is None else lambda X, Y: found(kernel, X, Y)


def has_sines(kernel: Kernel) -> bool:
    """Whether an entry takes a sine for each feature, which is most of what it costs."""
    if isinstance(kernel, Sum | Product):
        return has_sines(kernel.left) or has_sines(kernel.right)
    if isinstance(kernel, OnColumns):
        return has_sines(kernel.part)
    return has_sines(kernel.kernel) if isinstance(kernel, Power) else isinstance(kernel, Periodic)


def _constant(kernel: Constant, X: Reals, Y: Reals) -> Reals:
    return np.full((len(X), len(Y)), reals(kernel.variance)[()])


def _linear(kernel: Linear, X: Reals, Y: Reals) -> Reals:
    return (reals(kernel.variance) * X) @ Y.T


def _polynomial(kernel: Polynomial, X: Reals, Y: Reals) -> Reals:
    return (reals(kernel.gamma) * (X @ Y.T) + REAL(kernel.coef0)) ** kernel.degree


def _cosine(kernel: Cosine, X: Reals, Y: Reals) -> Reals:
    def directions(Z: Reals) -> Reals:
        largest = np.abs(Z).max(1, keepdims=True)
        Z = Z / np.where(largest > 0, largest, 1)
        return Z / np.sqrt(np.maximum((Z * Z).sum(1, keepdims=True), 1))

    return reals(kernel.variance) * (directions(X) @ directions(Y).T)


def _laplacian(kernel: Laplacian, X: Reals, Y: Reals) -> Reals:
    lengths, total = np.broadcast_to(reals(kernel.lengthscale), X.shape[1]), 0
    for r, length in enumerate(lengths):
        total = total + np.abs(np.subtract.outer(X[:, r], Y[:, r])) / length
    return reals(kernel.variance) * np.exp(-total)


def _periodic(kernel: Periodic, X: Reals, Y: Reals) -> Reals:
    lengths = np.broadcast_to(reals(kernel.lengthscale), X.shape[1])
    periods, total, pi = np.broadcast_to(reals(kernel.period), X.shape[1]), 0, 4 * np.arctan(REAL(1))
    for r, (length, period) in enumerate(zip(lengths, periods, strict=True)):
        phases = [np.fmod(Z[:, r], period) / period for Z in (X, Y)]  # whole periods taken out without rounding
        total = total + (np.sin(pi * np.subtract.outer(*phases)) / length) ** 2
    return reals(kernel.variance) * np.exp(-2 * total)


def _wave(kernel: Wave, X: Reals, Y: Reals) -> Reals:
    periods = np.broadcast_to(reals(kernel.period), X.shape[1])
    turns = [(np.fmod(Z, periods) / periods).sum(1) for Z in (X, Y)]
    return reals(kernel.variance) * np.cos(8 * np.arctan(REAL(1)) * np.subtract.outer(*turns))


def _hamming(kernel: Hamming, X: Reals, Y: Reals) -> Reals:
    lengths, total = np.broadcast_to(reals(kernel.lengthscale), X.shape[1]), REAL(0)
    for r, length in enumerate(lengths):
        total = total + np.not_equal.outer(X[:, r], Y[:, r]) / length
    return reals(kernel.variance) * np.exp(-total)


def _tanimoto(kernel: Tanimoto, X: Reals, Y: Reals) -> Reals:
    common = X @ Y.T
    union = np.add.outer((X * X).sum(1), (Y * Y).sum(1)) - common
    return reals(kernel.variance) * np.where(union > 0, common / np.where(union > 0, union, 1), 1)


def _min_max(kernel: MinMax, X: Reals, Y: Reals) -> Reals:
    low, high = (sum(f.outer(x, y) for x, y in zip(X.T, Y.T, strict=True)) for f in (np.minimum, np.maximum))
    return reals(kernel.variance) * np.where(high > 0, low / np.where(high > 0, high, 1), 1)


def _stationary(kernel: Stationary, X: Reals, Y: Reals) -> Reals:
    """Return σ² times the profile of s = Σ_r ((x_r − y_r) / l_r)², by direct differences."""
    inverses = 1 / np.broadcast_to(reals(kernel.lengthscale), X.shape[1])
    s, difference = np.zeros((len(X), len(Y)), dtype=REAL), np.empty((len(X), len(Y)), dtype=REAL)
    for r, inverse in enumerate(inverses):
        np.subtract.outer(X[:, r], Y[:, r], out=difference)
        difference *= inverse
        difference *= difference
        s += difference
    return reals(kernel.variance) * _profile(kernel, s)


def _profile(kernel: Stationary, s: Reals) -> Reals:
    if isinstance(kernel, RBF):
        return np.exp(-s / 2)
    if isinstance(kernel, RationalQuadratic):
        alpha = reals(kernel.alpha)
        return np.exp(-alpha * np.log1p(s / (2 * alpha)))
    if isinstance(kernel, Matern):
        q = np.sqrt(REAL(2 * kernel.nu) * s)
        polynomial = {0.5: 1, 1.5: 1 + q, 2.5: 1 + q + q * q / 3}[kernel.nu]
        return polynomial * np.exp(-q)
    raise TypeError(f"{type(kernel).__name__} has no formula in long double")
