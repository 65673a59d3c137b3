"""Arithmetic on blocks of columns, each column on its own."""

import torch
from torch import Tensor


def dot(U: Tensor, V: Tensor) -> Tensor:
    """Return the inner product of each pair of columns."""
    return (U * V).sum(dim=0)


def ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
    """Return numerator / denominator, and zero where the denominator is zero."""
    return torch.where(denominator == 0, 0.0, numerator / denominator)


def column_norms(V: Tensor) -> Tensor:
    """Return the 2-norm of each column."""
    return torch.linalg.vector_norm(V, dim=0)


def power_of_two_near(B: Tensor) -> Tensor:
    """Return, for each column, the power of two below its largest entry: dividing by it costs no digit.

    The solve then neither under- nor overflows, whatever the units of B. Columns of zeros, or with entries that are not
    finite, get 1.
    """
    largest = B.abs().amax(0)
    usable = largest.isfinite() & (largest > 0)
    mantissa, _ = torch.frexp(torch.where(usable, largest, 1.0))  # from ½ to 1
    return torch.where(usable, largest / (2 * mantissa), 1.0)  # exact; ldexp of torch 2.4 has the range of float32
