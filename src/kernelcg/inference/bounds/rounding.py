"""Upper bounds of rᵀA⁻¹r that hold in floating-point arithmetic."""

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from kernelcg.backends.rounding import origin_of
from kernelcg.inference.gaussian.drift import Drift
from kernelcg.kernels import Kernel, Sum
from kernelcg.kernels.stationary import Stationary
from kernelcg.operators import KernelPlusDiagonal

ROWS_AT_ONCE = 2**12
"""Rows of X that are copied at once: X may be larger than the memory."""

UNIT_ROUNDOFF = 2.0**-53

ENTRY_ERROR = 32
"""Error of a kernel entry computed in float64, in units of its rounding, apart from that of the inputs.

Entries below 2⁻⁶⁴ √(k_ii k_jj), which products may leave out, are off by less than one.
"""


ENTIRELY_WRONG = 2.0
"""No entry is off by more than this times √(k_ii k_jj)."""

STANDARDISED = 3
"""Roundings of an observation: (y − mean) / scale, and that with which the drift is taken out."""


def lengths_from_centre(A: KernelPlusDiagonal) -> Tensor:
    """Return (n,) the `Kernel.rounding_lengths` of the data as formulas see them: ‖x_i − c‖ in lengthscales for most.

    Those of a sum are the largest of its parts, as is right for every sum of their errors.
    """
    origins = possible_origins(A.kernel, A.X, A.K.points.centre)
    lengths = [lengths_from(part, A.X, origin) for part, all_of_it in origins for origin in all_of_it]
    return torch.stack(lengths).amax(0)


def possible_origins(kernel: Kernel, X: Tensor, centre: Tensor) -> list[tuple[Kernel, tuple[Tensor, ...]]]:
    """Return each part of a sum with all that may be subtracted from inputs before its formula sees them.

    A backend may centre the data of a stationary part even where it cannot centre those of the whole. Others see them
    as they are: they may have no value anywhere else.
    """
    whole = (origin_of(kernel, X, centre),)
    apart = (*whole, centre)
    return [(part, apart if part.is_stationary and not kernel.is_stationary else whole) for part in terms(kernel)]


def terms(kernel: Kernel) -> tuple[Kernel, ...]:
    """Return the kernels whose sum it is."""
    return (*terms(kernel.left), *terms(kernel.right)) if isinstance(kernel, Sum) else (kernel,)


def lengths_from(kernel: Kernel, X: Tensor, origin: Tensor) -> Tensor:
    """Return (n,) the `Kernel.rounding_lengths` of X − origin; in parts where those of a row depend on no other."""
    parts = X.split(ROWS_AT_ONCE) if isinstance(kernel, Stationary) else (X,)
    return torch.cat([kernel.rounding_lengths(rows.double() - origin) for rows in parts])


class EnergyBound(Protocol):
    """Something with P ⪯ A."""

    def energy(self, R: Tensor) -> Tensor:
        """Return (k,) upper bounds of rᵀA⁻¹r in exact arithmetic."""
        ...


@dataclass(frozen=True, eq=False)
class Rounding:
    r"""How far a product with A in float64 may be off: |δ_i| ≤ γ (√k_ii Σ_j √k_jj |x_j| + D_ii |x_i|).

    γ counts the error of an entry, that of the scaled inputs it is computed from, and the accumulation of n terms,
    which grows as √n with overwhelming probability (Higham & Mary 2019). |K_ij| ≤ √(k_ii k_jj) for every kernel.
    """

    diagonal: Tensor  # (n,) D
    root: Tensor  # (n,) √k_ii
    gamma: float
    sums: float
    """The same for sums of products in float64 that no entry of K is part of."""

    @classmethod
    def of(cls, A: KernelPlusDiagonal) -> "Rounding":
        """Return that of products in float64."""
        return cls.with_lengths(A, float(lengths_from_centre(A).max()), UNIT_ROUNDOFF)

    @classmethod
    def with_lengths(cls, A: KernelPlusDiagonal, lengths: float, roundoff: float) -> "Rounding":
        """Return that of arithmetic with this unit roundoff, where `Kernel.rounding_lengths` are no longer."""
        units = ENTRY_ERROR + 2 * math.sqrt(len(A))
        gamma = min((units + 4 * lengths) * roundoff, ENTIRELY_WRONG)
        return cls(A.diagonal, A.kernel_diagonal().clamp_min(0).sqrt(), gamma, units * UNIT_ROUNDOFF)

    def norm(self, delta: Tensor) -> Tensor:
        """Return (k,) upper bounds ‖D^-½ δ‖ of (δᵀA⁻¹δ)^½."""
        return lengths_of(delta / self.diagonal.sqrt()[:, None])

    def norm_of_residual_error(self, X: Tensor, entries: Tensor | float = 0.0) -> Tensor:
        """Return (k,) upper bounds of ‖D^-½ δ‖ for the residuals B − A X.

        Where the columns of B are k(X, x*), ``entries`` are their √k**: then |δ_i| is up to γ √k_ii √k** more.
        """
        total = self.root @ X.abs() + entries  # (k,)
        own = lengths_of(self.diagonal.sqrt()[:, None] * X)
        return self.gamma * (total * self.norm(self.root[:, None]) + own)

    def of_mean(self, root_new: Tensor, weights: Tensor) -> Tensor:
        """Return (t, c) how far k*ᵀa computed in float64 may be off."""
        return self.gamma * root_new[:, None] * (self.root @ weights.abs())

    def of_products(self, root_new: Tensor, V: Tensor) -> Tensor:
        """Return (t,) how far k_jᵀv_j + v_jᵀ(k_j − Av_j) computed in float64 may be off.

        With s = Σ_i √k_ii |v_i|, the entries of k contribute γ √k** s twice and the residual γ (s² + vᵀDv), since it
        is itself only known that well; as much again is left for the sums.
        """
        s = self.root @ V.abs()
        return self.gamma * (4 * root_new * s + s.square() + (self.diagonal[:, None] * V.square()).sum(0))

    def of_residual(self, solved: "Certified") -> Tensor:
        """Return (n, k) how far the residuals of a solution may be off, in the arithmetic they were computed in."""
        X = solved.X.abs()
        return solved.gamma * (self.root[:, None] * (self.root @ X) + self.diagonal[:, None] * X)

    def of_projections(self, V: Tensor, solved: "Certified") -> Tensor:
        """Return (t, k) how far vᵀr of the residuals of a solution may be off: |v|ᵀ|δr|, and γ |v|ᵀ|r| for the sum."""
        V = V.abs().T
        return V @ self.of_residual(solved) + self.sums * (V @ solved.R.abs())

    def of_gram(self, H: Tensor, H_error: Tensor, G: Tensor, gamma: float) -> Tensor:
        """Return (b,) numbers e with |zᵀMz| ≤ b Σ e_i z_i² for the error M of HᵀG + Gᵀ(H − AG), its residual with γ.

        The residual gives M_ij up to γ (s_i s_j + g_i g_j), s_i = Σ_l √k_ll |G_li| and g_i = ‖D^½G_i‖, the sums and the
        error of H up to p_i g_j + p_j g_i, p_i = γ ‖D^-½H_i‖ + ‖D^-½δH_i‖, and (Σ|z|p)(Σ|z|g) is at most half of
        b Σ z² (t p² + g² / t) for any t.
        """
        s, g = self.root @ G.abs(), (self.diagonal[:, None] * G.square()).sum(0).sqrt()
        p = self.sums * self.norm(H) + self.norm(H_error)
        t = (g.norm() / p.norm()).clamp_min(1e-150)
        return gamma * (s + g).square() + t * p.square() + g.square() / t


@dataclass(frozen=True, eq=False)
class Certified:
    """Solutions X of A X = B with their residuals R and an upper bound of each error ‖x − A⁻¹b‖_A.

    Where float64 has too few digits for a solution it is X + ``tail``, |tail| ≤ u |X|. With r = b − Ax,
    bᵀA⁻¹b = bᵀx + xᵀr + rᵀA⁻¹r: it lies between ``quadratic`` and ``quadratic`` + error², up to ``quadratic_error``.
    """

    X: Tensor
    R: Tensor
    error: Tensor  # (k,)
    floor: Tensor  # (k,) the part of it that is rounding
    quadratic: Tensor  # (k,) bᵀx + xᵀr
    quadratic_error: Tensor  # (k,) how far rounding may have moved it
    gamma: float  # the `Rounding.gamma` of the arithmetic in which R was computed
    tail: Tensor | None = None

    def columns(self, some: slice) -> "Certified":
        """Return what is known of some of the columns."""
        parts = (self.X[:, some], self.R[:, some], self.error[some], self.floor[some])
        tail = None if self.tail is None else self.tail[:, some]
        return Certified(*parts, self.quadratic[some], self.quadratic_error[some], self.gamma, tail)


def certified(
    A: KernelPlusDiagonal,
    B: Tensor,
    X: Tensor,
    bound: EnergyBound,
    rounding: Rounding,
    entries: Tensor | float = 0.0,
) -> Certified:
    """Recompute B − A X in float64 and bound the errors of X. Costs one product.

    B is taken for exact, unless ``entries`` says that its columns are k(X, x*) with these √k**.
    """
    R = B - A.with_precision(torch.float64) @ X
    floor = rounding.norm_of_residual_error(X, entries)
    roots = entries if isinstance(entries, Tensor) else X.new_zeros(X.shape[1])
    rounded = rounding.of_products(roots, X) + rounding.gamma * (B * X).abs().sum(0)
    quadratic = (B * X + X * R).sum(0)
    return Certified(X, R, energy_norms(bound, R) + floor, floor, quadratic, rounded, rounding.gamma)


def energy_norms(bound: EnergyBound, R: Tensor) -> Tensor:
    """Return (k,) upper bounds of (rᵀA⁻¹r)^½, whatever the size of r: its squares may be no numbers of float64."""
    sizes = R.abs().amax(0).clamp_min(1e-300)
    return sizes * bound.energy(R / sizes).sqrt()


def lengths_of(V: Tensor) -> Tensor:
    """Return (k,) the norms of columns, likewise of any size."""
    sizes = V.abs().amax(0).clamp_min(1e-300)
    return sizes * (V / sizes).norm(dim=0)


def error_of_drift(drift: Drift, X: Tensor) -> Tensor:
    """Return (n, b) how far h(x_i) computed in float64, and its product with coefficients, may be off.

    |δh| ≤ (4 + d) u |[1, x − centre]| |T|.
    """
    if drift.T.shape[1] == 0:
        return X.new_zeros(len(X), 0)
    sizes = torch.cat([X.new_ones(len(X), 1), (X - drift.centre).abs()], dim=1)
    return (4 + X.shape[1]) * UNIT_ROUNDOFF * (sizes @ drift.T.abs())


@dataclass(frozen=True, eq=False)
class DriftBounds:
    r"""What is known about fitted drift coefficients, with S = HᵀA⁻¹H and H the exact drift functions.

    For any G ≈ A⁻¹H with errors ‖G_j − A⁻¹H_j‖_A ≤ ε_j and rounding e (`Rounding.of_gram`)

    .. math:: \hat S - b \operatorname{diag}(e) \preceq S \preceq \hat S + b \operatorname{diag}(e + \epsilon^2),
        \qquad \hat S = H^\top G + G^\top (H - A G),

    since |M_ij| ≤ ε_i ε_j makes M ⪯ b diag(ε²) for every b × b matrix M. Both hold for the functions H L⁻ᵀ, Ŝ = LLᵀ, as
    well, and there Ŝ is the identity, so that no function drowns in the rounding of another: L diag(1 − be) Lᵀ ⪯ S.
    Where that is not positive definite, S ⪰ HᵀH / (tr K + max D) is left. For any β and a, r = Y − Hβ − Aa and
    e = A⁻¹r, the coefficients are off by S⁻¹Hᵀ(a + e), where ‖Hᵀe‖_{S⁻¹} ≤ ‖e‖_A, and Hᵀe = Gᵀr up to ε_j ‖e‖_A.
    """

    right: Tensor  # (c,) ‖δ‖_{A⁻¹} of the rounding in Y − Hβ
    coefficients: Tensor  # (c,) ‖β − S⁻¹HᵀA⁻¹Y‖_S
    error: Tensor  # (b,) ε
    floor: Tensor  # (b,) the part of it that is rounding
    middle: Tensor  # (b, b) Cholesky factor of Ŝ, the estimate of S
    lower: Tensor  # (b, b) that of a matrix below S
    upper: Tensor  # (b, b) and of one above

    @classmethod
    def of(
        cls, H: Tensor, H_error: Tensor, weights: Certified, right: Tensor, solved: Certified, rounding: Rounding
    ) -> "DriftBounds":
        """Return the bounds for weights and G as ``solved``; H is known up to ``H_error``, Y − Hβ to ``right``."""
        b, right = H.shape[1], STANDARDISED * right
        if b == 0:
            none, square = H.new_zeros(0), H.new_zeros(0, 0)
            return cls(right, torch.zeros_like(right), none, none, square, square, square)
        G, of_H = solved.X, rounding.norm(H_error)
        error, floor = solved.error + of_H, solved.floor + of_H
        middle, lower, upper = _information(H, H_error, solved, error, rounding)
        e_norm, a = weights.error + right, weights.X
        rounded = (H_error + rounding.sums * H.abs()).T @ a.abs()  # (b, c)
        by_norm = _norms(lower, (H.T @ a).T) + _lengths(lower) @ rounded + e_norm
        own = (upper.norm(dim=1) + error)[:, None]  # ≥ ‖G_j‖_A
        rounded = rounded + rounding.sums * G.abs().T @ weights.R.abs() + own * (weights.floor + right)
        rounded = rounded + error[:, None] * e_norm
        by_solution = _norms(lower, (H.T @ a + G.T @ weights.R).T) + _lengths(lower) @ rounded
        return cls(right, torch.minimum(by_norm, by_solution), error, floor, middle, lower, upper)

    def leverage(self, R: Tensor, off: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return a lower bound, an estimate and an upper bound of ‖ρ‖_{S⁻¹} for rows ρ with |ρ − R| ≤ off.

        A row |δ| ≤ off has ‖δ‖_{S⁻¹} ≤ Σ_j off_j ‖e_j‖_{S⁻¹}.
        """
        least = (_norms(self.upper, R) - off @ _lengths(self.upper)).clamp_min(0)
        most = _norms(self.lower, R) + off @ _lengths(self.lower)
        return least, torch.minimum(torch.maximum(_norms(self.middle, R), least), most), most


def _information(
    H: Tensor, H_error: Tensor, solved: Certified, error: Tensor, rounding: Rounding
) -> tuple[Tensor, Tensor, Tensor]:
    """Return Cholesky factors of Ŝ, of a matrix below S and of one above, as `DriftBounds` says."""
    G, b, one = solved.X, H.shape[1], torch.eye(H.shape[1], dtype=H.dtype, device=H.device)
    L = _nearest_factor(H.T @ G + G.T @ solved.R)
    T = torch.linalg.solve_triangular(L.T, one, upper=True)  # functions H T: TᵀŜT = I
    e = b * rounding.of_gram(H @ T, H_error @ T.abs(), G @ T, solved.gamma)
    S = T.T @ (H.T @ G + G.T @ solved.R) @ T
    e = e + b * (0.5 * (S + S.T) - one).abs().amax()  # what rounding, or making it definite, has moved
    upper = L * (1 + e + b * (error @ T.abs()).square()).sqrt()
    if bool((e < 1).all()):
        return L, L * (1 - e).sqrt(), upper
    size, largest = H.norm(dim=0).max(), rounding.root.square().sum() + rounding.diagonal.max()
    wrong = 2 * b * size * (rounding.sums * size + H_error.norm(dim=0).max())
    lower = _factor((H.T @ H - wrong * one) / largest)
    return L, 1e-100 * one if lower is None else lower, upper  # 1e-100: nothing is known


def _nearest_factor(S: Tensor) -> Tensor:
    """Return the Cholesky factor of S, or where rounding made that indefinite of a definite matrix next to it."""
    S = 0.5 * (S + S.T)
    L = _factor(S)
    if L is not None:
        return L
    size = S.diagonal().clamp_min(1e-300).sqrt()
    values, V = torch.linalg.eigh(S / size / size[:, None])
    least = len(S) * UNIT_ROUNDOFF * float(values.abs().max())
    root = size[:, None] * V * values.clamp_min(least).sqrt()
    L = torch.linalg.qr(root.T).R.T  # root rootᵀ = LLᵀ
    return L * L.diagonal().sign()


def _factor(S: Tensor) -> Tensor | None:
    L, failed = torch.linalg.cholesky_ex(S)
    return None if bool(failed) or not bool(L.isfinite().all()) else L


def _norms(L: Tensor, R: Tensor) -> Tensor:
    """Return (ρᵀ(LLᵀ)⁻¹ρ)^½ for each row ρ of R."""
    return torch.linalg.solve_triangular(L, R.T, upper=False).norm(dim=0)


def _lengths(L: Tensor) -> Tensor:
    """Return ‖e_j‖_{S⁻¹}, S = LLᵀ, for every unit vector e_j."""
    return _norms(L, torch.eye(len(L), dtype=L.dtype, device=L.device))
