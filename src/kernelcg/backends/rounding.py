"""How inputs and columns are rounded so that entries and products are right to the precision asked for."""

import torch
from torch import Tensor

from kernelcg.kernels import Kernel


def centre_of(X: Tensor) -> Tensor:
    """Return the median of every feature in float64, (d,): one row that is far away does not move it.

    One feature at a time, since a median takes a copy.
    """
    if len(X) == 0:
        return X.new_zeros(X.shape[1], dtype=torch.float64)
    return torch.stack([feature.median().double() for feature in X.detach().T])


def origin_of(kernel: Kernel, X: Tensor, centre: Tensor) -> Tensor:
    """Return (d,) what is subtracted from inputs before the formula of the kernel sees them.

    The centre where that changes nothing but rounding, for the better. A kernel that depends on the position sees it as
    it is. One that sees a phase is centred only in features where subtracting the centre rounds nothing.
    """
    if not kernel.is_stationary:
        return torch.zeros_like(centre)
    if kernel.rounds_well:
        return centre
    return torch.where(exactly_centred(X, centre).all(0), centre, 0.0)


def exactly_centred(X: Tensor, centre: Tensor) -> Tensor:
    """Say for every entry of X whether subtracting the centre is exact: within a factor 2 of it, or it is 0.

    References
    ----------
    Sterbenz (1974), Floating-Point Computation.
    """
    ratios = X.detach().double() / centre
    return ((ratios >= 0.5) & (ratios <= 2)) | (centre == 0)


def rounded_columns(V: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return V / s in ``dtype`` with the largest entry of each column 1, and s, so that nothing under- or overflows."""
    V = V.detach().double()
    largest = V.abs().amax(0) if len(V) else V.new_ones(V.shape[1])
    scale = torch.where((largest > 0) & largest.isfinite(), largest, 1.0)
    return (V / scale).to(dtype), scale


def rounded_pairs(left: Tensor, right: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Return left and right in ``dtype`` and the factor that Σ_j left_j ⊗ right_j was divided by."""
    left, left_scale = rounded_columns(left, dtype)
    right, right_scale = rounded_columns(right, dtype)
    weights = left_scale * right_scale
    overall = weights.max() if len(weights) else weights.new_ones(())
    return left * (weights / overall).to(dtype), right, overall
