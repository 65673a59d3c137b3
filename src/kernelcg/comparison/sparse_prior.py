"""FITC, PITC and VAR: what they put in the place of K, and the linear algebra that follows in O(n m²).

With m inducing inputs U, K_UU = L Lᵀ and F = K_XU L⁻ᵀ, so that F Fᵀ = Q = K_XU K_UU⁻¹ K_UX, the prior covariance of the
latent values at X is F Fᵀ + Λ:

    FITC  Λ = diag(K − Q)          PITC  Λ = blockdiag(K − Q)          VAR  Λ = 0

VAR pays for the variance K − Q that it drops in the evidence. Everything is float64 and differentiable in the
hyperparameters; no n × n matrix is made.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import torch
from numpy.linalg import LinAlgError
from torch import Generator, Tensor
from torch.utils.checkpoint import checkpoint

from kernelcg.arguments import matrix
from kernelcg.inference.gaussian.drift import spread_of
from kernelcg.kernels import Kernel
from kernelcg.preconditioners.blocks import bisected
from kernelcg.preconditioners.low_rank_remainder import BlockRemainder, DiagonalRemainder
from kernelcg.preconditioners.shapes import BlockDiagonal, Factored
from kernelcg.randomness import choose


class SparseKind(StrEnum):
    """Approximations by inducing inputs; the value is what users type."""

    FITC = "fitc"
    PITC = "pitc"
    VARIATIONAL = "var"


KINDS = tuple(SparseKind)

JITTER = 1e-6
"""Added to the diagonal of K_UU, relative to its mean: a part of the definition, never raised."""

ENTRIES_AT_ONCE = 2**21
"""Entries of K_XU for which the intermediate results of the kernel's formula are held at once."""


def inducing_points(X: Tensor, count: int | None = None, *, generator: Generator) -> Tensor:
    """Return (m, d) inducing inputs: rows of X drawn without repetition, n^⅔ of them (rounded) unless ``count`` says.

    They stay where they are while hyperparameters are learned, as in GPstuff, which optimises inducing inputs only if
    ``infer_params`` asks for it.

    Parameters
    ----------
    X : (n, d) the training inputs
    count : m; None means n^⅔, rounded
    generator : source of randomness: the same state gives the same numbers

    Examples
    --------
    >>> import torch
    >>> from kernelcg.comparison import inducing_points
    >>> inducing_points(torch.arange(27.0)[:, None], generator=torch.Generator().manual_seed(0)).shape
    torch.Size([9, 1])
    """
    X = matrix(X, "X")
    m = round(len(X) ** (2 / 3)) if count is None else count
    if isinstance(m, bool) or not isinstance(m, int) or not 1 <= m <= len(X):
        raise ValueError(f"count must be a whole number from 1 to {len(X)}, the rows of X, not {count!r}")
    return X[choose(len(X), m, generator).to(X.device)]


def compact_blocks(X: Tensor, size: int) -> list[Tensor]:
    """Return row numbers of blocks of at most ``size`` rows: the widest standardised feature is halved again and again.

    A function of the inputs alone, so that the blocks stay the same while hyperparameters are learned.
    """
    return [torch.from_numpy(np.sort(rows)).to(X.device) for rows in bisected(_in_spreads_of(X, X), size)]


@dataclass(frozen=True, eq=False)
class SparseApproximation:
    """What is fixed about a sparse approximation while hyperparameters are learned.

    Parameters
    ----------
    U : (m, d) inducing inputs
    block_size : largest number of rows in a block of PITC; None means m. See `compact_blocks`
    kind : "fitc", "pitc" or "var"
    """

    kind: SparseKind
    U: Tensor
    block_size: int | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind must be one of {', '.join(KINDS)}, not {self.kind!r}")
        object.__setattr__(self, "kind", SparseKind(self.kind))
        size = self.block_size
        if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size < 1):
            raise ValueError(f"block_size must be a positive whole number or None, not {size!r}")
        object.__setattr__(self, "U", matrix(self.U, "U").detach().double())

    def prior(self, kernel: Kernel, X: Tensor) -> "SparsePrior":
        """Return the approximate prior at X: O(n m²) time for F, O(n b (b + m)) for PITC's blocks of b rows.

        Raises
        ------
        LinAlgError : if K_UU is not positive definite in spite of its jitter
        """
        K_uu = kernel(self.U, self.U)
        jitter = JITTER * K_uu.diagonal().mean()
        L = lower_factor(K_uu + jitter * torch.eye(len(K_uu)).to(K_uu))
        F = torch.linalg.solve_triangular(L.mT, _columns(kernel, X, self.U), upper=True, left=False)
        unexplained = kernel.diagonal(X) - F.square().sum(1)
        if self.kind is SparseKind.PITC:
            blocks = compact_blocks(X, self.block_size or len(self.U))
            return SparsePrior(L, F, _block_remainder(kernel, X, F, blocks), unexplained)
        return SparsePrior(L, F, DiagonalRemainder(unexplained if self.kind is SparseKind.FITC else None), unexplained)

    def posterior(
        self, kernel: Kernel, X: Tensor, prior: "SparsePrior", system: "SparseSystem", a: Tensor
    ) -> "LatentPosterior":
        """Return the process whose mean at the data X is (F Fᵀ + Λ) a, a (n, c)."""
        own = OwnBlocks(X, prior.F, system, a) if self.kind is SparseKind.PITC else None
        return LatentPosterior(kernel.detached(), self.U, prior.L, system.R, prior.F.T @ a, own)


@dataclass(frozen=True, eq=False)
class SparsePrior:
    """F Fᵀ + Λ, the approximate prior covariance."""

    L: Tensor  # (m, m) lower
    F: Tensor  # (n, m)
    remainder: DiagonalRemainder | BlockRemainder
    """Λ."""
    unexplained: Tensor
    """(n,) the diagonal of K − Q."""

    def product(self, V: Tensor) -> Tensor:
        """Return (F Fᵀ + Λ) V for V (n, k)."""
        low_rank = self.F @ (self.F.T @ V)
        if isinstance(self.remainder, DiagonalRemainder):
            values = self.remainder.values
            return low_rank if values is None else low_rank + values[:, None] * V
        own = torch.zeros_like(low_rank)
        for rows, E in self.remainder.groups:
            own[rows] = E @ V[rows]
        return low_rank + own

    def system(self, diagonal: Tensor, scale: Tensor | None = None) -> "SparseSystem":
        """Return A = S (F Fᵀ + Λ) S + D, factorised.

        Raises
        ------
        LinAlgError : if it is not positive definite
        """
        base = self.remainder.factor(scale, diagonal)
        if isinstance(base, BlockDiagonal) and base.jitter > 0:
            raise LinAlgError("a block of K − Q + D is not positive definite")
        G = base.whiten(self.F if scale is None else scale[:, None] * self.F)
        return SparseSystem(base, G, lower_factor(G.T @ G + torch.eye(G.shape[1]).to(G)), scale)


@dataclass(frozen=True, eq=False)
class SparseSystem:
    r"""A = C (G Gᵀ + I) Cᵀ, where C Cᵀ = SΛS + D is diagonal or block diagonal and G = C⁻¹SF.

    .. math:: A^{-1} = C^{-\top} (I - G M^{-1} G^\top)\, C^{-1}, \qquad \log|A| = \log|C C^\top| + \log|M|,
        \qquad M = I + G^\top G = R R^\top

    The QR factorisation of `LowRankPlus` would keep more digits where the noise is tiny, at three times the cost.
    """

    base: Factored
    G: Tensor  # (n, m)
    R: Tensor  # (m, m) lower
    scale: Tensor | None = None
    """The diagonal of S (n,); None means I."""

    def solve(self, B: Tensor) -> Tensor:
        """Return A⁻¹B for B (n, k)."""
        Z = self.base.whiten(B)
        return self.base.unwhiten(Z - self.G @ torch.cholesky_solve(self.G.T @ Z, self.R))

    def log_determinant(self) -> Tensor:
        """Return log|A|."""
        return self.base.log_determinant() + 2 * self.R.diagonal().log().sum()


@dataclass(frozen=True, eq=False)
class OwnBlocks:
    """What PITC learns of new points from the blocks they fall in: each into that of the training row nearest to it."""

    X: Tensor  # (n, d)
    F: Tensor  # (n, m)
    system: SparseSystem
    a: Tensor  # (n, c)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Return the training rows (b,) and the factor C (b, b) of each block."""
        base = self.system.base
        if not isinstance(base, BlockDiagonal):
            raise TypeError(f"only PITC has blocks, not {type(base).__name__}")
        return ((rows, C) for group in base.groups for rows, C in zip(*group, strict=True))

    def of(self, X: Tensor) -> Tensor:
        """Return (t,) the number of the block of each new point."""
        number = torch.empty(len(self.X), dtype=torch.int64, device=X.device)
        for k, (rows, _) in enumerate(self):
            number[rows] = k
        known = _in_spreads_of(self.X, self.X)
        pieces = _in_spreads_of(X, self.X).split(max(ENTRIES_AT_ONCE // (2 * len(known)), 1))
        return torch.cat([number[torch.cdist(piece, known).argmin(1)] for piece in pieces])

    def given(self, kernel: Kernel, X: Tensor, V: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return eᵀa (t, c), wᵀw (t,) and Gᵀw (m, t) of `LatentPosterior` at new points, for V = L⁻¹K_U* (m, t)."""
        mean, explained, seen = self.a.new_zeros(len(X), self.a.shape[1]), torch.zeros_like(V[0]), torch.zeros_like(V)
        number = self.of(X)
        for k, (rows, C) in enumerate(self):
            new = (number == k).nonzero()[:, 0]
            e = kernel(self.X[rows], X[new]) - self.F[rows] @ V[:, new]
            scaled = e if self.system.scale is None else self.system.scale[rows][:, None] * e
            w = torch.linalg.solve_triangular(C, scaled, upper=False)
            mean[new], explained[new], seen[:, new] = e.T @ self.a[rows], w.square().sum(0), self.system.G[rows].T @ w
        return mean, explained, seen


@dataclass(frozen=True, eq=False)
class LatentPosterior:
    r"""The latent process given the data, at any point: m² numbers, and for PITC those of the blocks.

    Its covariance with the latent values at X is F v + e, v = L⁻¹k_U*, where e is 0 for FITC and VAR; for PITC it is
    k_X* − F v in the new point's own block (the PIC of Snelson & Ghahramani) and 0 elsewhere. With a, by which the
    mean at X is (F Fᵀ + Λ) a, and w = C⁻¹S e,

    .. math:: \mathrm{E} f_* = v^\top F^\top a + e^\top a, \qquad
        \mathrm{V} f_* = k_{**} - v^\top v - w^\top w + (v - G^\top w)^\top M^{-1} (v - G^\top w)

    which is k** − k_*U K_UU⁻¹ k_U* + k_*U (K_UU + K_UX D⁻¹ K_XU)⁻¹ k_U* for S = I and e = 0.

    References
    ----------
    Quiñonero-Candela & Rasmussen (2005), A unifying view of sparse approximate Gaussian process regression;
    Snelson & Ghahramani (2007), Local and global sparse Gaussian process approximations.
    """

    kernel: Kernel
    U: Tensor
    L: Tensor
    R: Tensor
    weights: Tensor  # (m, c) Fᵀa
    own: OwnBlocks | None = None

    @torch.no_grad()
    def predict(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Return means (t, c) and variances (t,)."""
        X = matrix(X, "X").detach().to(self.U)
        V = torch.linalg.solve_triangular(self.L, _columns(self.kernel, X, self.U).T, upper=False)
        mean, left, seen = V.T @ self.weights, self.kernel.diagonal(X) - V.square().sum(0), V
        if self.own is not None:
            own_mean, explained, own_seen = self.own.given(self.kernel, X, V)
            mean, left, seen = mean + own_mean, left - explained, V - own_seen
        inner = torch.linalg.solve_triangular(self.R, seen, upper=False)
        return mean, left.clamp_min(0.0) + inner.square().sum(0)


def lower_factor(M: Tensor) -> Tensor:
    """Return L with L Lᵀ = M, differentiable, or raise `LinAlgError`."""
    L, failed = torch.linalg.cholesky_ex(M)
    if bool(failed):
        raise LinAlgError("the matrix is not positive definite")
    return L


def _in_spreads_of(X: Tensor, training: Tensor) -> Tensor:
    """Return X in units of the training rows' standard deviations, their mean taken off."""
    spread = spread_of(training)
    return (X - training.mean(0)) / torch.where(spread > 0, spread, 1.0)


def _columns(kernel: Kernel, X: Tensor, U: Tensor) -> Tensor:
    """Return K(X, U); of the formula's intermediate results only those of some rows are in memory at a time."""
    pieces = X.split(max(ENTRIES_AT_ONCE // len(U), 1))
    return torch.cat([_recomputed(kernel, piece, U) for piece in pieces])


def _block_remainder(kernel: Kernel, X: Tensor, F: Tensor, blocks: list[Tensor]) -> BlockRemainder:
    """Return the diagonal blocks of K − F Fᵀ, those of one size together."""
    groups = []
    for size in sorted({len(rows) for rows in blocks}):
        rows = torch.stack([rows for rows in blocks if len(rows) == size])
        K = torch.stack([_recomputed(kernel, X[one], X[one]) for one in rows])
        groups.append((rows, K - F[rows] @ F[rows].mT))
    return BlockRemainder(groups)


def _recomputed(kernel: Kernel, X: Tensor, Y: Tensor) -> Tensor:
    """Return K(X, Y); the backward pass evaluates the formula again instead of keeping what it went through."""
    return checkpoint(kernel, X, Y, use_reentrant=False, preserve_rng_state=False)
