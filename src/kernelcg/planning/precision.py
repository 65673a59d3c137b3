"""Which precision the products may have."""

import torch

from kernelcg.operators import KernelPlusDiagonal

ROUNDING = 6e-8
"""Relative rounding error of a float32 entry."""

GROWTH = 0.13
"""Largest measured ‖K₃₂ − K₆₄‖₂ / (n · rounding · σ²): errors of one row are alike, so they add up linearly."""

HARMLESS = 0.1
"""Perturbation, relative to the smallest noise, that costs next to no iterations."""


def product_dtype(A: KernelPlusDiagonal) -> torch.dtype:
    """Return float32 if its rounding stays well below the noise, float64 otherwise.

    The solver recomputes residuals in float64 either way; this is about the number of iterations, not the answer.

    Parameters
    ----------
    A : K + diagonal

    Examples
    --------
    >>> import torch
    >>> from kernelcg import backends
    >>> from kernelcg.kernels import RBF
    >>> from kernelcg.operators import KernelPlusDiagonal
    >>> from kernelcg.planning import product_dtype
    >>> A = KernelPlusDiagonal(backends.bind(RBF(0.5), torch.linspace(0, 1, 40).double()[:, None]), 0.1)
    >>> product_dtype(A)
    torch.float32
    """
    entries = A.kernel_diagonal() * (1.0 if A.scale is None else A.scale.square())
    perturbation = GROWTH * len(A) * ROUNDING * float(entries.max())
    return torch.float32 if perturbation <= HARMLESS * A.spectrum_floor() else torch.float64
