"""Prices of kernels on this machine: which parts a backend fuses, and how long formulas of a user's own take."""

import math

import torch
from torch import Tensor

from kernelcg.backends import Backend
from kernelcg.kernels import Kernel, MinMax, Sum, Tanimoto
from kernelcg.operators import KernelPlusDiagonal
from kernelcg.planning.costs import Costs, KernelPrice, Pricing
from kernelcg.planning.profile import best_of, current

TIMED_ROWS = 256
"""Rows of the block on which a formula is timed."""


def pricing_of(kernel: Kernel, X: Tensor, backend: Backend) -> Pricing:
    """Return what work with this kernel costs by the profile of this machine."""
    return Pricing(current(backend, X.device), priced(kernel, X, backend))


def costs_of(pricing: Pricing, A: KernelPlusDiagonal, k: int) -> Costs:
    """Return the costs of solving with A for k columns."""
    return pricing.costs(len(A), A.X.shape[1], k, A.precision, stored=A.K.is_stored)


def priced(kernel: Kernel, X: Tensor, backend: Backend) -> KernelPrice:
    """Return what an entry of K costs: parts that the backend fuses, and the time of all others on a few rows.

    The time is rounded to a power of two, so that the same kernel is in the same class next time.
    """
    if type(kernel) is Sum:
        parts = [priced(part, X, backend) for part in (kernel.left, kernel.right)]
        return KernelPrice(sum(part.fused for part in parts), sum(part.seconds for part in parts))
    rows = X[:TIMED_ROWS].double()
    if not backend.here.computes(kernel, X):
        with torch.no_grad():
            seconds = best_of(3, lambda: kernel(rows, rows)) / len(rows) ** 2
    elif not isinstance(kernel, MinMax | Tanimoto):
        return KernelPrice()
    else:  # code of the backend's own that is not what its profile measures
        seconds = best_of(3, backend.here.bind(kernel, rows).block) / len(rows) ** 2
    return KernelPrice(0, 2.0 ** round(math.log2(seconds)))
