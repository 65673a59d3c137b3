"""Formulas of the kernels with hundreds of binary digits; imports nothing of the package.

A kernel is described by nested tuples: its kind and its numbers, read from the attributes of a fitted model's.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
from flint import arb, arb_mat, ctx

from fuzz.high_precision import matrix

CANCELLED = 448
"""Binary digits that |x|² + |y|² − 2xᵀy may lose: inputs may differ by 1e-10 where others are at 1e20 and beyond."""

STATIONARY = ("RBF", "Matern", "RationalQuadratic", "Periodic", "Laplacian", "Constant")


def described(kernel: Any) -> tuple[Any, ...]:
    """Return the kind and the hyperparameters of a kernel, as the library's objects name them."""
    kind = type(kernel).__name__
    if kind in ("Sum", "Product"):
        return kind, described(kernel.left), described(kernel.right)
    if kind == "Power":
        return kind, described(kernel.kernel), int(kernel.exponent)
    names = {
        "RBF": ("lengthscale", "variance"),
        "Matern": ("lengthscale", "variance", "nu"),
        "RationalQuadratic": ("lengthscale", "variance", "alpha"),
        "Periodic": ("lengthscale", "variance", "period"),
        "Laplacian": ("lengthscale", "variance"),
        "Linear": ("variance",),
        "Constant": ("variance",),
        "Cosine": ("variance",),
        "Polynomial": ("gamma", "coef0", "degree"),
    }[kind]
    return kind, *[np.asarray(getattr(kernel, name), dtype=np.float64).copy() for name in names]


def is_stationary(kernel: tuple[Any, ...]) -> bool:
    """Return whether k(x, x) is the same everywhere."""
    parts = [part for part in kernel[1:] if isinstance(part, tuple)]
    return all(is_stationary(part) for part in parts) if parts else kernel[0] in STATIONARY


def entries(kernel: tuple[Any, ...], X: np.ndarray, Y: np.ndarray) -> arb_mat:
    """Return k(x_i, y_j) as an (n, m) matrix."""
    return arb_mat(len(X), len(Y), _values(kernel, X, Y))


def diagonal(kernel: tuple[Any, ...], X: np.ndarray) -> list[arb]:
    """Return k(x_i, x_i) of every row."""
    if is_stationary(kernel):
        return _values(kernel, X[:1], X[:1]) * len(X)
    return [_values(kernel, x[None], x[None])[0] for x in X]


def _values(kernel: tuple[Any, ...], X: np.ndarray, Y: np.ndarray) -> list[arb]:
    """Return the entries row by row."""
    kind, *numbers = kernel
    if kind == "Sum":
        return [a + b for a, b in zip(_values(numbers[0], X, Y), _values(numbers[1], X, Y), strict=True)]
    if kind == "Product":
        return [a * b for a, b in zip(_values(numbers[0], X, Y), _values(numbers[1], X, Y), strict=True)]
    if kind == "Power":
        return [a ** numbers[1] for a in _values(numbers[0], X, Y)]
    if kind == "Constant":
        return [arb(float(numbers[0]))] * (len(X) * len(Y))
    if kind == "Linear":
        return _inner(X, Y, _spread(numbers[0], X))
    if kind == "Polynomial":
        gamma, coef0, degree = arb(float(numbers[0])), arb(float(numbers[1])), int(numbers[2])
        return [(gamma * a + coef0) ** degree for a in _inner(X, Y, [arb(1)] * X.shape[1])]
    if kind == "Cosine":
        return _cosines(X, Y, arb(float(numbers[0])))
    lengthscale, variance = _spread(numbers[0], X), arb(float(numbers[1]))
    if kind == "Periodic":
        return _periodic(X, Y, lengthscale, _spread(numbers[2], X), variance)
    if kind == "Laplacian":
        return _laplacian(X, Y, lengthscale, variance)
    squares = _squared_distances(X, Y, [1 / (one * one) for one in lengthscale])
    return [variance * one for one in _profile(kind, numbers[2:], squares)]


def _falling(q: arb) -> arb:
    """Return exp(−q), 0 instead of numbers below 2⁻¹⁴⁴²⁶, which no digit of any result depends on."""
    return (-q).exp() if q < 10_000 else arb(0)


def _profile(kind: str, numbers: list[np.ndarray], squares: list[arb]) -> Iterable[arb]:
    """Return the correlations at squared distances in lengthscales."""
    if kind == "RBF":
        return (_falling(s / 2) for s in squares)
    number = arb(float(numbers[0]))
    if kind == "RationalQuadratic":
        return ((-number * (1 + s / (2 * number)).log()).exp() for s in squares)
    twice = round(2 * float(numbers[0]))
    roots = ((twice * s).sqrt() for s in squares)
    if twice == 1:
        return (_falling(q) for q in roots)
    if twice == 3:
        return ((1 + q) * _falling(q) for q in roots)
    return ((1 + q + q * q / 3) * _falling(q) for q in roots)


def _spread(number: np.ndarray, X: np.ndarray) -> list[arb]:
    return [arb(value) for value in np.broadcast_to(number, X.shape[1:]).tolist()]


def _inner(X: np.ndarray, Y: np.ndarray, weights: list[arb]) -> list[arb]:
    """Return Σ_r w_r x_r y_r."""
    d = X.shape[1]
    scale = arb_mat(d, d, [weights[r] if r == s else arb(0) for r in range(d) for s in range(d)])
    return (matrix(X) * scale * matrix(Y).transpose()).entries()


def _squared_distances(X: np.ndarray, Y: np.ndarray, weights: list[arb]) -> list[arb]:
    """Return Σ_r w_r (x_r − y_r)², 0 between equal points."""
    with ctx.workprec(ctx.prec + CANCELLED):
        cross = _inner(X, Y, weights)
        left, right = ([_inner(x[None], x[None], weights)[0] for x in points] for points in (X, Y))
        m = len(Y)
        found = [(left[k // m] + right[k % m] - 2 * value).mid() for k, value in enumerate(cross)]
    return [value if value > 0 else arb(0) for value in found]


def _periodic(X: np.ndarray, Y: np.ndarray, lengthscale: list[arb], period: list[arb], variance: arb) -> list[arb]:
    found = []
    with ctx.workprec(ctx.prec + 128):
        for x in X.tolist():
            for y in Y.tolist():
                features = zip(x, y, period, lengthscale, strict=True)
                sines = (((arb(a) - arb(b)) / p).sin_pi() / one for a, b, p, one in features)
                found.append((variance * _falling(2 * sum(sine * sine for sine in sines))).mid())
    return found


def _laplacian(X: np.ndarray, Y: np.ndarray, lengthscale: list[arb], variance: arb) -> list[arb]:
    found = []
    for x in X.tolist():
        for y in Y.tolist():
            total = sum(abs(arb(a) - arb(b)) / one for a, b, one in zip(x, y, lengthscale, strict=True))
            found.append((variance * _falling(total)).mid())
    return found


def _cosines(X: np.ndarray, Y: np.ndarray, variance: arb) -> list[arb]:
    ones = [arb(1)] * X.shape[1]
    left, right = ([_inner(x[None], x[None], ones)[0].sqrt() for x in points] for points in (X, Y))
    m, cross = len(Y), _inner(X, Y, ones)
    return [
        variance * value / (left[k // m] * right[k % m]) if left[k // m] > 0 and right[k % m] > 0 else arb(0)
        for k, value in enumerate(cross)
    ]
