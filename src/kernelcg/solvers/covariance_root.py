"""Roots of covariances, by which joint draws are made."""

import torch
from torch import Tensor


def covariance_root(C: Tensor) -> Tensor:
    """Return L with LLᵀ = C, (t, t), for a C that is positive semi-definite but for rounding.

    With the standard deviations S, C = S R S and L is S times the Cholesky factor of the correlations R, or where
    rounding made R indefinite S times its root without the negative eigenvalues, whose rows are given their length 1
    again. So every variance is right, and one that is 1e20 times as large as the others leaves them alone.

    Raises
    ------
    ValueError : if C is not finite
    """
    if not bool(C.isfinite().all()):
        raise ValueError("the covariance at these points is not finite in float64; leave out those that are far away")
    size = C.diagonal().clamp_min(0).sqrt()
    unit = torch.where(size > 0, size, 1.0)
    R = C / unit / unit[:, None]
    L, failed = torch.linalg.cholesky_ex(R)
    if bool(failed):
        values, vectors = torch.linalg.eigh(R)
        L = vectors * values.clamp_min(0).sqrt()
        L = L / L.norm(dim=1, keepdim=True).clamp_min(torch.finfo(L.dtype).tiny)
    return size[:, None] * L
