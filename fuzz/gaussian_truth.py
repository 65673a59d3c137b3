"""The posterior of a Gaussian process with hundreds of binary digits; imports nothing of the package."""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from flint import arb, arb_mat, ctx

from fuzz.high_precision import CholeskyFactor, digits_for, gram, lower_tiles, matrix, ranges, without_dust
from fuzz.kernel_truth import diagonal, entries


@dataclass
class Truth:
    """What exact arithmetic gives, in the units of the observations, (Y − offset) / scale.

    Attributes
    ----------
    mean : (t, c) means at the new points
    covariance : (t, t) of the latent values there, drift included
    log_likelihood : of each column of Y, with the drift at its best; (c,)
    left_out_residuals, left_out_variances : (m, c) and (m,) of some rows; NaN where the drift needs the row
    """

    mean: np.ndarray
    covariance: np.ndarray
    log_likelihood: np.ndarray
    left_out_residuals: np.ndarray
    left_out_variances: np.ndarray

    def column(self, j: int) -> "Truth":
        """Return the truth of one column of Y."""
        residuals = self.left_out_residuals[:, [j]]
        return replace(
            self, mean=self.mean[:, [j]], log_likelihood=self.log_likelihood[[j]], left_out_residuals=residuals
        )

    @property
    def variance(self) -> np.ndarray:
        """Return (t,) latent variances."""
        return np.diagonal(self.covariance)


@dataclass
class Process:
    """A Gaussian process given data.

    The kernel is described as in `kernel_truth`, the drift is h(x) = [1, x − centre] T. The observations are
    (Y − offset) / scale, without rounding; one offset and scale for each column of Y, or for all.
    """

    kernel: tuple[Any, ...]
    X: np.ndarray
    Y: np.ndarray
    D: np.ndarray  # (n,) noise variances
    centre: np.ndarray  # (d,)
    T: np.ndarray  # (1 + d, b)
    offset: tuple[float, ...] = (0.0,)
    scale: tuple[float, ...] = (1.0,)

    def prior_variances(self) -> list[float]:
        """Return k(x_i, x_i) of every row."""
        return [float(value) for value in diagonal(self.kernel, self.X)]

    def drift(self, X: np.ndarray) -> arb_mat:
        """Return the drift functions at the rows of X."""
        if self.T.shape[1] == 0:
            return arb_mat(len(X), 0)
        centred = (matrix(X) - matrix(np.repeat(self.centre[None], len(X), 0))).tolist()
        return arb_mat([[arb(1), *row] for row in centred]) * matrix(self.T)

    def truth(self, Xs: np.ndarray, left_out: np.ndarray) -> Truth:
        """Return means, covariances, likelihood, and what is left out at some of the rows.

        With L the factor of A = K + D, all is in the Gram matrix of L⁻¹[Y, H, K*, E], E unit vectors.
        """
        n = len(self.X)
        before = ctx.prec
        try:
            ctx.prec = 128
            largest = sum(self.prior_variances()) + float(self.D.max())
            ctx.prec = digits_for(largest, float(self.D.min()), n) + self._digits_of_drift()
            return self._truth(Xs, left_out)
        finally:
            ctx.prec = before

    def _digits_of_drift(self) -> int:
        """Return the further binary digits that HᵀA⁻¹H takes: linear functions range over the sizes of X, squared."""
        sizes = np.abs(self.X - self.centre)
        if self.T.shape[1] < 2 or not sizes.any():
            return 0
        return 2 * math.ceil(math.log2(sizes.max()) - math.log2(sizes[sizes > 0].min()))

    def _truth(self, Xs: np.ndarray, left_out: np.ndarray) -> Truth:
        factor = CholeskyFactor(lower_tiles(self._tile, len(self.X)))
        W = factor.whitened([self._right_hand_sides(rows, Xs, left_out) for rows in ranges(len(self.X))])
        G, H_star = gram(W).tolist(), self.drift(Xs)
        c, b, t, m = self.Y.shape[1], H_star.ncols(), len(Xs), len(left_out)
        y, h, k, e = (range(a, z) for a, z in ((0, c), (c, c + b), (c + b, c + b + t), (c + b + t, c + b + t + m)))

        def block(rows: range, columns: range) -> arb_mat:
            return arb_mat(len(rows), len(columns), [G[i][j] for i in rows for j in columns])

        S, by_drift = block(h, h), block(h, y)
        rho = H_star.transpose() - block(h, k)  # (b, t)
        beta, leverage = (S.solve(by_drift), S.solve(rho)) if b else (by_drift, rho)
        mean = block(k, y) + rho.transpose() * beta if b else block(k, y)
        prior = entries(self.kernel, Xs, Xs)
        covariance = prior - block(k, k) + rho.transpose() * leverage if b else prior - block(k, k)
        quadratic = block(y, y) - by_drift.transpose() * beta if b else block(y, y)
        weights = block(e, y) - block(e, h) * beta if b else block(e, y)
        inverse = block(e, e) - block(e, h) * S.solve(block(h, e)) if b else block(e, e)
        constant = len(self.X) * (2 * arb.pi()).log()
        log_determinant = factor.log_determinant()
        return Truth(
            mean=_floats(mean),
            covariance=_floats(covariance),
            log_likelihood=np.array([-0.5 * float(quadratic[j, j] + log_determinant + constant) for j in range(c)]),
            left_out_residuals=_ratios(weights, inverse, block(e, e)),
            left_out_variances=_ratios(arb_mat(m, 1, [1] * m), inverse, block(e, e))[:, 0],
        )

    def _tile(self, rows: slice, columns: slice) -> arb_mat:
        K = self._cross(self.X[rows], self.X[columns])
        if rows == columns:
            for i, noise in enumerate(self.D[rows].tolist()):
                K[i, i] += arb(noise)
        return K.mid()

    def _observations(self, rows: slice) -> arb_mat:
        c = self.Y.shape[1]
        offset, scale = ([arb(v) for v in (pair * c)[:c]] for pair in (self.offset, self.scale))
        Y = matrix(self.Y[rows]).entries()
        return arb_mat(len(Y) // c, c, [((v - offset[k % c]) / scale[k % c]).mid() for k, v in enumerate(Y)])

    def _cross(self, X: np.ndarray, Xs: np.ndarray) -> arb_mat:
        return without_dust(entries(self.kernel, X, Xs), float(self.D.min()))

    def _right_hand_sides(self, rows: slice, Xs: np.ndarray, left_out: np.ndarray) -> arb_mat:
        X = self.X[rows]
        unit = (np.arange(rows.start, rows.stop)[:, None] == left_out).astype(np.float64)
        parts = [self._observations(rows), self.drift(X), self._cross(X, Xs), matrix(unit)]
        return arb_mat([[v for part in row for v in part] for row in zip(*[p.tolist() for p in parts], strict=True)])


def _floats(values: arb_mat) -> np.ndarray:
    found = np.array([float(value.mid()) for value in values.entries()])
    return found.reshape(values.nrows(), values.ncols())


def _ratios(above: arb_mat, below: arb_mat, whole: arb_mat) -> np.ndarray:
    """Return above_ij / below_ii, NaN where hardly anything is left of the whole."""
    found = np.full((above.nrows(), above.ncols()), np.nan)
    for i in range(above.nrows()):
        if float(below[i, i] / whole[i, i]) > 1e-8:
            found[i] = [float(above[i, j] / below[i, i]) for j in range(above.ncols())]
    return found
