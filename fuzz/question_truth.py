"""Components and derivatives of a Gaussian process with hundreds of binary digits; imports nothing of the package."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from flint import arb, arb_mat, ctx

from fuzz.gaussian_truth import Process
from fuzz.high_precision import CholeskyFactor, digits_for, gram, lower_tiles, ranges
from fuzz.kernel_truth import entries

STEP = 2.0**-50
"""Half the distance of central differences, in units of the spread of a feature; their error is its square."""

FURTHER = 160
"""Binary digits that differences over such distances lose, and some to spare."""


@dataclass
class Slopes:
    """Derivatives in x, (t, d), of mean and latent variance, and those of the correlation with each row of the data.

    The last, the largest over the data, says over what distance the model changes, so that errors can be compared.
    """

    mean: np.ndarray
    variance: np.ndarray
    correlation: np.ndarray


class Conditioned:
    """A process given its data; use it within ``with_digits``."""

    def __init__(self, process: Process):
        self.process, self.rows = process, ranges(len(process.X))
        self.factor = CholeskyFactor(lower_tiles(process._tile, len(process.X)))
        self.y = self.factor.whitened([process._observations(rows) for rows in self.rows])
        self.h = self.factor.whitened([process.drift(process.X[rows]) for rows in self.rows])
        self.has_drift = process.T.shape[1] > 0
        if self.has_drift:
            self.S = gram(self.h)
            self.beta = self.S.solve(_product(self.h, self.y)).mid()

    def at(self, kernel: tuple[Any, ...] | None, X: np.ndarray, *, drift: bool) -> tuple[list[arb], list[arb]]:
        """Return means and variances at X of the part with this kernel (None: k = 0), with or without the drift."""
        t, b = len(X), self.process.T.shape[1]
        mean, variance = arb_mat(t, 1), [arb(0)] * t
        rho = self.process.drift(X).transpose() if drift else arb_mat(b, t)
        if kernel is not None:
            k = self.factor.whitened([entries(kernel, self.process.X[rows], X).mid() for rows in self.rows])
            mean = _product(k, self.y)
            G = gram(k)
            variance = [entries(kernel, X[[i]], X[[i]])[0, 0] - G[i, i] for i in range(t)]
            if self.has_drift:
                hk = _product(self.h, k)
                mean, rho = mean - hk.transpose() * self.beta, rho - hk
        if self.has_drift:
            if drift:
                mean = mean + self.process.drift(X) * self.beta
            added = rho.transpose() * self.S.solve(rho)
            variance = [variance[i] + added[i, i] for i in range(t)]
        return [value.mid() for value in mean.entries()], [value.mid() for value in variance]


def with_digits(process: Process, asked: Any) -> Any:
    """Return what ``asked`` makes of the conditioned process, with enough digits."""
    with ctx.workprec(128):
        largest = sum(process.prior_variances()) + float(process.D.max())
    digits = digits_for(largest, float(process.D.min()), len(process.X)) + process._digits_of_drift() + FURTHER
    with ctx.workprec(digits):
        return asked(Conditioned(process))


def component(given: Conditioned, kernel: tuple[Any, ...] | None, X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return means and variances of the summand with this kernel, or of the drift."""
    mean, variance = given.at(kernel, X, drift=kernel is None)
    return np.array([float(one) for one in mean]), np.array([float(one) for one in variance])


def slopes(given: Conditioned, X: np.ndarray, unit: np.ndarray) -> Slopes:
    """Return derivatives at X by central differences of a tiny part of ``unit``, (d,)."""
    kernel, data, found = given.process.kernel, given.process.X, Slopes(*(np.zeros(X.shape) for _ in range(3)))
    scale = [float(entries(kernel, x[None], x[None])[0, 0]) for x in data]
    for i, r in np.ndindex(*X.shape):
        h, pair = arb(float(unit[r])) * arb(STEP), np.array([X[i], X[i]], dtype=object)
        pair[:, r] = [arb(float(X[i, r])) - h, arb(float(X[i, r])) + h]
        (low, high), (less, more) = given.at(kernel, pair, drift=True)
        found.mean[i, r], found.variance[i, r] = float((high - low) / (2 * h)), float((more - less) / (2 * h))
        k, own = entries(kernel, pair, data), float(entries(kernel, X[[i]], X[[i]])[0, 0])
        changes = [
            abs(float((k[1, j] - k[0, j]) / (2 * h))) / (own * scale[j]) ** 0.5
            for j in range(len(data))
            if own * scale[j] > 0
        ]
        found.correlation[i, r] = max(changes, default=0.0)
    return found


def _product(A: list[arb_mat], B: list[arb_mat]) -> arb_mat:
    """Return AᵀB of lists of tiles of rows."""
    total = A[0].transpose() * B[0]
    for left, right in zip(A[1:], B[1:], strict=True):
        total = total + left.transpose() * right
    return total.mid()
