"""Residuals and means recomputed in long double, where rounding in float64 is too much for a useful bound."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kernelcg.inference.bounds.rounding import (
    UNIT_ROUNDOFF,
    Certified,
    EnergyBound,
    Rounding,
    energy_norms,
    error_of_drift,
    lengths_of,
)
from kernelcg.inference.gaussian.drift import Drift
from kernelcg.kernels.long_double import (
    AFFORDABLE_OPERATIONS,
    LONG_ROUNDOFF,
    Entries,
    Reals,
    has_sines,
    long_double_entries,
    operations_of_product,
    reals,
)
from kernelcg.operators import KernelPlusDiagonal

SINE = 8
"""What a feature of a periodic kernel costs, for which a sine is computed, in units of what another feature costs."""

ENTRIES_AT_ONCE = 1 << 18


@dataclass(frozen=True, eq=False)
class LongDouble:
    """The matrix A in long double, and how far products with it may be off: 2,048 times less than in float64 on x86."""

    A: KernelPlusDiagonal
    entries: Entries
    rounding: Rounding

    @classmethod
    def of(
        cls, A: KernelPlusDiagonal, columns: int, operations: float = AFFORDABLE_OPERATIONS, *, rows: int | None = None
    ) -> "LongDouble | None":
        """Return it if products with so many columns are affordable and the processor and the kernel have it.

        Differences of inputs are rounded once, so that the distance of the data from the origin does not count.

        Parameters
        ----------
        rows : of K that will be needed; None means all n
        """
        n, d = A.X.shape
        features = d * (SINE if has_sines(A.kernel) else 1)
        work = operations_of_product(n if rows is None else rows, n, features, columns)
        entries = long_double_entries(A.kernel)
        if LONG_ROUNDOFF > UNIT_ROUNDOFF / 1000 or entries is None or work > operations or A.scale is not None:
            return None
        lengths = float(A.kernel.rounding_lengths(A.X.new_zeros(1, d, dtype=torch.float64)).max()) + d / 4
        return cls(A, entries, Rounding.with_lengths(A, lengths, LONG_ROUNDOFF))

    def certified(
        self, B: Tensor, X: Tensor, bound: EnergyBound, points: Tensor | None = None, tail: Tensor | None = None
    ) -> Certified:
        """Return what `rounding.certified` does for X + tail, from a residual in long double.

        With ``points`` x*, B is k(X, x*). D may have been rounded once in float64, and the residual is in the end:
        these count with u of float64.
        """
        data, V = reals(self.A.X), in_full(X, tail)
        exact_B = reals(B) if points is None else self.entries(data, reals(points))
        exact_R = self._residual(exact_B, V)
        R, quadratic = _tensor(exact_R, X), _tensor((exact_B * V + V * exact_R).sum(0), X)
        roots = X.new_zeros(X.shape[1])
        if points is not None:
            roots = self.A.kernel.diagonal(points).detach().clamp_min(0).sqrt()
        DX2 = (self.A.diagonal[:, None] * X.square()).sum(0)
        floor = self.rounding.norm_of_residual_error(X, roots)
        own = lengths_of(self.A.diagonal.sqrt()[:, None] * X)
        floor = floor + UNIT_ROUNDOFF * (own + self.rounding.norm(R))
        rounded = self.rounding.of_products(roots, X) + self.rounding.gamma * (_tensor(exact_B, X) * X).abs().sum(0)
        rounded = rounded + UNIT_ROUNDOFF * (DX2 + (X * R).abs().sum(0) + quadratic.abs())
        return Certified(X, R, energy_norms(bound, R) + floor, floor, quadratic, rounded, self.rounding.gamma, tail)

    def mean(self, X: Tensor, weights: Certified, drift: Drift, beta: Tensor, root: Tensor) -> tuple[Tensor, Tensor]:
        """Return k(x, X)a + h(x)β, rounded to float64, and how far it may be off; ``root`` are √k(x, x)."""
        points, a = reals(X), weights.X
        h = np.concatenate([np.ones((len(points), 1)), points - reals(drift.centre)], axis=1) @ reals(drift.T)
        mean = _tensor(self.product(points, in_full(a, weights.tail)) + h @ reals(beta), a)
        of_drift = error_of_drift(drift, X) * (LONG_ROUNDOFF / UNIT_ROUNDOFF)
        return mean, self.rounding.of_mean(root, a) + of_drift @ beta.abs() + UNIT_ROUNDOFF * mean.abs()

    def unexplained(self, X: Tensor, V: Tensor) -> Tensor:
        """Return K** − K*ᵀA⁻¹K* at points x* up to the product of two errors of V ≈ A⁻¹K*, rounded to float64."""
        points, solution = reals(X), reals(V)
        K = self.entries(reals(self.A.X), points)
        left = self.entries(points, points) - K.T @ solution - solution.T @ self._residual(K, solution)
        return _tensor((left + left.T) / 2, V)

    def _residual(self, B: Reals, V: Reals) -> Reals:
        """Return B − A V."""
        return B - self.product(reals(self.A.X), V) - reals(self.A.diagonal)[:, None] * V

    def error_of_diagonal(self, X: Tensor, diagonal: Tensor) -> Tensor:
        """Return (t,) how far k(x, x) computed in float64 may be off."""
        exact = np.array([self.entries(x, x)[0, 0] for x in np.split(reals(X), len(X))])
        return _tensor(np.abs(reals(diagonal) - exact), diagonal) + 2 * self.rounding.gamma * diagonal

    def product(self, rows: Reals, V: Reals) -> Reals:
        """Return K(rows, X) V, a few rows at a time."""
        data = reals(self.A.X)
        size = max(1, ENTRIES_AT_ONCE // len(data))
        parts = [self.entries(rows[i : i + size], data) @ V for i in range(0, len(rows), size)]
        return np.concatenate(parts) if parts else np.zeros((0, V.shape[1]), dtype=V.dtype)


def in_full(X: Tensor, tail: Tensor | None) -> Reals:
    """Return X + tail in long double."""
    return reals(X) if tail is None else reals(X) + reals(tail)


def divided(values: Reals, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return X and tail, tensors like ``like``, with X + tail equal to values in long double but for their last bit."""
    X = _tensor(values, like)
    return X, _tensor(values - reals(X), like)


def _tensor(values: Reals, like: Tensor) -> Tensor:
    """Return the values rounded to float64; ±∞ where that has no number so large."""
    with np.errstate(over="ignore"):
        return torch.from_numpy(np.asarray(values, dtype=np.float64)).to(like)
