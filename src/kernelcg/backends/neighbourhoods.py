"""Many small systems at once: the kernel matrices of neighbourhoods and the last rows of their inverse factors."""

import torch
from torch import Tensor

from kernelcg.kernels import Kernel, Product, Stationary, Sum
from kernelcg.kernels.distances import LARGEST
from kernelcg.kernels.stationary import per_feature


def local_systems(
    kernel: Kernel, X: Tensor, J: Tensor, F: Tensor | None, scale: Tensor | None, diagonal: Tensor
) -> tuple[Tensor, Tensor]:
    """Return R_JJ of R = S (K − F Fᵀ) S + D and D_JJ for every row J of ``J``, (c, s) row numbers of X.

    A row number −1 stands for a point of its own: unit variance, nothing in common with any other.
    """
    present, J = J >= 0, J.clamp_min(0)
    R = kernel_blocks(kernel, X[J])  # (c, s, s)
    if F is not None:
        F_J = F[J]
        R = torch.baddbmm(R, F_J, F_J.mT, alpha=-1)
    S = present.double() if scale is None else torch.where(present, scale[J], 0.0)
    R = S[:, :, None] * R * S[:, None, :]
    D = torch.where(present, diagonal[J], 1.0)
    variances = R.diagonal(dim1=1, dim2=2)
    variances.copy_(variances.clamp_min(0) + D)
    return R, D


def kernel_blocks(kernel: Kernel, points: Tensor) -> Tensor:
    """Return K(P, P) for each of the sets P of a (c, s, d) batch, as a (c, s, s) tensor.

    Hyperparameters must be beside the points. Kernels without a batched formula go through `torch.func.vmap`, or one by
    one where that cannot follow theirs.
    """
    if type(kernel) is Sum:
        return kernel_blocks(kernel.left, points) + kernel_blocks(kernel.right, points)
    if type(kernel) is Product:
        return kernel_blocks(kernel.left, points) * kernel_blocks(kernel.right, points)
    if isinstance(kernel, Stationary) and type(kernel).covariance is Stationary.covariance:
        per_feature(kernel.lengthscale, points.shape[2], "lengthscale")
        scaled = points / kernel.lengthscale
        squares = _batched_squares(scaled).clamp_(max=LARGEST[scaled.dtype])
        return (kernel.variance * kernel.profile(squares.flatten(0, 1))).view_as(squares)
    try:
        return torch.func.vmap(kernel.covariance)(points, points)
    except Exception:  # whatever vmap could not do: the formula itself works, or says what is wrong with it
        return torch.stack([kernel.covariance(P, P) for P in points])


def _batched_squares(points: Tensor) -> Tensor:
    """Return (c, s, s) squared distances within each set of a (c, s, d) batch, by differences."""
    if points.device.type == "cpu":
        return torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist").square()
    return summed_squares(points)  # there cdist takes one thread for a distance


def summed_squares(points: Tensor) -> Tensor:
    """Return the same feature by feature: two passes over the result for each."""
    total = points.new_zeros(*points.shape[:2], points.shape[1])
    difference = torch.empty_like(total)
    for x in points.unbind(2):
        torch.sub(x[:, :, None], x[:, None, :], out=difference)
        total.addcmul_(difference, difference)
    return total


def local_rows(R: Tensor, D: Tensor) -> Tensor:
    """Return g = R⁻¹ e / √(eᵀ R⁻¹ e), e the last unit vector, for each of c matrices R ⪰ D, as a (c, s) tensor.

    With R = L Lᵀ it solves Lᵀ g = e. From R ⪰ D follow L_kk² ≥ D_k, L_jk² ≤ R_jj and g_k² ≤ 1 / D_k; a matrix for
    which rounding breaks the first or the last, or the factorisation, is done again with all three imposed.
    """
    L, failed = torch.linalg.cholesky_ex(R)
    e = R.new_zeros(R.shape[1], 1)
    e[-1] = 1.0
    g = torch.linalg.solve_triangular(L.mT, e.expand(len(R), -1, -1), upper=True)[:, :, 0]
    pivots_hold = (L.diagonal(dim1=1, dim2=2).square() >= D).all(1)
    unsound = ~((failed == 0) & pivots_hold & (g.square() * D <= 1).all(1))  # NaN is unsound
    if bool(unsound.any()):
        g[unsound] = _bounded_solve(_floored_cholesky(R[unsound], D[unsound]), D[unsound])
    return g


def _floored_cholesky(R: Tensor, D: Tensor) -> Tensor:
    """Return L with R ≈ L Lᵀ column by column, L_kk² ≥ D_k and L_jk² ≤ R_jj."""
    L, bound = torch.zeros_like(R), R.diagonal(dim1=1, dim2=2).sqrt()
    for k in range(R.shape[1]):
        column = R[:, k:, k] - (L[:, k:, :k] @ L[:, k, :k, None])[:, :, 0]
        pivot = torch.maximum(column[:, 0], D[:, k]).sqrt()
        L[:, k:, k] = (column / pivot[:, None]).clamp(-bound[:, k:], bound[:, k:])
        L[:, k, k] = pivot
    return L


def _bounded_solve(L: Tensor, D: Tensor) -> Tensor:
    """Return g with Lᵀ g = e, the last unit vector, from the last entry upwards, g_k² ≤ 1 / D_k."""
    g, bound = torch.zeros_like(D), D.rsqrt()
    right = torch.zeros_like(D)
    right[:, -1] = 1.0
    for k in reversed(range(L.shape[1])):
        g[:, k] = (right[:, k] / L[:, k, k]).clamp(-bound[:, k], bound[:, k])
        right[:, :k] -= g[:, k, None] * L[:, k, :k]
    return g
