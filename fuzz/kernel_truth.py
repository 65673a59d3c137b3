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

STATIONARY = (
    *("RBF", "Matern", "RationalQuadratic", "Periodic", "Laplacian", "Constant"),
    *("Wave", "Hamming", "Tanimoto", "MinMax", "GreatCircle"),
)
"""Kernels whose k(x, x) is the same everywhere."""


def described(kernel: Any) -> tuple[Any, ...]:
    """Return the kind and the hyperparameters of a kernel, as the library's objects name them."""
    kind = type(kernel).__name__
    if kind in ("Sum", "Product"):
        return kind, described(kernel.left), described(kernel.right)
    if kind == "Power":
        return kind, described(kernel.kernel), int(kernel.exponent)
    if kind == "OnColumns":
        return kind, described(kernel.part), [int(column) for column in kernel.columns]
    if kind == "OnSphere":
        return kind, described(kernel.part), float(kernel.radius)
    if kind == "Warped":
        return kind, described(kernel.part), *[np.asarray(one, dtype=np.float64) for one in (kernel.a, kernel.b)]
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
        "Wave": ("period", "variance"),
        "Hamming": ("lengthscale", "variance"),
        "Tanimoto": ("variance",),
        "MinMax": ("variance",),
        "GreatCircle": ("lengthscale", "variance", "radius"),
    }[kind]
    return kind, *[np.asarray(getattr(kernel, name), dtype=np.float64).copy() for name in names]


def is_stationary(kernel: tuple[Any, ...]) -> bool:
    """Return whether k(x, x) is the same everywhere."""
    parts = [part for part in kernel[1:] if isinstance(part, tuple)]
    return all(is_stationary(part) for part in parts) if parts else kernel[0] in STATIONARY


def entries(kernel: tuple[Any, ...], X: np.ndarray, Y: np.ndarray) -> arb_mat:
    """Return k(x_i, y_j) as an (n, m) matrix; X and Y hold floats, or numbers of any precision as objects."""
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
    if kind in MAPS:
        with ctx.workprec(ctx.prec + CANCELLED):
            mapped = [MAPS[kind](numbers[1:], points) for points in (X, Y)]
        return _values(numbers[0], *mapped)
    if kind == "Constant":
        return [arb(float(numbers[0]))] * (len(X) * len(Y))
    if kind in PAIRS:
        with ctx.workprec(ctx.prec + 128):
            return [PAIRS[kind](numbers, x, y).mid() for x in _rows(X) for y in _rows(Y)]
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


def _rows(X: np.ndarray) -> list[list[arb]]:
    return [[arb(value) for value in row] for row in X.tolist()]


def _objects(rows: list[list[arb]]) -> np.ndarray:
    """Return rows of numbers as an array of objects."""
    found = np.empty((len(rows), len(rows[0]) if rows else 0), dtype=object)
    for i, row in enumerate(rows):
        found[i] = row
    return found


def _columns(numbers: list[Any], X: np.ndarray) -> np.ndarray:
    return X[:, numbers[0]]


def _sphere(numbers: list[Any], X: np.ndarray) -> np.ndarray:
    """Return (n, 3) points on a sphere of this radius, for latitudes and longitudes in degrees."""
    radius = arb(numbers[0])
    places = [(latitude / 180, longitude / 180) for latitude, longitude in _rows(X)]
    return _objects(
        [[radius * u.cos_pi() * v.cos_pi(), radius * u.cos_pi() * v.sin_pi(), radius * u.sin_pi()] for u, v in places]
    )


def _warped(numbers: list[Any], X: np.ndarray) -> np.ndarray:
    """Return 1 − (1 − x^a)^b."""
    a, b = (_spread(one, X) for one in numbers)
    return _objects([[_bent(x, p, q) for x, p, q in zip(row, a, b, strict=True)] for row in _rows(X)])


def _bent(x: arb, a: arb, b: arb) -> arb:
    return x if x == 0 or x == 1 else (1 - (1 - x**a) ** b).mid()


def _wave(numbers: list[Any], x: list[arb], y: list[arb]) -> arb:
    period = np.broadcast_to(numbers[0], len(x)).tolist()
    turns = sum(((a - b) / p for a, b, p in zip(x, y, period, strict=True)), arb(0))
    return arb(float(numbers[1])) * (2 * turns).cos_pi()


def _hamming(numbers: list[Any], x: list[arb], y: list[arb]) -> arb:
    lengthscale = np.broadcast_to(numbers[0], len(x)).tolist()
    differences = (1 / arb(one) for a, b, one in zip(x, y, lengthscale, strict=True) if a != b)
    return arb(float(numbers[1])) * _falling(sum(differences, arb(0)))


def _tanimoto(numbers: list[Any], x: list[arb], y: list[arb]) -> arb:
    common = sum((a * b for a, b in zip(x, y, strict=True)), arb(0))
    union = sum((a * a + b * b for a, b in zip(x, y, strict=True)), arb(0)) - common
    return arb(float(numbers[0])) * (common / union if union > 0 else 1)


def _min_max(numbers: list[Any], x: list[arb], y: list[arb]) -> arb:
    pairs = [(a, b) if a < b else (b, a) for a, b in zip(x, y, strict=True)]
    high = sum((b for _, b in pairs), arb(0))
    return arb(float(numbers[0])) * (sum((a for a, _ in pairs), arb(0)) / high if high > 0 else 1)


def _great_circle(numbers: list[Any], x: list[arb], y: list[arb]) -> arb:
    """Return σ² e^(−rθ / l) with sin²(θ/2) by the formula of haversines."""
    lengthscale, variance, radius = (arb(float(number)) for number in numbers)
    (u, v), (s, t) = ([value / 180 for value in point] for point in (x, y))
    across, along = ((u - s) / 2).sin_pi(), ((v - t) / 2).sin_pi()
    squared = across * across + u.cos_pi() * s.cos_pi() * along * along  # powers of intervals around 0 are NaN
    half = squared.mid().sqrt() if squared.mid() > 0 else arb(0)
    angle = 2 * (half.asin() if half < 1 else arb.pi() / 2)
    return variance * _falling(radius * angle / lengthscale)


MAPS = {"OnColumns": _columns, "OnSphere": _sphere, "Warped": _warped}
"""Maps of the inputs before a kernel sees them."""

PAIRS = {
    "Wave": _wave,
    "Hamming": _hamming,
    "Tanimoto": _tanimoto,
    "MinMax": _min_max,
    "GreatCircle": _great_circle,
}
"""Kernels that are computed pair by pair."""


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
